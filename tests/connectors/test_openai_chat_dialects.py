"""What each server that speaks Chat Completions is sent, and what is lifted of it that others don't have."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kit import build

from sidecar.connectors import states
from sidecar.connectors.messages import clean_message
from sidecar.connectors.openai_chat import api
from sidecar.connectors.openai_chat_dialects import DIALECTS, Dialect, dialect
from sidecar.connectors.openai_chat_lift import Lift
from sidecar.connectors.openai_chat_lower import lower
from sidecar.connectors.promise import Answer, Lowered, Rejected
from sidecar.contract import values as v

TOOL = v.ToolDefinition(name="look", description="", parameters_json='{"type":"object"}')
LOOSE = '{"type":"object","properties":{"a":{"type":"string"}}}'


def lowered(name: str, settings: dict[str, Any] | None = None, **changes: Any) -> Lowered:
    return lower(build.request(**changes), "tiny", DIALECTS[name], settings or {})


def body(name: str, settings: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(lowered(name, settings, **changes).body)
    return made


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_bounds_the_output_by_the_field_that_its_server_reads(name: str) -> None:
    made = body(name, max_output_tokens=77)
    field = "max_completion_tokens" if name in ("openai", "azure") else "max_tokens"
    assert made[field] == 77
    assert len({"max_tokens", "max_completion_tokens"} & made.keys()) == 1


@pytest.mark.parametrize("name", DIALECTS)
def test_d12_every_dialect_asks_for_usage(name: str) -> None:
    asked = body(name)["stream_options"]
    assert asked.pop("include_usage") is True
    assert asked == ({"include_obfuscation": False} if name == "openai" else {})


@pytest.mark.parametrize(
    ("name", "sent", "notes"),
    [
        ("compatible", {}, ("effort_dropped",)),
        ("llama_cpp", {}, ("effort_dropped",)),
        ("llama_stack", {}, ("effort_dropped",)),
        ("deepseek", {}, ("effort_dropped",)),
        ("openai", {"reasoning_effort": "high"}, ()),
        ("azure", {"reasoning_effort": "high"}, ()),
        ("vllm", {"reasoning_effort": "max"}, ()),
        ("ollama", {"reasoning_effort": "max"}, ()),
        ("openrouter", {"reasoning": {"effort": "xhigh"}}, ()),
    ],
)
def test_the_greatest_effort_is_the_greatest_that_the_server_knows_or_is_noted(
    name: str, sent: dict[str, Any], notes: tuple[str, ...]
) -> None:
    made = lowered(name, reasoning_effort="max")
    said = {key: said for key, said in json.loads(made.body).items() if key.startswith("reasoning")}
    assert (said, made.notes) == (sent, notes)
    assert lowered(name).notes == ()


def test_a_models_own_efforts_stand_in_place_of_the_dialects() -> None:
    assert body("openai", {"efforts": ("low", "max")}, reasoning_effort="max")["reasoning_effort"] == "max"
    with pytest.raises(Rejected, match="low, max, and not medium"):
        lowered("openai", {"efforts": ("low", "max")}, reasoning_effort="medium")
    assert lowered("openai", {"efforts": ()}, reasoning_effort="medium").notes == ("effort_dropped",)


@pytest.mark.parametrize(
    ("cache", "retention", "sent"),
    [
        ("free", None, {}),
        ("free", "short", {}),
        ("free", "long", {"prompt_cache_retention": "24h"}),
        ("charged", None, {"prompt_cache_options": {"mode": "explicit"}}),
        ("charged", "short", {"prompt_cache_options": {"ttl": "30m"}}),
    ],
)
def test_a_cache_whose_writes_cost_is_never_written_unasked(cache: str, retention: Any, sent: dict[str, Any]) -> None:
    made = body("openai", {"cache": cache}, cache_retention=retention)
    said = {key: said for key, said in made.items() if key.startswith("prompt_cache")}
    assert ("prompt_cache_key" in said) == (retention is not None)
    assert len(said.pop("prompt_cache_key", "")) <= 64
    assert said == sent


def test_a_retention_that_the_server_does_not_have_is_rejected_where_it_would_be_charged_and_else_noted() -> None:
    with pytest.raises(Rejected, match="30 minutes"):
        lowered("openai", {"cache": "charged"}, cache_retention="long")
    for name in ("compatible", "openrouter", "azure"):
        assert lowered(name, cache_retention="short").notes == ("retention_dropped",)
    assert lowered("openai", {"cache": "none"}, cache_retention="long").notes == ("retention_dropped",)


def test_one_call_at_a_time_is_noted_where_the_server_cannot_be_told() -> None:
    asked = {"tools": (TOOL,), "parallel_tool_calls": False}
    assert lowered("deepseek", **asked).notes == ("parallel_calls_allowed",)
    assert lowered("deepseek", parallel_tool_calls=False).notes == (), "without tools there are no calls"
    assert lowered("vllm", **asked).notes == ()
    assert body("vllm", **asked)["parallel_tool_calls"] is False


def test_a_schema_that_is_not_asked_for_strictly_is_noted() -> None:
    assert lowered("openai", output_schema_json=LOOSE).notes == ("schema_loosened",)
    assert lowered("deepseek", output_schema_json=LOOSE).notes == ("schema_loosened",)


def test_a_server_without_tool_choice_cannot_be_made_to_call_a_tool() -> None:
    with pytest.raises(Rejected, match="no tool_choice"):
        lowered("ollama", tools=(TOOL,), tool_choice="required")
    assert "tool_choice" not in body("ollama", tools=(TOOL,))


def test_a_switch_that_is_set_stands_in_place_of_the_dialects_and_one_that_is_not_changes_nothing() -> None:
    changed = dialect("openai", {"system_role": "developer", "send_stream_options": False, "auth": None})
    assert changed.system_role == "developer"
    assert not changed.send_stream_options
    assert changed.max_tokens_field == "max_completion_tokens"
    assert changed.auth == "bearer"
    made = json.loads(lower(build.request(instructions="Be short."), "tiny", changed).body)
    assert made["messages"][0] == {"role": "developer", "content": "Be short."}
    assert "stream_options" not in made


def test_a_turn_of_calls_alone_has_the_text_that_the_server_wants() -> None:
    items = (build.call("c1"), build.result("c1"))
    for content, wanted in (("null", None), ("empty", "")):
        made = json.loads(lower(build.request(*items), "tiny", Dialect(empty_content=content)).body)
        assert made["messages"][0]["content"] == wanted


@pytest.mark.parametrize(
    ("changes", "header", "url"),
    [
        ({}, {"authorization": "Bearer sk"}, "https://h/v1/chat/completions"),
        ({"auth": "api-key"}, {"api-key": "sk"}, "https://h/v1/chat/completions"),
        ({"api_version": "2024-10-21"}, {"authorization": "Bearer sk"}, "https://h/v1/chat/completions?api-version=2024-10-21"),
    ],
)  # fmt: skip
def test_azure_has_its_own_header_and_version(changes: dict[str, Any], header: dict[str, str], url: str) -> None:
    made = api(base_url="https://h", secret="sk", dialect=Dialect(**changes))
    assert made.headers == header
    assert made.endpoint("tiny") == url
    assert api(base_url="https://h", secret=None, dialect=Dialect(**changes)).headers == {}, "never an empty Bearer"


# --- what comes back --------------------------------------------------------------------------------------------


def lift(name: str, *chunks: Any, done: bool = True, **changes: Any) -> Answer:
    answer = Answer(frozenset(), 1_000_000)
    lifting = Lift(
        answer, clean_message, upstream="tiny", document_bytes_max=100_000, dialect=dialect(name, changes)
    )  # fmt: skip
    for chunk in chunks:
        lifting.feed(f"data: {json.dumps(chunk)}\n\n".encode())
    if done:
        lifting.feed(b"data: [DONE]\n\n")
    lifting.close()
    return answer


def delta(said: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": said, "finish_reason": finish}]}


USED = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
CALLED = {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "look", "arguments": "{}"}}]}


def states_of(answer: Answer) -> list[bytes]:
    return [event.reasoning_state.state for event in answer.events() if event.reasoning_state]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_a_server_that_wants_its_reasoning_back_gets_it_on_the_same_turn(field: str) -> None:
    answer = lift(
        "deepseek", delta({field: "I "}), delta({field: "look."}), delta(CALLED), delta({}, "tool_calls"), USED
    )
    (state,) = states_of(answer)
    assert json.loads(state)["text"] == "I look."
    assert not any(event.text_delta for event in answer.events())
    items = (build.text(), build.state(opaque=state), build.call("c1"), build.result("c1"))
    made = lowered("deepseek", input=items)
    assert made.states_dropped == 0
    assert json.loads(made.body)["messages"][1]["reasoning_content"] == "I look."


def test_openrouters_blocks_join_by_index_and_go_back_as_a_list() -> None:
    pieces = [
        [{"type": "reasoning.text", "text": "Let me ", "format": "f", "index": 0}],
        [{"type": "reasoning.text", "text": "see.", "format": "f", "index": 0}],
        [{"type": "reasoning.encrypted", "data": "xx", "index": 1}],
        [{"type": "reasoning.text", "signature": "sig", "format": "f", "index": 0}],
    ]  # fmt: skip
    answer = lift(
        "openrouter", *[delta({"reasoning_details": piece}) for piece in pieces], delta({"content": "4"}, "stop"), USED
    )  # fmt: skip
    (state,) = states_of(answer)
    whole = [
        {"type": "reasoning.text", "text": "Let me see.", "format": "f", "index": 0, "signature": "sig"},
        {"type": "reasoning.encrypted", "data": "xx", "index": 1},
    ]
    assert json.loads(state)["details"] == whole
    made = lowered("openrouter", input=(build.text(), build.state(opaque=state), build.said("4"), build.text("more")))
    assert json.loads(made.body)["messages"][1]["reasoning_details"] == whole


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_the_reasoning_of_a_turn_that_is_not_whole_is_no_state(finish: str) -> None:
    assert not states_of(lift("deepseek", delta({"reasoning_content": "I"}), delta({}, finish), USED))


@pytest.mark.parametrize("name", [name for name in DIALECTS if DIALECTS[name].reasoning_replay == "none"])
def test_a_server_that_wants_no_reasoning_back_gets_none_and_what_it_thinks_is_no_text(name: str) -> None:
    answer = lift(name, delta({"reasoning_content": "hm"}), delta({"content": "4"}, "stop"), USED)
    assert [event.text_delta.text for event in answer.events() if event.text_delta] == ["4"]
    assert not states_of(answer)
    state = states.encode("chat.reasoning_content", "tiny", {"text": "hm"})
    assert lowered(name, input=(build.text(), build.state(opaque=state))).states_dropped == 1


@pytest.mark.parametrize(
    "members",
    [{}, {"text": ""}, {"text": 1}, {"text": "a", "more": 1}, {"details": []}, {"details": ["a"]}],
)
def test_a_state_that_was_not_emitted_here_is_left_out_and_counted(members: dict[str, Any]) -> None:
    for name, kind in (("deepseek", "chat.reasoning_content"), ("openrouter", "chat.reasoning_details")):
        state = states.encode(kind, "tiny", members)
        assert lowered(name, input=(build.text(), build.state(opaque=state))).states_dropped == 1


def test_reasoning_above_its_bound_fails_the_answer() -> None:
    answer = lift("deepseek", *[delta({"reasoning_content": "x" * 30_000}) for _ in range(4)])
    assert answer.ended is not None
    assert answer.ended.kind == "result_size"


def test_done_without_a_finish_reason_is_an_end_only_where_the_dialect_says_so() -> None:
    said = delta({"content": "4"})
    cut = lift("compatible", said, USED).ended
    assert cut is not None
    assert cut.kind == "unavailable"
    whole = lift("compatible", said, USED, done_is_an_end=True).ended
    assert whole is not None
    assert whole.stop_reason == "end_turn"
    called = lift("compatible", delta(CALLED), USED, done_is_an_end=True).ended
    assert called is not None
    assert called.stop_reason == "tool_use"
    silent = lift("compatible", USED, done_is_an_end=True).ended
    assert silent is not None
    assert silent.kind == "unavailable", "nothing was said, so nothing was done"
    eof = lift("compatible", said, USED, done=False, done_is_an_end=True).ended
    assert eof is not None
    assert eof.kind == "unavailable", "an end of file is no [DONE]"


ENDLESS = {"type": "reasoning.text", "text": "a", "n": float("inf")}


def test_reasoning_that_cannot_be_said_again_is_no_state_and_breaks_nothing() -> None:
    chunk = {"choices": [{"delta": {"reasoning_details": [ENDLESS]}}]}
    answer = lift("openrouter", chunk, delta({"content": "4"}, "stop"), USED)
    assert answer.ended is not None
    assert (answer.ended.stop_reason, states_of(answer)) == ("end_turn", [])


@pytest.mark.parametrize(
    ("tier", "notes"), [(None, []), ("default", []), ("auto", []), ("priority", ["provider_fallback"])]
)
def test_a_dearer_service_than_was_asked_for_is_noted(tier: str | None, notes: list[str]) -> None:
    assert body("openai")["service_tier"] == "default"
    assert "service_tier" not in body("compatible")
    said = delta({"content": "4"}, "stop") | {"service_tier": tier}
    assert lift("openai", said, USED).notes == notes
    assert lift("compatible", said, USED).notes == []
