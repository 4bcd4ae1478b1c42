"""Frames as clients might send them: other layouts of sound invocations, and what must be refused, with its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kit import wire
from kit.wire import Pairs, Raw, write

from goldens import published_values as published

BASE = published.invocation()
CALLER, REQUEST = BASE["caller_runtime_id"], BASE["request"]["request_id"]


class Sample(NamedTuple):
    """A frame and what answers it: a transport error's code, or a refusal of the request with these ids."""

    name: str
    frame: bytes
    code: str | None = None
    refusal: str | None = None
    caller_runtime_id: str | None = None
    request_id: str | None = None


# --- the same value, written otherwise --------------------------------------------------------------------------


def variants() -> Iterator[tuple[str, str, bytes]]:
    """(name, the invocation golden that it equals, frame)"""
    nil = "optional members nil, which are left out"
    for golden, value in (("the smallest", BASE), ("every member", published.invocation(published.full_request()))):
        yield f"keys backwards: {golden}", golden, write(value, wire.BACKWARDS)
        yield f"keys as a struct declares them: {golden}", golden, write(value, _AS_DECLARED)
        yield f"every header as long as it can be: {golden}", golden, write(value, wire.LONGEST)
        for position in (1, 2, 3):
            layout = wire.Layout(wire.by_key, _at_least(position))
            yield f"headers {position} longer than needed: {golden}", golden, write(value, layout)
        yield f"signed integers: {golden}", golden, write(value, wire.Layout(wire.by_key, _signed))
    unset = {"cache_retention": None, "output_schema_json": None, "reasoning_effort": None}
    yield "optional members written as nil", nil, write(published.invocation(published.request(**unset)))
    yield (
        "one optional member written as nil",
        nil,
        write(published.invocation(published.request(reasoning_effort=None))),
    )


_AS_DECLARED = wire.Layout(lambda members: members, lambda forms: forms[0])


def _at_least(position: int) -> Callable[[list[bytes]], bytes]:
    return lambda forms: forms[min(position, len(forms) - 1)]


def _signed(forms: list[bytes]) -> bytes:
    return next((form for form in forms if 0xD0 <= form[0] <= 0xD3), forms[0])


# --- what must be refused ---------------------------------------------------------------------------------------


def with_member(**changes: Any) -> bytes:
    return write({**BASE, **changes})


def with_request(**changes: Any) -> bytes:
    return write({**BASE, "request": {**BASE["request"], **changes}})


def with_input(*items: Any) -> bytes:
    return with_request(input=list(items))


def without(*names: str) -> bytes:
    request = {key: inner for key, inner in BASE["request"].items() if f"request.{key}" not in names}
    return write({key: inner for key, inner in {**BASE, "request": request}.items() if key not in names})


def with_pair(key: Any, value: Any) -> bytes:
    """The invocation with one more pair, whatever its key is."""
    return write(Pairs([*BASE.items(), (key, value)]))


def not_strict() -> Iterator[Sample]:
    """Breaks the strict profile: malformed_frame, whatever else the frame says."""
    for name, frame in _not_strict():
        yield Sample(name, frame, code="malformed_frame")


def _not_strict() -> Iterator[tuple[str, bytes]]:
    sound = write(BASE)
    yield "a key twice, with the same value", with_pair("caller_runtime_id", CALLER)
    yield "a key twice, with another value", with_pair("caller_runtime_id", "tavern")
    yield "a key twice, once with a longer header", with_pair(Raw(b"\xd9\x11caller_runtime_id"), CALLER)
    twice = Pairs([("text", "hello"), ("text", "hello")])
    yield "a key twice, in an input item", with_input({"UserText": twice})
    yield "an integer key", with_pair(1, 1)
    yield "a nil key", with_pair(None, 1)
    yield "a bin key", with_pair(b"extra", 1)
    yield "a bin key in place of schema_id", write(Pairs([(key.encode(), inner) for key, inner in BASE.items()]))
    yield "integer keys, as array-style serializers write them", write(Pairs(list(enumerate(BASE.values()))))
    yield "an array key", with_pair([], 1)
    yield "ext 1", with_pair("extra", Raw(b"\xd4\x01\x00"))
    yield "ext 8 with a length", with_pair("extra", Raw(b"\xc7\x03\x05abc"))
    yield "timestamp 32", with_member(expires_at_unix_ms=Raw(b"\xd6\xff\x6a\xb1\x00\x00"))
    yield "timestamp 64", with_member(expires_at_unix_ms=Raw(b"\xd7\xff" + bytes(8)))
    yield "timestamp 96", with_member(expires_at_unix_ms=Raw(b"\xc7\x0c\xff" + bytes(12)))
    yield "float 32", with_request(max_output_tokens=Raw(b"\xca\x44\x00\x00\x00"))
    yield "float 64, of a whole number", with_request(max_output_tokens=Raw(b"\xcb\x40\x80\x00\x00\x00\x00\x00\x00"))
    yield "NaN", with_request(max_output_tokens=Raw(b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"))
    yield "infinity", with_request(max_output_tokens=Raw(b"\xca\x7f\x80\x00\x00"))
    yield "the byte 0xc1", with_pair("extra", Raw(b"\xc1"))
    yield "bad UTF-8: a lone continuation byte", with_request(instructions=Raw(b"\xa1\x80"))
    yield "bad UTF-8: a cut sequence", with_request(instructions=Raw(b"\xa2\xf0\x9f"))
    yield "bad UTF-8: an overlong slash", with_request(instructions=Raw(b"\xa2\xc0\xaf"))
    yield "bad UTF-8: above U+10FFFF", with_request(instructions=Raw(b"\xa4\xf4\x90\x80\x80"))
    yield "bad UTF-8 in a key", with_pair(Raw(b"\xa1\xff"), 1)
    yield "a lone surrogate", with_request(instructions=Raw(b"\xa3\xed\xa0\xbd"))
    yield "a surrogate pair as six bytes", with_request(instructions=Raw(b"\xa6\xed\xa0\xbd\xed\xb8\x80"))
    yield "a trailing byte", sound + b"\x00"
    yield "a trailing nil", sound + b"\xc0"
    yield "the same map twice", sound + sound
    yield "cut by one byte", sound[:-1]
    yield "cut after one byte", sound[:1]
    yield "a string longer than the frame", with_request(instructions=Raw(b"\xdb\xff\xff\xff\xff"))
    yield "17 levels", levels(17)
    yield "an array with one item too many", items(65_537)
    yield (
        "containers with one item too many between them",
        with_pair("extra", [Raw(b"\xdc\xff\xff" + b"\xc0" * 65_535)]),
    )
    yield "an array that announces 4294967295 items", with_pair("extra", Raw(b"\xdd\xff\xff\xff\xff"))


def levels(count: int) -> bytes:
    """A strict frame that is one map of this many levels, and no invocation."""
    return write({"schema_id": "example.nested.v1", "nested": Raw(b"\x91" * (count - 2) + b"\x90")})


def items(count: int) -> bytes:
    """A strict frame with this many array items and map pairs, and no invocation."""
    nils = count - 2  # the map itself has two pairs
    return write({"schema_id": "example.many.v1", "items": Raw(wire.heads("array", nils)[0] + b"\xc0" * nils)})


def not_dispatched() -> Iterator[Sample]:
    """Strict, but no frame that the daemon knows."""
    for name, frame in (
        ("16 levels", levels(16)),
        ("65536 items", items(65_536)),
        ("the next version", with_member(schema_id="gamecult.model.transport_invocation.v2")),
        ("a published value that is no frame", write(BASE["request"])),
        ("a frame that only the daemon sends", write(published.answer())),
        ("an empty schema_id", write({"schema_id": ""})),
    ):
        yield Sample(name, frame, code="unknown_schema")
    for name, frame in (
        ("an array where the map belongs", write(list(BASE.values()))),
        ("nil", b"\xc0"),
        ("an integer", b"\x01"),
        ("a string", write("hello")),
        ("an empty map", b"\x80"),
        ("schema_id missing", without("schema_id")),
        ("schema_id as bin", with_member(schema_id=BASE["schema_id"].encode())),
        ("schema_id nil", with_member(schema_id=None)),
        ("schema_id an integer", with_member(schema_id=1)),
    ):
        yield Sample(name, frame, code="malformed_frame")


def ids_unreadable() -> Iterator[Sample]:
    """An invocation that can't be answered by name: malformed_frame."""
    bad_ids = {"empty": "", "a space": "a b", "257 bytes": "x" * 257, "not ASCII": "caf\u00e9", "a line feed": "a\n",
               "an integer": 7, "bin": b"dungeon", "nil": None}  # fmt: skip
    for name, bad in bad_ids.items():
        yield Sample(f"caller_runtime_id: {name}", with_member(caller_runtime_id=bad), code="malformed_frame")
        yield Sample(f"request_id: {name}", with_request(request_id=bad), code="malformed_frame")
    for name, frame in (
        ("caller_runtime_id missing", without("caller_runtime_id")),
        ("request_id missing", without("request.request_id")),
        ("request missing", without("request")),
        ("request nil", with_member(request=None)),
        ("request as an array", with_member(request=list(BASE["request"].values()))),
        ("request as bin", with_member(request=write(BASE["request"]))),
        ("ids unreadable and other members broken too", with_member(caller_runtime_id="", max_cost_micro_usd=-1)),
    ):
        yield Sample(name, frame, code="malformed_frame")


def malformed() -> Iterator[Sample]:
    """Readable ids, and the schema or rule 3 is broken: Refused(Malformed)."""
    for name, frame in [*_schema_broken(), *_rule_3_broken()]:
        yield Sample(name, frame, refusal="Malformed", caller_runtime_id=CALLER, request_id=REQUEST)


def _schema_broken() -> Iterator[tuple[str, bytes]]:
    yield "an unknown member", with_member(extra=1)
    yield "an unknown member, nil", with_member(extra=None)
    yield "an unknown member of the request", with_request(temperature=1)
    yield "an unknown member of an input item", with_input({"UserText": {"text": "hi", "name": "x"}})
    for name in ("max_cost_micro_usd", "native_request_sha256", "request.input", "request.tools", "request.tool_choice",
                 "request.instructions", "request.schema_id"):  # fmt: skip
        yield f"{name} missing", without(name)
    yield "schema_id of the request: another", with_request(schema_id="gamecult.model.provider_request.v2")
    yield "a required member nil", with_request(instructions=None)
    yield "bin where a string belongs", with_request(instructions=b"be brief")
    yield "an array of integers where bin belongs", with_input(published.user("hi"), published.state([1, 2]))
    yield "a string where bin belongs", with_input(published.user("hi"), published.state("AAE="))
    yield "bin where a digest belongs", with_member(native_request_sha256=bytes(range(32)))
    yield "a digest in hex", with_member(native_request_sha256="00" * 32)
    yield "a digest of 31", with_member(native_request_sha256=[1] * 31)
    yield "a digest of 33", with_member(native_request_sha256=[1] * 33)
    yield "256 in a digest", with_member(native_request_sha256=[1] * 31 + [256])
    yield "-1 in a digest", with_member(native_request_sha256=[1] * 31 + [-1])
    yield "a negative amount", with_member(max_cost_micro_usd=-1)
    yield "an amount as a string", with_member(max_cost_micro_usd="100000")
    yield "true for an amount", with_member(max_cost_micro_usd=True)
    yield "1 for a boolean", with_request(parallel_tool_calls=1)
    yield "max_output_tokens above 32 bits", with_request(max_output_tokens=2**32)
    yield "a tool_choice that is none", with_request(tool_choice="none")
    yield "a tool_choice in capitals", with_request(tool_choice="Auto")
    yield "an array where a map belongs", with_input(["UserText", "hi"])
    yield "a map where an array belongs", with_request(tools={})
    yield "an input item without a tag", with_input({})
    yield "an input item with two tags", with_input({**published.user("hi"), **published.said("ho")})
    yield "an input item with an unknown tag", with_input({"SystemText": {"text": "hi"}})
    yield "an input item tagged inside", with_input({"type": "UserText", "text": "hi"})


def _rule_3_broken() -> Iterator[tuple[str, bytes]]:
    user, said, call, result = published.user("hi"), published.said("ho"), published.call, published.result
    yield "max_cost_micro_usd zero", with_member(max_cost_micro_usd=0)
    yield "expires_at_unix_ms zero", with_member(expires_at_unix_ms=0)
    yield "max_output_tokens zero", with_request(max_output_tokens=0)
    yield "native_request_sha256 all zero", with_member(native_request_sha256=[0] * 32)
    yield "input empty", with_request(input=[])
    yield "UserText empty", with_input(published.user(""))
    yield "AssistantText empty", with_input(user, published.said(""), user)
    yield "conversation_id empty", with_request(conversation_id="")
    yield "model with a space", with_request(model="npc fast")
    yield "model of 257 bytes", with_request(model="m" * 257)
    yield "a call id empty", with_input(user, call(""), result(""))
    yield "a tool name of a call empty", with_input(user, call("c", ""), result("c"))
    yield "a provider of a state empty", with_input(user, published.state(b"", provider=""))
    yield "a model of a state with a space", with_input(user, published.state(b"", model="a b"))
    yield "a tool's name empty", with_request(tools=[published.tool("")])
    yield "two tools of one name", with_request(tools=[published.tool(), published.tool()])
    for name, text in NO_OBJECTS.items():
        yield f"parameters_json: {name}", with_request(tools=[published.tool(parameters=text)])
        yield f"output_schema_json: {name}", with_request(output_schema_json=text)
    yield "tool_choice required without a tool", with_request(tool_choice="required")
    yield "a call without its result", with_input(user, call("c"))
    yield "a call without its result, and the user goes on", with_input(user, call("c"), user)
    yield "an assistant turn before the result", with_input(user, call("c"), user, said, result("c"))
    yield "one of two calls without its result", with_input(user, call("c"), call("d"), result("d"))
    yield "a result without a call", with_input(user, result("c"))
    yield "a result before its call", with_input(user, result("c"), call("c"))
    yield "a result twice", with_input(user, call("c"), result("c"), result("c"))
    yield "a call id used twice in one turn", with_input(user, call("c"), call("c"), result("c"))
    yield "a call id used again later", with_input(user, call("c"), result("c"), call("c"), result("c"))


NO_OBJECTS = {
    "empty": "",
    "an array": "[]",
    "null": "null",
    "a key twice": '{"a":1,"a":2}',
    "a key twice, once escaped": '{"a":1,"\\u0061":2}',
    "NaN": '{"a":NaN}',
    "Infinity": '{"a":-Infinity}',
    "65 levels": '{"a":' * 64 + "{}" + "}" * 64,
    "a trailing comma": '{"a":1,}',
    "single quotes": "{'a':1}",
    "something behind it": "{} {}",
    "a byte order mark": "\ufeff{}",
}


def malformed_operators() -> Iterator[Sample]:
    """What an operator's frame must not be; whether the peer is an operator is not asked before."""
    for name, value in (
        ("a member that the schema does not know", published.resolve(extra=1)),
        ("a charge that there is not", published.resolve(charge="half")),
        ("a caller that is no id", published.resolve(caller_runtime_id="not an id")),
        ("a request id of 257 bytes", published.resolve(request_id="x" * 257)),
        ("who is empty", published.resolve(who="")),
        ("who is only spaces", published.resolve(who="   ")),
        ("who of 129 characters", published.resolve(who="w" * 129)),
        ("why of 769 characters", published.resolve(why="y" * 769)),
        ("why on two lines", published.resolve(why="one\ntwo")),
        ("why with a control character", published.resolve(why="\x1b[31m")),
        ("why is bin", published.resolve(why=b"why")),
        *(
            (f"{member} is missing", {key: said for key, said in published.resolve().items() if key != member})
            for member in ("caller_runtime_id", "request_id", "charge", "who", "why")
        ),
        ("a check with a member", {"schema_id": "gamecult.model.operator_check.v1", "batch": 1}),
        ("a reload with a member", {"schema_id": "gamecult.model.operator_reload.v1", "config": "config.toml"}),
        ("metrics with a member", {"schema_id": "gamecult.model.operator_metrics.v1", "name": "sidecar_spend_usd"}),
    ):
        yield Sample(name, write(value), code="malformed_frame")


def malformed_clients() -> Iterator[Sample]:
    """What a hello, a quote, a cancel or a status must not be."""
    for name, value in [*_hellos_broken(), *_quotes_broken(), *_others_broken()]:
        yield Sample(name, write(value), code="malformed_frame")


def without_each(value: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The value without one of its members, each in turn."""
    for member in value:
        if member != "schema_id":
            yield f"{member} missing", {key: said for key, said in value.items() if key != member}


def _hellos_broken() -> Iterator[tuple[str, Any]]:
    sound = published.hello()
    for name, value in without_each(sound):
        yield f"a hello, {name}", value
    for name, change in {
        "a member that the schema does not know": {"version": 1},
        "such a member, nil": {"version": None},
        "protocol as a string": {"protocol": "1"},
        "protocol negative": {"protocol": -1},
        "protocol above 32 bits": {"protocol": 2**32},
        "protocol true": {"protocol": True},
        "protocol nil": {"protocol": None},
        "client as bin": {"client": b"dungeon"},
        "client nil": {"client": None},
        "stream_events 1": {"stream_events": 1},
        "stream_events as a string": {"stream_events": "true"},
        "join 0": {"join": 0},
        "join nil": {"join": None},
    }.items():
        yield f"a hello, {name}", {**sound, **change}


def _quotes_broken() -> Iterator[tuple[str, Any]]:
    """An invocation in it whose ids can be read is answered by name, as one outside: it is none of these."""
    sound = published.quote()
    request = BASE["request"]
    yield "a quote, invocation missing", {"schema_id": sound["schema_id"]}
    yield "a quote, a member that the schema does not know", {**sound, "caller_runtime_id": CALLER}
    yield "a quote of a bare request", published.quote(request)
    for name, carried in {
        "nil": None,
        "a string": "turn-1",
        "an integer": 1,
        "an array": list(BASE.values()),
        "an array that holds the map": [BASE],
        "a frame as bin": write(BASE),
        "an empty map": {},
        "a quote": sound,
        "caller_runtime_id missing": {key: inner for key, inner in BASE.items() if key != "caller_runtime_id"},
        "caller_runtime_id empty": {**BASE, "caller_runtime_id": ""},
        "caller_runtime_id nil": {**BASE, "caller_runtime_id": None},
        "request missing": {key: inner for key, inner in BASE.items() if key != "request"},
        "request nil": {**BASE, "request": None},
        "request_id missing": {**BASE, "request": {key: said for key, said in request.items() if key != "request_id"}},
        "request_id with a space": {**BASE, "request": {**request, "request_id": "turn 1"}},
        "request_id as bin": {**BASE, "request": {**request, "request_id": b"turn-1"}},
        "request_id of 257 bytes": {**BASE, "request": {**request, "request_id": "x" * 257}},
    }.items():
        yield f"a quote, invocation: {name}", {**sound, "invocation": carried}


def _others_broken() -> Iterator[tuple[str, Any]]:
    sound = {"schema_id": "gamecult.model.transport_cancel.v1", "caller_runtime_id": CALLER, "request_id": REQUEST}
    for name, value in without_each(sound):
        yield f"a cancel, {name}", value
    yield "a cancel, a member that the schema does not know", {**sound, "reason": "the player left"}
    yield "a cancel, request_id an integer", {**sound, "request_id": 1}
    yield "a cancel, caller_runtime_id as bin", {**sound, "caller_runtime_id": CALLER.encode()}
    yield "a cancel, request_id nil", {**sound, "request_id": None}
    yield "a status with a member", {"schema_id": "gamecult.model.transport_status.v1", "caller_runtime_id": CALLER}


def rejected() -> dict[str, list[Sample]]:
    """Every frame that must be refused, by the file that it stands in."""
    return {
        "not_strict": list(not_strict()),
        "not_dispatched": list(not_dispatched()),
        "ids_unreadable": list(ids_unreadable()),
        "malformed_invocations": list(malformed()),
        "malformed_operators": list(malformed_operators()),
        "malformed_clients": list(malformed_clients()),
    }


# --- streams ----------------------------------------------------------------------------------------------------

FRAME_BYTES_MAX = 4_194_304


def streams() -> Iterator[tuple[str, bytes, list[bytes], str | None]]:
    """(name, what a client sends, the frames in it, the transport error that ends it)"""
    one, other = write(BASE), write(published.invocation(published.full_request()))
    yield "one frame", _framed(one), [one], None
    yield "two frames at once", _framed(one) + _framed(other), [one, other], None
    yield "a frame and the begin of another", _framed(one) + _framed(other)[:100], [one], None
    yield "half a length", _framed(one)[:2], [], None
    yield "a frame of one byte", _framed(b"\xc0"), [b"\xc0"], None
    yield "a frame of the greatest length", _framed(bytes(FRAME_BYTES_MAX)), [bytes(FRAME_BYTES_MAX)], None
    for name, sent in (
        ("the first byte of an HTTP request", b"G"),
        ("an HTTP request", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("the first byte of a TLS hello", b"\x16"),
        ("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        ("a frame without its length", one),
        ("a length of 0", bytes(4)),
        ("a length above the bound", (FRAME_BYTES_MAX + 1).to_bytes(4, "big")),
        ("the greatest length with a zero first byte", b"\x00\xff\xff\xff"),
        ("a little-endian length", len(one).to_bytes(4, "little") + one),
    ):
        yield name, sent, [], "frame_size"
    yield "a frame, then a length of 0", _framed(one) + bytes(4), [one], "frame_size"


def _framed(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame
