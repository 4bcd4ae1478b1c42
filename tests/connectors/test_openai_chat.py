"""The Chat Completions connector over loopback sockets: what stands between lowering and lifting."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from kit import build
from kit.connector_cases import chat_at
from kit.stream_cases import expected
from kit.stub_http import Reply, StubProvider, chunked, head, stub_provider, whole

from sidecar.connectors.promise import Answer, Ended
from sidecar.contract import values as v

SAID = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
USED = v.Usage(input_tokens=11, cache_read_tokens=0, cache_write_tokens=0, output_tokens=3)
SECRET = "sk-canary-Zq8xW3vNpL5tRy2KmB7d"


async def asked(
    reply: Reply | Callable[[int], Reply], *, secret: str | None = None, body_bytes_max: int = 1_000_000, times: int = 1
) -> tuple[Ended, list[str], int, int]:
    """The end of the last answer, the authorization of each request, how many requests and how many connections."""
    async with stub_provider(reply) as stub:
        connector = chat_at(stub.url, secret=secret, body_bytes_max=body_bytes_max, keeps_connections=True)
        for _ in range(times):
            lowered = connector.lower(build.request(), "tiny")
            answer = Answer(lowered.call_ids, 1_000_000)
            with trio.fail_after(10):
                await connector.exchange(lowered, answer)
        await connector.aclose()
    assert answer.ended is not None
    authorizations = [heard.headers.get("authorization", "") for heard in stub.requests]
    return answer.ended, authorizations, len(stub.requests), stub.connections


async def test_the_body_that_was_lowered_is_what_arrives_with_the_credential_as_a_bearer() -> None:
    async with stub_provider(chunked(SAID, FINISH, USAGE, DONE)) as stub:
        connector = chat_at(stub.url + "/api/", secret=SECRET)
        lowered = connector.lower(build.request(), "tiny")
        await connector.exchange(lowered, Answer(frozenset(), 1000))
        await connector.aclose()
    (heard,) = stub.requests
    assert heard.line == "POST /api/chat/completions HTTP/1.1"
    assert heard.body == lowered.body
    assert json.loads(heard.body)["model"] == "tiny"
    assert (heard.headers["authorization"], heard.headers["accept"]) == (f"Bearer {SECRET}", "text/event-stream")
    assert SECRET not in repr(connector) + repr(lowered)


async def test_without_a_credential_no_authorization_is_sent() -> None:
    _, authorizations, _, _ = await asked(chunked(SAID, FINISH, USAGE, DONE))
    assert authorizations == [""]


@pytest.mark.parametrize(
    "pieces", [(SAID + FINISH + USAGE + DONE,), (SAID, FINISH, USAGE, DONE), (SAID, FINISH + USAGE)]
)
async def test_a_stream_that_ends_leaves_its_connection_for_the_next_request(pieces: tuple[bytes, ...]) -> None:
    ended, _, requests, connections = await asked(chunked(*pieces), times=3)
    assert ended == Ended(stop_reason="end_turn", usage=USED)
    assert (requests, connections) == (3, 1)


async def test_a_server_that_stays_silent_behind_done_is_left() -> None:
    ended, _, _, _ = await asked(chunked(SAID, FINISH, USAGE, DONE, ends=False, then="hang"))
    assert ended == Ended(stop_reason="end_turn", usage=USED)


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_break_behind_the_finish_reason_changes_nothing(then: str) -> None:
    ended, _, _, _ = await asked(chunked(SAID, FINISH, USAGE, ends=False, then=then))
    assert ended == Ended(stop_reason="end_turn", usage=USED)


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize("pieces", [(), (SAID,), (SAID, FINISH[:-9])], ids=["nothing", "text", "half a finish"])
async def test_e10_a12_a_break_before_the_finish_reason_is_unavailable_of_unknown_usage(
    pieces: tuple[bytes, ...], then: str
) -> None:
    ended, _, requests, _ = await asked(chunked(*pieces, ends=False, then=then))
    assert (ended.kind, ended.usage, requests) == ("unavailable", None, 1)


async def test_e10_a_body_that_ends_before_the_finish_reason_is_unavailable() -> None:
    for reply in (chunked(SAID), chunked(SAID, DONE), chunked(), whole(SAID), whole("")):
        ended, _, _, _ = await asked(reply)
        assert (ended.kind, ended.usage) == ("unavailable", None)


@pytest.mark.parametrize("status", [500, 408, 409])
async def test_c12_exactly_one_post_is_made_whatever_comes_back(status: int) -> None:
    _, _, requests, _ = await asked(whole("{}", status))
    assert requests == 1
    _, _, requests, _ = await asked(Reply((), "reset"))
    assert requests == 1


async def test_while_the_model_loads_the_server_is_unavailable_and_nothing_is_paid() -> None:
    loading = '{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'
    ended, _, _, _ = await asked(whole(loading, 503))
    assert ended == Ended(kind="unavailable", message="Loading model", usage=v.NOTHING_USED)


async def test_g7_a_context_that_is_too_long_is_an_invalid_request() -> None:
    said = '{"error":{"code":400,"message":"the request exceeds the context","type":"exceed_context_size_error"}}'
    ended, _, _, _ = await asked(whole(said, 400))
    assert ended == Ended(kind="invalid_request", message="the request exceeds the context", usage=v.NOTHING_USED)


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream", "text/html"])
async def test_a_json_body_is_known_by_itself_and_not_by_its_content_type(content_type: str) -> None:
    answer = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
    ended, _, _, _ = await asked(whole(json.dumps(answer), content_type=content_type))
    assert ended.stop_reason == "end_turn"
    ended, _, _, _ = await asked(whole('{"error":{"code":429}}', content_type=content_type))
    assert (ended.kind, ended.usage) == ("rate_limited", None)


async def test_a_credential_quoted_inside_a_stream_is_scrubbed() -> None:
    quoted = b'data: {"error":{"message":"key %s is bad","code":"invalid_api_key"}}\n\n' % SECRET.encode()
    ended, _, _, _ = await asked(chunked(quoted), secret=SECRET)
    assert (ended.kind, ended.message) == ("authentication", "key <credential> is bad")


async def test_a_raw_body_above_its_bound_is_dropped() -> None:
    ended, _, _, _ = await asked(chunked(*[b": alive\n\n" * 500] * 20, ends=False, then="hang"), body_bytes_max=50_000)
    assert (ended.kind, ended.usage) == ("result_size", None)


@pytest.mark.parametrize("pieces", [(), (head(),), chunked(SAID, ends=False).pieces], ids=["silent", "head", "body"])
async def test_e14_a_silent_server_is_dropped_at_the_deadline_in_every_phase(pieces: tuple[bytes, ...]) -> None:
    async with stub_provider(Reply(pieces, "hang")) as stub:
        connector = chat_at(stub.url)
        answer = Answer(frozenset(), 1000)
        with trio.CancelScope() as deadline:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connector.exchange, connector.lower(build.request(), "tiny"), answer)
                await stub.heard.wait()
                await trio.testing.wait_all_tasks_blocked(0.05)
                deadline.deadline = trio.current_time() + 0.05
        assert deadline.cancelled_caught
        with trio.fail_after(5):
            await stub.gone.wait()
        await connector.aclose()
    assert answer.sent
    assert answer.ended is None, "the service says timeout"


async def test_a_deadline_behind_the_finish_reason_lets_the_outcome_stand() -> None:
    async with stub_provider(chunked(SAID, FINISH, USAGE, ends=False, then="hang")) as stub:
        connector = chat_at(stub.url)
        answer = Answer(frozenset(), 1000)
        with trio.CancelScope() as deadline:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connector.exchange, connector.lower(build.request(), "tiny"), answer)
                await stub.heard.wait()
                await trio.testing.wait_all_tasks_blocked(0.05)
                deadline.cancel()
        await connector.aclose()
    assert deadline.cancelled_caught
    assert answer.ended == Ended(stop_reason="end_turn", usage=USED)


# --- recorded streams and other hosts ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [7, 1024, 1_000_000])
@pytest.mark.parametrize("path", expected("openai_chat"), ids=lambda path: Path(path).stem)
async def test_a_recorded_stream_that_a_server_sends_is_lifted_as_expected(path: str, size: int) -> None:
    """Those recorded elsewhere are read in place; where they are absent, the tests of the lifting skip and say so."""
    body, wanted = Path(path).read_bytes(), expected("openai_chat")[path]
    async with stub_provider(chunked(*(body[at : at + size] for at in range(0, len(body), size)))) as stub:
        connector = chat_at(stub.url)
        answer = Answer(frozenset(), 1_000_000)
        await connector.exchange(connector.lower(build.request(), "tiny"), answer)
        await connector.aclose()
    check(answer, wanted)


def check(answer: Answer, wanted: dict[str, Any]) -> None:
    text = "".join(event.text_delta.text for event in answer.events() if event.text_delta)
    assert hashlib.sha256(text.encode()).hexdigest() == wanted["text_sha256"]
    calls = [event.tool_call for event in answer.events() if event.tool_call]
    assert [[call.call_id, call.name, call.arguments] for call in calls] == wanted["tool_calls"]
    assert answer.ended is not None
    assert (answer.ended.stop_reason, answer.ended.kind) == (wanted.get("stop_reason"), wanted.get("kind"))
    assert answer.ended.usage == (v.Usage(**wanted["usage"]) if wanted["usage"] else None)


async def test_a_server_at_an_ipv6_address_is_reached_and_named_in_brackets() -> None:
    try:
        listeners = await trio.open_tcp_listeners(0, host="::1")
    except OSError as why:
        pytest.skip(f"this machine has no IPv6: {why}")
    port = listeners[0].socket.getsockname()[1]
    stub = StubProvider(f"http://[::1]:{port}", lambda _: chunked(SAID, FINISH, USAGE, DONE))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, stub.serve, listeners)
        connector = chat_at(stub.url)
        answer = Answer(frozenset(), 1000)
        await connector.exchange(connector.lower(build.request(), "tiny"), answer)
        await connector.aclose()
        nursery.cancel_scope.cancel()
    assert answer.ended == Ended(stop_reason="end_turn", usage=USED)
    assert stub.requests[0].headers["host"] == f"[::1]:{port}"


@pytest.mark.parametrize(
    ("base", "line"),
    [
        ("", "POST /v1/chat/completions HTTP/1.1"),
        ("/", "POST /v1/chat/completions HTTP/1.1"),
        ("/v1", "POST /v1/chat/completions HTTP/1.1"),
        ("/v1/", "POST /v1/chat/completions HTTP/1.1"),
        ("/api/v1", "POST /api/v1/chat/completions HTTP/1.1"),
        ("/openai/v1/chat/completions", "POST /openai/v1/chat/completions HTTP/1.1"),
        ("/a%2Fb", "POST /a%2Fb/chat/completions HTTP/1.1"),
    ],
)
async def test_the_post_goes_to_the_path_of_the_base(base: str, line: str) -> None:
    async with stub_provider(chunked(SAID, FINISH, USAGE, DONE)) as stub:
        connector = chat_at(stub.url + base)
        await connector.exchange(connector.lower(build.request(), "tiny"), Answer(frozenset(), 1000))
        await connector.aclose()
    assert [heard.line for heard in stub.requests] == [line]


async def test_a_key_that_is_echoed_into_the_answer_is_in_no_event() -> None:
    halves = [SECRET[:5], SECRET[5:]]
    pieces = [f"data: {json.dumps({'choices': [{'delta': {'content': half}}]})}\n\n".encode() for half in halves]
    async with stub_provider(chunked(*pieces, FINISH, USAGE, DONE)) as stub:
        connector = chat_at(stub.url, secret=SECRET)
        answer = Answer(frozenset(), 1000)
        await connector.exchange(connector.lower(build.request(), "tiny"), answer)
        await connector.aclose()
    assert answer.ended is not None
    assert answer.ended.stop_reason == "end_turn"
    assert [event.text_delta.text for event in answer.events() if event.text_delta] == ["<credential>"]
