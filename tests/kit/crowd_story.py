"""What a crowd of peers does to one daemon, as values that hypothesis draws and shrinks.

A story is a world (how the provider behaves for each request, how slow the disk
is, what goes wrong when) and some peers, each with its frames, how it cuts them
into writes, how it reads, and how it goes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

from hypothesis import strategies as st
from kit import build, wire
from msgspec import Struct, structs

from sidecar.contract import canonical
from sidecar.contract import client_frames as c

REQUESTS = 6  # of each caller
EXPIRY_SECONDS = 60  # of every invocation, from the start of the story
HALF_FRAME = b"\0\0\x01\0\x81"  # that is never made whole

Caller = Literal["dungeon", "other"]
Key = tuple[str, str]  # caller and request id


class Behaviour(Struct, frozen=True):
    """Of the provider, for one request: sizes of text pieces, 0 for a tool call; how it ends."""

    pieces: tuple[int, ...] = (10,)
    pause_seconds: float = 0.0
    end: Literal["complete", "fail", "hang", "break", "stop_short"] = "complete"
    at_once: bool = False


class Invoke(Struct, frozen=True):
    """`dear` has another budget than `plain`, so it is another identity under the same id."""

    caller: Caller
    request: int
    variant: Literal["plain", "dear", "cheap", "late", "broken", "stranger"] = "plain"


class Quoted(Struct, frozen=True):
    invoke: Invoke


class Hello(Struct, frozen=True):
    stream: bool
    join: bool


class Cancel(Struct, frozen=True):
    caller: Caller
    request: int


class Status(Struct, frozen=True):
    pass


class Junk(Struct, frozen=True):
    """A frame that breaks something and leaves the connection open."""

    kind: Literal["malformed", "unknown", "ids"]


class CutOff(Struct, frozen=True):
    """What the daemon ends a connection for."""

    kind: Literal["length_0", "http", "too_large", "protocol", "half_frame"]


class Pause(Struct, frozen=True):
    seconds: float


Step = Invoke | Quoted | Hello | Cancel | Status | Junk | Pause
Reading = Literal["eager", "slow", "late", "never"]
Going = Literal["finish", "close", "half_frame_and_close", "half_frame_and_end", "stay"]


class Peer(Struct, frozen=True):
    """`write_bytes` are the sizes of its writes, again and again; the pipes hold `up_bytes` and `down_bytes`."""

    callers: frozenset[str]
    steps: tuple[Step, ...]
    begins_seconds: float = 0.0
    write_bytes: tuple[int, ...] = (65_536,)
    write_pause_seconds: float = 0.0
    reading: Reading = "eager"
    up_bytes: int = 65_536
    down_bytes: int = 65_536
    going: Going = "finish"
    cut_off: CutOff | None = None  # in place of `going`


Trouble = Literal[
    "drain",
    "stop",
    "stop",
    "poison",
    "begins_fail",
    "begins_work",
    "finds_fail",
    "finds_work",
    "ends_fail",
    "ends_work",
]


class Story(Struct, frozen=True):
    behaviours: tuple[Behaviour, ...]
    peers: tuple[Peer, ...]
    troubles: tuple[tuple[float, Trouble], ...] = ()
    disk_seconds: float = 0.0
    concurrent: int = 1000
    held_bytes_max: int = 1 << 30
    turns: bool = True  # whether answers are put off to the end of the turn, as in the daemon


def name_of(request: int) -> str:
    return f"r{request}"


def key_of(asked: Invoke | Cancel) -> Key:
    return asked.caller, name_of(asked.request)


@lru_cache
def invocation(asked: Invoke) -> bytes:
    request = build.request(
        build.text("hello"), request_id=name_of(asked.request), conversation_id=asked.caller, max_output_tokens=50
    )
    changes: dict[str, Any] = {
        "plain": {},
        "dear": {"max_cost_micro_usd": 2_000_000},
        "cheap": {"max_cost_micro_usd": 1},
        "late": {"expires_at_unix_ms": build.NOW},
        "broken": {},
        "stranger": {"caller_runtime_id": "nobody"},
    }[asked.variant]
    changes = {
        "caller_runtime_id": asked.caller, "expires_at_unix_ms": build.NOW + 1000 * EXPIRY_SECONDS, **changes
    }  # fmt: skip
    value = build.invocation(request, **changes)
    if asked.variant != "broken":
        return canonical.encode(value)
    return wire.write(
        {**structs.asdict(value), "request": {"request_id": request.request_id}, "native_request_sha256": 7}
    )


@lru_cache
def quote(asked: Quoted) -> bytes:
    return wire.write({"invocation": wire.Raw(invocation(asked.invoke)), "schema_id": c.TRANSPORT_QUOTE})


@lru_cache
def frame(step: Step) -> bytes:
    """What this step sends, without the length prefix."""
    if isinstance(step, Invoke):
        return invocation(step)
    if isinstance(step, Quoted):
        return quote(step)
    if isinstance(step, Hello):
        return hello(stream=step.stream, join=step.join)
    if isinstance(step, Cancel):
        caller, request_id = key_of(step)
        return wire.write({"caller_runtime_id": caller, "request_id": request_id, "schema_id": c.TRANSPORT_CANCEL})
    if isinstance(step, Status):
        return wire.write({"schema_id": c.TRANSPORT_STATUS})
    assert isinstance(step, Junk)
    return {
        "malformed": b"\xc1",
        "unknown": wire.write({"schema_id": "gamecult.model.unheard_of.v1"}),
        "ids": wire.write({"schema_id": "gamecult.model.transport_invocation.v1", "caller_runtime_id": 4}),
    }[step.kind]


def hello(*, stream: bool, join: bool, protocol: int = 1) -> bytes:
    return wire.write({
        "client": "crowd", "join": join, "protocol": protocol, "schema_id": c.TRANSPORT_HELLO, "stream_events": stream,
    })  # fmt: skip


def cutting(cut_off: CutOff) -> bytes:
    """Bytes as they go over the socket."""
    protocol = hello(stream=False, join=False, protocol=2)
    return {
        "length_0": b"\0\0\0\0",
        "http": b"GET / HTTP/1.1\r\n\r\n",
        "too_large": b"\0\xff\xff\xff and more",
        "protocol": len(protocol).to_bytes(4, "big") + protocol,
        "half_frame": HALF_FRAME,
    }[cut_off.kind]


# --- drawn --------------------------------------------------------------------------------------------------------

BEHAVIOURS = st.builds(
    Behaviour,
    pieces=st.lists(st.sampled_from([10, 10, 1, 300, 0, 1500]), min_size=2, max_size=8).map(tuple),
    pause_seconds=st.sampled_from([0.0, 0.3, 2.0]),
    end=st.sampled_from(["complete", "complete", "complete", "hang", "hang", "fail", "break", "stop_short"]),
    at_once=st.sampled_from([False, False, True]),
)
_CALLERS: st.SearchStrategy[Caller] = st.sampled_from(["dungeon", "dungeon", "dungeon", "other"])
_REQUESTS = st.integers(0, REQUESTS - 1)
_PLAIN = st.builds(Invoke, caller=_CALLERS, request=_REQUESTS)
_ODD = st.builds(
    Invoke,
    caller=_CALLERS,
    request=_REQUESTS,
    variant=st.sampled_from(["dear", "cheap", "late", "broken", "stranger"]),
)
_HELLO = st.builds(Hello, stream=st.booleans(), join=st.booleans())
_OTHER: st.SearchStrategy[Step] = st.one_of(
    _ODD,
    _HELLO,
    st.builds(Quoted, invoke=st.one_of(_PLAIN, _ODD)),
    st.builds(Cancel, caller=_CALLERS, request=_REQUESTS),
    st.just(Status()),
    st.builds(Junk, kind=st.sampled_from(["malformed", "unknown", "ids"])),
    st.builds(Pause, seconds=st.sampled_from([0.0, 0.1, 1.0, 7.0])),
)
# Most of what is said is invocations: one, every request, or the same one again and again.
_SPOKEN = st.one_of(
    _PLAIN.map(lambda asked: (asked,)),
    _OTHER.map(lambda step: (step,)),
    _CALLERS.map(lambda caller: tuple(Invoke(caller, request) for request in range(REQUESTS))),
    _CALLERS.map(lambda caller: tuple(Cancel(caller, request) for request in range(REQUESTS))),
    st.tuples(_PLAIN, _HELLO).map(lambda said: (said[0], Pause(0.1), said[1], Pause(2.0))),
    st.tuples(_PLAIN, st.integers(2, 8)).map(lambda many: (many[0],) * many[1]),
)
_STEPS = st.tuples(
    st.sampled_from([(), (Hello(stream=True, join=True),)]),
    st.lists(_SPOKEN, min_size=1, max_size=8),
).map(lambda spoken: (*spoken[0], *(step for steps in spoken[1] for step in steps)))
_CUTS = st.builds(CutOff, kind=st.sampled_from(["length_0", "http", "too_large", "protocol", "half_frame"]))
_BOTH = frozenset({"dungeon", "other"})
PEERS = st.builds(
    Peer,
    callers=st.sampled_from([_BOTH, _BOTH, frozenset({"dungeon"}), frozenset({"other"})]),
    steps=_STEPS,
    begins_seconds=st.sampled_from([0.0, 0.0, 0.5, 20.0]),
    write_bytes=st.lists(st.sampled_from([1, 3, 50, 500, 65_536]), max_size=3).map(lambda sizes: (*sizes, 300)),
    write_pause_seconds=st.sampled_from([0.0, 0.0, 0.001]),
    reading=st.sampled_from(["eager", "eager", "eager", "slow", "late", "never"]),
    up_bytes=st.sampled_from([65_536, 40, 700]),
    down_bytes=st.sampled_from([65_536, 40, 700]),
    going=st.sampled_from(["finish", "finish", "close", "half_frame_and_close", "half_frame_and_end", "stay"]),
    cut_off=st.one_of(st.none(), st.none(), st.none(), _CUTS),
)
_TROUBLES: st.SearchStrategy[Trouble] = st.sampled_from([
    "drain", "stop", "stop", "poison", "begins_fail", "begins_work", "finds_fail", "finds_work", "ends_fail",
    "ends_work",
])  # fmt: skip
_TIMES = st.sampled_from([1.0, 0.2, 5.0, 0.0, 21.0])
STORIES = st.builds(
    Story,
    behaviours=st.lists(BEHAVIOURS, min_size=REQUESTS, max_size=REQUESTS).map(tuple),
    peers=st.lists(PEERS, min_size=1, max_size=5).map(tuple),
    troubles=st.one_of(
        st.just(()),
        st.lists(st.tuples(_TIMES, _TROUBLES), max_size=3).map(lambda troubles: tuple(sorted(troubles))),
    ),
    disk_seconds=st.sampled_from([0.0, 0.0, 0.5, 3.0]),
    concurrent=st.sampled_from([1000, 1000, 2]),
    held_bytes_max=st.sampled_from([1 << 30, 1 << 30, 2000]),
    turns=st.booleans(),
)
