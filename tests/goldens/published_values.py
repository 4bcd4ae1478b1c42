"""Values of every published type, as plain JSON-like values (bytes where the wire has bin), each under a name.

The boundaries are those of MessagePack's headers: strings of 31 and 32 bytes,
of 255 and 256, of 65,535 and 65,536; maps of 15 and 16 members; arrays of 15
and 16 items; integers around each size, and around what a double can hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any, get_args

from kit import wire

from sidecar.contract import client_frames as f
from sidecar.contract import connector_frames as c
from sidecar.contract import operator_frames as o
from sidecar.contract import values as v

Named = Iterator[tuple[str, Any]]

NOW = 1_790_000_000_000
LENGTHS = (0, 1, 31, 32, 255, 256, 65_535, 65_536)
INTEGERS = (
    1, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1, 2**32,
    2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
TEXTS = {
    "emoji": "\U0001f409\U0001f9d9\u200d\u2642\ufe0f",
    "emoji of 31 bytes": "\U0001f642" * 7 + "abc",
    "emoji of 32 bytes": "\U0001f642" * 8,
    "emoji of 65536 bytes": "\U0001f642" * 16_384,
    "accent composed": "caf\u00e9",
    "accent decomposed, never normalised": "cafe\u0301",
    "ligature and full width, never normalised": "\ufb01\uff21",
    "right to left": "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "control characters": "\u0000\u0001\t\n\r\u001f\u007f",
    "line separators": "a\u2028b\u2029c\u0085d\u000be",
    "byte order mark": "\ufeffhello",
    "last code points": "\ud7ff\ue000\uffff\U0010ffff",
    "quotes and backslashes": '"\\"\\\\/\'',
}


def digest_of(value: Any) -> list[int]:
    return list(sha256(wire.write(wire.without_nil(value))).digest())


def user(text: str) -> dict[str, Any]:
    return {"UserText": {"text": text}}


def said(text: str) -> dict[str, Any]:
    return {"AssistantText": {"text": text}}


def call(call_id: str, name: str = "look", arguments: str = '{"at":"door"}') -> dict[str, Any]:
    return {"ToolCall": {"call_id": call_id, "name": name, "arguments": arguments}}


def result(call_id: str, output: str = "a staircase") -> dict[str, Any]:
    return {"ToolResult": {"call_id": call_id, "output": output}}


def state(opaque: bytes, provider: str = "claude", model: str = "npc-fast") -> dict[str, Any]:
    return {"ReasoningState": {"provider": provider, "model": model, "state": opaque}}


def tool(name: str = "look", parameters: str = '{"type":"object"}') -> dict[str, Any]:
    return {"name": name, "description": "Looks at something.", "parameters_json": parameters}


def request(**changes: Any) -> dict[str, Any]:
    return {
        "schema_id": v.PROVIDER_REQUEST,
        "request_id": "turn-1",
        "conversation_id": "tavern",
        "model": "npc-fast",
        "instructions": "",
        "input": [user("hello there")],
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "max_output_tokens": 512,
        **changes,
    }


def invocation(asked: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    asked = asked or request()
    return {
        "schema_id": v.TRANSPORT_INVOCATION,
        "caller_runtime_id": "dungeon",
        "expires_at_unix_ms": NOW + 60_000,
        "max_cost_micro_usd": 100_000,
        "native_request_sha256": digest_of(asked),
        "provider_request_sha256": digest_of(asked),
        "request": asked,
        **changes,
    }


CONVERSATION = [
    user("What is behind the door?"),
    state(b"\x00\x01\xfe\xff"),
    said("Let me look."),
    call("call_1"),
    call("call_2", "listen", ""),
    result("call_2", ""),
    result("call_1"),
    said("A staircase."),
    user("Go on."),
]


def full_request() -> dict[str, Any]:
    return request(
        instructions="You are the narrator of a dungeon.",
        input=CONVERSATION,
        tools=[tool(), tool("listen", '{"type":"object","properties":{}}')],
        tool_choice="required",
        parallel_tool_calls=True,
        cache_retention="long",
        output_schema_json='{"type":"object"}',
        reasoning_effort="high",
    )


def requests() -> Named:
    """ProviderRequests that are also well-formed by rule 3, so each can be carried by an invocation."""
    yield "the smallest", request()
    yield "every member", full_request()
    nil = {"cache_retention": None, "output_schema_json": None, "reasoning_effort": None}
    yield "optional members nil, which are left out", request(**nil)
    for retention in get_args(v.CacheRetention):
        yield f"cache_retention {retention}", request(cache_retention=retention)
    for effort in get_args(v.ReasoningEffort):
        yield f"reasoning_effort {effort}", request(reasoning_effort=effort)
    yield "tool_choice required", request(tool_choice="required", tools=[tool()])
    yield "parallel_tool_calls true", request(parallel_tool_calls=True)
    for length in LENGTHS:
        yield f"instructions of {length} bytes", request(instructions="x" * length)
    for name, text in TEXTS.items():
        yield f"text: {name}", request(input=[user(text)])
    for length in LENGTHS:
        yield f"state of {length} bytes", request(input=[user("go on"), state(b"\xff" * length)])
    for count in (1, 15, 16):
        yield f"input of {count} items", request(input=[user(f"line {n}") for n in range(count)])
        yield f"tools: {count} of them", request(tools=[tool(f"tool_{n}") for n in range(count)])
    for tokens in (number for number in INTEGERS if number < 2**32):
        yield f"max_output_tokens {tokens}", request(max_output_tokens=tokens)
    yield "ids of 256 bytes", request(conversation_id="c" * 256, model="m" * 256)
    yield "ids of every byte that they may hold", request(conversation_id="".join(map(chr, range(0x21, 0x7F))))
    yield "texts that may be empty", request(input=[user("?"), call("c", "look", ""), result("c", ""), state(b"")])


def invocations() -> Named:
    for name, asked in requests():
        yield name, invocation(asked)
    for number in INTEGERS:
        yield f"expires_at_unix_ms {number}", invocation(expires_at_unix_ms=number)
        yield f"max_cost_micro_usd {number}", invocation(max_cost_micro_usd=number)
    yield "native digest 0 to 31", invocation(native_request_sha256=list(range(32)))
    yield "native digest 112 to 143, across the short integers", invocation(native_request_sha256=[*range(112, 144)])
    yield "native digest all 255", invocation(native_request_sha256=[255] * 32)
    yield "native digest all zero but its last byte", invocation(native_request_sha256=[0] * 31 + [1])
    yield "a caller of 256 bytes", invocation(caller_runtime_id="~" * 256)


def reasoning_states() -> Named:
    for length in LENGTHS:
        yield f"state of {length} bytes", state(b"\x00" * length)
    yield "state of every byte", state(bytes(range(256)))
    yield "empty names, which only rule 3 refuses", state(b"", provider="", model="")


USAGE = {"input_tokens": 1009, "cache_read_tokens": 499, "cache_write_tokens": 251, "output_tokens": 127}
ZEROS = dict.fromkeys(USAGE, 0)


def completed(stop: str = "end_turn", **changes: Any) -> dict[str, Any]:
    return {"Completed": {"stop_reason": stop, "usage": USAGE, **changes}}


def failed(kind: str = "timeout", **changes: Any) -> dict[str, Any]:
    return {"Failed": {"kind": kind, "message": "the deadline passed", **changes}}


def receipt(outcome: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "schema_id": v.TRANSPORT_RECEIPT,
        "request_id": "turn-1",
        "caller_runtime_id": "dungeon",
        "native_request_sha256": digest_of(request()),
        "provider_request_sha256": digest_of(request()),
        "model": "npc-fast",
        "provider": "claude",
        "foreign_reasoning_dropped": 0,
        "cost_micro_usd": 2347,
        "outcome": outcome or completed(),
        **changes,
    }


def receipts() -> Named:
    for stop in get_args(v.StopReason):
        yield f"Completed {stop}", receipt(completed(stop))
    for kind in get_args(v.FailureKind):
        yield f"Failed {kind}, usage not known", receipt(failed(kind))
    yield "Failed with zeros: nothing was billed", receipt(failed("rate_limited", usage=ZEROS), cost_micro_usd=0)
    yield "Failed with usage", receipt(failed("provider", usage=USAGE))
    yield "Failed, usage nil", receipt(failed("provider", usage=None))
    yield "provider_response_id", receipt(completed(provider_response_id="msg_01"))
    yield "provider_response_id nil", receipt(completed(provider_response_id=None))
    yield "reasoning_tokens", receipt(completed(usage={**USAGE, "reasoning_tokens": 61}))
    yield "reasoning_tokens 0 is not nil", receipt(completed(usage={**USAGE, "reasoning_tokens": 0}))
    yield "reasoning_tokens nil", receipt(completed(usage={**USAGE, "reasoning_tokens": None}))
    for number in (0, *INTEGERS):
        yield f"cost_micro_usd {number}", receipt(cost_micro_usd=number)
    yield "foreign_reasoning_dropped at its greatest", receipt(foreign_reasoning_dropped=2**32 - 1)
    yield "usage at its greatest", receipt(completed(usage=dict.fromkeys(USAGE, 2**64 - 1)))


def transport_result(disposition: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_id": v.TRANSPORT_RESULT,
        "request_id": "turn-1",
        "caller_runtime_id": "dungeon",
        "disposition": disposition,
    }


def transported(*payloads: dict[str, Any], **changes: Any) -> dict[str, Any]:
    events = [{"sequence": number, "payload": payload} for number, payload in enumerate(payloads)]
    return transport_result({"Transported": {"events": events, "receipt": receipt(**changes)}})


def answer() -> dict[str, Any]:
    return transported(
        {"ReasoningState": {"state": b"\x00\xff"}},
        {"TextDelta": {"text": "A staircase leads down \U0001f409"}},
        call("call_1"),
        outcome=completed("tool_use"),
    )


def results() -> Named:
    for refusal in get_args(v.Refusal):
        yield f"Refused {refusal}", transport_result({"Refused": refusal})
    yield "Transported, each kind of event", answer()
    yield "Transported, no events", transported(outcome=failed("unavailable", usage=ZEROS))
    for stop in get_args(v.StopReason):
        yield f"Completed {stop}", transported({"TextDelta": {"text": "So be it."}}, outcome=completed(stop))
    for kind in get_args(v.FailureKind):
        yield f"Failed {kind}", transported(outcome=failed(kind))
    for count in (15, 16):
        yield f"Transported, {count} events", transported(*[{"TextDelta": {"text": f"{n}"}} for n in range(count)])
    for length in (0, 31, 32, 255, 256, 65_535, 65_536):
        yield f"a delta of {length} bytes", transported({"TextDelta": {"text": "y" * length}})
    yield "a state of 65536 bytes", transported({"ReasoningState": {"state": b"\x01" * 65_536}})


def errors() -> Named:
    for code in get_args(v.TransportErrorCode):
        yield f"{code}", {"schema_id": v.TRANSPORT_ERROR, "code": code, "message": "a sentence for a person"}
    ids = {"caller_runtime_id": "dungeon", "request_id": "turn-1"}
    told = {"schema_id": v.TRANSPORT_ERROR, "code": "ledger_unavailable", "message": ""}
    yield "with ids", {**told, **ids}
    yield "ids nil", {**told, **dict.fromkeys(ids)}


PRICE = {"input": 1_000_003, "cache_read": 100_003, "cache_write_short": 1_250_009, "cache_write_long": 2_000_003,
         "output": 5_000_011}  # fmt: skip


def begin(**changes: Any) -> dict[str, Any]:
    return {
        "caller_runtime_id": "dungeon",
        "request_id": "turn-1",
        "identity_sha256": digest_of(invocation()),
        "native_request_sha256": digest_of(request()),
        "provider_request_sha256": digest_of(request()),
        "model": "npc-fast",
        "upstream": "claude-haiku-4-5",
        "provider": "claude",
        "admitted_at_unix_ms": NOW,
        "expires_at_unix_ms": NOW + 60_000,
        "input_bound_tokens": 1500,
        "max_output_tokens": 512,
        "reservation_micro_usd": 5561,
        "foreign_reasoning_dropped": 0,
        "prices": [PRICE],
        **changes,
    }


def end(**changes: Any) -> dict[str, Any]:
    return {
        "begin_segment": 1,
        "begin_offset": 8192,
        "charge_micro_usd": 2347,
        "completed_at_unix_ms": NOW + 900,
        "outcome": "completed",
        "notes": [],
        "response": b"\x00" + wire.write(answer()),
        **changes,
    }


def records() -> Named:
    for name, body in _bodies():
        yield name, {"schema_id": v.REPLAY_RECORD, "record": body}


def _bodies() -> Named:
    for clean in (True, False):
        opened = {"incarnation": 1, "opened_at_unix_ms": NOW, "clean": clean}
        yield f"Opened, {'' if clean else 'not '}clean", {"Opened": opened}
    yield "Begin, a map of 15 members", {"Begin": begin()}
    for retention in get_args(v.CacheRetention):
        yield f"Begin, a map of 16 members, {retention}", {"Begin": begin(cache_retention=retention)}
    yield "Begin, cache_retention nil", {"Begin": begin(cache_retention=None)}
    tier = {**PRICE, "above_input_tokens": 200_000}
    yield "Begin, a price tier", {"Begin": begin(prices=[{**PRICE, "above_input_tokens": None}, tier])}
    yield (
        "Begin, prices of zero and the greatest",
        {"Begin": begin(prices=[dict.fromkeys(PRICE, 0), dict.fromkeys([*PRICE, "above_input_tokens"], 2**64 - 1)])},
    )
    unanswered = {"response": b"\x00" + wire.write(transported(outcome=failed())), "usage": None}
    yield "Completed", {"Completed": end(usage=USAGE, first_event_at_unix_ms=NOW + 120)}
    for kind in get_args(v.FailureKind):
        yield f"Completed, Failed {kind}", {"Completed": end(outcome=kind, **unanswered)}
    for note in get_args(v.Note):
        yield f"Completed, note {note}", {"Completed": end(notes=[note], response=b"\x00")}
    yield "Completed, every note", {"Completed": end(notes=list(get_args(v.Note)), response=b"\x00")}
    for length in (1, 255, 256, 65_535, 65_536):
        yield f"Completed, response of {length} bytes", {"Completed": end(response=b"\x00" * length)}
    yield "LowWater", {"LowWater": {"expires_at_unix_ms": NOW}}
    yield "Closed", {"Closed": {"closed_at_unix_ms": NOW}}


def connector_request(asked: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "schema_id": c.CONNECTOR_REQUEST,
        "exchange": 1,
        "deadline_ms": 60_000,
        "upstream": "parrot-1",
        "request": asked or request(),
        **changes,
    }


def connector_requests() -> Named:
    for name, asked in requests():
        if not name.startswith(("input of", "tools:", "max_output", "instructions of", "state of", "text:")):
            yield name, connector_request(asked)
    for number in (0, *INTEGERS):
        yield f"deadline_ms {number}", connector_request(deadline_ms=number)
        yield f"exchange {number}", connector_request(exchange=number)


def connector_event(payload: dict[str, Any], exchange: int = 1) -> dict[str, Any]:
    return {"schema_id": c.CONNECTOR_EVENT, "exchange": exchange, "payload": payload}


def connector_events() -> Named:
    yield "TextDelta", connector_event({"TextDelta": {"text": "A staircase leads down \U0001f409"}})
    yield "TextDelta, empty, which is nothing", connector_event({"TextDelta": {"text": ""}})
    yield "ToolCall", connector_event(call("call_1"))
    yield "ToolCall, arguments empty, which mean {}", connector_event(call("call_1", "look", ""))
    yield "ReasoningState", connector_event({"ReasoningState": {"state": b"\x00\xff"}})
    for number in (0, *INTEGERS):
        yield f"exchange {number}", connector_event({"TextDelta": {"text": "So be it."}}, number)
    for length in LENGTHS:
        yield f"a delta of {length} bytes", connector_event({"TextDelta": {"text": "y" * length}})


def connector_outcome(outcome: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {"schema_id": c.CONNECTOR_OUTCOME, "exchange": 1, "outcome": outcome or completed(), **changes}


def connector_outcomes() -> Named:
    for stop in get_args(v.StopReason):
        yield f"Completed {stop}", connector_outcome(completed(stop))
    for kind in get_args(v.FailureKind):
        yield f"Failed {kind}, usage not known", connector_outcome(failed(kind))
    yield "Completed, no usage", connector_outcome({"Completed": {"stop_reason": "end_turn"}})
    yield "Completed, usage nil", connector_outcome({"Completed": {"stop_reason": "end_turn", "usage": None}})
    yield "Failed with zeros: nothing was billed", connector_outcome(failed("unavailable", usage=ZEROS))
    yield "Failed with usage", connector_outcome(failed("provider", usage=USAGE))
    yield "Failed, usage nil", connector_outcome(failed("provider", usage=None))
    yield "provider_response_id", connector_outcome(completed(provider_response_id="msg_01"))
    yield "provider_response_id nil", connector_outcome(completed(provider_response_id=None))
    yield "reasoning_tokens", connector_outcome(completed(usage={**USAGE, "reasoning_tokens": 61}))
    yield "usage at its greatest", connector_outcome(completed(usage=dict.fromkeys(USAGE, 2**64 - 1)))
    yield "cost_micro_usd nil", connector_outcome(cost_micro_usd=None)
    for number in (0, *INTEGERS):
        yield f"cost_micro_usd {number}", connector_outcome(cost_micro_usd=number)


def resolve(**changes: Any) -> dict[str, Any]:
    return {
        "schema_id": o.OPERATOR_RESOLVE,
        "caller_runtime_id": "dungeon",
        "request_id": "turn-1",
        "charge": "nothing",
        "who": "ada",
        "why": "not on the provider's bill",
        **changes,
    }


def resolves() -> Named:
    """All of them within the rules for ids and words."""
    for charge in get_args(o.ResolutionCharge):
        yield f"charge {charge}", resolve(charge=charge)
    for length in (1, 31, 32, o.WHO_CHARACTERS_MAX):
        yield f"who of {length} bytes", resolve(who="w" * length)
    for length in (1, 255, 256, o.WHY_CHARACTERS_MAX):
        yield f"why of {length} bytes", resolve(why="y" * length)
    yield "why of the most characters, four bytes each", resolve(why="\U0001f642" * o.WHY_CHARACTERS_MAX)
    yield "words in any script", resolve(who="\u05e9\u05dc\u05d5\u05dd", why="caf\u00e9 \ufb01")
    yield "ids of 256 bytes", resolve(caller_runtime_id="~" * 256, request_id="!" * 256)


def resolved(found: str = "settled", **changes: Any) -> dict[str, Any]:
    return {
        "schema_id": o.OPERATOR_RESOLVED,
        "caller_runtime_id": "dungeon",
        "request_id": "turn-1",
        "found": found,
        "message": "a sentence for a person",
        **changes,
    }


def resolveds() -> Named:
    for found in get_args(o.Found):
        yield found, resolved(found)
    yield "charge_micro_usd nil", resolved("ended", charge_micro_usd=None)
    for number in (0, *INTEGERS):
        yield f"charge_micro_usd {number}", resolved(charge_micro_usd=number)


def checks() -> Named:
    yield "the only one", {"schema_id": o.OPERATOR_CHECK}


def checked(**changes: Any) -> dict[str, Any]:
    return {
        "schema_id": o.OPERATOR_CHECKED,
        "batch": 6,
        "head_sha256": digest_of(request()),
        "windows": 1,
        "settled_micro_usd": 4177,
        "open_micro_usd": 4104,
        "mismatches": [],
        **changes,
    }


def metrics() -> Named:
    yield "the only one", {"schema_id": o.OPERATOR_METRICS}


def metereds() -> Named:
    def metered(exposition: str) -> dict[str, Any]:
        return {"schema_id": o.OPERATOR_METERED, "exposition": exposition}

    yield (
        "one family",
        metered(
            "# HELP sidecar_spend_usd_total What requests that ended were charged.\n"
            "# TYPE sidecar_spend_usd_total counter\n"
            'sidecar_spend_usd_total{caller="dungeon",connector="echo",model="npc"} 0.004177\n'
        ),
    )
    yield "nothing", metered("")
    yield "a label with a quote, a backslash and an emoji", metered('sidecar_x{caller="\\"\\\\\U0001f409"} 1\n')


def checkeds() -> Named:
    yield "equal", checked()
    yield "of nothing", checked(windows=0, settled_micro_usd=0, open_micro_usd=0, batch=1)
    for count in (1, 15, 16):
        yield f"mismatches: {count} of them", checked(mismatches=[f"window {n} differs" for n in range(count)])
    for member in ("batch", "windows", "settled_micro_usd", "open_micro_usd"):
        yield f"{member} at its greatest", checked(**{member: 2**64 - 1})


def reloads() -> Named:
    yield "the only one", {"schema_id": o.OPERATOR_RELOAD}


def reloaded(**changes: Any) -> dict[str, Any]:
    return {
        "schema_id": o.OPERATOR_RELOADED,
        "reloaded": True,
        "changes": ['caller "dungeon".spend_ceiling_micro_usd: 5000000 -> 8000000'],
        "complaints": [],
        "warnings": [],
        **changes,
    }


def reloadeds() -> Named:
    yield "in force", reloaded()
    yield "nothing has changed", reloaded(changes=[])
    yield "in force, with a warning", reloaded(warnings=['model "npc": no caller may use it'])
    yield "refused", reloaded(reloaded=False, changes=[], complaints=["the file: can't be read"])
    for count in (15, 16):
        yield f"complaints: {count} of them", reloaded(reloaded=False, changes=[], complaints=["no"] * count)


def hello(**changes: Any) -> dict[str, Any]:
    return {
        "schema_id": f.TRANSPORT_HELLO,
        "protocol": 1,
        "client": "dungeon/0.3",
        "stream_events": True,
        "join": True,
        **changes,
    }


def hellos() -> Named:
    for stream_events in (True, False):
        for join in (True, False):
            wants = {"stream_events": stream_events, "join": join}
            yield f"stream_events {stream_events}, join {join}".lower(), hello(**wants)
    for number in (0, *(number for number in INTEGERS if 1 < number < 2**32)):
        yield f"protocol {number}, which is none", hello(protocol=number)
    for length in LENGTHS:
        yield f"client of {length} bytes", hello(client="c" * length)


def welcome(**changes: Any) -> dict[str, Any]:
    return {
        "schema_id": f.TRANSPORT_WELCOME,
        "protocol": 1,
        "server": "sidecar 0.6.0",
        "callers": ["dungeon"],
        "frame_bytes_max": 4_194_304,
        "stream_events": True,
        "join": True,
        **changes,
    }


def welcomes() -> Named:
    for stream_events in (True, False):
        for join in (True, False):
            wants = {"stream_events": stream_events, "join": join}
            yield f"stream_events {stream_events}, join {join}".lower(), welcome(**wants)
    for count in (0, 2, 15, 16):
        yield f"callers: {count} of them", welcome(callers=[f"caller-{n}" for n in range(count)])
    yield "a caller of 256 bytes", welcome(callers=["~" * 256])
    yield "frame_bytes_max at its greatest", welcome(frame_bytes_max=2**24 - 1)
    yield "server in any script", welcome(server=TEXTS["right to left"])


def quote(invoked: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"schema_id": f.TRANSPORT_QUOTE, "invocation": invoked or invocation()}


def quotes() -> Named:
    """Each with an invocation that is a vector of its own type, under the same name; its sizes stand there."""
    left_out = ("input of", "tools:", "max_output", "instructions of", "state of", "text:", "expires_at", "max_cost")
    for name, invoked in invocations():
        if not name.startswith(left_out):
            yield name, quote(invoked)


def quoted(**changes: Any) -> dict[str, Any]:
    ids = {"request_id": "turn-1", "caller_runtime_id": "dungeon"}
    return {"schema_id": f.TRANSPORT_QUOTED, **ids, "worst_case_micro_usd": 5561, **changes}


def quoteds() -> Named:
    yield "would be admitted, joined or replayed", quoted()
    yield "refusal nil", quoted(refusal=None)
    for refusal in get_args(v.Refusal):
        yield f"refusal {refusal}", quoted(refusal=refusal)
    before_the_cost = {"worst_case_micro_usd": None, "refusal": "ModelNotAllowed"}
    yield "worst_case_micro_usd nil: a rule before the cost applies", quoted(**before_the_cost)
    for number in (0, *INTEGERS):
        yield f"worst_case_micro_usd {number}", quoted(worst_case_micro_usd=number)
    yield "ids of 256 bytes", quoted(caller_runtime_id="~" * 256, request_id="!" * 256)


def cancels() -> Named:
    yield "the smallest ids", {"schema_id": f.TRANSPORT_CANCEL, "caller_runtime_id": "d", "request_id": "1"}
    for length in (31, 32, 255, 256):
        ids = {"caller_runtime_id": "~" * length, "request_id": "!" * length}
        yield f"ids of {length} bytes", {"schema_id": f.TRANSPORT_CANCEL, **ids}


def statuses() -> Named:
    yield "the only one", {"schema_id": f.TRANSPORT_STATUS}


def daemon_status(**changes: Any) -> dict[str, Any]:
    return {
        "server": "sidecar 0.6.0",
        "started_at_unix_ms": NOW - 7_200_000,
        "now_unix_ms": NOW,
        "draining": False,
        "ledger": "ready",
        "connections": 3,
        "connections_max": 256,
        "live_requests": 2,
        "requests_in_flight_max": 256,
        **changes,
    }


def caller_status(caller: str = "dungeon", **changes: Any) -> dict[str, Any]:
    return {
        "caller_runtime_id": caller,
        "live_requests": 2,
        "window_start_unix_ms": NOW - NOW % 86_400_000,
        "window_seconds": 86_400,
        "spent_micro_usd": 1_204_177,
        "reserved_micro_usd": 11_122,
        "ceiling_micro_usd": 5_000_000,
        "over_runs": 0,
        "indeterminate": 0,
        **changes,
    }


def model_status(name: str = "npc-fast", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "connector": "claude",
        "upstream": "claude-haiku-4-5",
        "output_tokens_max": 8192,
        "prices": [PRICE],
        **changes,
    }


def connector_status(name: str = "claude", **changes: Any) -> dict[str, Any]:
    told = {"kind": "anthropic_messages", "live_requests": 2, "concurrent_requests_max": 64}
    return {"name": name, **told, **changes}


def report(**changes: Any) -> dict[str, Any]:
    return {
        "schema_id": f.TRANSPORT_STATUS_REPORT,
        "daemon": daemon_status(),
        "callers": [caller_status()],
        "models": [model_status()],
        "connectors": [connector_status()],
        **changes,
    }


def reports() -> Named:
    yield "one of each", report()
    yield "an operator who is no caller", report(models=[], connectors=[])
    yield "nobody", report(callers=[], models=[], connectors=[])
    for ledger in get_args(f.LedgerState):
        yield f"ledger {ledger}", report(daemon=daemon_status(ledger=ledger))
    yield "draining", report(daemon=daemon_status(draining=True))
    for count in (15, 16):
        yield f"callers: {count} of them", report(callers=[caller_status(f"caller-{n}") for n in range(count)])
        yield f"models: {count} of them", report(models=[model_status(f"model-{n}") for n in range(count)])
        made = [connector_status(f"connector-{n}") for n in range(count)]
        yield f"connectors: {count} of them", report(connectors=made)
    yield "prices of zero are written", report(models=[model_status(prices=[dict.fromkeys(PRICE, 0)])])
    yield "no price row is in force", report(models=[model_status(prices=[])])
    tier = {**PRICE, "above_input_tokens": 200_000}
    base = {**PRICE, "above_input_tokens": None}
    yield "a price tier, above_input_tokens of the base row nil", report(models=[model_status(prices=[base, tier])])
    yield "each number at its greatest", report(**_greatest())


def _greatest() -> dict[str, Any]:
    """Every integer of a report as large as its schema lets it be."""
    counts = {"live_requests", "connections", "connections_max", "requests_in_flight_max"}
    counts |= {"output_tokens_max", "concurrent_requests_max"}

    def grown(value: dict[str, Any]) -> dict[str, Any]:
        numbers = [key for key, inner in value.items() if type(inner) is int]
        return {**value, **{key: 2**32 - 1 if key in counts else 2**64 - 1 for key in numbers}}

    tier = dict.fromkeys([*PRICE, "above_input_tokens"], 2**64 - 1)
    return {
        "daemon": grown(daemon_status()),
        "callers": [grown(caller_status())],
        "models": [{**grown(model_status()), "prices": [tier]}],
        "connectors": [grown(connector_status())],
    }


def live_event(payload: dict[str, Any], sequence: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "schema_id": f.TRANSPORT_EVENT,
        "request_id": "turn-1",
        "caller_runtime_id": "dungeon",
        "event": {"sequence": sequence, "payload": payload},
        **changes,
    }


def live_events() -> Named:
    yield "TextDelta, the first piece", live_event({"TextDelta": {"text": "A stair"}})
    yield "TextDelta, another piece of the same text", live_event({"TextDelta": {"text": "case leads down \U0001f409"}})
    yield "ToolCall", live_event(call("call_1"), 1)
    yield "ReasoningState", live_event({"ReasoningState": {"state": b"\x00\xff"}}, 2)
    for number in INTEGERS:
        yield f"sequence {number}", live_event({"TextDelta": {"text": "So be it."}}, number)
    for length in LENGTHS:
        yield f"a piece of {length} bytes", live_event({"TextDelta": {"text": "y" * length}})
    yield "ids of 256 bytes", live_event(call("c"), caller_runtime_id="~" * 256, request_id="!" * 256)


PUBLISHED: dict[str, tuple[type[v.Value], Any]] = {
    "input_reasoning_state.v1": (v.InputReasoningState, reasoning_states),
    "provider_request.v1": (v.ProviderRequest, requests),
    "transport_invocation.v1": (v.TransportInvocation, invocations),
    "transport_receipt.v1": (v.TransportReceipt, receipts),
    "transport_result.v1": (v.TransportResult, results),
    "transport_error.v1": (v.TransportError, errors),
    "replay_record.v2": (v.ReplayRecord, records),
    "connector_request.v1": (c.ConnectorRequest, connector_requests),
    "connector_event.v1": (c.ConnectorEvent, connector_events),
    "connector_outcome.v1": (c.ConnectorOutcome, connector_outcomes),
    "operator_resolve.v1": (o.OperatorResolve, resolves),
    "operator_resolved.v1": (o.OperatorResolved, resolveds),
    "operator_check.v1": (o.OperatorCheck, checks),
    "operator_checked.v1": (o.OperatorChecked, checkeds),
    "operator_reload.v1": (o.OperatorReload, reloads),
    "operator_reloaded.v1": (o.OperatorReloaded, reloadeds),
    "operator_metrics.v1": (o.OperatorMetrics, metrics),
    "operator_metered.v1": (o.OperatorMetered, metereds),
    "transport_hello.v1": (f.TransportHello, hellos),
    "transport_welcome.v1": (f.TransportWelcome, welcomes),
    "transport_quote.v1": (f.TransportQuote, quotes),
    "transport_quoted.v1": (f.TransportQuoted, quoteds),
    "transport_cancel.v1": (f.TransportCancel, cancels),
    "transport_status.v1": (f.TransportStatus, statuses),
    "transport_status_report.v1": (f.TransportStatusReport, reports),
    "transport_event.v1": (f.LiveEvent, live_events),
}
