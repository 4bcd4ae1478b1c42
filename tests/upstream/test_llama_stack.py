"""A caller on the daemon's socket, Llama Stack behind it, and llama.cpp's server behind that.

    python -m pytest -m campaign tests/upstream -k llama_stack

The first run installs 430 MB. On its native route the server estimates what it
has used, and without telemetry not even that; on its OpenAI route it passes
through what the model's server has counted.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kit.daemon_process import invocation, running_daemon, wait_until
from kit.road import receipt, said
from upstream.counters import counted
from upstream.kinds import only_if_built
from upstream.llama import Llama
from upstream.llama_stack import MODEL, LlamaStack, start_llama_stack
from upstream.plugin import needed, needed_llama
from upstream.receipts import asked, charge_of, counts, failed, payloads, recorded, text_of
from upstream.served import cache_directory
from upstream.tiny_model import SLOW

pytestmark = [pytest.mark.campaign, pytest.mark.upstream, pytest.mark.timeout(900), only_if_built("llama_stack")]

ROUTES = pytest.mark.parametrize("route", ["native", "openai"])
PLACE = {
    "type": "object",
    "properties": {"at": {"type": "string"}, "how": {"type": "string"}},
    "required": ["at", "how"],
    "additionalProperties": False,
}
LOOK = {"name": "look", "description": "Look at something.", "parameters_json": json.dumps(PLACE)}


@contextmanager
def needed_stack(llama: Llama, telemetry: bool = True) -> Iterator[LlamaStack]:
    with needed(), start_llama_stack(cache_directory(), llama, telemetry=telemetry) as stack:
        yield stack


@pytest.fixture(scope="module")
def stack(llama_server: Llama) -> Iterator[LlamaStack]:
    with needed_stack(llama_server) as stack:
        yield stack


@pytest.fixture(scope="module")
def stack_with_tools(llama_server_with_tools: Llama) -> Iterator[LlamaStack]:
    with needed_stack(llama_server_with_tools) as stack:
        yield stack


def config(stack: LlamaStack, route: str, *, usage: str | None = None, upstream: str = MODEL) -> dict[str, Any]:
    """What makes a daemon ask this server. `usage`: by default what suits the route."""
    path, usual = {"native": ("", "estimate"), "openai": ("/v1/openai/v1", "required")}[route]
    keys = {"kind": "llama_stack", "base_url": stack.base_url + path, "route": route, "usage": usage or usual}
    return {"connector": "\n".join(f'{key} = "{value}"' for key, value in keys.items()), "upstream": upstream}


def test_the_native_route_streams_text_and_its_estimate_is_charged(
    tmp_path: Path, stack: LlamaStack, llama_server: Llama
) -> None:
    before = counted(llama_server)
    with running_daemon(tmp_path, **config(stack, "native")) as daemon, daemon.connect() as client:
        answer = client.ask(invocation("r1", "Tell me of the road.", max_output_tokens=20))
        assert text_of(answer)
        assert said(answer) in ("end_turn", "max_output_tokens")
        assert 0 < counted(llama_server).since(before)[2] <= 20, "the bound has reached the model"
        plain, read, made = counts(answer)
        assert min(plain, made) > 0 == read
        assert receipt(answer)["cost_micro_usd"] == charge_of(plain, read, made)
        assert len(recorded(daemon)) == 1


def test_the_openai_route_streams_text_and_is_charged_what_the_models_server_has_counted(
    tmp_path: Path, stack: LlamaStack, llama_server: Llama
) -> None:
    with running_daemon(tmp_path, **config(stack, "openai")) as daemon, daemon.connect() as client:
        answers = [
            asked(client, llama_server, invocation(f"r{number}", "Tell me of the road.", max_output_tokens=20))
            for number in range(5)
        ]
        assert counts(answers[-1])[1] > 0, "the repeated prompt was read from the cache"
        assert any(text_of(answer) for answer in answers), "a model that ends at once five times over says nothing"
        assert {said(answer) for answer in answers} <= {"end_turn", "max_output_tokens"}
        assert len(recorded(daemon)) == 5


@ROUTES
def test_a_tool_call_is_lifted_and_its_result_goes_back(
    tmp_path: Path, route: str, stack_with_tools: LlamaStack
) -> None:
    turns: list[dict[str, Any]] = [{"UserText": {"text": "what is there?"}}]
    ids = set()
    with running_daemon(tmp_path, **config(stack_with_tools, route)) as daemon, daemon.connect() as client:
        for request_id in ("r1", "r2"):
            asks = {"input": turns, "tools": [LOOK], "tool_choice": "required", "max_output_tokens": 400}
            answer = client.ask(invocation(request_id, **asks))
            assert said(answer) == "tool_use", answer
            (call,) = payloads(answer, "ToolCall")
            assert (call["name"], set(json.loads(call["arguments"]))) == ("look", {"at", "how"})
            ids.add(call["call_id"])
            words = [{"AssistantText": {"text": text_of(answer)}}] if text_of(answer) else []
            result = {"ToolResult": {"call_id": call["call_id"], "output": "an iron door, shut"}}
            turns = [*turns, *words, {"ToolCall": call}, result]
        assert len(recorded(daemon)) == len(ids) == 2


@pytest.mark.parametrize("telemetry", [True, False])
def test_where_usage_is_required_the_native_routes_estimate_is_none_nor_its_zeros_and_the_reservation_is_paid(
    tmp_path: Path, telemetry: bool, llama_server: Llama
) -> None:
    with (
        needed_stack(llama_server, telemetry=telemetry) as stack,
        running_daemon(tmp_path, **config(stack, "native", usage="required")) as daemon,
        daemon.connect() as client,
    ):
        answer = client.ask(invocation("r1", max_output_tokens=20))
        kind, _, usage, charge = failed(answer)
        assert (kind, usage) == ("provider", None)
        assert text_of(answer), "what had come is kept"
        ((begin, record),) = recorded(daemon)
    assert charge == record.charge_micro_usd == begin.reservation_micro_usd > 0


@ROUTES
def test_a_model_that_the_stack_does_not_have_is_an_invalid_request(
    tmp_path: Path, route: str, stack: LlamaStack
) -> None:
    unheard = config(stack, route, upstream="unheard-of")
    with running_daemon(tmp_path, **unheard) as daemon, daemon.connect() as client:
        kind, message, _, _ = failed(client.ask(invocation("r1")))
        assert kind == "invalid_request"
        assert "unheard-of" in message
        assert len(recorded(daemon)) == 1


@ROUTES
def test_a_models_server_that_dies_in_mid_answer_costs_the_reservation_whatever_status_the_stack_gives_it(
    tmp_path: Path, route: str
) -> None:
    with (
        needed_llama(model=SLOW) as llama,
        needed_stack(llama) as stack,
        running_daemon(tmp_path, **config(stack, route)) as daemon,
        daemon.connect() as client,
    ):
        client.send(invocation("r1", max_output_tokens=3000))
        wait_until(lambda: counted(llama).steps >= 12)
        os.kill(llama.pid, signal.SIGKILL)
        answer = client.receive() or b""
        _, _, usage, charge = failed(answer)
        assert usage is None
        assert text_of(answer), "what had come is kept"
        ((begin, record),) = recorded(daemon)
    assert charge == record.charge_micro_usd == begin.reservation_micro_usd > 0


@ROUTES
def test_a_deadline_in_mid_answer_costs_the_reservation_and_the_next_request_is_served(
    tmp_path: Path, route: str
) -> None:
    with (
        needed_llama(model=SLOW) as llama,
        needed_stack(llama) as stack,
        running_daemon(tmp_path, **config(stack, route)) as daemon,
        daemon.connect() as client,
    ):
        answer = client.ask(invocation("r1", max_output_tokens=3000, seconds=3))
        assert (failed(answer)[0], failed(answer)[2]) == ("timeout", None)
        # That the model stops is not asked: the stack lets it go on to its end when its caller has gone.
        assert said(client.ask(invocation("r2", max_output_tokens=5))) == "max_output_tokens"
        ((begin, record), _) = recorded(daemon)
    assert record.charge_micro_usd == begin.reservation_micro_usd == receipt(answer)["cost_micro_usd"] > 0
