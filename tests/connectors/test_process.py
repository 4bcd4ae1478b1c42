"""Real children: what the contract says of each, up to the receipt, and that nothing of them is left."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from kit import build
from kit.chat_road import ChatRoad, Told
from kit.process_cases import plan_of, process
from kit.road import Road
from msgspec import structs

from sidecar.connectors.process import Process
from sidecar.connectors.promise import Answer
from sidecar.contract import values as v

USED_COST = -(-(11 * 2_000_003 + 3 * 11_000_027) // 1_000_000)  # at the prices of `kit.road`


async def told(behaviour: str, words: str = "hello there", **changes: Any) -> Told:
    """One invocation of a daemon whose connector has such a child."""
    async with process(behaviour, **changes) as connector:
        road = Road(connector=connector)
        return await ChatRoad(road, None).ask(build.text(words))  # there is no stub


async def asked(connector: Process, *items: v.InputItem) -> Answer:
    lowered = connector.lower(build.request(*items), "tiny")
    answer = Answer(lowered.call_ids, 100_000)
    with trio.fail_after(20):
        await connector.exchange(lowered, answer)
    return answer


def text_of(answer: Answer) -> str:
    return "".join(event.text_delta.text for event in answer.events() if event.text_delta)


# --- up to the receipt ------------------------------------------------------------------------------------------


async def test_a_good_answer_is_charged_by_its_usage() -> None:
    good = await told("text")
    assert (good.word, good.text, good.charge) == ("end_turn", "Hello there", USED_COST)


@pytest.mark.parametrize("claimed", [0, USED_COST - 1, USED_COST + 1, 2**64 - 1])
async def test_a_claim_of_another_cost_fails_as_provider_at_the_whole_reservation(claimed: int) -> None:
    answer = await told("claims", f"it costs {claimed}")
    assert (answer.word, answer.usage, answer.text) == ("provider", None, "Hello there")
    assert answer.charge == answer.reservation
    assert answer.message == f"the backend claims a cost of {claimed} micro-USD; by its usage it is {USED_COST}"


async def test_a_claim_of_the_derived_cost_changes_nothing() -> None:
    answer = await told("claims", f"it costs {USED_COST}")
    assert (answer.word, answer.charge) == ("end_turn", USED_COST)


@pytest.mark.parametrize(
    ("behaviour", "word"), [("garbage", "provider"), ("dies", "unavailable"), ("fails", "rate_limited")]
)
async def test_what_a_child_breaks_keeps_its_events_and_costs_the_whole_reservation(behaviour: str, word: str) -> None:
    answer = await told(behaviour)
    assert (answer.word, answer.usage, answer.text) == (word, None, "Hello there")
    assert answer.charge == answer.reservation


async def test_a_flood_is_a_result_size_at_the_whole_reservation() -> None:
    answer = await told("huge", body_bytes_max=100_000)
    assert (answer.word, answer.usage, answer.text) == ("result_size", None, "")
    assert answer.charge == answer.reservation


async def test_who_answers_twice_is_charged_once_by_the_first() -> None:
    log = io.StringIO()
    async with process("twice", log=log) as connector:
        for _ in range(2):
            answer = await asked(connector)
            assert answer.ended is not None
            assert (answer.ended.stop_reason, text_of(answer)) == ("end_turn", "Hello there")
    assert "child_dropped" in log.getvalue()


async def test_a_child_that_can_not_be_started_costs_nothing() -> None:
    answer = await told("unreachable")
    assert (answer.word, answer.charge) == ("unavailable", 0)


# --- what a child is given --------------------------------------------------------------------------------------


async def test_a_child_has_its_own_environment_session_and_three_descriptors(tmp_path: Path) -> None:
    plan = structs.replace(plan_of("environment"), environment={"SIDECAR_CREDENTIAL": "key", "A": "1"}, cwd=tmp_path)
    inheritable = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    try:
        async with process("environment", plan=plan) as connector:
            said = text_of(await asked(connector)).splitlines()
    finally:
        os.close(inheritable)
    said = [line for line in said if not line.startswith("LC_CTYPE=")]  # which Python itself sets for a C locale
    assert said == [
        "A=1", "SIDECAR_CREDENTIAL=key", f"cwd {tmp_path.resolve()}", "fds [0, 1, 2]", "leader True", "deadline True",
        "upstream tiny",
    ]  # fmt: skip


async def test_a_child_that_says_its_credential_is_not_heard_saying_it() -> None:
    plan = structs.replace(plan_of("environment"), environment={"SIDECAR_CREDENTIAL": "sk-canary-0123456789"})
    async with process("environment", plan=plan, secret="sk-canary-0123456789") as connector:
        said = text_of(await asked(connector)).splitlines()
    assert "SIDECAR_CREDENTIAL=<credential>" in said


async def test_a_child_gets_its_states_back_as_it_gave_them() -> None:
    async with process("state") as connector:
        first = await asked(connector)
        state = first.events()[0].reasoning_state
        assert state
        back = v.InputItem(reasoning_state=v.ReasoningState(model="tiny", provider="parrots", state=state.state))
        assert text_of(first) == "[]"
        assert text_of(await asked(connector, back, build.text())) == repr([b"\x00thought\xff"])


async def test_a_request_larger_than_a_pipe_arrives_whole() -> None:
    async with process("text") as connector:
        for _ in range(2):
            assert text_of(await asked(connector, build.text("y" * 1_000_000))) == "Hello there"


async def test_the_last_words_of_a_child_are_in_the_log_escaped() -> None:
    log = io.StringIO()
    async with process("dies", log=log) as connector:
        await asked(connector)
        with trio.fail_after(20):
            while "exit code 3" not in log.getvalue():
                await trio.sleep(0.01)
    assert 'line="the last words of a  [31mparrot"' in log.getvalue()


# --- how it ends ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running_family() -> AsyncIterator[tuple[Process, int]]:
    """A connector, while it is entered with an exchange under way, and the pid of its child's child."""
    async with process("family") as connector, trio.open_nursery() as nursery:
        lowered = connector.lower(build.request(), "tiny")
        spoken = trio.Event()
        answer = Answer(lowered.call_ids, 100_000, on_event=lambda *_: spoken.set())
        nursery.start_soon(connector.exchange, lowered, answer)
        with trio.fail_after(20):
            await spoken.wait()
        yield connector, int(text_of(answer))
        nursery.cancel_scope.cancel()


def runs(pid: int) -> bool:
    """Whether a process lives; one that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def has_no_child() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


async def wait_gone(pid: int) -> None:
    with trio.fail_after(20):
        while runs(pid):
            await trio.sleep(0.01)


async def test_a_deadline_kills_the_child_and_all_of_its_group() -> None:
    async with running_family() as (_, grandchild):
        assert runs(grandchild)
    await wait_gone(grandchild)


async def test_closing_kills_the_child_and_all_of_its_group_and_reaps_it() -> None:
    async with running_family() as (connector, grandchild):
        await connector.aclose()
        await wait_gone(grandchild)
    assert has_no_child(), "not even a dead one"


async def test_no_descriptor_is_left_of_children_that_have_gone() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for behaviour in ("text", "dies", "twice", "hangs"):
        async with process(behaviour) as connector:
            with trio.move_on_after(0.2 if behaviour == "hangs" else 20):
                await asked(connector)
    async with process("unreachable") as connector:
        await asked(connector)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_child_that_has_ended_after_its_answer_is_replaced() -> None:
    once = "import sys; sys.argv[1:] = ['text']; sys.path.insert(0, '.'); import odd_child as o; a = o.read_frame();"
    plan = structs.replace(plan_of("text"), argv=(sys.executable, "-c", once + "a and o.text(a['exchange'], a)"))
    log = io.StringIO()
    async with process("text", plan=plan, children_max=1, log=log) as connector:
        for ended in range(1, 4):
            assert text_of(await asked(connector)) == "Hello there"
            with trio.fail_after(20):
                while log.getvalue().count("exit code 0") < ended:
                    await trio.sleep(0.01)
    assert "child_faulty" not in log.getvalue()
