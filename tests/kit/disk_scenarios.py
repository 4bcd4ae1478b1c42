"""Faults that the quick tests and the campaigns bring about in the same way."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Literal

import msgpack
from kit import disk_faults
from kit.daemon_process import Process, running_daemon, wait_until
from kit.disk_trial import SEGMENT_BYTES, Trial, at_level, poisoned_once, pressed, refused_from_now_on

WARM_UPS = 4


def a_failure_in_use_is_final(
    trial: Trial, call: str, error: str, text: str, half: Literal["begin", "complete"]
) -> None:
    """The `victim`'s begin or complete fails at this call, while another request waits for the provider.

    In the commit thread warm-ups make two such calls each, the request that
    runs one, and the victim's begin is the next.
    """
    nth = 2 * WARM_UPS + 1 + (1 if half == "begin" else 2)
    wrapper = disk_faults.failing(call, error, str(nth))
    with running_daemon(trial.folder, wrapper=wrapper, connector=trial.provider.connector) as daemon:
        with daemon.connect() as client, daemon.connect() as other:
            warm = trial.warm_up(client, WARM_UPS)
            trial.hold_at_the_provider(other, "running1")
            assert trial.ask(client, "victim-1") == "ledger_unavailable"
            refused_from_now_on(trial, client, warm)
            assert trial.heard(other.receive() or b"") == "ledger_unavailable", "what ran is dropped"
        assert daemon.process.wait(timeout=20) == 74
        poisoned_once(daemon, text)
    assert trial.provider.asked["victim-1"] == (half == "complete")
    assert "running1" in {begin.request_id for begin in trial.view().open.values()}
    trial.check()


SPARES = 2
FEW_AT_ONCE = "requests_in_flight_max = 8"  # then two spare segments are kept


Full = Callable[[Process], AbstractContextManager[None]]


def pressure_refuses_and_passes(trial: Trial, text: str, full: Full) -> None:
    """While `full` is entered no spare can be made: nothing new is admitted, all else goes on, and it passes."""
    trial.provider.answer_characters = 150_000  # a few of them fill a segment
    with running_daemon(trial.folder, connector=trial.provider.connector, daemon=FEW_AT_ONCE) as daemon:
        disk_faults.wait_for_spares(trial.ledger, SPARES, SEGMENT_BYTES)
        with daemon.connect() as client, daemon.connect() as other:
            warm = trial.warm_up(client, 2)
            trial.hold_at_the_provider(other, "running1", "running2", "running3")
            with full(daemon):
                refused = trial.ask_until_refused(client)
                assert len(at_level(daemon, "warning")) == 1
                assert "bytes are needed and" in trial.why(client, refused)
                assert [trial.ask(client, request_id) for request_id in warm] == ["end_turn"] * len(warm)
                trial.provider.release()
                assert [trial.heard(other.receive() or b"") for _ in range(3)] == ["end_turn"] * 3, "what ran settles"
                assert trial.ask(client, "later-01") == "ledger_unavailable"
                assert trial.provider.asked["later-01"] == trial.provider.asked[refused] == 0
            wait_until(lambda: trial.ask(client, refused) == "end_turn")
            assert trial.ask(client, "later-01") == "end_turn", "admitted again, without a restart"
        assert daemon.stop() == 0
        pressed(daemon, text)
    trial.check(daemon=FEW_AT_ONCE)


def spares_that_fail_are_pressure(trial: Trial, call: str, error: str, text: str) -> None:
    """Whatever the reason: nothing in use is touched by it."""
    pressure_refuses_and_passes(trial, text, lambda daemon: disk_faults.spares_fail(daemon, call, error))


# --- under load ---------------------------------------------------------------------------------------------------


@contextmanager
def busy_callers(trial: Trial, daemon: Process, name: str, callers: int) -> Iterator[None]:
    """Callers that ask one thing after the other until the daemon is gone or its ledger refuses; some have answers.

    The block is entered once answers come, and must bring about what ends them.
    """
    names = [f"{name}{chr(ord('a') + caller)}" for caller in range(callers)]
    threads = [threading.Thread(target=_ask_on, args=(trial, daemon, name)) for name in names]
    before = len(trial.answers)
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(trial.answers) > before + callers)
        yield
    finally:
        for thread in threads:
            thread.join()


def _ask_on(trial: Trial, daemon: Process, name: str) -> None:
    try:
        with daemon.connect() as client:
            for turn in range(10_000):
                client.send(trial.frame(f"{name}{turn:04}"))
                answer = client.receive()
                if answer is None or trial.heard(answer) == "ledger_unavailable":
                    return
    except OSError:
        return


PRESSED = re.compile(rf"No space left on device\): {SEGMENT_BYTES} bytes are needed and \d+ are free in ")
NO_SPARE_YET = "until a spare segment is ready"
FLAT_KIB = 16 << 10


def pressure_comes_and_goes_under_load(trial: Trial, full: Callable[[], AbstractContextManager[None]]) -> None:
    """Callers that never stop; in each round the disk fills up, and what runs settles; then there is room again."""
    trial.provider.answer_characters = 150_000
    rounds, resident, why = 5, list[int](), Counter[str]()
    with running_daemon(trial.folder, connector=trial.provider.connector, daemon=FEW_AT_ONCE) as daemon:
        disk_faults.wait_for_spares(trial.ledger, SPARES, SEGMENT_BYTES)
        over = threading.Event()
        callers = [threading.Thread(target=_press, args=(trial, daemon, f"{n:02}", over, why)) for n in range(4)]
        for caller in callers:
            caller.start()
        try:
            for number in range(rounds):
                one_round_of_pressure(trial, daemon, number, full, why)
                resident.append(disk_faults.resident_kib(daemon.pid))
        finally:
            over.set()
            for caller in callers:
                caller.join()
        assert daemon.stop() == 0
        pressed(daemon, "No space left on device", rounds)
    trial.provider.answer_characters = 40
    trial.check(daemon=FEW_AT_ONCE)
    print(f"{rounds} times; {len(trial.answers)} answered; refused: {dict(why)}; resident {resident} KiB")
    assert set(why) <= {"pressed", "no spare yet"}
    assert max(resident[1:]) - resident[0] < FLAT_KIB


def one_round_of_pressure(
    trial: Trial, daemon: Process, number: int, full: Callable[[], AbstractContextManager[None]], why: Counter[str]
) -> None:
    ids = [f"run-{number}-{at}" for at in range(3)]
    trial.provider.hold()
    with daemon.connect() as client:
        for request_id in ids:
            trial.provider.held.add(request_id)
            trial.send(client, request_id)
        wait_until(lambda: all(trial.provider.asked[request_id] for request_id in ids))
        with full():
            before = why["pressed"]
            wait_until(lambda: why["pressed"] > before + 20)
            assert len(at_level(daemon, "warning")) == number + 1
            trial.provider.release()
            assert [trial.heard(client.receive() or b"") for _ in ids] == ["end_turn"] * len(ids), "what ran settles"
    known = len(trial.answers)
    wait_until(lambda: len(trial.answers) > known + 8)  # admitted again, without a restart


def _press(trial: Trial, daemon: Process, name: str, over: threading.Event, why: Counter[str]) -> None:
    """One request after the other, each until it is admitted; meanwhile what was answered is answered again."""
    answered: list[str] = []
    with daemon.connect() as client:
        for turn in count():
            if over.is_set():
                return
            request_id = f"{name}{len(answered):06}"
            answer = client.ask(trial.frame(request_id))
            if trial.heard(answer) == "end_turn":
                answered.append(request_id)
                continue
            said = msgpack.unpackb(answer)
            text = f"{said['code']}: {said['message']}"
            why["pressed" if PRESSED.search(text) else "no spare yet" if NO_SPARE_YET in text else text] += 1
            if answered:
                assert trial.ask(client, answered[turn % len(answered)]) == "end_turn", "replays go on"


# --- short writes -----------------------------------------------------------------------------------------------

TORN_BYTES = 400  # inside the record: a batch of which only zeros are missing is whole
BATCH_BYTES = 4096  # of one begin record


def a_write_that_stays_short_is_final(trial: Trial, half: Literal["begin", "complete"]) -> None:
    """The kernel takes the first bytes of the batch and refuses the rest: what is torn is set aside by the next."""
    with running_daemon(trial.folder, connector=trial.provider.connector, daemon=FEW_AT_ONCE) as daemon:
        disk_faults.wait_for_spares(trial.ledger, SPARES, SEGMENT_BYTES)
        with daemon.connect() as client, daemon.connect() as other:
            warm = trial.warm_up(client, WARM_UPS)
            trial.hold_at_the_provider(other, "running1")
            end = trial.end().offset + (BATCH_BYTES if half == "complete" else 0)
            disk_faults.limit_file_size(daemon.pid, end + TORN_BYTES)
            assert trial.ask(client, "victim-1") == "ledger_unavailable"
            refused_from_now_on(trial, client, warm)
            assert trial.heard(other.receive() or b"") == "ledger_unavailable"
        assert daemon.process.wait(timeout=20) == 74
        poisoned_once(daemon, "File too large")
    assert trial.provider.asked["victim-1"] == (half == "complete")
    assert trial.end().offset == end
    trial.check(daemon=FEW_AT_ONCE)
    (torn,) = (trial.ledger / "quarantine").iterdir()
    assert torn.stat().st_size <= TORN_BYTES


def a_short_write_whose_rest_can_be_written_is_whole(trial: Trial) -> None:
    """The limit is lifted between the kernel's part and the rest, while strace holds the thread in between."""
    wrapper = disk_faults.strace("trace=pwritev2", f"inject=pwritev2:delay_exit=2000000:when={2 * WARM_UPS + 1}")
    running = running_daemon(trial.folder, wrapper=wrapper, connector=trial.provider.connector, daemon=FEW_AT_ONCE)
    with running as daemon, daemon.connect() as client:
        disk_faults.wait_for_spares(trial.ledger, SPARES, SEGMENT_BYTES)
        trial.warm_up(client, WARM_UPS)
        end, segment = trial.end().offset, trial.ledger / "0000000000000001.segment"
        disk_faults.limit_file_size(daemon.pid, end + TORN_BYTES)
        trial.send(client, "victim-1")
        wait_until(lambda: first_bytes(segment, end) != bytes(TORN_BYTES))
        assert trial.provider.asked["victim-1"] == 0, "half a begin is none"
        disk_faults.limit_file_size(daemon.pid, None)
        assert trial.heard(client.receive() or b"") == "end_turn"
        assert daemon.stop() == 0
        assert at_level(daemon, "critical") == at_level(daemon, "error") == []
    trial.check(daemon=FEW_AT_ONCE)
    assert not (trial.ledger / "quarantine").exists()


def first_bytes(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(TORN_BYTES)


# --- the order of calls -----------------------------------------------------------------------------------------


def a_traced_run(trial: Trial) -> disk_faults.Trace:
    """The calls of a daemon that answers enough, one after the other, to fill a segment and go on in the next."""
    trial.provider.answer_characters = 150_000
    log = trial.folder / "trace"
    calls = "openat,connect,sendto,sendmsg,fdatasync,fsync,pwritev2,?mkdir,mkdirat,?rename,renameat,renameat2"
    wrapper = [*disk_faults.strace(f"trace={calls}", log=log), "-yy", "-s", "0"]
    with running_daemon(trial.folder, wrapper=wrapper, connector=trial.provider.connector) as daemon:
        with daemon.connect() as client:
            trial.warm_up(client, 9)
        assert daemon.stop() == 0
    return disk_faults.trace_of(log)


def nothing_precedes_its_sync(trial: Trial, trace: disk_faults.Trace) -> None:
    """Begin, its sync's return, the connect to the provider, complete, its sync's return, the answer: in this order."""
    records = [call for call in trace if call.name == "pwritev2" and ".segment>" in call.arguments]
    _opened, *exchanged, _closed = [trace.sync_after(record) for record in records]
    begins, completes = exchanged[0::2], exchanged[1::2]
    connects = [call for call in trace if call.name == "connect" and f"htons({trial.provider.port})" in call.arguments]
    answers = [call for call in trace if call.name.startswith("send") and 's.sock"' in call.arguments]
    assert len(begins) == len(completes) == len(connects) == len(trial.answers)
    ends = [*(begin.ended for begin in begins[1:]), trace[-1].ended]
    for begin, connect, complete, end in zip(begins, connects, completes, ends, strict=True):
        assert begin.ended < connect.began, "the provider was connected to before the begin was synced"
        answered = [answer for answer in answers if begin.ended < answer.began < end]
        assert complete.ended < answered[0].began, "an answer was given before the complete was synced"


def a_segment_is_synced_and_named_before_its_first_record(trial: Trial, trace: disk_faults.Trace) -> None:
    """Header, its sync, the rename, the sync of the directory, the first record; and a new directory is synced too."""
    renames = [call for call in trace if call.name.startswith("rename") and ".spare" in call.arguments]
    assert len(renames) == 2
    for number, rename in enumerate(renames, start=1):
        spare, name = rename.arguments.split('"')[1], f"/{number:016d}.segment"
        assert name in rename.arguments
        header = max(call.ended for call in trace.of("fdatasync", spare))
        directory = min(call.ended for call in trace.of("fsync", trial.ledger) if call.began > rename.ended)
        record = min(call.began for call in trace if call.name == "pwritev2" and f"{name}>" in call.arguments)
        assert header < rename.began < directory < record
    (made,) = [call for call in trace if call.name.startswith("mkdir") and f'"{trial.ledger}"' in call.arguments]
    assert made.ended < min(call.began for call in trace.of("fsync", trial.folder)) < renames[0].began


# --- a slow disk ------------------------------------------------------------------------------------------------

SYNC_SECONDS = 0.2
CROWD = 64


def slow_syncs_hold_callers_back_and_nothing_grows(trial: Trial, rounds: int) -> None:
    """64 callers at once, again and again: who waits for a sync gathers in the next batch, and no queue outgrows it."""
    wrapper = disk_faults.delayed("fdatasync", SYNC_SECONDS)
    with running_daemon(trial.folder, wrapper=wrapper, connector=trial.provider.connector) as daemon:
        batches, began = trial.end().batch, time.monotonic()
        resident = [disk_faults.resident_kib(daemon.pid)]
        for round_ in range(rounds):
            ask_all_at_once(trial, daemon, [f"{round_:02}-{number:05}" for number in range(CROWD)])
            resident.append(disk_faults.resident_kib(daemon.pid))
        seconds, batches = time.monotonic() - began, trial.end().batch - batches
        assert daemon.stop() == 0
        assert at_level(daemon, "critical") == at_level(daemon, "error") == at_level(daemon, "warning") == []
    print(
        f"{len(trial.answers)} answered in {batches} batches of {SYNC_SECONDS} s, {seconds:.1f} s;"
        f" resident {[kib >> 10 for kib in resident]} MiB"
    )
    assert len(trial.answers) == CROWD * rounds
    assert 2 * rounds <= batches < CROWD * rounds / 4
    assert max(resident[3:]) - max(resident[:3]) < 8 << 10, "memory grows with the rounds"
    assert max(resident) - resident[0] < 32 << 10
    trial.check()


def ask_all_at_once(trial: Trial, daemon: Process, ids: list[str]) -> None:
    def ask(request_id: str) -> str:
        with daemon.connect() as client:
            return trial.ask(client, request_id)

    with ThreadPoolExecutor(len(ids)) as callers:
        assert list(callers.map(ask, ids)) == ["end_turn"] * len(ids)
