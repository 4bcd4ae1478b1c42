"""All three clients against a daemon that is played: what they send, what they make of each answer."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from kit import daemon_says
from kit.fake_daemon import Peer, fake_daemon
from kit.three_clients import Way

from sidecar.client import (
    CostBound,
    DaemonError,
    Disconnected,
    Indeterminate,
    InFlight,
    Malformed,
    NotADaemon,
    Refused,
    ReplayConflict,
    RequestFailed,
    SidecarError,
    WhichCaller,
    new_request,
)
from sidecar.client.errors import REFUSED
from sidecar.contract.values import Failed


def answering(peer: Peer) -> None:
    """Answers every invocation with its own id as text, in the order of their coming."""
    peer.welcome()
    while (said := peer.frame()) is not None:
        if "request" in said:
            request_id = said["request"]["request_id"]
            peer.say(daemon_says.result(request_id, f"of {request_id}"))


def saying(*frames: bytes) -> Any:
    """Answers the first invocation with these frames."""

    def part(peer: Peer) -> None:
        peer.welcome()
        peer.expect("invocation")
        peer.say(*frames)
        peer.until_hung_up()

    return part


def asked(request_id: str = "r1", text: str = "hello") -> Any:
    return new_request("npc", text, request_id=request_id)


async def raised(kind: type[SidecarError], call: Any) -> Any:
    with pytest.raises(kind) as caught:
        await call
    return caught.value


# --- answers ------------------------------------------------------------------------------------------------------


def test_a_completed_request_is_returned_with_its_text_and_receipt(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            result = await client.invoke(asked("r1"))
        assert result.text == "of r1"
        assert result.tool_calls == ()
        assert result.stop_reason == "end_turn"
        assert result.charge_micro_usd == 12
        assert result.usage.output_tokens == 2
        assert result.receipt.request_id == "r1"

    with fake_daemon(path, answering):
        way.run(body)


def test_tool_calls_are_gathered_and_the_answer_goes_into_the_next_request_as_it_stands(way: Way, path: Path) -> None:
    events = (daemon_says.text_event("wait "), daemon_says.call_event("look", 1), daemon_says.text_event("done", 2))

    async def body() -> None:
        async with way.client(path) as client:
            result = await client.invoke(asked("r1"))
        assert result.text == "wait done"
        assert [call.name for call in result.tool_calls] == ["look"]
        assert new_request("npc", input=result.input_items).input == result.input_items
        assert [type(item.chosen).__name__ for item in result.input_items] == [
            "AssistantText",
            "ToolCall",
            "AssistantText",
        ]

    with fake_daemon(path, saying(daemon_says.result("r1", *events))):
        way.run(body)


@pytest.mark.parametrize("refusal", sorted(REFUSED))
def test_each_refusal_is_an_exception_of_its_own(path: Path, refusal: Any) -> None:
    async def body() -> None:
        async with Way("asyncio").client(path) as client:
            error = await raised(REFUSED[refusal], client.invoke(asked("r1")))
        assert isinstance(error, Refused)
        assert error.refusal == refusal
        assert error.what_to_do in str(error)

    with fake_daemon(path, saying(daemon_says.refusal("r1", refusal))):
        Way("asyncio").run(body)


def test_refusals_are_raised_by_all_three(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            error = await raised(Indeterminate, client.invoke(asked("r1")))
        assert error.retry == "no"

    with fake_daemon(path, saying(daemon_says.refusal("r1", "Indeterminate"))):
        way.run(body)


def test_a_daemon_that_does_not_join_is_in_flight_as_an_exception(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            error = await raised(InFlight, client.invoke(asked("r1")))
        assert error.retry == "same_bytes"

    with fake_daemon(path, saying(daemon_says.refusal("r1", "InFlight"))):
        way.run(body)


def test_a_failed_request_is_raised_with_all_that_is_on_record(way: Way, path: Path) -> None:
    failed = Failed(kind="rate_limited", message="slow down (the provider asks to wait 2.5 s)")

    async def body() -> None:
        async with way.client(path) as client:
            error = await raised(RequestFailed, client.invoke(asked("r1")))
        assert error.kind == "rate_limited"
        assert error.retry == "new_id"
        assert error.retry_after_seconds == 2.5
        assert error.usage is None
        assert error.charge_micro_usd == 12
        assert len(error.events) == 1

    with fake_daemon(path, saying(daemon_says.result("r1", "half", failed=failed))):
        way.run(body)


def test_an_error_of_one_request_leaves_the_others_alone(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        ids = {peer.request_id(), peer.request_id()}
        assert ids == {"bad", "good"}
        peer.say(daemon_says.error("ledger_unavailable", "bad"), daemon_says.result("good", "yes"))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:

            async def bad() -> None:
                error = await raised(DaemonError, client.invoke(asked("bad")))
                assert error.code == "ledger_unavailable"
                assert error.retry == "same_bytes"

            both.start_soon(bad)
            assert (await client.invoke(asked("good"))).text == "yes"

    with fake_daemon(path, part):
        way.run(body)


def test_many_requests_share_one_connection_and_are_answered_out_of_order(way: Way, path: Path) -> None:
    count = 40

    def part(peer: Peer) -> None:
        peer.welcome()
        ids = [peer.request_id() for _ in range(count)]
        for request_id in reversed(ids):
            peer.say(daemon_says.result(request_id, f"of {request_id}"))
        peer.until_hung_up()

    async def body() -> None:
        texts: dict[str, str] = {}

        async with way.client(path) as client, anyio.create_task_group() as all_of_them:

            async def ask(request_id: str) -> None:
                texts[request_id] = (await client.invoke(asked(request_id))).text

            for number in range(count):
                all_of_them.start_soon(ask, f"r{number}")
        assert texts == {f"r{number}": f"of r{number}" for number in range(count)}

    with fake_daemon(path, part) as fake:
        way.run(body)
        assert len(fake.peers) == 1


def test_the_same_request_twice_at_once_is_asked_once_and_answered_to_both(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        request_id = peer.request_id()
        peer.expect("status")  # both wait by now
        peer.say(daemon_says.result(request_id, "once"), daemon_says.status_report())
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:
            invocation = client.prepare(asked("r1"))
            texts: list[str] = []

            async def ask() -> None:
                texts.append((await client.invoke(invocation)).text)

            both.start_soon(ask)
            both.start_soon(ask)
            with anyio.fail_after(20):
                while sum(len(asked.waiters) for asked in _session(client)._waiting) < 2:
                    await anyio.sleep(0)
            await client.status()
        assert texts == ["once", "once"]

    with fake_daemon(path, part) as fake:
        way.run(body)
        assert len(fake.frames("invocation")) == 1


def _session(client: Any) -> Any:
    return getattr(client, "client", client)._session


async def until_out(client: Any, request_id: str) -> None:
    """The request has been handed to the connection."""
    with anyio.fail_after(20):
        while not _session(client)._due.get(("invocation", "dungeon", request_id)):
            await anyio.sleep(0)


def test_another_request_under_an_id_that_waits_is_a_conflict_and_is_not_sent(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        request_id = peer.request_id()
        peer.expect("status")
        peer.say(daemon_says.status_report(), daemon_says.result(request_id, "first"))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:

            async def first() -> None:
                assert (await client.invoke(asked("r1", "one"))).text == "first"

            both.start_soon(first)
            await until_out(client, "r1")
            await raised(ReplayConflict, client.invoke(asked("r1", "two")))
            await client.status()

    with fake_daemon(path, part) as fake:
        way.run(body)
        assert len(fake.frames("invocation")) == 1


# --- quote, status, cancel, callers -------------------------------------------------------------------------------


def test_a_quote_then_its_invocation_are_the_very_same_bytes(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        quote = peer.expect("quote")
        peer.say(daemon_says.quoted("r1", 77))
        assert peer.expect("invocation") == quote["invocation"]
        peer.say(daemon_says.result("r1", "bought"))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client:
            quote = await client.quote(asked("r1"))
            assert quote.worst_case_micro_usd == 77
            assert quote.refusal is None
            assert quote.refused is None
            assert (await client.invoke(quote.invocation)).text == "bought"

    with fake_daemon(path, part):
        way.run(body)


def test_a_quote_that_would_be_refused_says_so_and_raises_nothing(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        peer.expect("quote")
        peer.say(daemon_says.quoted("r1", 77, "CostBound"))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client:
            quote = await client.quote(asked("r1"))
            assert quote.refusal == "CostBound"
            assert isinstance(quote.refused, CostBound)

    with fake_daemon(path, part):
        way.run(body)


def test_status_reports_come_in_the_order_of_the_questions(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        peer.expect("status")
        peer.say(daemon_says.status_report(1))
        peer.expect("status")
        peer.say(daemon_says.status_report(2))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client:
            assert (await client.status()).daemon.live_requests == 1
            assert (await client.status()).daemon.live_requests == 2

    with fake_daemon(path, part):
        way.run(body)


def test_a_cancel_names_caller_and_id_and_the_request_gets_its_end(way: Way, path: Path) -> None:
    failed = Failed(kind="timeout", message="cancelled")

    def part(peer: Peer) -> None:
        peer.welcome()
        peer.request_id()
        cancel = peer.expect("cancel")
        assert (cancel["caller_runtime_id"], cancel["request_id"]) == ("dungeon", "r1")
        peer.say(daemon_says.result("r1", failed=failed))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:

            async def wait() -> None:
                error = await raised(RequestFailed, client.invoke(asked("r1")))
                assert error.kind == "timeout"

            both.start_soon(wait)
            await until_out(client, "r1")
            await client.cancel("r1")

    with fake_daemon(path, part):
        way.run(body)


def test_without_a_caller_the_only_one_is_taken(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path, caller=None) as client:
            assert (await client.connect()).callers == ("dungeon",)
            assert client.prepare(asked("r1")).caller_runtime_id == "dungeon"
            assert (await client.invoke(asked("r1"))).text == "of r1"

    with fake_daemon(path, answering):
        way.run(body)


def test_without_a_caller_and_with_several_the_error_lists_them(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome(callers=("cave", "dungeon"))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path, caller=None) as client:
            error = await raised(WhichCaller, client.invoke(asked("r1")))
        assert error.callers == ("cave", "dungeon")
        assert "cave, dungeon" in str(error)

    with fake_daemon(path, part):
        way.run(body)


# --- what is never sent -------------------------------------------------------------------------------------------


def test_what_the_daemon_could_not_read_is_malformed_before_it_goes_out(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            await raised(Malformed, client.invoke(asked("no spaces in ids")))
            await raised(Malformed, client.invoke(new_request("npc", "hi", max_output_tokens=2**40)))
            await raised(Malformed, client.invoke(new_request("npc", "lone \ud800")))
            assert (await client.invoke(asked("r1"))).text == "of r1"

    with fake_daemon(path, answering) as fake:
        way.run(body)
        assert len(fake.frames("invocation")) == 1


def test_a_request_above_the_daemons_bound_is_told_here_and_cuts_off_nobody(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome(frame_bytes_max=1000)
        request_id = peer.request_id()
        peer.say(daemon_says.result(request_id, "small"))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client:
            error = await raised(DaemonError, client.invoke(asked("big", "x" * 2000)))
            assert error.code == "frame_size"
            assert (await client.invoke(asked("r1"))).text == "small"

    with fake_daemon(path, part):
        way.run(body)


def test_an_invocation_takes_no_terms_beside_its_own(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            invocation = client.prepare(asked("r1"), max_cost_micro_usd=5)
            for beside in ({"max_cost_micro_usd": 100_000}, {"timeout_seconds": 60.0}, {"expires_at_unix_ms": None}):
                with pytest.raises(TypeError, match="budget"):
                    await client.invoke(invocation, **beside)
                with pytest.raises(TypeError, match="budget"):
                    await client.quote(invocation, **beside)
                with pytest.raises(TypeError, match="budget"):
                    client.stream(invocation, **beside)

    way.run(body)


def test_what_is_no_term_is_told_with_those_that_are(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            with pytest.raises(TypeError, match=r"'timeout': the terms of an invocation are .*timeout_seconds"):
                await client.invoke(asked(), timeout=5)
            with pytest.raises(TypeError, match="'timeout'"):
                client.stream(asked(), timeout=5)

    way.run(body)


@pytest.mark.parametrize("seconds", [math.inf, -math.inf, math.nan, -1, -1e-9])
def test_a_timeout_that_is_no_time_is_told_before_anything_is_asked(way: Way, path: Path, seconds: float) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            for call in (client.prepare, client.stream):
                with pytest.raises(ValueError, match=r"timeout_seconds is .* from 0 on"):
                    call(asked(), timeout_seconds=seconds)
            for call in (client.invoke, client.quote):
                with pytest.raises(ValueError, match=r"timeout_seconds is .* from 0 on"):
                    await call(asked(), timeout_seconds=seconds)

    way.run(body)


def test_what_is_no_request_is_told_with_what_makes_one(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            for call in (client.prepare, client.stream):
                with pytest.raises(TypeError, match=r"a request is wanted: new_request\(model, text\)"):
                    call("hi")
            for call in (client.invoke, client.quote):
                with pytest.raises(TypeError, match=r"a request is wanted: new_request\(model, text\)"):
                    await call("hi")

    way.run(body)


def test_a_request_that_says_nothing_is_told_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="text is empty"):
        new_request("npc", "")
    with pytest.raises(ValueError, match="input is empty"):
        new_request("npc", input=())


def test_results_of_any_length_below_16_mib_are_taken(way: Way, path: Path) -> None:
    text = "x" * (2**24 - 2000)

    async def body() -> None:
        async with way.client(path) as client:
            assert (await client.invoke(asked("r1"))).text == text

    with fake_daemon(path, saying(daemon_says.result("r1", text))):
        way.run(body)


def test_a_request_that_the_daemon_does_not_read_yet_holds_up_no_answer(way: Way, path: Path) -> None:
    may_answer, may_read = threading.Event(), threading.Event()
    text = "x" * 4_000_000  # far more than a socket holds

    def part(peer: Peer) -> None:
        peer.welcome()
        assert peer.request_id() == "r1"
        may_answer.wait(30)
        peer.say(daemon_says.result("r1", "small"))
        may_read.wait(30)
        assert peer.expect("invocation")["request"]["input"][0]["UserText"]["text"] == text
        peer.say(daemon_says.result("r2", "large"))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:

            async def small() -> None:
                assert (await client.invoke(asked("r1"))).text == "small"
                may_read.set()

            async def large() -> None:
                assert (await client.invoke(asked("r2", text))).text == "large"

            both.start_soon(small)
            await until_out(client, "r1")
            both.start_soon(large)
            await until_out(client, "r2")
            may_answer.set()

    with fake_daemon(path, part):
        way.run(body)


# --- who is there -------------------------------------------------------------------------------------------------


def test_a_daemon_that_admits_nobody_is_told_at_once(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.say(daemon_says.error("not_admitted"))

    async def body() -> None:
        async with way.client(path) as client:
            error = await raised(DaemonError, client.invoke(asked("r1")))
        assert error.code == "not_admitted"
        assert error.retry == "no"

    with fake_daemon(path, part):
        way.run(body)


def test_a_full_daemon_is_tried_again(way: Way, path: Path) -> None:
    def full(peer: Peer) -> None:
        peer.say(daemon_says.error("too_many_connections"))

    async def body() -> None:
        async with way.client(path) as client:
            assert (await client.invoke(asked("r1"))).text == "of r1"

    with fake_daemon(path, full, full, answering):
        way.run(body)


def test_a_daemon_that_stays_full_is_told_as_that(way: Way, path: Path) -> None:
    def full(peer: Peer) -> None:
        peer.say(daemon_says.error("too_many_connections"))

    async def body() -> None:
        async with way.client(path, connect_seconds_max=1, backoff_seconds_max=0.1) as client:
            error = await raised(DaemonError, client.invoke(asked("r1")))
        assert error.code == "too_many_connections"
        assert error.retry == "same_bytes"

    with fake_daemon(path, *[full] * 500):
        way.run(body)


def test_without_a_daemon_the_wait_is_bounded(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path, connect_seconds_max=0.5) as client:
            error = await raised(Disconnected, client.invoke(asked("r1")))
            assert "no socket" in str(error)
            assert "(waited 0.5 s)" in str(error)
            assert error.retry == "same_bytes"
            await raised(Disconnected, client.status())

    way.run(body)


def test_a_daemon_that_says_nothing_is_given_up(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path, grace_seconds=0.2) as client:
            error = await raised(Disconnected, client.invoke(asked("r1"), timeout_seconds=0.3))
        assert error.fault == "no_answer"

    with fake_daemon(path, part):
        way.run(body)


@pytest.mark.parametrize("code", ["unknown_schema", "malformed_frame", "unsupported_protocol"])
def test_a_daemon_of_another_release_is_told_at_once(way: Way, path: Path, code: Any) -> None:
    def part(peer: Peer) -> None:
        peer.expect("hello")
        peer.say(daemon_says.error(code))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client:
            error = await raised(DaemonError, client.invoke(asked("r1")))
        assert error.code == code
        assert "release" in error.what_to_do

    with fake_daemon(path, part):
        way.run(body)


def _http(peer: Peer) -> None:
    peer.raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    peer.until_hung_up()


def _tls(peer: Peer) -> None:
    peer.raw(b"\x15\x03\x01\x00\x02\x02\x16")
    peer.until_hung_up()


def _random(peer: Peer) -> None:
    peer.raw(b"\x93\x1f\xc2\xaa\x00\x17")
    peer.until_hung_up()


def _echo(peer: Peer) -> None:
    peer.expect("hello")
    peer.say(peer.frames[-1])
    peer.until_hung_up()


def _no_map(peer: Peer) -> None:
    peer.say(b"\x01")
    peer.until_hung_up()


def _empty_frame(peer: Peer) -> None:
    peer.raw(bytes(4))
    peer.until_hung_up()


def _too_large(peer: Peer) -> None:
    peer.raw((2**24).to_bytes(4, "big") + b"\x80")
    peer.until_hung_up()


def _broken_welcome(peer: Peer) -> None:
    peer.say(b"\x82\xa9schema_id\xd9\x23gamecult.model.transport_welcome.v1\xa1x\x01")
    peer.until_hung_up()


def _other_protocol(peer: Peer) -> None:
    peer.welcome(protocol=2)
    peer.until_hung_up()


def _result_of_another(peer: Peer) -> None:
    peer.welcome()
    peer.request_id()
    peer.say(daemon_says.result("another", "stolen"))
    peer.until_hung_up()


def _quote_nobody_asked(peer: Peer) -> None:
    peer.welcome()
    peer.request_id()
    peer.say(daemon_says.quoted("r1"))
    peer.until_hung_up()


def _event_nobody_asked(peer: Peer) -> None:
    peer.welcome()
    peer.request_id()
    peer.say(daemon_says.live("r1", daemon_says.text_event("x")))
    peer.until_hung_up()


def _result_too_early(peer: Peer) -> None:
    peer.say(daemon_says.result("r1", "before it was asked"))
    peer.until_hung_up()


GARBAGE = [_http, _tls, _random, _echo, _no_map, _empty_frame, _too_large, _broken_welcome, _other_protocol]
GARBAGE += [_result_of_another, _quote_nobody_asked, _event_nobody_asked, _result_too_early]


@pytest.mark.parametrize("part", GARBAGE, ids=lambda part: part.__name__)
def test_what_is_no_daemon_is_told_as_that(way: Way, path: Path, part: Any) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            await raised(NotADaemon, client.invoke(asked("r1")))

    with fake_daemon(path, part):
        way.run(body)


def test_after_garbage_the_next_request_begins_afresh(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            await raised(NotADaemon, client.invoke(asked("r1")))
            assert (await client.invoke(asked("r2"))).text == "of r2"

    with fake_daemon(path, _http, answering):
        way.run(body)
