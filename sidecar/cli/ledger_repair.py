"""`sidecar ledger repair`: a new ledger out of what can still be read of a damaged one, and a report of what can't.

The damaged directory stays as it is, byte for byte: whoever disagrees with
what was made of it can look for themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio
from msgspec import Struct

from sidecar.audit.look import NoLedger
from sidecar.audit.reading import Reading
from sidecar.cli.ledger_reading import instant
from sidecar.cli.output import fault_out, say, write_out
from sidecar.cli.receipt import dollars
from sidecar.cli.setup import load_config
from sidecar.cli.stops import Stops
from sidecar.config.keys import ConfigFaults
from sidecar.ledger.faults import LedgerDamaged, LedgerHeld, LedgerUnavailable
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.lock import hold_as_it_is
from sidecar.ops.clock import unix_ms
from sidecar.repair import report as repair_report
from sidecar.repair.copying import LIFETIME_MS_LEAST, Copied, FirstLook, copied, first_look
from sidecar.repair.place import REPORT_NAME, NewPlace, NoPlace, partial_of
from sidecar.repair.salvage import Salvage

EXIT_CODES: Final = {
    os.EX_OK: "the new ledger is there, and its report says what is not in it",
    os.EX_USAGE: "wrong command line",
    os.EX_DATAERR: "nothing can be read of the ledger, or it is of another version: nothing was written",
    os.EX_NOINPUT: "there is no ledger in DIRECTORY",
    os.EX_CANTCREAT: "NEW_DIRECTORY is not empty, or can't be made",
    os.EX_IOERR: "the disk failed; what was begun is left in NEW_DIRECTORY.partial",
    os.EX_TEMPFAIL: "a daemon holds the ledger: stop it first",
    os.EX_NOPERM: "another user owns the ledger, root included: its daemon could not open what we write",
    os.EX_CONFIG: "the configuration is wrong",
}
_TOLD_MAX: Final = 40


class NothingWhole(Exception):
    """There is nothing to repair it from; the message says so."""


class Wanted(Struct, frozen=True, kw_only=True):
    """What the command line asks for, beside the two places."""

    as_json: bool
    lifetime_ms_least: int


def repair(
    directory: Path,
    new_directory: Path,
    *,
    as_json: bool,
    config: Path | None = None,
    files: DiskFiles | None = None,
) -> int:
    """Returns the exit code; whatever it is, the damaged directory is as it was."""
    files = files or DiskFiles()
    fault = partial(fault_out, "sidecar ledger repair", as_json=as_json)
    try:
        if (owner := _other_owner(directory)) is not None:
            what = "run this as that user, or its daemon could not open what is written"
            return fault(os.EX_NOPERM, f"the ledger belongs to uid {owner}: {what}")
        skew_seconds = load_config(config).daemon.expiry_skew_seconds_max if config is not None else 0
        wanted = Wanted(as_json=as_json, lifetime_ms_least=max(LIFETIME_MS_LEAST, 1000 * skew_seconds))
        lock = hold_as_it_is(files, directory)
        try:
            with Stops() as stops:
                return _repaired(directory, new_directory, files, stops, wanted)
        finally:
            if lock is not None:
                files.close(lock)
    except ConfigFaults as faults:
        if as_json:
            return fault(os.EX_CONFIG, "; ".join(map(str, faults.complaints)))
        for complaint in faults.complaints:
            say(str(complaint))
        return os.EX_CONFIG
    except LedgerHeld as held:
        return fault(os.EX_TEMPFAIL, f"{held}: stop it first")
    except LedgerDamaged as damage:
        return fault(os.EX_DATAERR, f"nothing is repaired: {damage}")
    except NoLedger as absent:
        return fault(os.EX_NOINPUT, str(absent))
    except NoPlace as taken:
        return fault(os.EX_CANTCREAT, str(taken))
    except NothingWhole as lost:
        return fault(os.EX_DATAERR, str(lost))
    except (OSError, LedgerUnavailable) as error:
        begun = partial_of(new_directory)
        left = f"; what was begun is left in {begun}" if _is_there(begun) else ""
        return fault(os.EX_IOERR, f"not repaired: {_told(error)}{left}")


def _other_owner(directory: Path) -> int | None:
    """The uid that the ledger belongs to, where that is not ours. Root is no exception: what it writes is its own."""
    try:
        owner = directory.stat().st_uid
    except (FileNotFoundError, NotADirectoryError):
        return None
    return owner if owner != os.geteuid() else None


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a directory on the way to it that we may not look into
        return False


def _told(error: OSError | LedgerUnavailable) -> str:
    if not isinstance(error, OSError):
        return str(error)
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    return f"{where}{error.strerror or error}"


def _repaired(directory: Path, new_directory: Path, files: DiskFiles, stops: Stops, wanted: Wanted) -> int:
    """A stop ends it while it reads, and between two pieces of what it writes."""
    with stops.raising():
        look = first_look(directory, files)
        salvage = Salvage(directory, files, is_damaged=not look.is_sound)
        if not salvage.is_anything_known and not look.is_sound:
            what = "no record in it is whole; start a new ledger elsewhere"
            raise NothingWhole(f"nothing can be read of {directory}: {what}")
        place = NewPlace(files, new_directory, directory)

    def between() -> None:
        with stops.raising():
            return

    async def write() -> Copied:
        least = wanted.lifetime_ms_least
        return await copied(salvage, place.directory, lifetime_ms_least=least, files=files, between=between)

    taken = trio.run(write)
    told = _checked(directory, place, files, look, salvage, taken)
    report = repair_report.encoded(told)
    place.finish(report)
    write_out(report.decode() if wanted.as_json else "".join(f"{line}\n" for line in _lines(told, place.new)))
    return os.EX_OK


def _checked(
    directory: Path, place: NewPlace, files: DiskFiles, look: FirstLook, salvage: Salvage, taken: Copied
) -> dict[str, Any]:
    """The report, once the new ledger has been read as `verify` reads one and holds what was to be in it."""
    new = Reading(place.directory, files=files, cold=True, every_id=True)
    for _ in new.batches():
        pass
    assert (new.requests, len(new.open)) == (taken.begun, len(taken.open)), "the new ledger has other requests"
    assert new.charged_micro_usd == taken.charged_micro_usd, "the new ledger has another charge"
    assert new.held_micro_usd == taken.held_micro_usd, "the new ledger holds another amount"
    return repair_report.document(directory, look, salvage, taken, new, unix_ms())


# --- for a person ---------------------------------------------------------------------------------------------------


def _lines(told: dict[str, Any], new: Path) -> Iterator[str]:
    before, after, read = told["before_first_damage"], told["new"], told["read"]
    is_sound = told["verdict"] == "sound"
    yield f"{told['damaged_directory']}: {'sound, nothing was wrong: copied' if is_sound else 'repaired'} into {new}"
    yield from _first(told, before)
    yield _row("read", f"{len(read['segments'])} segments, {read['whole_batches']} whole batches, "
                       f"{read['records']} records")  # fmt: skip
    yield from _dropped(told["dropped"], read["left_behind"])
    yield from _capped([_of_gap(gap) for gap in told["gaps"]])
    yield from _capped([f"not taken: {one['file']}: {one['why']}" for one in read["not_taken"]])
    yield from _capped(
        [f"segment {one['segment']}, byte {one['offset']}: {one['what']}" for one in told["contradictions"]]
    )
    kept, lost = told["kept"], told["unattributed"]
    yield _row("kept", f"{kept['completed']} requests with their answers, {kept['indeterminate']} indeterminate")
    yield _row("charged", _money(after["charged_micro_usd"]))
    yield _row("held", _money(after["held_micro_usd"]))
    if lost:
        charged = _money(told["unattributed_micro_usd"])
        yield _row("lost", f"{len(lost)} requests whose end is left and whose begin is not; no sum has their {charged}")
    if told["low_water"]["why"]:
        until = instant(told["low_water"]["expires_at_unix_ms"])
        why = told["low_water"]["why"]
        yield _row("low water", f"{why} = until {until} UTC: what expires by then is refused as Expired")
    yield _row("new head", f"{after['chain_head']}, after batch {after['batch']}")
    yield _row("report", str(new / REPORT_NAME))


def _first(told: dict[str, Any], before: dict[str, Any]) -> Iterator[str]:
    head = f"{before['chain_head']}, after batch {before['batch']}"
    damage = told["first_damage"]
    if damage is None:
        yield _row("old head", head)
        return
    where = f"{damage['segment']}, byte {damage['offset']}: " if damage["segment"] is not None else ""
    yield _row("damage", f"{where}expected {damage['expected']}")
    yield _row("up to it", f"{before['requests']} requests, charged {_money(before['charged_micro_usd'])}, "
                           f"held {_money(before['held_micro_usd'])}")  # fmt: skip
    yield _row("old head", f"{head}, the last before the damage")


def _dropped(dropped: dict[str, Any] | None, left_behind: list[str]) -> Iterator[str]:
    if dropped is None:
        return
    charged = _money(dropped["charged_micro_usd"])
    yield _row("dropped", f"segments up to {dropped['until_segment']}, {dropped['why']} (no loss): "
                          f"{dropped['completions']} requests that had ended, charged {charged}")  # fmt: skip
    yield from _capped([f"not needed: {name}: {dropped['checkpoint']} stands for it" for name in left_behind])


def _of_gap(gap: dict[str, Any]) -> str:
    fate = "may have held records" if gap["may_have_held"] else "held no record"
    taken = f", {gap['taken']} single records taken" if gap["taken"] else ""
    return f"gap: segment {gap['segment']}, bytes {gap['begin']} to {gap['end']}: {gap['why']}; {fate}{taken}"


def _capped(lines: list[str]) -> Iterator[str]:
    yield from lines[:_TOLD_MAX]
    if len(lines) > _TOLD_MAX:
        yield f"and {len(lines) - _TOLD_MAX} more, in the report"


def _row(name: str, what: str) -> str:
    return f"{name + ':':<12}{what}"


def _money(micro_usd: int) -> str:
    return f"{micro_usd} micro-USD = {dollars(micro_usd)}"
