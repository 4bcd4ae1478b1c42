"""`sidecar ledger verify`: whether a ledger is what a daemon wrote, by a decoder of its own; changes nothing.

Whoever keeps the chain head that it prints can tell later that nothing before it was changed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from sidecar.audit.look import NoLedger
from sidecar.audit.reading import Reading, Tail
from sidecar.cli.ledger_reading import Progress, dropped_in_words, is_in_a_seal, may_be_held, told, with_help
from sidecar.cli.output import line_out, say, write_out
from sidecar.cli.receipt import dollars
from sidecar.ledger.faults import CHANGE_VERSION, RESTORE, LedgerDamaged

# From verify itself, which is what the usual advice names first.
_ADVICE: Final = {
    RESTORE: "keep the directory as it is; sidecar ledger repair writes what can be read into a new directory"
}


def verify(directory: Path, *, as_json: bool) -> int:
    """0 for a sound ledger, 65 for a damaged one, 66 where there is none, 74 where it can't be read."""
    reading = Reading(directory, cold=True, every_id=True, prove_seals=True)
    if as_json:
        return _as_json(reading, directory)
    damaged: list[LedgerDamaged] = []

    def read() -> None:
        try:
            _read(reading)
        except LedgerDamaged as damage:
            damaged.append(damage)
        write_out("".join(f"{line}\n" for line in _lines(reading, directory, damaged[0] if damaged else None)))
        for note in _notes(reading, damaged):
            say(f"sidecar ledger verify: note: {note}")
        if damaged:
            raise damaged[0]

    return told("verify", directory, read)


def _read(reading: Reading) -> None:
    """Raises as `batches` does, with the advice that verify gives."""
    progress = Progress()
    newest = reading.newest_segment()
    try:
        for _ in reading.batches():
            progress.at(reading, newest)
    except LedgerDamaged as damage:
        if damage.advice not in _ADVICE:
            raise
        raise LedgerDamaged(damage.segment, damage.offset, damage.expected, _ADVICE[damage.advice]) from None
    finally:
        progress.over()


def _lines(reading: Reading, directory: Path, damage: LedgerDamaged | None) -> list[str]:
    open_count = len(reading.open)
    may_run = _may_run(reading, directory)
    running = f" ({may_run} of them may be running)" if may_run else ""
    held = reading.held_micro_usd
    first = reading.dropped_until + 1
    rows = (
        ("segments", f"{reading.segments}" + (f", from number {first} on" if first > 1 else "")),
        ("records", f"{reading.records}"),
        ("requests", f"{reading.requests}, indeterminate {open_count}{running}"),
        ("charged", f"{reading.charged_micro_usd} micro-USD = {dollars(reading.charged_micro_usd)}"),
        ("held", f"{held} micro-USD = {dollars(held)}"),
        *([("dropped", dropped_in_words(reading) + ", counted above")] if reading.dropped_until else []),
        ("seals", _of_seals(reading)),
        ("closed", "by a clean exit" if reading.closed and reading.segment else "no: in use, or ended by a crash"),
        ("chain head", f"{reading.head.hex()}, after batch {reading.batch}"),
    )
    return [f"{directory}: {_verdict(damage)}", *(f"{name + ':':<12}{what}" for name, what in rows)]


def _may_run(reading: Reading, directory: Path) -> int:
    """How many requests a daemon may be at work on. Where nothing can be, the lock is left alone: a daemon that starts
    in the moment in which it is taken would find the ledger held."""
    return reading.may_run if reading.may_run and may_be_held(directory) else 0


def _verdict(damage: LedgerDamaged | None) -> str:
    if damage is None:
        return "sound"
    what = "of another version" if damage.advice == CHANGE_VERSION else "damaged"
    return f"a seal is {what}; the records are sound:" if is_in_a_seal(damage) else f"{what}; up to that place:"


def _of_seals(reading: Reading) -> str:
    proved = f"{reading.seals}, each as the records have it" if reading.seals else "0"
    return proved + (f"; and {len(reading.seal_damages)} damaged" if reading.seal_damages else "")


def _notes(reading: Reading, said: list[LedgerDamaged]) -> list[str]:
    """What is no damage, and yet no part of a ledger that was closed; and damaged seals beside the damage that is said
    anyway."""
    notes = [_of_tail(tail) for tail in reading.tails]
    notes += [str(damage) for damage in reading.seal_damages if damage not in said]
    if reading.leftovers:
        names = ", ".join(reading.leftovers)
        notes.append(f"{names}: left by a dropping that was interrupted, and not read; the daemon removes them")
    if reading.is_on_record is False:
        notes.append(f"no record speaks yet of the checkpoint of segment {reading.dropped_until}: a daemon is about to")
    return notes


def _of_tail(tail: Tail) -> str:
    where = f"{tail.segment}, from byte {tail.offset} on: {tail.length} bytes that are no whole batch"
    if tail.state == "last":
        return f"{where}; a crash tore them, or a daemon is writing them now"
    if tail.state == "kept":
        return f"{where}; a crash tore them, and quarantine/ has the copy that was set aside"
    return f"{where} and have no copy in quarantine/: it is gone, or they were changed since; no record is in them"


def _as_json(reading: Reading, directory: Path) -> int:
    code, error = os.EX_OK, None
    damage: LedgerDamaged | None = None
    try:
        _read(reading)
    except LedgerDamaged as fault:
        code, error, damage = os.EX_DATAERR, with_help("verify", directory, fault), fault
    except NoLedger as fault:
        code, error = os.EX_NOINPUT, str(fault)
    except OSError as fault:
        code, error = os.EX_IOERR, f"{directory}: {fault.strerror or fault}"
    line_out(json.dumps(_document(reading, directory, code, error, damage), indent=2))
    return code


def _document(
    reading: Reading, directory: Path, code: int, error: str | None, damage: LedgerDamaged | None
) -> dict[str, Any]:
    """Every member is always there, and null where nothing was read that says it.

    The figures are of what was read: up to the damage, or up to what can't be read, if there is either. `batches`,
    `records`, `requests` and `charged_micro_usd` count what was dropped too: `dropped` says how much it is.
    """
    figures = _figures(reading, directory)
    if code != os.EX_OK and not reading.segment:
        figures = dict.fromkeys(figures)
    return {
        "ok": code == os.EX_OK,
        "exit_code": code,
        "directory": str(directory),
        **figures,
        "error": error,
        "damage": None
        if damage is None
        else {
            "segment": str(damage.segment),
            "offset": damage.offset,
            "expected": damage.expected,
            "advice": damage.advice,
        },
    }


def _figures(reading: Reading, directory: Path) -> dict[str, Any]:
    is_at_the_end = reading.is_on_record is not None
    return {
        "segments": reading.segments,
        "first_segment": reading.dropped_until + 1,
        "batches": reading.batch,
        "records": reading.records,
        "requests": reading.requests,
        "indeterminate": len(reading.open),
        "may_be_running": _may_run(reading, directory),
        "charged_micro_usd": reading.charged_micro_usd,
        "held_micro_usd": reading.held_micro_usd,
        "closed": reading.closed and reading.segment > 0 if is_at_the_end else None,
        "chain_head": reading.head.hex(),
        "dropped": {
            "until_segment": reading.dropped_until,
            "records": reading.dropped.records,
            "requests": reading.dropped.completions,
            "charged_micro_usd": reading.dropped.charged_micro_usd,
        },
        "seals": reading.seals,
        "leftovers": list(reading.leftovers),
        "checkpoint_on_record": reading.is_on_record,
        "tails": [
            {"segment": str(one.segment), "offset": one.offset, "length": one.length, "state": one.state}
            for one in reading.tails
        ],
    }
