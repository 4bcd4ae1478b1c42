"""Conservation: what a ledger's records add up to is what the daemon's accounts say.

A `Tally` adds up begins and ends by caller and window, with nothing of the
accounts' own code; `compared` holds it against what the accounts say at the
instant up to which the records were read. Open amounts are compared in every
window. Settled ones are in those that both still keep whole: each forgets
windows that ended long ago. Source: CONTRACT section 5, LEDGER's list of what
a ledger must guarantee, point 10.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from sidecar.rules.windows import WINDOWS_KEPT, Figures

# Windows of a caller; more than an account keeps, so that it decides what is compared.
_TALLIED: Final = 4 * WINDOWS_KEPT

TOLD_MAX: Final = 16  # mismatches that are told one by one


class Mismatch(Struct, frozen=True, kw_only=True):
    """One window of one caller in which records and account differ; amounts in micro-USD."""

    caller: str
    window_start_unix_ms: int
    window_seconds: int
    ledger_settled: int
    ledger_open: int
    account_settled: int
    account_open: int

    def __str__(self) -> str:
        return (
            f"caller {self.caller}, window of {self.window_seconds} s from {self.window_start_unix_ms}:"
            f" by the ledger {self.ledger_settled} micro-USD are settled and {self.ledger_open} open,"
            f" by the account {self.account_settled} and {self.account_open}"
        )


class Compared(Struct, frozen=True, kw_only=True):
    """How many windows were compared, what the records add up to in them, and where the account says otherwise."""

    windows: int
    settled_micro_usd: int
    open_micro_usd: int
    mismatches: tuple[Mismatch, ...]

    def sentences(self) -> tuple[str, ...]:
        """The mismatches in words, up to a bound, and then how many more there are."""
        more = len(self.mismatches) - TOLD_MAX
        told = [str(mismatch) for mismatch in self.mismatches[:TOLD_MAX]]
        return (*told, f"and {more} windows more") if more > 0 else tuple(told)


class Tally:
    """What records add up to, by caller and window. Callers of which no window length is known are left out."""

    def __init__(self, window_seconds: Mapping[str, int]) -> None:
        self._callers = {caller: _Sums(seconds) for caller, seconds in window_seconds.items()}

    def forget(self, until_unix_ms: int) -> None:
        """What was admitted up to this instant may be missing from what is added: windows of then are not compared,
        but for what is open in them."""
        for sums in self._callers.values():
            sums.forget(until_unix_ms)

    def begun(self, caller: str, admitted_at_unix_ms: int, reservation_micro_usd: int) -> None:
        if (sums := self._callers.get(caller)) is not None:
            sums.add(admitted_at_unix_ms, settled=0, opened=reservation_micro_usd)

    def ended(self, caller: str, admitted_at_unix_ms: int, reservation_micro_usd: int, charge_micro_usd: int) -> None:
        if (sums := self._callers.get(caller)) is not None:
            sums.add(admitted_at_unix_ms, settled=charge_micro_usd, opened=-reservation_micro_usd)

    def figures(self, caller: str) -> Figures:
        """What an account of this caller would hold that had heard of the same records."""
        return self._callers[caller].figures()

    def compared(self, accounts: Mapping[str, Figures]) -> Compared:
        """Both must know the same callers."""
        assert accounts.keys() == self._callers.keys(), "accounts of other callers than those tallied"
        pairs = [pair for caller, figures in accounts.items() for pair in self._callers[caller].beside(caller, figures)]
        return Compared(
            windows=len(pairs),
            settled_micro_usd=sum(pair.ledger_settled for pair in pairs),
            open_micro_usd=sum(pair.ledger_open for pair in pairs),
            mismatches=tuple(
                pair
                for pair in pairs
                if (pair.ledger_settled, pair.ledger_open) != (pair.account_settled, pair.account_open)
            ),
        )


class _Sums:
    """Of one caller."""

    def __init__(self, window_seconds: int) -> None:
        self._window_seconds = window_seconds
        self._windows: dict[int, tuple[int, int]] = {}  # first second: settled, open
        self._open_windows = 0
        self._whole_from = 0  # second; settled amounts before it may have been forgotten

    def add(self, admitted_at_unix_ms: int, *, settled: int, opened: int) -> None:
        second = admitted_at_unix_ms // 1000
        start = second - second % self._window_seconds
        was_settled, was_open = self._windows.get(start, (0, 0))
        self._windows[start] = was_settled + settled, was_open + opened
        self._open_windows += bool(was_open + opened) - bool(was_open)
        if len(self._windows) > 2 * _TALLIED + self._open_windows:
            self._forget_old()

    def forget(self, until_unix_ms: int) -> None:
        second = until_unix_ms // 1000
        if until_unix_ms:
            whole_from = second - second % self._window_seconds + self._window_seconds
            self._whole_from = max(self._whole_from, whole_from)

    def _forget_old(self) -> None:
        oldest_kept = sorted(self._windows)[-_TALLIED]
        self._whole_from = max(self._whole_from, oldest_kept)
        self._windows = {start: sums for start, sums in self._windows.items() if start >= oldest_kept or sums[1]}

    def figures(self) -> Figures:
        return Figures(
            window_seconds=self._window_seconds,
            kept_from_unix_ms=self._whole_from * 1000,
            spent={start * 1000: settled for start, (settled, _) in self._windows.items() if settled},
            reserved={start * 1000: opened for start, (_, opened) in self._windows.items() if opened},
        )

    def beside(self, caller: str, figures: Figures) -> Iterator[Mismatch]:
        """Each window of either, with both figures; a settled amount that one of them no longer keeps is 0 in both."""
        assert figures.window_seconds == self._window_seconds
        ours = {start * 1000: sums for start, sums in self._windows.items()}
        whole_from = max(figures.kept_from_unix_ms, self._whole_from * 1000)
        for start in sorted({*ours, *figures.spent, *figures.reserved}):
            settled, opened = ours.get(start, (0, 0))
            account_settled, account_open = figures.spent.get(start, 0), figures.reserved.get(start, 0)
            if start < whole_from:
                settled = account_settled = 0
                if not opened and not account_open:
                    continue
            yield Mismatch(
                caller=caller,
                window_start_unix_ms=start,
                window_seconds=self._window_seconds,
                ledger_settled=settled,
                ledger_open=opened,
                account_settled=account_settled,
                account_open=account_open,
            )
