"""`sidecar ledger export`: all of a ledger for other programs, the same bytes for the same ledger.

JSON Lines: every record with its place and the chain's head after its batch;
the record is as its published schema has it, with bytes in base64. Of a ledger
that has grown, the earlier export is the begin of the later one. Where segments
were dropped, the first line says how far and what they held, and Begins of them
that nothing had ended follow, without a batch. CSV: one row for each request, as
`show` has them; what was dropped is said on stderr.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any, Final

import msgspec

from sidecar.audit.decoder import Line
from sidecar.audit.reading import Reading
from sidecar.audit.requests import Request, requests_of
from sidecar.cli.ledger_reading import dropped_in_words, told, write_lines
from sidecar.cli.output import say

_encode: Final = msgspec.json.Encoder().encode
_USAGE: Final = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
_COLUMNS: Final = (
    *("caller_runtime_id", "request_id", "model", "upstream", "provider", "state", "outcome"),
    *("admitted_at_unix_ms", "first_event_at_unix_ms", "completed_at_unix_ms", "expires_at_unix_ms"),
    *("reservation_micro_usd", "charge_micro_usd", *_USAGE, "notes"),
    *("begin_segment", "begin_offset", "completed_segment", "completed_offset"),
)


def export(directory: Path, *, as_csv: bool) -> int:
    reading = Reading(directory)
    lines = _csv_lines(reading) if as_csv else _json_lines(reading)

    def read() -> None:
        reading.begin()
        if as_csv and reading.dropped_until:
            say(f"sidecar ledger export: note: in no row is what was dropped {dropped_in_words(reading)}")
        write_lines(lines)

    return told("export", directory, read)


def _json_lines(reading: Reading) -> Iterator[str]:
    if reading.dropped_until:
        yield _json_line({"dropped": _dropped(reading)})
        for line in tuple(reading.open.values()):
            yield _json_line(_document(line, batch=None, head=None))
    for batch in reading.batches():
        head = batch.head.hex()
        for line in batch.lines:
            yield _json_line(_document(line, batch=batch.number, head=head))


def _dropped(reading: Reading) -> dict[str, Any]:
    """Before anything is read behind it."""
    return {
        "until_segment": reading.dropped_until,
        "batch": reading.batch,
        "head": reading.head.hex(),
        "records": reading.dropped.records,
        "requests": reading.dropped.completions,
        "charged_micro_usd": reading.dropped.charged_micro_usd,
    }


def _document(line: Line, *, batch: int | None, head: str | None) -> dict[str, Any]:
    return {
        "segment": line.segment,
        "offset": line.offset,
        "length": line.length,
        "batch": batch,
        "head": head,
        "record": {line.kind: line.members},
    }


def _json_line(document: dict[str, Any]) -> str:
    return _encode(document).decode() + "\n"


def _csv_lines(reading: Reading) -> Iterator[str]:
    line = StringIO()
    writer = csv.DictWriter(line, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for request in requests_of(reading):
        writer.writerow(_flat(request))
        yield line.getvalue()
        line.seek(0)
        line.truncate()
    yield line.getvalue()


def _flat(request: Request) -> dict[str, Any]:
    document = request.document()
    usage = document.pop("usage") or {}
    notes = " ".join(document.pop("notes"))
    return {**document, **{name: usage.get(name) for name in _USAGE}, "notes": notes}
