"""`sidecar ledger check`: the running daemon reads its ledger again, and holds the sums against its accounts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from sidecar.cli import operator_call
from sidecar.cli.output import line_out
from sidecar.cli.receipt import dollars
from sidecar.contract.operator_frames import OPERATOR_CHECK, OperatorCheck, OperatorChecked

EXIT_CODES: Final = {
    os.EX_OK: "the daemon's accounts are what the records add up to",
    os.EX_USAGE: operator_call.EXIT_CODES[os.EX_USAGE],
    os.EX_DATAERR: "they are not: the windows are said, and the daemon stops",
    **{code: meaning for code, meaning in operator_call.EXIT_CODES.items() if code != os.EX_USAGE},
}


def check(socket: Path, *, as_json: bool) -> int:
    """Waits for as long as the reading takes."""
    asked = OperatorCheck(schema_id=OPERATOR_CHECK)

    def tell(checked: OperatorChecked) -> int:
        if as_json:
            line_out(json.dumps(_document(checked)))
        else:
            for line in _lines(checked):
                line_out(line)
        return os.EX_DATAERR if checked.mismatches else os.EX_OK

    return operator_call.asked("ledger check", socket, asked, OperatorChecked, tell, seconds_max=None, as_json=as_json)


def _document(checked: OperatorChecked) -> dict[str, Any]:
    return {
        "ok": not checked.mismatches,
        "exit_code": os.EX_DATAERR if checked.mismatches else os.EX_OK,
        "conserved": not checked.mismatches,
        "windows": checked.windows,
        "settled_micro_usd": checked.settled_micro_usd,
        "open_micro_usd": checked.open_micro_usd,
        "batch": checked.batch,
        "chain_head": bytes(checked.head_sha256).hex(),
        "mismatches": list(checked.mismatches),
    }


def _lines(checked: OperatorChecked) -> list[str]:
    told = (
        "the accounts differ, and the daemon stops" if checked.mismatches else "the accounts are what the records say"
    )
    settled, held = checked.settled_micro_usd, checked.open_micro_usd
    return [
        told,
        f"windows:    {checked.windows}",
        f"settled:    {settled} micro-USD = {dollars(settled)}",
        f"open:       {held} micro-USD = {dollars(held)}",
        f"chain head: {bytes(checked.head_sha256).hex()}, after batch {checked.batch}",
        *(f"mismatch:   {mismatch}" for mismatch in checked.mismatches),
    ]
