"""Every way in which a provider fails, through the whole daemon: the kind, the charge, the record, and the slot after.

One daemon, one slot, one stub of a provider that answers each request as the
case named in its text says. Kinds are those of WIRE section 7 and CONTRACT
section 6, charges those of section 5: nothing, the whole reservation, or the
usage that came.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain, repeat
from typing import Any, NamedTuple

import msgpack
import pytest
from kit.daemon_process import Process, invocation, running_daemon, wait_until
from kit.ledger_view import LedgerView
from kit.road import receipt, said
from kit.stub_http import Reply, StubProvider, chunked, head, stub_on_a_thread, whole

from sidecar.contract.values import STORED_AS_IS, BeginRecord, CompletedRecord
from sidecar.contract.waits import wait_in

SECRET = "sk-canary-Zq8xW3vNpL5tRy2KmB7d"
RESPONSE_BYTES_MAX = 20_000
BODY_BYTES_MAX = 4_000_000
PRICE_INPUT, PRICE_OUTPUT = 2_000_003, 11_000_027

NOTHING: dict[str, int] = {
    "input_tokens": 0, "cache_read_tokens": 0, "cache_write_tokens": 0, "output_tokens": 0,
}  # fmt: skip
USED = {**NOTHING, "input_tokens": 11, "output_tokens": 3}
UNKNOWN = None  # and then the whole reservation is charged


def sse(chunk: object) -> bytes:
    return f"data: {json.dumps(chunk)}\n\n".encode()


SAID = sse({"choices": [{"index": 0, "delta": {"content": "Hi "}}]})
STOP = sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
USAGE = sse({"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 3}})
DONE = b"data: [DONE]\n\n"
GOOD = chunked(SAID, STOP, USAGE, DONE)


def error(**members: object) -> str:
    return json.dumps({"error": members})


def json_head(length: int) -> bytes:
    return head(200, f"content-length: {length}", content_type="application/json")


def endless(first: bytes, again: bytes) -> Reply:
    """A chunked 200 whose pieces never stop coming."""
    pieces = chain((first,), repeat(again * (16_384 // len(again) + 1)))
    start = (head(200, "transfer-encoding: chunked"),)
    return Reply(chain(start, (b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)))


class Case(NamedTuple):
    """How the provider answers, and what must come of it. `text`: what is kept of an answer that had begun."""

    reply: Callable[[], Reply]
    kind: str
    usage: dict[str, int] | None
    text: str = ""
    seconds: float = 30
    caller: str = "dungeon"
    posts: int = 1


def plain(body: str, status: int, *headers: str) -> Callable[[], Reply]:
    return lambda: whole(body, status, *headers, content_type="application/json")


def streamed(*pieces: bytes, ends: bool = True, then: str = "keep") -> Callable[[], Reply]:
    return lambda: chunked(*pieces, ends=ends, then=then)


def bytes_then(then: str, *pieces: bytes) -> Callable[[], Reply]:
    return lambda: Reply(pieces, then)


WRONG_KEY = error(
    message=f"Incorrect API key provided: {SECRET}.", type="invalid_request_error", code="invalid_api_key"
)
NO_MODEL = error(message="The model `tiny` does not exist", type="invalid_request_error", code="model_not_found")
HALF_JSON = b'{"choices":[{"message":{"content":"Hi'

STATUSES = {
    "wrong-key": Case(plain(WRONG_KEY, 401), "authentication", NOTHING),
    "wrong-key-without-words": Case(plain("", 401), "authentication", NOTHING),
    "no-right": Case(plain(error(message="no", type="permission_error"), 403), "authentication", NOTHING),
    "unknown-model-404": Case(plain(NO_MODEL, 404), "invalid_request", NOTHING),
    "unknown-model-400": Case(plain(NO_MODEL, 400), "invalid_request", NOTHING),
    "unknown-path-404": Case(plain("<html>Not Found</html>", 404), "invalid_request", NOTHING),
    "rate-limit": Case(plain(error(message="slow", code="rate_limit_exceeded"), 429), "rate_limited", NOTHING),
    "no-credit-429": Case(plain(error(message="pay", code="insufficient_quota"), 429), "authentication", NOTHING),
    "bad-request-422": Case(plain('{"detail":"no"}', 422), "invalid_request", NOTHING),
    "broken-500": Case(plain(error(message="oops"), 500), "unavailable", NOTHING),
    "loading-503": Case(plain(error(code=503, message="Loading model"), 503), "unavailable", NOTHING),
    "overloaded-529": Case(plain(error(type="overloaded_error"), 529), "unavailable", NOTHING),
    "gateway-502": Case(plain("<html>", 502), "unavailable", UNKNOWN),
    "gateway-504": Case(plain("<html>", 504), "timeout", UNKNOWN),
    "request-timeout-408": Case(plain("", 408), "timeout", UNKNOWN),
    "redirect-307": Case(plain("", 307, "location: /elsewhere"), "provider", UNKNOWN),
    "error-body-cut": Case(
        bytes_then("close", head(401, "content-length: 900"), b'{"error":{"mess'), "authentication", NOTHING
    ),
    "error-body-never-comes": Case(
        bytes_then("hang", head(401, "content-length: 900")), "authentication", NOTHING, seconds=1
    ),
    "error-body-never-ends": Case(
        lambda: Reply(chain((head(401),), repeat(b"x" * 10_000))), "authentication", NOTHING
    ),
}  # fmt: skip

GONE = {
    "connection-refused": Case(bytes_then("close"), "unavailable", NOTHING, caller="to-gone", posts=0),
    "gone-after-the-request": Case(bytes_then("close"), "unavailable", UNKNOWN),
    "reset-after-the-request": Case(bytes_then("reset"), "unavailable", UNKNOWN),
    "gone-inside-the-head": Case(bytes_then("close", b"HTTP/1.1 200 OK\r\ncontent-"), "unavailable", UNKNOWN),
    "gone-after-the-head": Case(bytes_then("close", json_head(900)), "unavailable", UNKNOWN),
}

HANGING = {
    "never-answers": Case(bytes_then("hang"), "timeout", UNKNOWN, seconds=1),
    "hangs-inside-the-head": Case(bytes_then("hang", b"HTTP/1.1 200 OK\r\ncon"), "timeout", UNKNOWN, seconds=1),
    "head-and-never-a-body": Case(bytes_then("hang", head()), "timeout", UNKNOWN, seconds=1),
    "json-head-and-never-a-body": Case(bytes_then("hang", json_head(900)), "timeout", UNKNOWN, seconds=1),
    "hangs-inside-the-text": Case(streamed(SAID, ends=False, then="hang"), "timeout", UNKNOWN, "Hi ", 1),
    "hangs-inside-json": Case(bytes_then("hang", json_head(900), HALF_JSON), "timeout", UNKNOWN, seconds=1),
}  # fmt: skip

ERRORS_IN_200 = {
    "error-429": Case(plain(error(code=429, message="slow"), 200), "rate_limited", UNKNOWN),
    "error-wrong-key": Case(plain(WRONG_KEY, 200), "authentication", UNKNOWN),
    "error-as-text": Case(plain('{"error":"it broke"}', 200), "provider", UNKNOWN),
    "error-after-text": Case(
        streamed(SAID, sse({"error": {"type": "overloaded_error", "message": "busy"}})), "unavailable", UNKNOWN, "Hi "
    ),
    "error-that-comes-first": Case(
        streamed(sse({"error": {"code": "context_length_exceeded", "message": "long"}})), "invalid_request", UNKNOWN
    ),
    "error-with-its-usage": Case(
        streamed(SAID, sse({"error": {"code": 500}, "usage": {"prompt_tokens": 11, "completion_tokens": 3}})),
        "unavailable",
        USED,
        "Hi ",
    ),
    "error-of-vllm": Case(
        streamed(SAID, sse({"object": "error", "message": "no", "code": 400})), "invalid_request", UNKNOWN, "Hi "
    ),
    "finish-reason-error": Case(
        streamed(SAID, sse({"choices": [{"delta": {}, "finish_reason": "error"}]}), USAGE, DONE),
        "unavailable",
        USED,
        "Hi ",
    ),
    "choices-null": Case(plain('{"choices":null}', 200), "provider", UNKNOWN),
    "no-usage": Case(streamed(SAID, STOP, DONE), "provider", UNKNOWN, "Hi "),
    "no-json": Case(streamed(SAID, b"data: <html>\n\n"), "provider", UNKNOWN, "Hi "),
}

CUT = {
    "json-short-of-its-length": Case(bytes_then("close", json_head(900), HALF_JSON), "unavailable", UNKNOWN),
    "json-reset": Case(bytes_then("reset", json_head(900), HALF_JSON), "unavailable", UNKNOWN),
    "json-that-ends-early": Case(plain(HALF_JSON.decode(), 200), "unavailable", UNKNOWN),
    "stream-short-of-its-length": Case(
        bytes_then("close", head(200, "content-length: 900"), SAID), "unavailable", UNKNOWN, "Hi "
    ),
    "chunks-without-their-end": Case(streamed(SAID, ends=False, then="close"), "unavailable", UNKNOWN, "Hi "),
    "chunks-reset": Case(streamed(SAID, ends=False, then="reset"), "unavailable", UNKNOWN, "Hi "),
    "cut-inside-a-chunk": Case(
        bytes_then("close", head(200, "transfer-encoding: chunked"), b"fff\r\n" + SAID), "unavailable", UNKNOWN, "Hi "
    ),
    "stream-that-ends-before-its-finish": Case(streamed(SAID), "unavailable", UNKNOWN, "Hi "),
    "done-before-its-finish": Case(streamed(SAID, DONE), "unavailable", UNKNOWN, "Hi "),
    "cut-inside-the-finish": Case(streamed(SAID, STOP[:-9]), "unavailable", UNKNOWN, "Hi "),
    "closed-without-a-length": Case(bytes_then("close", head(), SAID), "unavailable", UNKNOWN, "Hi "),
    "nothing-at-all": Case(streamed(), "unavailable", UNKNOWN),
}

ENDLESS = {
    "text-forever": Case(lambda: endless(SAID, SAID), "result_size", UNKNOWN),
    "comments-forever": Case(lambda: endless(SAID, b": alive\n\n"), "result_size", UNKNOWN),
    "empty-lines-forever": Case(lambda: endless(SAID, b"\n"), "result_size", UNKNOWN),
    "empty-deltas-forever": Case(lambda: endless(SAID, sse({"choices": [{"delta": {}}]})), "result_size", UNKNOWN),
    "one-line-forever": Case(lambda: endless(SAID, b"x"), "result_size", UNKNOWN),
    "one-event-forever": Case(lambda: endless(SAID, b"data: x\n"), "result_size", UNKNOWN),
    "json-forever": Case(lambda: endless(b'{"choices":[', b'{"a":"b"},'), "result_size", UNKNOWN),
    "arguments-forever": Case(
        lambda: endless(
            SAID, sse({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "xx"}}]}}]})
        ),
        "result_size",
        UNKNOWN,
    ),
    "a-live-stream-is-cut-at-the-deadline": Case(
        lambda: endless(SAID, b": alive\n\n"), "timeout", UNKNOWN, "Hi ", 1, "to-patient"
    ),
    "a-head-forever": Case(
        lambda: Reply(chain((b"HTTP/1.1 200 OK\r\n",), repeat(b"x: y\r\n" * 1000))), "unavailable", UNKNOWN
    ),
}  # fmt: skip

FAILURES = {**STATUSES, **GONE, **HANGING, **ERRORS_IN_200, **CUT, **ENDLESS}

WAITS = {
    "wait-seconds": (("retry-after: 7",), lambda wait: wait == 7),
    "wait-milliseconds": (("retry-after: 7", "retry-after-ms: 1500"), lambda wait: wait == 1.5),
    "wait-until-2099": (("retry-after: Wed, 01 Jul 2099 00:00:00 GMT",), lambda wait: wait > 1e9),
    "wait-until-2001": (("retry-after: Wed, 04 Jul 2001 00:00:00 GMT",), lambda wait: wait == 0),
    "wait-unsaid": ((), lambda wait: wait is None),
    "wait-nonsense": (("retry-after: soon",), lambda wait: wait is None),
}

CASES = {
    **FAILURES,
    **{
        name: Case(plain(error(message="slow", code="rate_limit_exceeded"), 429, *headers), "rate_limited", NOTHING)
        for name, (headers, _) in WAITS.items()
    },
    **{
        f"well-then-{then}": Case(streamed(SAID, STOP, USAGE, ends=False, then=then), "", USED, "Hi ")
        for then in ("close", "reset", "hang")
    },
}


def reply_to(stub: StubProvider, number: int) -> Reply:
    """What the case says that the request's text names; anything else is answered well."""
    named = re.search(rb"case:([\w-]+)", stub.requests[number - 1].body)
    return CASES[named[1].decode()].reply() if named else GOOD


@pytest.fixture(scope="module")
def provider() -> Iterator[StubProvider]:
    stubs: list[StubProvider] = []
    with stub_on_a_thread(lambda number: reply_to(stubs[0], number)) as stub:
        stubs.append(stub)
        yield stub


def way_to(name: str, url: str, more: str = "") -> str:
    """A caller, a model and a connector of this name, besides those that every daemon of the kit has."""
    return f"""
[[caller]]
id = "to-{name}"
models = ["npc-{name}"]
spend_ceiling_micro_usd = 1_000_000_000_000
spend_window_seconds = 86_400
[[model]]
name = "npc-{name}"
connector = "{name}"
upstream = "tiny"
[[model.price]]
input = {PRICE_INPUT}
cache_read = 3_000_017
cache_write_short = 5_000_011
cache_write_long = 7_000_003
output = {PRICE_OUTPUT}
[[connector]]
name = "{name}"
{connector(url)}
{more}
"""


def connector(url: str) -> str:
    return f'kind = "openai_chat"\nbase_url = "{url}/v1"\ncredential = {{file = "key"}}\nconcurrent_requests_max = 1\n'


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, provider: StubProvider) -> Iterator[Process]:
    """One slot towards the stub, one towards a port where nobody listens, one without a bound on bodies to speak of."""
    folder = tmp_path_factory.mktemp("d")
    key = folder / "key"
    key.touch(0o600)
    key.write_text(SECRET)
    bounds = f"response_bytes_max = {RESPONSE_BYTES_MAX}\nbody_bytes_max = {BODY_BYTES_MAX}"
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))
        gone = way_to("gone", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        patient = way_to("patient", provider.url, "body_bytes_max = 1_000_000_000_000")
        with running_daemon(
            folder,
            connector=connector(provider.url) + bounds,
            callers=gone + patient,
            upstream="tiny",
            price_input=PRICE_INPUT,
        ) as running:
            yield running
            assert SECRET not in running.log()


def asking(case: str, *, words: str | None = None) -> bytes:
    wanted = CASES[case]
    name = wanted.caller.removeprefix("to-")
    model = "npc" if name == "dungeon" else f"npc-{name}"
    request_id, text = (f"good-{case}", words) if words else (case, f"case:{case}")
    return invocation(
        request_id, text, seconds=30 if words else wanted.seconds, model=model, caller_runtime_id=wanted.caller
    )


def posts(provider: StubProvider, text: str) -> int:
    return sum(1 for heard in provider.requests if f'"{text}"'.encode() in heard.body)


def recorded(daemon: Process, request_id: str) -> tuple[BeginRecord, CompletedRecord]:
    view = LedgerView(daemon.folder / "ledger")
    assert not view.open
    [found] = [(begin, record) for begin, record in view.completes if begin.request_id == request_id]
    return found


def charge_of(usage: dict[str, int] | None, begin: BeginRecord) -> int:
    if usage is None:
        return begin.reservation_micro_usd
    return -(-(usage["input_tokens"] * PRICE_INPUT + usage["output_tokens"] * PRICE_OUTPUT) // 1_000_000)


def texts(answer: bytes) -> str:
    events: list[Any] = msgpack.unpackb(answer)["disposition"]["Transported"]["events"]
    return "".join(event["payload"]["TextDelta"]["text"] for event in events)


@pytest.mark.parametrize("name", FAILURES)
def test_its_kind_its_charge_its_record_one_post_and_the_slot_free_again(
    name: str, daemon: Process, provider: StubProvider
) -> None:
    case = CASES[name]
    with daemon.connect() as client:
        frame = asking(name)
        answer = client.ask(frame)
        assert said(answer) == case.kind
        told = receipt(answer)
        failed = told["outcome"]["Failed"]
        assert failed.get("usage") == case.usage, failed
        assert texts(answer) == case.text
        assert SECRET.encode() not in answer

        begin, record = recorded(daemon, name)
        assert begin.reservation_micro_usd > charge_of(USED, begin)
        assert told["cost_micro_usd"] == record.charge_micro_usd == charge_of(case.usage, begin)
        assert (record.outcome, record.response) == (case.kind, STORED_AS_IS + answer)
        assert (record.usage is None) == (case.usage is None)

        after = client.ask(asking(name, words="and now well"))
        assert said(after) == ("unavailable" if case.posts == 0 else "end_turn"), "the one slot is free"
        assert client.ask(frame) == answer, "a failure is an answer like any other: on record, and replayed"
    assert posts(provider, f"case:{name}") == case.posts
    wait_until(lambda: provider.ended == provider.connections)  # nothing is left open towards the provider


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wrong-key", "Incorrect API key provided: <credential>."),
        ("wrong-key-without-words", "HTTP 401 with an empty body"),
        ("unknown-model-404", "The model `tiny` does not exist"),
        ("unknown-path-404", "HTTP 404 with a non-JSON body for a POST to /v1/chat/completions: is base_url right?"),
        ("error-after-text", "busy"),
        ("never-answers", "the deadline passed before the provider had ended"),
    ],
)
def test_the_message_is_the_providers_own_where_it_had_one(name: str, words: str, daemon: Process) -> None:
    with daemon.connect() as client:
        told = receipt(client.ask(_again(name)))
    assert told["outcome"]["Failed"]["message"] == words


def _again(name: str) -> bytes:
    """The case under an id of its own."""
    return invocation(f"again-{name}", f"case:{name}", seconds=CASES[name].seconds)


@pytest.mark.parametrize("name", WAITS)
def test_429_carries_the_wait_that_the_provider_asks_for_and_costs_nothing(name: str, daemon: Process) -> None:
    with daemon.connect() as client:
        told = receipt(client.ask(asking(name)))
    failed = told["outcome"]["Failed"]
    assert (failed["kind"], told["cost_micro_usd"]) == ("rate_limited", 0)
    assert failed["message"].startswith("slow")
    assert WAITS[name][1](wait_in(failed["message"])), failed["message"]


def test_while_the_server_hangs_the_one_slot_is_taken_and_then_it_is_free(
    daemon: Process, provider: StubProvider
) -> None:
    frame = invocation("held", "case:never-answers", seconds=2)
    with daemon.connect() as client, daemon.connect() as other:
        client.send(frame)
        wait_until(lambda: provider.requests[-1:] != [] and b"case:never-answers" in provider.requests[-1].body)
        assert said(other.ask(invocation("too-many", "well"))) == "Capacity"
        answer = client.receive()
        assert answer is not None
        assert said(answer) == "timeout"
        assert said(other.ask(invocation("too-many", "well"))) == "end_turn"


@pytest.mark.parametrize("then", ["close", "reset", "hang"])
def test_what_ended_well_stands_whatever_the_connection_does_then(
    then: str, daemon: Process, provider: StubProvider
) -> None:
    with daemon.connect() as client:
        answer = client.ask(asking(f"well-then-{then}"))
    begin, record = recorded(daemon, f"well-then-{then}")
    assert (said(answer), texts(answer)) == ("end_turn", "Hi ")
    assert record.charge_micro_usd == charge_of(USED, begin)
