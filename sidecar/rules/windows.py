"""Spend windows: fixed, aligned to the Unix epoch, and a request belongs to the one that it was admitted in.

An account holds, for each window of one caller, what is settled and what is
reserved. The same three steps that the running daemon takes are taken again
when the ledger is read at open, so a restart comes to the same numbers. No
time zone and no clock is asked: the instant of admission is an argument.

Windows of a second are many in a year, so old ones are forgotten: the newest
are kept, and those in which something is open. A forgotten window would look
unspent, so nothing is admitted to one; only a clock that steps back over all
the windows that are kept can ask for it.
Source: CONTRACT section 5.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

WINDOWS_KEPT: Final = 64  # of each caller, the newest in which something was charged


class Figures(Struct, frozen=True, kw_only=True):
    """An account at one instant, by the first millisecond of each window; `spent` is whole from `kept_from` on."""

    window_seconds: int
    kept_from_unix_ms: int
    spent: Mapping[int, int]
    reserved: Mapping[int, int]


def window_start(at_unix_ms: int, window_seconds: int) -> int:
    """The first millisecond of the window of this length that holds an instant."""
    return at_unix_ms - at_unix_ms % (1000 * window_seconds)


class Changes:
    """What happens to one caller's money from an instant on, by window; added to figures of that instant."""

    def __init__(self, window_seconds: int) -> None:
        self._window_seconds = window_seconds
        self._spent: defaultdict[int, int] = defaultdict(int)
        self._reserved: defaultdict[int, int] = defaultdict(int)

    def add(self, admitted_at_unix_ms: int, *, reserved_micro_usd: int = 0, spent_micro_usd: int = 0) -> None:
        """Either may be below zero."""
        start = window_start(admitted_at_unix_ms, self._window_seconds)
        self._reserved[start] += reserved_micro_usd
        self._spent[start] += spent_micro_usd

    def added_to(self, figures: Figures) -> Figures:
        assert figures.window_seconds == self._window_seconds
        return Figures(
            window_seconds=figures.window_seconds,
            kept_from_unix_ms=figures.kept_from_unix_ms,
            spent=_sums(figures.spent, self._spent),
            reserved=_sums(figures.reserved, self._reserved),
        )


def _sums(first: Mapping[int, int], second: Mapping[int, int]) -> dict[int, int]:
    added = {start: first.get(start, 0) + second.get(start, 0) for start in {**first, **second}}
    assert all(amount >= 0 for amount in added.values()), "more has ended than had begun"
    return {start: amount for start, amount in added.items() if amount}


class Account:
    """The spend of one caller, by window; amounts in micro-USD."""

    def __init__(self, window_seconds: int, ceiling_micro_usd: int) -> None:
        assert window_seconds > 0
        self.window_seconds = window_seconds
        self._window_ms = window_seconds * 1000
        self.ceiling_micro_usd = ceiling_micro_usd
        self._spent: defaultdict[int, int] = defaultdict(int)
        self._reserved: defaultdict[int, int] = defaultdict(int)
        self.kept_from_unix_ms = 0  # windows before it may have been forgotten
        self.left_open = 0  # requests of any window of which nobody knows how they ended
        self.over_runs = 0  # charges above their reservation, since the daemon has started

    @classmethod
    def of(cls, figures: Figures, ceiling_micro_usd: int) -> Account:
        """The account that these figures are of."""
        account = cls(figures.window_seconds, ceiling_micro_usd)
        account.kept_from_unix_ms = figures.kept_from_unix_ms
        account._spent.update(figures.spent)
        account._reserved.update(figures.reserved)
        return account

    def window_start(self, now_unix_ms: int) -> int:
        """The first millisecond of the window that holds `now`."""
        return now_unix_ms - now_unix_ms % self._window_ms

    def spent(self, window_start_unix_ms: int) -> int:
        """What requests admitted in this window have been charged."""
        return self._spent.get(window_start_unix_ms, 0)

    def reserved(self, window_start_unix_ms: int) -> int:
        """What requests admitted in this window that have not ended may still be charged."""
        return self._reserved.get(window_start_unix_ms, 0)

    @property
    def reserved_in_all(self) -> int:
        """What may still be charged, of all windows together."""
        return sum(self._reserved.values())

    def allows(self, now_unix_ms: int, amount_micro_usd: int) -> bool:
        """Whether one more reservation fits under the ceiling of now's window; exactly at it fits."""
        start = self.window_start(now_unix_ms)
        if start < self.kept_from_unix_ms:
            return False
        held = self._spent.get(start, 0) + self._reserved.get(start, 0)
        return held + amount_micro_usd <= self.ceiling_micro_usd

    def reserve(self, admitted_at_unix_ms: int, amount_micro_usd: int) -> None:
        assert amount_micro_usd >= 0
        self._reserved[self.window_start(admitted_at_unix_ms)] += amount_micro_usd

    def settle(self, admitted_at_unix_ms: int, reservation_micro_usd: int, charge_micro_usd: int) -> None:
        """The charge stands in place of the reservation, in the window of admission."""
        assert charge_micro_usd >= 0
        start = self.window_start(admitted_at_unix_ms)
        self._let_go(start, reservation_micro_usd)
        self._spent[start] += charge_micro_usd
        if len(self._spent) > 2 * WINDOWS_KEPT + len(self._reserved):
            self._forget_old()

    def release(self, admitted_at_unix_ms: int, reservation_micro_usd: int) -> None:
        """The reservation goes without a charge."""
        self._let_go(self.window_start(admitted_at_unix_ms), reservation_micro_usd)

    def figures(self) -> Figures:
        """A copy of all that is held."""
        return Figures(
            window_seconds=self.window_seconds,
            kept_from_unix_ms=self.kept_from_unix_ms,
            spent=dict(self._spent),
            reserved=dict(self._reserved),
        )

    def forget(self, until_unix_ms: int) -> None:
        """What was charged before this instant, a window's start, is not known in full: nothing is admitted there."""
        self.kept_from_unix_ms = max(self.kept_from_unix_ms, until_unix_ms)

    def _forget_old(self) -> None:
        """All but the newest windows, and those in which something is open."""
        oldest_kept = sorted(self._spent)[-WINDOWS_KEPT]
        self.kept_from_unix_ms = max(self.kept_from_unix_ms, oldest_kept)
        for start in [start for start in self._spent if start < oldest_kept and start not in self._reserved]:
            del self._spent[start]

    def _let_go(self, start: int, reservation_micro_usd: int) -> None:
        left = self._reserved.get(start, 0) - reservation_micro_usd
        assert left >= 0, "more is released than was reserved"
        if left:
            self._reserved[start] = left
        else:
            self._reserved.pop(start, None)
