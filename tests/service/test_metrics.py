"""What the daemon counts is what its ledger and its answers say, with labels of closed sets."""

from __future__ import annotations

import os
import threading
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import msgpack
import pytest
import trio
import trio.testing
from kit import build
from kit.connected import answering, asked, cancel, hello, quote, served
from kit.daemon_process import Process, invocation, running_daemon, wait_until
from kit.exposition import Read, read_exposition
from kit.ledger_view import LedgerView, view_of_live
from kit.road import Road, said

from sidecar.cli.main import main
from sidecar.config.values import Config
from sidecar.contract import values as v
from sidecar.contract.operator_frames import OPERATOR_METRICS
from sidecar.ledger.footprint import Footprint
from sidecar.ledger.report import Recovery
from sidecar.ops.log import Log
from sidecar.ops.metrics import ALL_OTHERS, LABEL_SETS_MAX, SPREAD_SETS_MAX, exposed
from sidecar.service import families
from sidecar.service.backlogs import Backlogs
from sidecar.service.exposition import Exposition, Seen
from sidecar.service.held import HeldBytes
from sidecar.service.metrics import NO_CALLER, RESOLVED, Meter

OPERATOR = "\n[[operator]]\n"
HANGING = "[[rule]]\nhang = true\n"
MIXED = """
[[rule]]
text = "over-run"
deltas = ["much"]
usage = {input = 900_000, cache_read = 7, cache_write = 5, output = 64, reasoning = 3}
[[rule]]
text = "tired"
fail = {kind = "rate_limited", message = "later"}
[[rule]]
text = "refused by the model"
deltas = ["no"]
stop = "refusal"
[[rule]]
text = "rejected"
reject = "not this"
"""
CLOSED: dict[str, set[str]] = {
    "outcome": {*get_args(v.StopReason), *get_args(v.FailureKind), RESOLVED},
    "refusal": set(get_args(v.Refusal)),
    "code": set(get_args(v.TransportErrorCode)),
    "note": set(get_args(v.Note)),
    "direction": {"input", "cache_read", "cache_write", "output", "reasoning"},
    "record": {"begin", "completed"},
    "job": {"seal", "merge", "checkpoint", "remove"},
    "result": {"ok", "refused"},
    "caller": {"dungeon", "other", NO_CALLER, ALL_OTHERS},
    "connector": {"provider", "echo", ALL_OTHERS},
    "model": {"npc", "npc-refusing", "npc-private", ALL_OTHERS},
}


def metered(daemon: Process) -> dict[str, Read]:
    with daemon.connect() as client:
        answer = msgpack.unpackb(client.ask(bytes(msgpack.packb({"schema_id": OPERATOR_METRICS}))))
    assert answer["schema_id"] == "gamecult.model.operator_metered.v1"
    return read_exposition(answer["exposition"])


async def counted(road: Road) -> dict[str, Read]:
    return read_exposition(await road.exposition())


def hold_labels(read: dict[str, Read]) -> None:
    """Every label that is told is one of a closed set."""
    told = {pair for family in read.values() for _, labels in family.samples for pair in labels}
    for name, value in told:
        assert name in ("le", "version") or value in CLOSED[name], (name, value)


# --- against the ledger -----------------------------------------------------------------------------------------


def test_after_a_mixed_run_money_requests_tokens_and_notes_are_the_sums_of_the_records(tmp_path: Path) -> None:
    words = ["over-run", "tired", "refused by the model", "hello there", "rejected", "over-run", "hello again"]
    with running_daemon(tmp_path, script=MIXED, callers=OPERATOR) as daemon, daemon.connect() as client:
        answers = [said(client.ask(invocation(f"r{at}", text))) for at, text in enumerate(words)]
        assert said(client.ask(invocation("r3", "hello there"))) == "ReplayConflict"  # another expiry
        read = metered(daemon)
        assert daemon.stop() == 0
    assert Counter(answers) == {
        "end_turn": 4,
        "rate_limited": 1,
        "refusal": 1,
        "ProviderRejected": 1,
    }
    completes = LedgerView(tmp_path / "ledger").completes
    records = [record for _, record in completes]
    route = {"caller": "dungeon", "connector": "provider", "model": "npc"}
    money = Decimal(sum(record.charge_micro_usd for record in records)).scaleb(-6)
    assert read["sidecar_spend_usd_total"].value(**route) == money > 0
    assert read["sidecar_window_spent_usd"].value(caller="dungeon") == money
    assert read["sidecar_requests_total"].total() == len(records)
    assert read["sidecar_requests_total"].total(outcome="end_turn") == 4
    for direction in ("input", "cache_read", "cache_write", "output", "reasoning"):
        used = [getattr(record.usage, f"{direction}_tokens") or 0 for record in records if record.usage]
        assert read["sidecar_tokens_total"].value(**route, direction=direction) == sum(used)
    over = [record for begin, record in completes if record.charge_micro_usd > begin.reservation_micro_usd]
    assert read["sidecar_over_runs_total"].value(**route) == len(over) == 2
    for note, count in Counter(note for record in records for note in record.notes).items():
        assert read["sidecar_notes_total"].value(**route, note=note) == count
    assert read["sidecar_refusals_total"].total() == 2
    for name in ("request_duration_seconds", "begin_wait_seconds", "complete_wait_seconds", "response_bytes"):
        samples = read[f"sidecar_{name}"].samples
        assert sum(value for (sample, _), value in samples.items() if sample.endswith("_count")) == len(records)
    answered = sum(len(record.response) - 1 for record in records)
    assert (
        read["sidecar_response_bytes"].samples["sidecar_response_bytes_sum", (("connector", "provider"),)] == answered
    )
    on_disk = read["sidecar_ledger_batch_records"].samples["sidecar_ledger_batch_records_sum", ()]
    assert on_disk == 1 + 2 * len(records)  # Opened, and each request's two
    assert read["sidecar_ledger_sync_seconds"].samples["sidecar_ledger_sync_seconds_count", ()] > 0
    assert read["sidecar_ledger_segments"].value() == 1
    assert read["sidecar_recovery_seconds"].value() > 0
    assert read["sidecar_process_open_fds"].value() > 3
    hold_labels(read)


def test_what_an_operator_settles_is_counted_with_its_charge(tmp_path: Path) -> None:
    hanging = running_daemon(tmp_path, script=HANGING, callers=OPERATOR)
    with hanging as daemon, daemon.connect() as client:
        client.send(invocation("lost"))
        _until_begun(tmp_path)
        daemon.kill()
    reservation = LedgerView(tmp_path / "ledger").begins[0].reservation_micro_usd
    with running_daemon(tmp_path) as daemon:
        read = metered(daemon)
        held = Decimal(reservation).scaleb(-6)
        assert read["sidecar_reserved_usd"].value(caller="dungeon") == held
        assert read["sidecar_indeterminate_requests"].value(caller="dungeon") == 1
        assert read["sidecar_open_reservations"].value(caller="dungeon") == 1
        assert read["sidecar_recovery_clean"].value() == 0
        what = ("--caller=dungeon", "--request=lost", "--charge=reservation", "--who=ada", "--why=billed")
        assert main(["ledger", "resolve", "--socket", str(daemon.socket_path), *what]) == 0
        read = metered(daemon)
        assert read["sidecar_spend_usd_total"].total() == held
        assert read["sidecar_requests_total"].total(outcome=RESOLVED) == 1
        assert read["sidecar_reserved_usd"].value(caller="dungeon") == 0


def _until_begun(folder: Path) -> None:
    wait_until(lambda: bool(view_of_live(folder / "ledger").open))


def test_what_runs_is_in_flight_and_a_cancel_is_counted(tmp_path: Path) -> None:
    with running_daemon(tmp_path, script=HANGING, callers=OPERATOR) as daemon:
        with daemon.connect() as client:
            client.send(invocation("r1"))
            _until_begun(tmp_path)
            read = metered(daemon)
            assert read["sidecar_in_flight_requests"].value(caller="dungeon", connector="provider") == 1
            assert read["sidecar_window_reserved_usd"].value(caller="dungeon") > 0
            assert read["sidecar_frames_held_bytes"].value() > 0
            assert read["sidecar_connections"].value() == 2
            client.send(cancel("r1"))
            assert said(client.receive()) == "timeout"
        read = metered(daemon)
        assert "sidecar_in_flight_requests" not in read
        assert read["sidecar_cancels_total"].value(caller="dungeon") == 1
        assert read["sidecar_requests_total"].total(outcome="timeout") == 1


# --- decisions --------------------------------------------------------------------------------------------------


async def test_each_refusal_is_counted_by_its_kind_and_one_that_is_quoted_apart() -> None:
    road = Road(connector=answering())
    wrong: dict[str, bytes] = {
        "CostBound": asked("a", max_cost_micro_usd=1),
        "IdentitySubstitution": asked("b", caller_runtime_id="stranger"),
        "ModelNotAllowed": build.frame(build.request(request_id="c", model="npc-private")),
        "OutputBound": build.frame(build.request(request_id="d", max_output_tokens=501)),
        "Expired": asked("e", expires_at_unix_ms=1),
        "PayloadBound": build.frame(build.request(build.text("x" * 20_001), request_id="f")),
        "ProviderDigestSubstitution": asked("g", provider_request_sha256=(0,) * 32),
        "Malformed": build.frame(build.request(request_id="h", model="")),
    }
    async with served(road) as client:
        for frame in wrong.values():
            await client.send(frame, frame, quote(frame))
        for _ in range(3 * len(wrong)):
            assert await client.receive()
    read = await counted(road)
    for refusal in wrong:
        caller = NO_CALLER if refusal == "IdentitySubstitution" else "dungeon"
        assert read["sidecar_refusals_total"].value(caller=caller, refusal=refusal) == 2
        assert read["sidecar_quoted_refusals_total"].value(caller=caller, refusal=refusal) == 1
    assert read["sidecar_refusals_total"].total() == 2 * len(wrong)
    assert read["sidecar_quotes_total"].value() == len(wrong)
    hold_labels(read)


async def test_replays_joins_and_transport_errors_are_counted() -> None:
    road = Road(connector=answering())
    async with served(road) as client:
        await client.send(asked("r1"))
        await client.heard(1)
        await client.send(asked("r1"), b"no map", bytes(msgpack.packb({"schema_id": "gamecult.model.unheard_of.v1"})))
        await client.heard(3)
    joined = Road()
    async with served(joined) as client:
        await client.send(hello(join=True))
        assert await client.receive()
        await client.send(asked("r1"), asked("r1"))
        await trio.testing.wait_all_tasks_blocked()
        joined.connector.let_go.set()
        await client.heard(2)
    read = await counted(road)
    assert read["sidecar_replays_total"].value(caller="dungeon") == 1
    assert read["sidecar_transport_errors_total"].value(code="malformed_frame") == 1
    assert read["sidecar_transport_errors_total"].value(code="unknown_schema") == 1
    read = await counted(joined)
    assert read["sidecar_joins_total"].value(caller="dungeon") == 1
    assert read["sidecar_requests_total"].total() == 1


@pytest.mark.parametrize(("record", "fail"), [("begin", "fail_begin_with"), ("completed", "fail_complete_with")])
async def test_a_record_that_the_ledger_does_not_take_is_counted_and_nothing_else(record: str, fail: str) -> None:
    road = Road(connector=answering())
    setattr(road.ledger, fail, "the disk is full")
    assert said(await road.answer(build.frame())) == "ledger_unavailable"
    read = await counted(road)
    assert read["sidecar_unrecorded_total"].value(caller="dungeon", record=record) == 1
    assert read["sidecar_transport_errors_total"].value(code="ledger_unavailable") == 1
    assert "sidecar_requests_total" not in read


# --- bounds -----------------------------------------------------------------------------------------------------


def test_however_many_callers_and_models_come_label_sets_are_bounded_and_money_is_whole() -> None:
    meter = Meter()
    for at in range(2 * LABEL_SETS_MAX):
        route = meter.route(f"caller-{at:026}", f"connector-{at:022}", f"model-{at:026}")
        route.charge_micro_usd += 1_000_001
        route.outcomes["end_turn"] += 1
    read = read_exposition(_text(meter))
    spend = read["sidecar_spend_usd_total"]
    assert len(spend.samples) == LABEL_SETS_MAX + 1
    assert spend.total() == Decimal("1.000001") * 2 * LABEL_SETS_MAX
    assert spend.value(caller=ALL_OTHERS, connector=ALL_OTHERS, model=ALL_OTHERS) > 0
    buckets = read["sidecar_request_duration_seconds"].samples
    assert len({labels for name, labels in buckets if name.endswith("_count")}) <= SPREAD_SETS_MAX + 1
    assert len(_text(meter)) < 1 << 20


def _text(meter: Meter) -> str:
    return exposed(meter.read())


def exposition_of(road: Road, look: Any) -> Exposition:
    seen = Seen(
        ledger=road.ledger,
        reservations=road.reservations,
        log=Log(road.log, "text"),
        held=HeldBytes(1),
        backlogs=Backlogs(),
        connections=lambda: 0,
        draining=lambda: False,
    )

    def config() -> Config:
        return road.config

    return Exposition(road.meter, seen, config, lambda: road.now, look=look)


async def test_every_family_of_the_table_can_be_told_and_no_other_is() -> None:
    road = Road(connector=answering())
    assert said(await road.answer(build.frame())) == "end_turn"
    meter = road.meter
    meter.resolved(*road.ledger.completes[0])
    meter.refused("dungeon", "Capacity")
    meter.quoted("dungeon", "Capacity")
    meter.replayed("dungeon")
    meter.joined("dungeon")
    meter.cancelled("dungeon")
    meter.unrecorded("dungeon", "begin")
    meter.told_error("internal")
    meter.turned_away("not_admitted")
    meter.reloaded("ok", road.now)
    meter.route("dungeon", "echo", "npc").notes["over_run"] += 1
    meter.watch.on_upkeep("seal", 0.1)
    meter.recovered(_found(), 0.25)
    admitted = road.decide(build.frame(build.request(request_id="r2")))
    assert admitted
    read = read_exposition(await exposition_of(road, lambda _: Footprint(1, 2, 3, 4)).text())
    assert set(read) == {family.name for family in families.FAMILIES}
    for family in families.FAMILIES:
        assert (read[family.name].kind, read[family.name].what) == (family.kind, family.what)
    hold_labels(read)


def _found() -> Any:
    return Recovery(
        clean=True, segments=1, records=2, records_read=3, set_aside=None, set_aside_bytes=0, indeterminate=()
    )


async def test_a_directory_that_cannot_be_looked_at_is_told_and_the_rest_is_there() -> None:
    def broken(_: Path) -> Footprint:
        raise PermissionError

    read = read_exposition(await exposition_of(Road(), broken).text())
    assert read["sidecar_ledger_directory_read"].value() == 0
    assert "sidecar_ledger_free_bytes" not in read
    assert read["sidecar_window_ceiling_usd"].value(caller="dungeon") == 1000


async def test_a_disk_that_hangs_is_waited_for_briefly_and_looked_at_by_one_thread_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    hung, looks = threading.Event(), []

    def hang(_: Path) -> Footprint:
        looks.append(1)
        hung.wait(20)
        raise OSError

    exposition = exposition_of(Road(), hang)
    try:
        for _ in range(3):
            assert read_exposition(await exposition.text())["sidecar_ledger_directory_read"].value() == 0
        assert len(looks) == 1
        assert trio.current_time() < 5
    finally:
        hung.set()


async def test_who_is_no_operator_is_told_nothing(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, daemon.connect() as client:
        answer = msgpack.unpackb(client.ask(bytes(msgpack.packb({"schema_id": OPERATOR_METRICS}))))
        assert answer["code"] == "not_admitted"
        assert f"uid={os.getuid()}" in daemon.log()


def test_no_name_or_help_breaks_the_conventions() -> None:
    for family in families.FAMILIES:
        assert family.name.startswith("sidecar_")
        assert (family.kind == "counter") == family.name.endswith("_total")
        assert "\n" not in family.what
        assert not {"request_id", "id", "pid", "uid", "key"} & set(family.labels)
        if family.kind == "histogram":
            assert family.name.endswith(("_seconds", "_bytes", "_records"))
        if family.decimals == 6:
            assert "_usd" in family.name
