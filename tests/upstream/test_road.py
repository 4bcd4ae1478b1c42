"""The whole road with a real server at its end: a caller on the socket, the server's own counts, the right charge."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from kit.daemon_process import invocation, running_daemon
from kit.ledger_view import LedgerView
from kit.road import receipt
from upstream.kinds import FEWEST_TOKENS, config, each_kind
from upstream.llama import Llama
from upstream.receipts import charge_of, counts, text_of

pytestmark = pytest.mark.upstream

WORDS = "Tell me of the long road to the water."


def prompt_tokens_of(llama: Llama) -> int:
    """What the server counts for the same prompt when it is asked without the daemon."""
    body = {"messages": [{"role": "user", "content": WORDS}], "max_tokens": 1}
    posted = urllib.request.Request(
        f"{llama.base_url}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(posted, timeout=60) as answer:
        return int(json.load(answer)["usage"]["prompt_tokens"])


@each_kind
def test_the_servers_own_counts_are_the_receipts_usage_and_its_charge_follows(
    tmp_path: Path, kind: str, llama_server: Llama
) -> None:
    with running_daemon(tmp_path, **config(llama_server, kind)) as daemon, daemon.connect() as client:
        first = invocation("r1", WORDS, max_output_tokens=FEWEST_TOKENS)
        answers = [client.ask(first)]
        answers += [
            client.ask(invocation(f"r{number}", WORDS, max_output_tokens=FEWEST_TOKENS)) for number in range(2, 9)
        ]
        assert client.ask(first) == answers[0], "a replay of a model that rolls dice is still the same bytes"
        assert daemon.stop() == 0
    prompt = prompt_tokens_of(llama_server)
    for answer in answers:
        plain, read, made = counts(answer)
        assert plain + read == prompt
        assert 0 < made <= FEWEST_TOKENS
        assert receipt(answer)["cost_micro_usd"] == charge_of(plain, read, made)
    assert any(text_of(answer) for answer in answers), "a model that ends at once eight times over says nothing"
    assert counts(answers[1])[1] > 0, "the repeated prompt was read from the server's cache"
    view = LedgerView(tmp_path / "ledger")
    assert len(view.begins) == len(view.completes) == 8
    for begin, record in view.completes:
        plain, read, _ = counts(record.response[1:])
        assert plain + read <= begin.input_bound_tokens
        assert record.charge_micro_usd <= begin.reservation_micro_usd
