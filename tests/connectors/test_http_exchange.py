"""The one HTTP exchange, over loopback sockets: one POST, what was sent, every status, every break, every bound."""

from __future__ import annotations

import gzip
import json
import logging
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import httpx2
import pytest
import trio
import trio.testing
from kit.stub_http import Reply, StubProvider, chunked, head, stub_provider, whole

from sidecar.connectors.http_exchange import (
    ERROR_BODY_BYTES_MAX,
    ExchangeFault,
    Outgoing,
    new_client,
    post,
    status_failure,
)
from sidecar.connectors.promise import Answer, Ended
from sidecar.contract.values import NOTHING_USED

SECRET = "sk-canary-Zq8xW3vNpL5tRy2KmB7d"


@asynccontextmanager
async def a_client() -> AsyncIterator[httpx2.AsyncBaseTransport]:
    client = new_client("https:", idle_connections_max=4)  # which keeps connections, unlike one for plain HTTP
    try:
        yield client
    finally:
        await client.aclose()


def an_answer() -> Answer:
    return Answer(frozenset(), 1_000_000)


async def read(
    client: httpx2.AsyncBaseTransport,
    url: str,
    answer: Answer,
    *,
    body_bytes_max: int = 1_000_000,
    secret: str | None = SECRET,
) -> bytes:
    """The whole body; an ExchangeFault ends the answer as a connector does."""
    headers = {"authorization": f"Bearer {secret}"} if secret else {}
    outgoing = Outgoing(url=url, headers=headers, body=b'{"a":1}', secret=secret)
    received = b""
    try:
        async with aclosing(post(client, outgoing, answer, body_bytes_max)) as pieces:
            async for piece in pieces:
                received += piece
    except ExchangeFault as fault:
        answer.fail(fault.kind, str(fault))
    return received


def end(answer: Answer) -> Ended:
    assert answer.ended is not None
    return answer.ended


async def test_a_200_is_read_whole_and_the_request_says_no_more_than_it_must() -> None:
    async with a_client() as client, stub_provider(chunked(b"one", b"two")) as stub:
        answer = an_answer()
        assert await read(client, stub.url + "/v1/x?", answer) == b"onetwo"
    assert answer.sent
    assert answer.ended is None
    (heard,) = stub.requests
    assert heard.line == "POST /v1/x? HTTP/1.1"
    assert heard.body == b'{"a":1}'
    assert heard.headers == {
        "host": stub.url.removeprefix("http://"),
        "accept": "*/*",
        "accept-encoding": "identity",
        "connection": "keep-alive",
        "user-agent": "model-sidecar",
        "content-type": "application/json",
        "content-length": "7",
        "authorization": f"Bearer {SECRET}",
    }


UNKNOWN_USAGE = [408, 499, 502, 504, 520, 521, 522, 523, 524]


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 409, 413, 422, 429, 500, 501, 503, 529, *UNKNOWN_USAGE])
async def test_a_status_of_400_and_above_costs_nothing_but_where_the_provider_may_have_begun(status: int) -> None:
    body = '{"error":{"message":"no"}}'
    async with a_client() as client, stub_provider(whole(body, status, content_type="application/json")) as stub:
        answer = an_answer()
        assert await read(client, stub.url, answer) == b""
    assert end(answer).usage == (None if status in UNKNOWN_USAGE else NOTHING_USED)
    assert end(answer).message == "no"
    assert len(stub.requests) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_never_followed_and_is_a_provider_failure_of_unknown_usage(status: int) -> None:
    async with a_client() as client, stub_provider(lambda _: whole("", status, f"location: {'/elsewhere'}")) as stub:
        answer = an_answer()
        await read(client, stub.url, answer)
    assert (end(answer).kind, end(answer).usage) == ("provider", None)
    assert len(stub.requests) == 1


@pytest.mark.parametrize("status", [201, 202, 204, 206])
async def test_another_2xx_is_no_answer(status: int) -> None:
    async with a_client() as client, stub_provider(Reply((head(status),), "close")) as stub:
        answer = an_answer()
        await read(client, stub.url, answer)
    assert (end(answer).kind, end(answer).usage) == ("provider", None)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("<html>Bad Gateway</html>", "HTTP 502 with a non-JSON body"),
        ("", "HTTP 502 with an empty body"),
        ('{"odd":1}', "HTTP 502 with an unknown body"),
        ('{"error":{"message":"a\\nb\\u0000c"}}', "a b c"),
    ],
)
async def test_an_error_body_is_read_whatever_it_is(body: str, message: str) -> None:
    async with a_client() as client, stub_provider(whole(body, 502)) as stub:
        answer = an_answer()
        await read(client, stub.url, answer)
    assert (end(answer).kind, end(answer).message) == ("unavailable", message)


@pytest.mark.parametrize("status", [404, 405])
@pytest.mark.parametrize(("body", "what"), [("<html>none</html>", "a non-JSON"), ("", "an empty")])
async def test_a_path_that_is_not_there_is_named_and_nothing_else_of_the_address(
    status: int, body: str, what: str
) -> None:
    async with a_client() as client, stub_provider(whole(body, status)) as stub:
        answer = an_answer()
        await read(client, f"{stub.url}/{SECRET}/v1/chat?key=q", answer)
    assert end(answer) == Ended(
        kind="invalid_request",
        message=f"HTTP {status} with {what} body for a POST to /<credential>/v1/chat: is base_url right?",
        usage=NOTHING_USED,
    )


async def test_a_path_is_not_named_where_the_provider_says_what_is_not_there() -> None:
    for body, message in (('{"detail":"no such model"}', "no such model"), ("{}", "HTTP 404 with an unknown body")):
        async with a_client() as client, stub_provider(whole(body, 404)) as stub:
            answer = an_answer()
            await read(client, stub.url + "/v1", answer)
        assert end(answer).message == message


async def test_the_wait_that_the_provider_asks_for_stands_in_the_message_in_seconds() -> None:
    long = '{"error":{"message":"%s"}}' % ("slow " * 400)
    for header, seconds in (("retry-after: 20", "20"), ("retry-after-ms: 1500", "1.5")):
        async with a_client() as client, stub_provider(whole(long, 429, header)) as stub:
            answer = an_answer()
            await read(client, stub.url, answer)
        assert end(answer).kind == "rate_limited"
        assert end(answer).message.endswith(f"(the provider asks to wait {seconds} s)")
        assert len(end(answer).message) <= 1024


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_status_stands_even_if_its_body_breaks_off(then: str) -> None:
    reply = Reply((head(429, "content-length: 500", "retry-after: 7") + b'{"error":{"mess',), then)
    async with a_client() as client, stub_provider(reply) as stub:
        answer = an_answer()
        await read(client, stub.url, answer)
    assert (end(answer).kind, end(answer).usage) == ("rate_limited", NOTHING_USED)
    assert "7 s" in end(answer).message


async def cancel_once_it_waits(client: httpx2.AsyncBaseTransport, stub: StubProvider, answer: Answer) -> None:
    """A read of what the stub holds back is cancelled; the cancellation passes, and the stub sees the connection go."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, client, stub.url, answer)
            await stub.heard.wait()
            await trio.testing.wait_all_tasks_blocked(0.05)
            scope.cancel()
    assert scope.cancelled_caught
    with trio.fail_after(5):
        await stub.gone.wait()


async def test_a_status_stands_even_if_the_deadline_strikes_inside_its_body() -> None:
    async with a_client() as client, stub_provider(Reply((head(400, "content-length: 500") + b"<",), "hang")) as stub:
        answer = an_answer()
        await cancel_once_it_waits(client, stub, answer)
    assert (end(answer).kind, end(answer).usage) == ("invalid_request", NOTHING_USED)


async def test_an_endless_error_body_is_read_to_a_bound_and_dropped() -> None:
    endless = Reply((head(500, "transfer-encoding: chunked"), *([b"1000\r\n" + b"x" * 4096 + b"\r\n"] * 400)), "hang")
    async with a_client() as client, stub_provider(endless) as stub:
        answer = an_answer()
        with trio.fail_after(10):
            await read(client, stub.url, answer)
            await stub.gone.wait()
    assert (end(answer).kind, end(answer).message) == ("unavailable", "HTTP 500 with a non-JSON body")
    assert ERROR_BODY_BYTES_MAX < 400 * 4096


# --- the credential -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "quoted", [SECRET, f"Bearer {SECRET}", SECRET[:15], "x" * 1010 + SECRET, f"{SECRET}{SECRET}", f"a{SECRET[5:]}"]
)
async def test_a_provider_that_quotes_the_credential_back_is_scrubbed(
    quoted: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    body = json.dumps({"error": {"message": f"bad key {quoted}"}})
    async with a_client() as client, stub_provider(whole(body, 401)) as stub:
        answer = an_answer()
        await read(client, stub.url, answer)
    assert end(answer).kind == "authentication"
    for length in range(8, len(SECRET) + 1):
        assert SECRET[:length] not in end(answer).message
    assert "canary" not in caplog.text


async def test_the_credential_is_in_no_repr_and_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    outgoing = Outgoing(url="http://h/", headers={"authorization": f"Bearer {SECRET}"}, body=b"", secret=SECRET)
    assert SECRET not in repr(outgoing) + str(outgoing)
    for reply in (Reply((), "close"), Reply((b"nonsense " + SECRET.encode() + b"\r\n\r\n",), "close")):
        async with a_client() as client, stub_provider(reply) as stub:
            answer = an_answer()
            await read(client, stub.url, answer)
        assert "canary" not in end(answer).message + caplog.text


# --- one POST, and what may have left -----------------------------------------------------------------------


async def refused_port() -> int:
    """A port that nothing listens on."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    return port


async def test_a_connection_that_is_refused_costs_nothing() -> None:
    async with a_client() as client:
        answer = an_answer()
        await read(client, f"http://127.0.0.1:{await refused_port()}", answer)
    assert not answer.sent
    assert (end(answer).kind, end(answer).usage) == ("unavailable", NOTHING_USED)


async def test_a_tls_handshake_that_fails_costs_nothing() -> None:
    async with trio.open_nursery() as nursery:

        async def no_tls(stream: trio.SocketStream) -> None:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await stream.aclose()

        listeners = await nursery.start(trio.serve_tcp, no_tls, 0)
        port = listeners[0].socket.getsockname()[1]
        async with a_client() as client:
            answer = an_answer()
            await read(client, f"https://127.0.0.1:{port}", answer)
        nursery.cancel_scope.cancel()
    assert not answer.sent
    assert (end(answer).kind, end(answer).usage) == ("unavailable", NOTHING_USED)
    said = f"no connection to 127.0.0.1:{port} (the server there does not speak TLS: is https right in base_url?)"
    assert end(answer).message == said


@asynccontextmanager
async def tls_server(folder: Path, name: str) -> AsyncIterator[tuple[int, Path, list[bytes]]]:
    """A server whose certificate, signed by itself, is for this name: its port, the certificate, what it heard."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=test", "-addext"]
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made, f"subjectAltName={name}"]
    await trio.run_process(command, stderr=subprocess.DEVNULL)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    heard: list[bytes] = []

    async def serve(stream: trio.SSLStream[trio.SocketStream]) -> None:
        with suppress(trio.BrokenResourceError):
            heard.append(bytes(await stream.receive_some()))
            await stream.send_all(whole("x").pieces[0])
            await stream.receive_some()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_ssl_over_tcp, serve, 0, context)
        yield listeners[0].transport_listener.socket.getsockname()[1], certificate, heard
        nursery.cancel_scope.cancel()


async def test_a_certificate_that_nobody_trusts_is_refused_before_a_byte_of_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tls_server(tmp_path, "IP:127.0.0.1") as (port, certificate, heard):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with a_client() as client:
            answer = an_answer()
            await read(client, f"https://127.0.0.1:{port}", answer)
    assert (answer.sent, [one for one in heard if one]) == (False, [])
    assert (end(answer).kind, end(answer).usage) == ("unavailable", NOTHING_USED)
    assert "certificate" in end(answer).message.lower()


@pytest.mark.parametrize(("name", "is_right"), [("IP:127.0.0.1", True), ("DNS:elsewhere.example", False)])
async def test_a_trusted_certificate_must_be_for_the_host_that_is_asked(
    tmp_path: Path, name: str, is_right: bool
) -> None:
    async with tls_server(tmp_path, name) as (port, certificate, heard), a_client() as client:
        client._pool._ssl_context.load_verify_locations(certificate)
        answer = an_answer()
        received = await read(client, f"https://127.0.0.1:{port}", answer)
    if is_right:
        assert (received, answer.ended) == (b"x", None)
    else:
        assert (answer.sent, [one for one in heard if one]) == (False, [])
        assert (end(answer).kind, end(answer).usage) == ("unavailable", NOTHING_USED)


async def test_e14_a_server_that_never_accepts_the_handshake_is_dropped_by_the_deadline_and_costs_nothing() -> None:
    async with a_client() as client, stub_provider(Reply()) as stub:
        answer = an_answer()
        with trio.move_on_after(0.1) as scope:
            await read(client, stub.url.replace("http:", "https:"), answer)
    assert scope.cancelled_caught
    assert not answer.sent


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize(
    "pieces",
    [
        (),
        (b"HTTP/1.1 200",),
        (head(200, "content-length: 9") + b"cut",),
        (head(200, "transfer-encoding: chunked") + b"3\r\ncut",),
    ],
    ids=["silence", "half a head", "short", "no last chunk"],
)
async def test_a12_a_connection_that_dies_after_the_request_left_is_unavailable_of_unknown_usage(
    pieces: tuple[bytes, ...], then: str
) -> None:
    async with a_client() as client, stub_provider(Reply(pieces, then)) as stub:
        answer = an_answer()
        await read(client, stub.url, answer)
        assert stub.connections == 1
    assert answer.sent
    assert (end(answer).kind, end(answer).usage) == ("unavailable", None)
    assert len(stub.requests) == 1


@pytest.mark.parametrize("status", [500, 408, 409, 429, 503])
async def test_c12_a_failure_that_sdks_retry_is_one_post(status: int) -> None:
    reply = whole('{"error":{"message":"no"}}', status, "x-should-retry: true", "retry-after: 0")
    async with a_client() as client, stub_provider(reply) as stub:
        await read(client, stub.url, an_answer())
    assert len(stub.requests) == 1


async def test_a_connection_is_used_again_after_a_body_that_was_read_to_its_end() -> None:
    async with a_client() as client, stub_provider(chunked(b"x")) as stub:
        for _ in range(3):
            assert await read(client, stub.url, an_answer()) == b"x"
    assert (stub.connections, len(stub.requests)) == (1, 3)


async def test_over_plain_http_no_connection_is_kept() -> None:
    async with stub_provider(chunked(b"x")) as stub:
        client = new_client(stub.url, idle_connections_max=4)
        for _ in range(3):
            assert await read(client, stub.url, an_answer()) == b"x"
        await client.aclose()
    assert (stub.connections, len(stub.requests)) == (3, 3)


async def test_a_kept_connection_that_the_server_closed_is_replaced_before_anything_is_sent() -> None:
    async with a_client() as client, stub_provider(lambda _: Reply(whole("x").pieces, "close")) as stub:
        for _ in range(3):
            answer = an_answer()
            assert await read(client, stub.url, answer) == b"x"
            await stub.gone.wait()
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert answer.ended is None
    assert (stub.connections, len(stub.requests)) == (3, 3)


async def test_a_kept_connection_that_dies_on_the_second_request_is_not_tried_again() -> None:
    def reply(count: int) -> Reply:
        return whole("x") if count == 1 else Reply((), "reset")

    async with a_client() as client, stub_provider(reply) as stub:
        assert await read(client, stub.url, an_answer()) == b"x"
        answer = an_answer()
        await read(client, stub.url, answer)
    assert (end(answer).kind, end(answer).usage) == ("unavailable", None)
    assert (stub.connections, len(stub.requests)) == (1, 2)


async def test_no_cookie_is_kept() -> None:
    async with a_client() as client, stub_provider(whole("x", 200, "set-cookie: a=b; Path=/")) as stub:
        for _ in range(2):
            await read(client, stub.url, an_answer())
    assert "cookie" not in stub.requests[1].headers


async def test_the_environment_names_neither_a_proxy_nor_a_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.lower(), "http://127.0.0.1:9")
    (tmp_path / ".netrc").write_text("default login someone password netrc-canary\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    async with a_client() as client, stub_provider(whole("x")) as stub:
        assert await read(client, stub.url, an_answer(), secret=None) == b"x"
    assert "authorization" not in stub.requests[0].headers


async def test_no_request_waits_for_another_ones_connection() -> None:
    async with a_client() as client, stub_provider(Reply((), "hang")) as stub, trio.open_nursery() as nursery:
        for _ in range(150):
            nursery.start_soon(read, client, stub.url, an_answer())
        with trio.fail_after(30):
            while len(stub.requests) < 150:
                await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()


# --- bounds and cancellation --------------------------------------------------------------------------------


async def test_a_body_at_its_bound_passes_and_one_byte_more_is_dropped() -> None:
    for extra, kind in ((b"", None), (b"y", "result_size")):
        async with a_client() as client, stub_provider(chunked(b"x" * 600, b"x" * 400 + extra)) as stub:
            answer = an_answer()
            await read(client, stub.url, answer, body_bytes_max=1000)
        assert (answer.ended.kind if answer.ended else None) == kind
        if answer.ended:
            assert answer.ended.usage is None


async def test_an_endless_body_is_dropped_at_its_bound() -> None:
    endless = Reply((head(200, "transfer-encoding: chunked"), *([b"1000\r\n" + b"x" * 4096 + b"\r\n"] * 1000)), "hang")
    async with a_client() as client, stub_provider(endless) as stub:
        answer = an_answer()
        with trio.fail_after(10):
            await read(client, stub.url, answer, body_bytes_max=100_000)
            await stub.gone.wait()
    assert (end(answer).kind, end(answer).usage) == ("result_size", None)


@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, gzip"])
async def test_an_encoded_body_is_refused_and_never_unpacked(encoding: str) -> None:
    bomb = gzip.compress(b"x" * 10_000_000)
    async with a_client() as client, stub_provider(whole(bomb, 200, f"content-encoding: {encoding}")) as stub:
        answer = an_answer()
        assert await read(client, stub.url, answer) == b""
    assert (end(answer).kind, end(answer).usage) == ("provider", None)


async def test_an_encoded_error_body_is_never_unpacked() -> None:
    bomb = gzip.compress(b"x" * 10_000_000)
    async with a_client() as client, stub_provider(whole(bomb, 500, "content-encoding: gzip")) as stub:
        answer = an_answer()
        await read(client, stub.url, answer)
    assert end(answer).message == "HTTP 500 with a non-JSON body"


OK = b"HTTP/1.1 200 OK\r\n"
HEADS = {
    "a status line": (b"HTTP/1.1 200 ", b"y" * 4000),
    "a header": (OK + b"x-a: ", b"y" * 4000),
    "a header's name": (OK, b"y" * 4000),
    "many headers": (OK, b"x-a: " + b"y" * 4000 + b"\r\n"),
    "many short headers": (OK, b"a: b\r\n" * 700),
    "a chunk's head": (OK + b"transfer-encoding: chunked\r\n\r\n1;", b"y" * 4000),
    "a trailer": (OK + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx-a: ", b"y" * 4000),
    "trailers": (OK + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"x-a: " + b"y" * 4000 + b"\r\n"),
}


@pytest.mark.parametrize("name", HEADS)
async def test_an_endless_head_is_dropped(name: str) -> None:
    begin, more = HEADS[name]
    async with a_client() as client, stub_provider(Reply((begin, *[more] * 1000), "hang")) as stub:
        answer = an_answer()
        with trio.fail_after(10):
            await read(client, stub.url, answer)
            await stub.gone.wait()
    assert (end(answer).kind, end(answer).usage) == ("unavailable", None)
    assert "yyyy" not in end(answer).message


async def test_interim_responses_without_end_are_read_until_the_deadline_and_kept_nowhere() -> None:
    async with (
        a_client() as client,
        stub_provider(Reply([b"HTTP/1.1 102 Processing\r\n\r\n"] * 50_000, "hang")) as stub,
    ):
        answer = an_answer()
        with trio.move_on_after(0.3) as deadline:
            await read(client, stub.url, answer)
        assert deadline.cancelled_caught
        with trio.fail_after(5):
            await stub.gone.wait()
    assert (answer.sent, answer.ended) == (True, None)


@pytest.mark.parametrize("pieces", [(), chunked(b"one", ends=False).pieces], ids=["before the head", "inside the body"])
async def test_i1_cancelled_it_drops_the_connection_and_lets_the_cancellation_pass(pieces: tuple[bytes, ...]) -> None:
    async with a_client() as client, stub_provider(Reply(pieces, "hang")) as stub:
        answer = an_answer()
        await cancel_once_it_waits(client, stub, answer)
    assert answer.sent
    assert answer.ended is None


@pytest.mark.parametrize(("status", "said"), [(404, "File Not Found"), (404, "Not Found"), (405, "Method Not Allowed")])
async def test_a_path_is_named_where_the_provider_only_says_that_it_is_not_there(status: int, said: str) -> None:
    outgoing = Outgoing(url="http://h/v1/models/chat/completions", headers={}, body=b"{}", secret=None)
    body = json.dumps({"error": {"message": said}}).encode()
    kind, message = status_failure(status, {}, body, outgoing)
    assert kind == "invalid_request"
    assert message == f"{said} (a POST to /v1/models/chat/completions: are base_url and the model's upstream right?)"
