"""Who holds which slot and how much money, from reservation to settlement.

One `Reservations` holds everything that two racing invocations could both
want: the request ids that are live, the slots of the daemon, the callers and
the connectors, and each caller's account. All methods are synchronous, so
that a decision made of several of them is one decision as long as nothing is
awaited in between. Source: CONTRACT section 3, rules 9 and 12 to 14.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct, structs

from sidecar.rules.windows import Account, Changes, Figures


class Live(Struct, frozen=True, kw_only=True):
    """A request that has been admitted and has not ended: it holds a slot and its worst case."""

    caller: str
    request_id: str
    connector: str
    identity: bytes
    reservation_micro_usd: int
    admitted_at_unix_ms: int


class Limits(Struct, frozen=True, kw_only=True):
    """How many requests may run at once; daemon-wide, by caller and by connector name."""

    daemon: int
    callers: Mapping[str, int]
    connectors: Mapping[str, int]


class Reservations:
    """The live requests and the accounts they reserve from; never over a limit or a ceiling.

    Whoever gave the accounts sees the same ones, also after a `change`.
    """

    def __init__(self, limits: Limits, accounts: dict[str, Account]) -> None:
        self._limits = limits
        self._accounts = accounts
        self._live: dict[tuple[str, str], Live] = {}
        self._unbegun: dict[tuple[str, str], Live] = {}  # their begin is on its way to the disk
        self._by_caller: Counter[str] = Counter()
        self._by_connector: Counter[str] = Counter()
        self._noted: dict[str, Changes] = {}  # of callers whose records are being added up anew

    def __len__(self) -> int:
        return len(self._live)

    def live(self, caller: str, request_id: str) -> Live | None:
        return self._live.get((caller, request_id))

    def live_of_caller(self, caller: str) -> int:
        """How many requests of this caller run."""
        return self._by_caller[caller]

    def live_of_connector(self, connector: str) -> int:
        """How many requests run at this connector, of all callers."""
        return self._by_connector[connector]

    def at_connector(self, connector: str) -> tuple[Live, ...]:
        """The requests that run at this connector, of all callers."""
        return tuple(live for live in self._live.values() if live.connector == connector)

    def running(self) -> Counter[tuple[str, str]]:
        """How many requests run, by caller and connector."""
        return Counter((live.caller, live.connector) for live in self._live.values())

    def is_live(self, live: Live) -> bool:
        """Whether this very request still runs."""
        return self._live.get((live.caller, live.request_id)) is live

    def account(self, caller: str) -> Account:
        return self._accounts[caller]

    # --- another configuration --------------------------------------------------------------------------------

    def window_seconds(self) -> dict[str, int]:
        """By caller; also of callers that the configuration named once in this run: they may still owe or return."""
        return {caller: account.window_seconds for caller, account in self._accounts.items()}

    def note_changes(self, window_seconds: Mapping[str, int]) -> None:
        """From now on what happens to the money of these callers is noted, by windows of these lengths, until
        `change` or `forget_changes`. Begins that are on their way to the disk count as what happens."""
        self._noted = {caller: Changes(seconds) for caller, seconds in window_seconds.items()}
        for live in self._unbegun.values():
            self._note(live.caller, live.admitted_at_unix_ms, reserved_micro_usd=live.reservation_micro_usd)

    def noted(self, caller: str, figures: Figures) -> Figures:
        """These figures, which are of the instant of `note_changes`, as they are now."""
        return self._noted[caller].added_to(figures)

    def forget_changes(self) -> None:
        self._noted = {}

    def change(self, limits: Limits, accounts: Mapping[str, Account]) -> None:
        """Other limits and accounts from now on. Who runs more than is allowed now gets no slot until it runs less.

        The account of a caller that is not in `accounts` stays: what it still runs will be charged to it, and should
        it come back, it has spent what it has spent.
        """
        self._limits = limits
        self._accounts.update(accounts)
        self._noted = {}

    def _note(
        self, caller: str, admitted_at_unix_ms: int, *, reserved_micro_usd: int = 0, spent_micro_usd: int = 0
    ) -> None:
        if (noted := self._noted.get(caller)) is not None:
            noted.add(admitted_at_unix_ms, reserved_micro_usd=reserved_micro_usd, spent_micro_usd=spent_micro_usd)

    # --- rules 12 and 13 --------------------------------------------------------------------------------------

    def full(self, caller: str, connector: str) -> str | None:
        """Rule 12: whose slots are all in use, as a sentence; None when there is one for this request."""
        limits = self._limits  # asked of every request, so nothing is built that is not said
        if self._by_caller[caller] >= limits.callers[caller]:
            return _in_use(f"the caller {caller}", self._by_caller[caller], limits.callers[caller])
        if self._by_connector[connector] >= limits.connectors[connector]:
            return _in_use(f"the connector {connector}", self._by_connector[connector], limits.connectors[connector])
        if len(self._live) >= limits.daemon:
            return _in_use("the daemon", len(self._live), limits.daemon)
        return None

    def over_ceiling(self, caller: str, now_unix_ms: int, amount_micro_usd: int) -> str | None:
        """Rule 13: how the ceiling would be passed, as a sentence; None when the amount fits (exactly at it fits)."""
        account = self._accounts[caller]
        if account.allows(now_unix_ms, amount_micro_usd):
            return None
        start = account.window_start(now_unix_ms)
        if start < account.kept_from_unix_ms:
            return f"what was spent in the window from {start} is not known: the clock has stepped back"
        return (
            f"{amount_micro_usd} micro-USD are needed, {account.spent(start)} spent and {account.reserved(start)}"
            f" reserved of {account.ceiling_micro_usd} in the window of {account.window_seconds} s from {start}"
        )

    # --- from reservation to settlement -----------------------------------------------------------------------

    def take(self, live: Live) -> None:
        """Slot, id and money are this request's from here on."""
        key = (live.caller, live.request_id)
        assert key not in self._live, "a live id is taken twice"
        assert len(self._live) < self._limits.daemon, "a slot is taken that is not there"
        self._accounts[live.caller].reserve(live.admitted_at_unix_ms, live.reservation_micro_usd)
        if self._noted:
            self._note(live.caller, live.admitted_at_unix_ms, reserved_micro_usd=live.reservation_micro_usd)
        self._live[key] = self._unbegun[key] = live
        self._by_caller[live.caller] += 1
        self._by_connector[live.connector] += 1

    def begun(self, live: Live) -> None:
        """Its begin is on disk."""
        del self._unbegun[live.caller, live.request_id]

    def settle(self, live: Live, charge_micro_usd: int) -> None:
        """The request is complete on disk: the slot is free, the charge stands in place of the reservation."""
        self._leave(live)
        account = self._accounts[live.caller]
        account.settle(live.admitted_at_unix_ms, live.reservation_micro_usd, charge_micro_usd)
        account.over_runs += charge_micro_usd > live.reservation_micro_usd
        if self._noted:
            self._note(
                live.caller,
                live.admitted_at_unix_ms,
                reserved_micro_usd=-live.reservation_micro_usd,
                spent_micro_usd=charge_micro_usd,
            )

    def release(self, live: Live) -> None:
        """The request never began: slot and money are free."""
        self._leave(live)
        self._accounts[live.caller].release(live.admitted_at_unix_ms, live.reservation_micro_usd)
        if self._noted:
            self._note(live.caller, live.admitted_at_unix_ms, reserved_micro_usd=-live.reservation_micro_usd)

    def strand(self, live: Live) -> None:
        """The request began and can't be completed: the slot is free, the reservation stays."""
        self._leave(live)
        self._accounts[live.caller].left_open += 1

    def settle_left_open(
        self, caller: str, admitted_at_unix_ms: int, reservation_micro_usd: int, charge_micro_usd: int
    ) -> None:
        """A request that an earlier run left open is complete on disk. A caller that is gone has no account."""
        if (account := self._accounts.get(caller)) is not None:
            account.settle(admitted_at_unix_ms, reservation_micro_usd, charge_micro_usd)
            account.left_open -= 1
        if self._noted:
            self._note(
                caller,
                admitted_at_unix_ms,
                reserved_micro_usd=-reservation_micro_usd,
                spent_micro_usd=charge_micro_usd,
            )

    def on_record(self) -> dict[str, Figures]:
        """The accounts of all callers as far as records have landed: without reservations whose begin has not."""
        unlanded: dict[str, Counter[int]] = {caller: Counter() for caller in self._accounts}
        for live in self._unbegun.values():
            start = self._accounts[live.caller].window_start(live.admitted_at_unix_ms)
            unlanded[live.caller][start] += live.reservation_micro_usd
        return {caller: _without(account.figures(), unlanded[caller]) for caller, account in self._accounts.items()}

    def _leave(self, live: Live) -> None:
        self._unbegun.pop((live.caller, live.request_id), None)
        del self._live[live.caller, live.request_id]
        self._by_caller[live.caller] -= 1
        self._by_connector[live.connector] -= 1


def _without(figures: Figures, unlanded: Counter[int]) -> Figures:
    landed = ((start, amount - unlanded[start]) for start, amount in figures.reserved.items())
    return structs.replace(figures, reserved={start: amount for start, amount in landed if amount})


def _in_use(whose: str, used: int, limit: int) -> str:
    return f"{whose} has {used} of {limit} requests running"
