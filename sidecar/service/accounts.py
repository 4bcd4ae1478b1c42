"""The callers' accounts, filled from what an opening finds on record."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.contract.values import BeginRecord
from sidecar.ledger.index import WindowOf
from sidecar.ledger.opening import Listeners
from sidecar.rules.conservation import Tally
from sidecar.rules.windows import Account


def listeners_of(accounts: Mapping[str, Account], tally: Tally) -> Listeners:
    """Both hear of the same, each counts by itself."""

    def held(begin: BeginRecord) -> None:
        caller, admitted_at = begin.caller_runtime_id, begin.admitted_at_unix_ms
        if account := accounts.get(caller):
            account.reserve(admitted_at, begin.reservation_micro_usd)
            account.left_open += 1
        tally.begun(caller, admitted_at, begin.reservation_micro_usd)

    def charged(caller: str, admitted_at_unix_ms: int, charge_micro_usd: int) -> None:
        if account := accounts.get(caller):
            account.settle(admitted_at_unix_ms, 0, charge_micro_usd)
        tally.ended(caller, admitted_at_unix_ms, 0, charge_micro_usd)

    def unknown(caller: str, until_unix_ms: int) -> None:
        if account := accounts.get(caller):
            account.forget(until_unix_ms)

    def dropped(low_water_unix_ms: int) -> None:
        for account in accounts.values():
            forget_dropped(account, low_water_unix_ms)

    return Listeners(on_open=held, on_sum=charged, on_unknown=unknown, on_dropped=dropped)


def forget_dropped(account: Account, low_water_unix_ms: int) -> None:
    """Of windows that reach back so far: by a clock that was ahead, the present one may be among them."""
    account.forget(account.window_start(low_water_unix_ms) + 1000 * account.window_seconds)


def windows_of(accounts: Mapping[str, Account]) -> WindowOf:
    """Their lengths in seconds, 0 for a caller that has no account."""
    return lambda caller: account.window_seconds if (account := accounts.get(caller)) else 0
