"""A caller on the daemon's socket and a real server behind it: every shape of answer, and what can go wrong there.

Each test runs once for every connector kind that the server can be asked through.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from kit.daemon_process import invocation, running_daemon, wait_until
from kit.road import receipt, said
from upstream.counters import counted
from upstream.kinds import FEWEST_TOKENS, KINDS, config, each_kind
from upstream.llama import Llama
from upstream.plugin import needed_llama
from upstream.receipts import asked, charge_of, counts, failed, payloads, recorded, text_of
from upstream.tiny_model import SLOW

pytestmark = pytest.mark.upstream

PLACE = {
    "type": "object",
    "properties": {"at": {"type": "string", "maxLength": 40}, "how": {"enum": ["near", "far"]}},
    "required": ["at", "how"],
    "additionalProperties": False,
}
LOOK = {"name": "look", "description": "Look at something.", "parameters_json": json.dumps(PLACE)}
DOOR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "open": {"type": "boolean"},
        "side": {"enum": ["left", "right"]},
        "lock": {"type": "object", "properties": {"old": {"type": "boolean"}}, "required": ["old"],
                 "additionalProperties": False},
    },
    "required": ["open", "side", "lock"],
    "additionalProperties": False,
}  # fmt: skip
KEYS = {"type": "array", "items": {"enum": ["iron", "brass"]}, "maxItems": 2}  # a bound that not every API takes
DOOR_WITH_KEYS = {**DOOR, "properties": {**DOOR["properties"], "keys": KEYS}, "required": [*DOOR["required"], "keys"]}


def prompt_tokens_of(llama: Llama, body: dict[str, Any]) -> int:
    """What the server counts for these messages when it is asked without the daemon."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {llama.api_key}"}
    url = f"{llama.base_url}/v1/chat/completions"
    posted = urllib.request.Request(url, json.dumps({**body, "max_tokens": 1}).encode(), headers)
    with urllib.request.urlopen(posted, timeout=60) as answer:
        return int(json.load(answer)["usage"]["prompt_tokens"])


# --- shapes of answers ------------------------------------------------------------------------------------------


@each_kind
def test_text_and_a_repeated_prompt_cost_what_the_server_counted_and_cached_tokens_the_price_of_a_read(
    tmp_path: Path, kind: str, llama_server: Llama
) -> None:
    with running_daemon(tmp_path, **config(llama_server, kind)) as daemon, daemon.connect() as client:
        words = f"Tell me of the road to the {tmp_path.name}."
        asked(client, llama_server, invocation("r1", words, max_output_tokens=20))
        again = asked(client, llama_server, invocation("r2", words, max_output_tokens=20))
        plain, read, made = counts(again)
        assert read > 0
        assert receipt(again)["cost_micro_usd"] not in (charge_of(plain + read, 0, made), charge_of(plain, 0, made))
        settled = recorded(daemon)
    assert [record.notes for _, record in settled] == [(), ()]
    assert all(record.charge_micro_usd <= begin.reservation_micro_usd for begin, record in settled)


@each_kind
def test_a_forced_tool_call_fits_its_schema_and_its_result_goes_back(
    tmp_path: Path, kind: str, llama_server_with_tools: Llama
) -> None:
    llama = llama_server_with_tools
    turns: list[dict[str, Any]] = [{"UserText": {"text": "what is there?"}}]
    asks = {"tools": [LOOK], "tool_choice": "required", "max_output_tokens": 400}
    with (
        running_daemon(tmp_path, **config(llama, kind)) as daemon,
        daemon.connect() as client,
    ):
        answer = asked(client, llama, invocation("r1", input=turns, **asks))
        assert said(answer) == "tool_use", answer
        (call,) = payloads(answer, "ToolCall")
        assert call["name"] == "look"
        jsonschema.validate(json.loads(call["arguments"]), PLACE)
        if text_of(answer):
            turns.append({"AssistantText": {"text": text_of(answer)}})
        result = {"ToolResult": {"call_id": call["call_id"], "output": "an iron door, shut"}}
        after = asked(client, llama, invocation("r2", input=[*turns, {"ToolCall": call}, result], **asks))
        assert said(after) == "tool_use", after
        (next_call,) = payloads(after, "ToolCall")
        assert next_call["call_id"] != call["call_id"]
        settled = recorded(daemon)
    plain, read, _ = counts(after)
    function = {"name": "look", "description": "Look at something.", "parameters": PLACE}
    posted_call = {"id": call["call_id"], "type": "function",
                   "function": {"name": "look", "arguments": call["arguments"]}}  # fmt: skip
    by_hand = [
        {"role": "user", "content": "what is there?"},
        {"role": "assistant", "content": text_of(answer) or None, "tool_calls": [posted_call]},
        {"role": "tool", "tool_call_id": call["call_id"], "content": "an iron door, shut"},
    ]
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    assert plain + read == prompt_tokens_of(llama, {"messages": by_hand, **tools, "parallel_tool_calls": False})
    assert all(plain + read <= begin.input_bound_tokens for begin, _ in settled)


@each_kind
def test_an_answer_to_an_output_schema_is_valid_by_it_where_the_server_keeps_schemas(
    tmp_path: Path, kind: str, llama_server: Llama
) -> None:
    schema = DOOR_WITH_KEYS if KINDS[kind].keeps_schemas else DOOR
    with running_daemon(tmp_path, **config(llama_server, kind)) as daemon, daemon.connect() as client:
        for number in range(3):
            frame = invocation(f"r{number}", "the door?", output_schema_json=json.dumps(schema), max_output_tokens=400)
            answer = asked(client, llama_server, frame)
            assert said(answer) == "end_turn", answer
            if KINDS[kind].keeps_schemas:
                jsonschema.validate(json.loads(text_of(answer)), schema)
            assert client.ask(frame) == answer
        assert len(recorded(daemon)) == 3


@each_kind
def test_an_answer_that_uses_up_its_tokens_is_cut_and_paid_to_the_token(tmp_path: Path, kind: str) -> None:
    with (
        needed_llama(model=SLOW) as llama,
        running_daemon(tmp_path, **config(llama, kind)) as daemon,
        daemon.connect() as client,
    ):
        answer = asked(client, llama, invocation("r1", max_output_tokens=FEWEST_TOKENS))
        assert (said(answer), counts(answer)[2]) == (KINDS[kind].cut, FEWEST_TOKENS)
        assert len(recorded(daemon)) == 1


@each_kind
def test_a_call_that_is_cut_within_its_arguments_is_paid_and_not_handed_out(
    tmp_path: Path, kind: str, llama_server_with_tools: Llama
) -> None:
    llama = llama_server_with_tools
    with running_daemon(tmp_path, **config(llama, kind)) as daemon, daemon.connect() as client:
        asks = {"tools": [LOOK], "tool_choice": "required", "max_output_tokens": 44}
        answer = asked(client, llama, invocation("r1", "what is there?", **asks))
        assert counts(answer)[2] == 44
        assert said(answer) == KINDS[kind].cut_in_a_call
        assert not payloads(answer, "ToolCall")
        assert len(recorded(daemon)) == 1


# --- what can go wrong ------------------------------------------------------------------------------------------


def test_a_model_that_is_not_in_the_callers_list_is_refused_and_the_server_hears_nothing(
    tmp_path: Path, llama_server: Llama
) -> None:
    before = counted(llama_server)
    with running_daemon(tmp_path, **config(llama_server, "openai_chat")) as daemon, daemon.connect() as client:
        assert said(client.ask(invocation("r1", model="unheard-of"))) == "ModelNotAllowed"
        assert recorded(daemon) == []
    assert counted(llama_server) == before


@each_kind
def test_an_upstream_model_that_the_server_does_not_have_is_answered_by_its_own_and_the_record_says_so(
    tmp_path: Path, kind: str, llama_server: Llama
) -> None:
    with (
        running_daemon(tmp_path, **config(llama_server, kind, upstream="unheard-of")) as daemon,
        daemon.connect() as client,
    ):
        asked(client, llama_server, invocation("r1"))
        ((_, record),) = recorded(daemon)
    assert record.notes == ("other_model",)


@each_kind
def test_a_path_that_the_server_does_not_have_is_an_invalid_request_and_free(
    tmp_path: Path, kind: str, llama_server: Llama
) -> None:
    with running_daemon(tmp_path, **config(llama_server, kind, path="/v9")) as daemon, daemon.connect() as client:
        kind, message, usage, charge = failed(client.ask(invocation("r1")))
        assert (kind, set((usage or {}).values()), charge) == ("invalid_request", {0}, 0)
        assert "Not Found" in message
        assert len(recorded(daemon)) == 1


@each_kind
def test_a_wrong_key_is_an_authentication_failure_that_is_free_and_stands_nowhere(
    tmp_path: Path, kind: str, llama_server_with_tools: Llama
) -> None:
    wrong = "sk-wrong-canary-Zq8xW3vN"
    before = counted(llama_server_with_tools)
    with (
        running_daemon(tmp_path, **config(llama_server_with_tools, kind, key=wrong)) as daemon,
        daemon.connect() as client,
    ):
        answer = client.ask(invocation("r1"))
        kind, message, usage, charge = failed(answer)
        assert (kind, set((usage or {}).values()), charge) == ("authentication", {0}, 0)
        assert message == "Invalid API Key"
        assert client.ask(invocation("r2")) != answer, "and the daemon goes on"
        assert len(recorded(daemon)) == 2
    for path in (tmp_path / "log", *(tmp_path / "ledger").iterdir()):
        assert b"canary" not in path.read_bytes(), path
    assert counted(llama_server_with_tools) == before


@each_kind
def test_g7_a_request_above_the_servers_context_is_an_invalid_request_that_says_so_and_is_free(
    tmp_path: Path, kind: str, llama_server: Llama
) -> None:
    with running_daemon(tmp_path, **config(llama_server, kind)) as daemon, daemon.connect() as client:
        kind, message, usage, charge = failed(client.ask(invocation("r1", "xyz " * 10_000)))
        assert (kind, set((usage or {}).values()), charge) == ("invalid_request", {0}, 0)
        assert "context" in message
        asked(client, llama_server, invocation("r2"))
        ((begin, record), _) = recorded(daemon)
    assert begin.reservation_micro_usd > record.charge_micro_usd == 0


def wait_mid_answer(llama: Llama) -> None:
    """Until the server has begun to answer: some steps beyond those that read the prompt."""
    wait_until(lambda: counted(llama).steps >= 12)
    assert counted(llama).running == 1


def kill(llama: Llama) -> None:
    os.kill(llama.pid, signal.SIGKILL)
    os.waitid(os.P_PID, llama.pid, os.WEXITED | os.WNOWAIT)  # it is gone, and whoever started it can still collect it


def stop_answering(llama: Llama) -> None:
    os.kill(llama.pid, signal.SIGSTOP)


@each_kind
@pytest.mark.parametrize(("strike", "failure"), [(kill, "unavailable"), (stop_answering, "timeout")])
def test_a_server_that_dies_or_stops_in_mid_answer_costs_the_reservation_and_frees_the_slot(
    tmp_path: Path, kind: str, strike: Callable[[Llama], None], failure: str
) -> None:
    with (
        needed_llama(model=SLOW) as llama,
        running_daemon(tmp_path, **config(llama, kind, concurrent=1)) as daemon,
        daemon.connect() as client,
    ):
        frame = invocation("r1", max_output_tokens=3000, seconds=3)
        client.send(frame)
        wait_mid_answer(llama)
        strike(llama)
        answer = client.receive() or b""
        assert (failed(answer)[0], failed(answer)[2]) == (failure, None)
        assert text_of(answer), "what had come is kept"
        kill(llama)
        next_failure, _, usage, charge = failed(client.ask(invocation("r2", seconds=20)))
        assert (next_failure, set((usage or {}).values()), charge) == ("unavailable", {0}, 0), "nothing was sent"
        with daemon.connect() as another:
            assert another.ask(frame) == answer
        ((begin, record), _) = recorded(daemon)
    assert record.charge_micro_usd == begin.reservation_micro_usd == receipt(answer)["cost_micro_usd"] > 0


@each_kind
def test_a_deadline_in_mid_answer_costs_the_reservation_stops_the_server_and_the_next_request_is_served(
    tmp_path: Path, kind: str
) -> None:
    with (
        needed_llama(model=SLOW) as llama,
        running_daemon(tmp_path, **config(llama, kind, concurrent=1)) as daemon,
        daemon.connect() as client,
    ):
        answer = client.ask(invocation("r1", max_output_tokens=3000, seconds=2))
        assert (failed(answer)[0], failed(answer)[2]) == ("timeout", None)
        assert text_of(answer), "what had come is kept"
        wait_until(lambda: counted(llama).running == 0)
        assert 0 < counted(llama).made < 3000, "it was stopped; it has not come to its end"
        asked(client, llama, invocation("r2", max_output_tokens=FEWEST_TOKENS))
        ((begin, record), _) = recorded(daemon)
    assert record.charge_micro_usd == begin.reservation_micro_usd == receipt(answer)["cost_micro_usd"] > 0
