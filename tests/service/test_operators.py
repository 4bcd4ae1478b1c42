"""What operators may ask: a request that a crash left open is settled once, and accounts are held against records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
import trio.testing
from kit import build
from kit.memory_ledger import MemoryLedger
from kit.road import STRANGER, HeldConnector, Road, receipt, said
from msgspec import structs

from sidecar.audit.tallying import GivenUp, Tallied
from sidecar.contract import canonical
from sidecar.contract.operator_frames import (
    OPERATOR_CHECK,
    OPERATOR_RESOLVE,
    OperatorCheck,
    OperatorFrame,
    OperatorResolve,
)
from sidecar.ledger.faults import SEAL_AGAIN, LedgerDamaged, LedgerUnavailable, RecordDamaged
from sidecar.rules.conservation import Tally
from sidecar.rules.framing import framed
from sidecar.service.decision import Admitted
from sidecar.service.peer import Peer, Standing

ADA = Peer(pid=4711, uid=1234, gids=frozenset({1234}))
CHECK = OperatorCheck(schema_id=OPERATOR_CHECK)
WINDOWS = {"dungeon": 86_400, "other": 86_400}


def decision(request_id: str = "lost", charge: Any = "nothing", **changes: Any) -> OperatorResolve:
    members = {"caller_runtime_id": "dungeon", "who": "ada", "why": "not on the bill", **changes}
    return OperatorResolve(schema_id=OPERATOR_RESOLVE, request_id=request_id, charge=charge, **members)


def lost() -> bytes:
    return build.frame(build.request(request_id="lost"))


async def after_a_crash(**terms: Any) -> Road:
    """A daemon that finds one request begun and not ended."""
    before = Road()
    admitted = before.decide(lost())
    assert isinstance(admitted, Admitted)
    await before.ledger.begin(admitted.begin)
    before.ledger.reopen()
    return Road(ledger=before.ledger, **terms)


def tallied_in(ledger: MemoryLedger) -> Tally:
    tally = Tally(WINDOWS)
    for begin in ledger.begins:
        tally.begun(begin.caller_runtime_id, begin.admitted_at_unix_ms, begin.reservation_micro_usd)
    for begin, end in ledger.completes:
        tally.ended(
            begin.caller_runtime_id, begin.admitted_at_unix_ms, begin.reservation_micro_usd, end.charge_micro_usd
        )
    return tally


class Asking:
    """The answers that come, decoded; what is to be waited for runs in the nursery."""

    def __init__(self, road: Road, nursery: trio.Nursery, peer: Peer | None = ADA) -> None:
        self.answers: list[dict[str, Any]] = []
        self._road, self._nursery, self._peer = road, nursery, peer

    def ask(self, frame: OperatorFrame) -> None:
        self._road.operators.take(
            Standing(peer=self._peer or STRANGER, callers=frozenset(), is_operator=self._peer is not None),
            frame,
            self._nursery.start_soon,
            lambda answer: self.answers.append(msgpack.unpackb(answer)),
        )


async def answered(road: Road, frame: OperatorFrame, peer: Peer | None = ADA) -> dict[str, Any]:
    async with trio.open_nursery() as nursery:
        asking = Asking(road, nursery, peer)
        asking.ask(frame)
        while not asking.answers:
            await trio.lowlevel.checkpoint()
    [answer] = asking.answers
    return answer


def held_and_spent(road: Road) -> tuple[int, int]:
    account = road.accounts["dungeon"]
    start = account.window_start(road.now)
    return account.reserved(start), account.spent(start)


# --- resolve ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("charge", ["nothing", "reservation"])
async def test_a_decision_settles_record_account_replay_and_log(charge: str) -> None:
    road = await after_a_crash()
    reservation = road.ledger.begins[0].reservation_micro_usd
    amount = reservation if charge == "reservation" else 0
    assert held_and_spent(road) == (reservation, 0)
    assert road.refusal(lost()) == "Indeterminate"
    answer = await answered(road, decision(charge=charge))
    assert (answer["found"], answer["charge_micro_usd"], answer["request_id"]) == ("settled", amount, "lost")
    assert held_and_spent(road) == (0, amount)
    [(_, record)] = road.ledger.completes
    assert (record.outcome, record.charge_micro_usd, record.notes) == ("unavailable", amount, ())
    replayed = await road.answer(lost())
    assert said(replayed) == "unavailable"
    assert receipt(replayed)["cost_micro_usd"] == amount
    assert "resolved by ada" in receipt(replayed)["outcome"]["Failed"]["message"]
    [line] = [line for line in road.log.getvalue().splitlines() if " resolved " in line]
    facts = (
        "request=lost",
        f"held_micro_usd={reservation}",
        "uid=1234",
        "pid=4711",
        "who=ada",
        'why="not on the bill"',
    )
    assert [fact for fact in facts if fact not in line] == []


async def test_the_reservation_is_settled_in_the_window_of_its_admission() -> None:
    road = await after_a_crash()
    reservation, admitted_at = road.ledger.begins[0].reservation_micro_usd, road.now
    road.now += 86_400_000
    await answered(road, decision(charge="reservation"))
    assert held_and_spent(road) == (0, 0)
    road.now = admitted_at
    assert held_and_spent(road) == (0, reservation)


async def test_what_is_settled_unknown_or_completed_is_told_and_nothing_changes() -> None:
    road = await after_a_crash(connector=HeldConnector())
    road.connector.let_go.set()
    await road.answer(build.frame(build.request(request_id="done")))
    await answered(road, decision())
    before = held_and_spent(road)
    for frame, found in (
        (decision(charge="reservation"), "ended"),
        (decision("done"), "ended"),
        (decision("never"), "unknown"),
        (decision(caller_runtime_id="other"), "unknown"),
        (decision(caller_runtime_id="stranger"), "unknown"),
    ):
        answer = await answered(road, frame)
        assert answer["found"] == found
        assert "charge_micro_usd" not in answer
        assert answer["message"].endswith("nothing was changed")
    assert held_and_spent(road) == before
    assert len(road.ledger.completes) == 2


async def test_what_runs_is_told_so_from_its_reservation_on_and_ends_as_it_would(autojump_clock: Any) -> None:
    road = Road()
    road.ledger.delay_seconds = 1
    admitted = road.decide(build.frame(build.request(request_id="running")))
    assert isinstance(admitted, Admitted)
    async with trio.open_nursery() as nursery:
        answers: list[bytes] = []
        road.exchange.carry(admitted, nursery.start_soon, answers.append)
        for _ in range(2):  # while its begin is on its way, and while it is asked
            assert (await answered(road, decision("running")))["found"] == "running"
            await trio.sleep(2)
        road.connector.let_go.set()
        while not answers:
            await trio.sleep(1)
    assert said(answers[0]) == "end_turn"


async def test_of_two_operators_one_settles(autojump_clock: Any) -> None:
    road = await after_a_crash()
    road.ledger.delay_seconds = 1
    async with trio.open_nursery() as nursery:
        first, second = Asking(road, nursery), Asking(road, nursery)
        first.ask(decision(charge="nothing"))
        second.ask(decision(charge="reservation"))
        assert [answer["found"] for answer in second.answers] == ["being_resolved"]
        assert first.answers == []
        assert road.operators.resolving == 1
        await trio.sleep(2)
        assert [answer["found"] for answer in first.answers] == ["settled"]
    assert len(road.ledger.completes) == 1
    assert held_and_spent(road) == (0, 0)


async def test_it_is_durable_before_it_is_answered(autojump_clock: Any) -> None:
    road = await after_a_crash()
    road.ledger.delay_seconds = 5
    async with trio.open_nursery() as nursery:
        asking = Asking(road, nursery)
        asking.ask(decision())
        await trio.sleep(4)
        assert asking.answers == []
        assert held_and_spent(road)[0] > 0
        await trio.sleep(2)
        assert [answer["found"] for answer in asking.answers] == ["settled"]


async def test_pressure_that_refuses_begins_refuses_no_decision() -> None:
    road = await after_a_crash()
    road.ledger.pressure = "no spare segment can be made"
    assert said(await road.answer(build.frame(build.request(request_id="new")))) == "ledger_unavailable"
    assert (await answered(road, decision()))["found"] == "settled"


async def test_a_ledger_that_fails_says_unavailable_and_the_account_keeps_what_is_held(autojump_clock: Any) -> None:
    road = await after_a_crash()
    before = held_and_spent(road)
    road.ledger.fail_complete_with = "there is no room for this record until a spare segment is ready"
    answer = await answered(road, decision())
    assert (answer["code"], answer["request_id"]) == ("ledger_unavailable", "lost")
    assert "no room" in answer["message"]
    road.ledger.fail_complete_with = None
    road.ledger.delay_seconds = 1
    async with trio.open_nursery() as nursery:
        asking = Asking(road, nursery)
        asking.ask(decision())
        road.ledger.poison("writing failed")
        await trio.sleep(2)
        assert [answer["code"] for answer in asking.answers] == ["ledger_unavailable"]
    for frame in (decision(), CHECK):
        assert (await answered(road, frame))["code"] == "ledger_unavailable"
    assert held_and_spent(road) == before
    assert road.operators.resolving == 0


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (LedgerUnavailable("1-2.seal can't be read: Input/output error"), "ledger_unavailable"),
        (RecordDamaged("1-2.seal is damaged at byte 1024", file=Path("/l/1-2.seal"), offset=1024, advice=SEAL_AGAIN),
         "internal"),
    ],
)  # fmt: skip
async def test_what_is_on_record_and_cannot_be_read_is_told_and_ends_nothing(
    fault: LedgerUnavailable, code: str
) -> None:
    road = await after_a_crash()
    road.ledger.fail_find_with = fault
    answer = await answered(road, decision())
    assert (answer["code"], answer["message"], answer["request_id"]) == (code, str(fault), "lost")
    [line] = [line for line in road.log.getvalue().splitlines() if " record_unreadable " in line]
    is_damage = isinstance(fault, RecordDamaged)
    assert is_damage == (f'file=/l/1-2.seal offset=1024 advice="{SEAL_AGAIN}"' in line)
    road.ledger.fail_find_with = None
    assert (await answered(road, decision()))["found"] == "settled"


async def test_a_request_whose_end_this_run_could_not_record_waits_for_a_restart() -> None:
    road = Road(connector=HeldConnector())
    road.connector.let_go.set()
    road.ledger.fail_complete_with = "the disk said no"
    assert said(await road.answer(build.frame(build.request(request_id="stranded")))) == "ledger_unavailable"
    answer = await answered(road, decision("stranded"))
    assert answer["code"] == "ledger_unavailable"
    assert "after a restart" in answer["message"]


@pytest.mark.parametrize("frame", [decision(), CHECK], ids=["resolve", "check"])
async def test_who_is_no_operator_is_refused_and_the_connection_goes_on(frame: OperatorFrame) -> None:
    road = await after_a_crash(connector=HeldConnector())
    road.connector.let_go.set()
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(road.connection(theirs, nursery).serve)
        await ours.send_all(framed(canonical.encode(frame)))
        refused = msgpack.unpackb((await ours.receive_some())[4:])
        assert (refused["code"], refused["message"]) == ("not_admitted", "this peer is no operator here")
        assert refused.get("request_id") == getattr(frame, "request_id", None)
        for _ in range(2):  # a line a second, for whom asks again and again
            await ours.send_all(framed(canonical.encode(frame)))
            await ours.receive_some()
        await ours.send_all(framed(build.frame(build.request(request_id="mine"))))
        assert said((await ours.receive_some())[4:]) == "end_turn"
        await ours.send_eof()
    assert road.ledger.completes[0][0].request_id == "mine"
    [line] = [line for line in road.log.getvalue().splitlines() if " operator_refused " in line]
    assert 'uid=4321 pid=4712 why="no [[operator]] means this peer"' in line


async def test_a_caller_that_has_left_the_configuration_can_be_resolved() -> None:
    road = await after_a_crash()
    del road.accounts["dungeon"]
    assert (await answered(road, decision(charge="reservation")))["found"] == "settled"


# --- what is compared -------------------------------------------------------------------------------------------


async def test_at_every_moment_what_is_on_record_is_what_has_landed(autojump_clock: Any) -> None:
    """Begins, ends, failures to begin and a decision, each a second on its way; looked at between any two steps."""
    road = await after_a_crash(connector=HeldConnector())
    road.ledger.delay_seconds = 1
    road.connector.let_go.set()
    looks = differences = 0
    async with trio.open_nursery() as nursery:

        async def look() -> None:
            nonlocal looks, differences
            while len(road.ledger.completes) < 21:
                compared = tallied_in(road.ledger).compared(road.reservations.on_record())
                assert compared.mismatches == ()
                looks += 1
                whole = {caller: account.figures() for caller, account in road.accounts.items()}
                differences += bool(tallied_in(road.ledger).compared(whole).mismatches)
                await trio.sleep(0.1)

        nursery.start_soon(look)
        Asking(road, nursery).ask(decision(charge="reservation"))
        for number in range(20):
            admitted = road.decide(build.frame(build.request(request_id=f"r{number}")))
            assert isinstance(admitted, Admitted)
            road.exchange.carry(admitted, nursery.start_soon, lambda answer: None)
            await trio.sleep(0.3)
            road.ledger.fail_begin_with = "no room"
            refused = road.decide(build.frame(build.request(request_id=f"n{number}")))
            assert isinstance(refused, Admitted)
            road.exchange.carry(refused, nursery.start_soon, lambda answer: None)
            road.ledger.fail_begin_with = None
    assert looks > 60
    assert differences > 10, "a comparison with all that is reserved would have been wrong"


# --- check ------------------------------------------------------------------------------------------------------


class Again:
    """Reads the ledger in memory in place of the one on disk; `before` runs in the thread that reads."""

    def __init__(self) -> None:
        self.ledger: MemoryLedger | None = None
        self.before: Any = lambda goes_on: None
        self.read: list[int] = []
        self.at_once = self.most_at_once = 0

    def __call__(self, directory: object, windows: object, *, up_to_batch: int, goes_on: Any) -> Tallied:
        assert self.ledger is not None
        assert windows == WINDOWS
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        self.read.append(up_to_batch)
        try:
            self.before(goes_on)
            return Tallied(tallied_in(self.ledger), bytes(range(32)))
        finally:
            self.at_once -= 1


async def checking() -> tuple[Road, Again]:
    again = Again()
    road = await after_a_crash(read_again=again)
    again.ledger = road.ledger
    return road, again


async def test_a_check_says_what_was_compared_up_to_where() -> None:
    road, again = await checking()
    answer = await answered(road, CHECK)
    assert answer == {
        "schema_id": "gamecult.model.operator_checked.v1",
        "batch": road.ledger.landed_batch,
        "head_sha256": list(range(32)),
        "windows": 1,
        "settled_micro_usd": 0,
        "open_micro_usd": road.ledger.begins[0].reservation_micro_usd,
        "mismatches": [],
    }
    assert again.read == [road.ledger.landed_batch]
    assert road.mismatches_found == 0
    assert " checked " in road.log.getvalue()


async def test_a_damaged_account_is_answered_logged_and_stops_the_daemon() -> None:
    road, _ = await checking()
    start = road.accounts["dungeon"].window_start(road.now)
    road.accounts["dungeon"]._spent[start] += 1
    answer = await answered(road, CHECK)
    [sentence] = answer["mismatches"]
    assert "caller dungeon" in sentence
    assert "by the account 1 and" in sentence
    assert road.mismatches_found == 1
    [line] = [line for line in road.log.getvalue().splitlines() if "not_conserved " in line]
    for fact in (
        "critical",
        "caller=dungeon",
        f"window_start_unix_ms={start}",
        "ledger_settled=0",
        "account_settled=1",
    ):
        assert fact in line


async def test_checks_are_made_one_after_the_other() -> None:
    road, again = await checking()
    async with trio.open_nursery() as nursery:
        asking = Asking(road, nursery)
        for _ in range(5):
            asking.ask(CHECK)
        while len(asking.answers) < 5:
            await trio.lowlevel.checkpoint()
    assert again.most_at_once == 1
    assert len(again.read) == 5


async def test_the_loop_goes_on_while_a_check_reads_and_a_stop_ends_it() -> None:
    road, again = await checking()
    going_on = trio.lowlevel.current_trio_token()
    reads = trio.Event()

    def before(goes_on: Any) -> None:
        going_on.run_sync_soon(reads.set)
        while goes_on():
            pass
        raise GivenUp

    again.before = before
    async with trio.open_nursery() as nursery:
        asking = Asking(road, nursery)
        asking.ask(CHECK)
        asking.ask(CHECK)
        await reads.wait()
        assert (await answered(road, decision()))["found"] == "settled"
        road.operators.stop("the daemon is stopping")
        while len(asking.answers) < 2:
            await trio.lowlevel.checkpoint()
    assert [(answer["code"], answer["message"]) for answer in asking.answers] == [
        ("shutting_down", "the daemon is stopping")
    ] * 2
    assert len(again.read) == 1


@pytest.mark.parametrize("fault", [LedgerDamaged, OSError, RuntimeError])
async def test_a_ledger_that_cannot_be_read_again_is_told_and_contradicts_nothing(fault: Any) -> None:
    road, again = await checking()

    def before(goes_on: Any) -> None:
        raise fault(road.config.ledger.directory, 7, "a batch") if fault is LedgerDamaged else fault("can't")

    again.before = before
    answer = await answered(road, CHECK)
    assert answer["code"] == "internal"
    assert answer["message"].startswith("the ledger can't be read again: ")
    assert road.mismatches_found == 0
    [line] = [line for line in road.log.getvalue().splitlines() if " check_failed " in line]
    assert (fault is LedgerDamaged) == ("advice=" in line and "sidecar ledger verify says more" in line)
    again.before = lambda goes_on: None
    assert (await answered(road, CHECK))["mismatches"] == []


async def test_sums_that_no_frame_can_say_are_said_as_the_greatest() -> None:
    road, _ = await checking()
    begin = road.ledger.begins[0]
    for number in range(2):
        dear = structs.replace(begin, request_id=f"dear-{number}", reservation_micro_usd=2**64 - 1)
        road.ledger.begins.append(dear)
        road.accounts["dungeon"].reserve(begin.admitted_at_unix_ms, 2**64 - 1)
    answer = await answered(road, CHECK)
    assert (answer["open_micro_usd"], answer["mismatches"]) == (2**64 - 1, [])
