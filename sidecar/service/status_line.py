"""What the daemon does, in the one line that its service manager shows."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.ledger.face import LedgerFace
from sidecar.rules.reservations import Reservations

_WINDOWS = {86_400: "today", 3_600: "this hour"}  # windows begin at midnight and at the full hour, UTC


def status_line(
    callers: Iterable[str], reservations: Reservations, ledger: LedgerFace, now_unix_ms: int, *, draining: bool
) -> str:
    """Sums over these callers, each in its present window; `ledger` is the number of the last batch on disk."""
    accounts = [reservations.account(caller) for caller in callers]
    spent = sum(account.spent(account.window_start(now_unix_ms)) for account in accounts)
    ceiling = sum(account.ceiling_micro_usd for account in accounts)
    lengths = {account.window_seconds for account in accounts}
    when = _WINDOWS.get(min(lengths), "in the present window") if len(lengths) == 1 else "in the present windows"
    words = (
        f"{len(reservations)} in flight, {len(accounts)} caller{'s' * (len(accounts) != 1)},"
        f" ledger {ledger.landed_batch}, spent {_usd(spent)} of {_usd(ceiling)} USD {when}"
    )
    if ledger.poisoned is not None:
        return f"the ledger failed: {ledger.poisoned}; {words}"
    if draining:
        return f"draining; {words}"
    return words if ledger.pressure is None else f"no request is admitted: {ledger.pressure}; {words}"


def _usd(micro_usd: int) -> str:
    """To the cent, half a cent up: never through a float."""
    cents = (micro_usd + 5_000) // 10_000
    return f"{cents // 100}.{cents % 100:02}"
