"""Reload: the configuration read again, and all of it in force or none.

    read and checked, connectors built      in a thread; any complaint, and all stays as it is
    what can't change while it runs         refused, with why
    callers whose spend is not known        their records are added up again, up to a batch that has landed, in a
                                            thread; what happens to their money meanwhile is noted and added
    connectors with tasks of their own      started
    one turn                                configuration, connectors, limits and accounts are others
    connectors that are gone                closed when the last request that was admitted to them has ended

A caller's spend is not known where it is new to this run though the ledger has
records of it, or where its window has another length. Requests that run keep
the terms of their admission. One reload at a time. Source: CONTRACT section 7,
ECOSYSTEM section 5.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import trio
from msgspec import Struct

from sidecar.audit.look import NoLedger
from sidecar.audit.tallying import GivenUp, Tallied, tallied
from sidecar.config.changes import changes, fixed_ones
from sidecar.config.keys import Complaint, ConfigFaults, located
from sidecar.config.positions import Places
from sidecar.config.values import Caller, Config
from sidecar.connectors.building import Built
from sidecar.connectors.promise import Connector
from sidecar.contract.operator_frames import OPERATOR_RELOADED, OperatorReloaded
from sidecar.ledger.face import LedgerFace
from sidecar.ledger.faults import LedgerDamaged
from sidecar.ops.log import Log, Whole
from sidecar.ops.stray import tell_bug
from sidecar.ops.tracebacks import in_a_word
from sidecar.rules.reservations import Reservations
from sidecar.rules.windows import Account, Figures
from sidecar.service.accounts import forget_dropped
from sidecar.service.in_force import InForce
from sidecar.service.limits import limits_of

LOAD_SECONDS_MAX: Final = 60.0  # below what a service manager waits for a reload
LINES_MAX: Final = 200  # of changes, complaints or warnings, each
_LINE_CHARACTERS_MAX: Final = 1000


class Stopping(Exception):
    """The daemon ended before it was known what would come of a reload."""


class Loaded(Struct, frozen=True):
    """A configuration that is right in all, and its connectors."""

    config: Config
    built: Mapping[str, Built]
    warnings: tuple[str, ...] = ()
    places: Places = Places()


Load = Callable[[Mapping[str, Built]], Loaded]
ReadAgain = Callable[..., Tallied]


def no_file(built: Mapping[str, Built]) -> Loaded:
    """For a daemon that was made of no file."""
    raise ConfigFaults([Complaint("the file", "this daemon was given none that it could read again")])


class Reloading:
    """Reloads one daemon.

    `load` reads and builds, given the connectors of now; it raises ConfigFaults, and runs in a thread. `start` runs a
    new connector's own tasks; `on_swap` is called in the turn of the change, with what was in force before.
    `on_begin` and `on_end` are told of each reload, the latter with a line that says how it ended; `on_told` whether
    it is in force.
    """

    def __init__(
        self,
        in_force: InForce,
        ledger: LedgerFace,
        reservations: Reservations,
        log: Log,
        load: Load,
        *,
        start: Callable[[Connector], Awaitable[None]],
        on_swap: Callable[[Config, Mapping[str, Connector]], None],
        on_begin: Callable[[], None] = lambda: None,
        on_end: Callable[[str], None] = lambda how: None,
        on_told: Callable[[bool], None] = lambda reloaded: None,
        read_again: ReadAgain = tallied,
    ) -> None:
        self._in_force = in_force
        self._ledger = ledger
        self._reservations = reservations
        self._log = log
        self._load = load
        self._start = start
        self._on_swap = on_swap
        self._on_begin = on_begin
        self._on_end = on_end
        self._on_told = on_told
        self._read_again = read_again
        self._one = trio.Lock()
        self._ready = trio.Event()
        self._scopes: set[trio.CancelScope] = set()
        self._loads = trio.CapacityLimiter(1)  # its own: a reading that is given up keeps its thread
        self._waits = False
        self._stopped = False

    def ready(self) -> None:
        """The daemon serves: what asked for a reload before has it now."""
        self._ready.set()

    def stop(self) -> None:
        """The daemon is ending: a reload under way is given up, those that wait for it too, and none begins."""
        self._stopped = True
        for scope in self._scopes:
            scope.cancel()

    async def on_signal(self) -> None:
        """As `reload`; while one waits already, that one will see what there is to see."""
        if self._waits:
            return
        self._waits = True
        with self._until_stopped():
            await self._ready.wait()
            async with self._one:
                self._waits = False
                await self._told_reload("a signal")

    async def reload(self, who: str) -> OperatorReloaded:
        """What came of it; `who` asked, for the log. Raises Stopping; then the configuration is as before."""
        with self._until_stopped():
            async with self._one:
                return await self._told_reload(who)
        raise Stopping

    @contextmanager
    def _until_stopped(self) -> Iterator[None]:
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            if self._stopped:
                scope.cancel()
            try:
                yield
            finally:
                self._scopes.discard(scope)

    async def _told_reload(self, who: str) -> OperatorReloaded:
        self._on_begin()
        how = "the configuration is as before"
        try:
            try:
                told = await self._reload()
            except ConfigFaults as faults:
                told = _kept(faults.complaints)
            self._tell(who, told)
            self._on_told(told.reloaded)
            how = _in_a_line(told)
            return told
        finally:
            self._reservations.forget_changes()
            self._on_end(how)

    async def _loaded(self) -> Loaded:
        """Raises ConfigFaults. Nothing of ours is changed by it, so a file that never ends (a pipe) is given up."""
        if not self._loads.available_tokens:
            why = "an earlier reading of it, which was given up, has not come back yet"
            raise ConfigFaults([Complaint("the file", why, hint="look at the disk or mount that it is on")])
        try:
            with trio.move_on_after(LOAD_SECONDS_MAX):
                return await trio.to_thread.run_sync(
                    self._load, self._in_force.built, abandon_on_cancel=True, limiter=self._loads
                )
            why = f"could not be read within {LOAD_SECONDS_MAX:g} s"
            raise ConfigFaults([Complaint("the file", why, hint="put a plain file there")])
        except ConfigFaults:
            raise
        except RuntimeError as fault:  # no thread can be started
            raise ConfigFaults([Complaint("the file", f"can't be read now: {fault}")]) from fault
        except Exception as bug:  # nothing is in force of what it was reading: no reason to end what serves
            tell_bug(self._log, bug, now="the configuration is as before")
            what = f"a bug met while it was read: {in_a_word(bug)}"
            raise ConfigFaults([Complaint("the file", what, hint="report it, with the log and the file")]) from bug

    async def _reload(self) -> OperatorReloaded:
        before, built_before = self._in_force.config, self._in_force.built
        loaded = await self._loaded()
        new = [one.connector for name, one in loaded.built.items() if built_before.get(name) is not one]
        try:
            if fixed := fixed_ones(before, loaded.config):
                hint = "restart, or put it back"
                raise ConfigFaults(located(Complaint(path, why, hint=hint), loaded.places) for path, why in fixed)
            accounts = await self._accounts(loaded.config)
            for connector in new:
                await self._start(connector)
        except BaseException:
            for connector in new:
                with trio.CancelScope(shield=True):  # bounded by the connectors themselves; nobody has used them
                    await connector.aclose()
            raise
        self._swap(loaded, accounts)
        return OperatorReloaded(
            schema_id=OPERATOR_RELOADED,
            reloaded=True,
            changes=_bounded((*changes(before, loaded.config), *_rebuilt(before, built_before, loaded))),
            complaints=(),
            warnings=_bounded(loaded.warnings),
        )

    def _swap(self, loaded: Loaded, accounts: Callable[[], dict[str, Account]]) -> None:
        """Nothing is awaited here: no request is decided by some of the old and some of the new."""
        config, connectors = self._in_force.config, self._in_force.connectors
        self._reservations.change(limits_of(loaded.config), accounts())
        self._in_force.put(loaded.config, loaded.built)
        self._ledger.change_bounds(
            requests_in_flight_max=loaded.config.daemon.requests_in_flight_max,
            retention_days=loaded.config.ledger.retention_days,
        )
        self._on_swap(config, connectors)

    # --- accounts ---------------------------------------------------------------------------------------------

    async def _accounts(self, config: Config) -> Callable[[], dict[str, Account]]:
        """What gives the accounts of the new configuration as they are at the moment of asking."""
        known = self._reservations.window_seconds()
        unknown = {
            caller.id: caller.spend_window_seconds
            for caller in config.callers.values()
            if known.get(caller.id, caller.spend_window_seconds) != caller.spend_window_seconds
            or (caller.id not in known and self._ledger.knows_caller(caller.id))
        }
        figures: dict[str, Figures] = {}
        if unknown:
            self._reservations.note_changes(unknown)  # and the number of the batch, in one turn
            figures = await self._added_up(unknown, self._ledger.landed_batch)

        def accounts() -> dict[str, Account]:
            return {caller.id: self._account(caller, figures.get(caller.id)) for caller in config.callers.values()}

        return accounts

    async def _added_up(self, window_seconds: Mapping[str, int], batch: int) -> dict[str, Figures]:
        def add_up() -> Tallied:
            return self._read_again(
                self._in_force.config.ledger.directory,
                window_seconds,
                up_to_batch=batch,
                goes_on=lambda: not self._stopped,
            )

        callers = ", ".join(sorted(window_seconds))
        try:
            again = await trio.to_thread.run_sync(add_up)
        except (LedgerDamaged, NoLedger, OSError, GivenUp, RuntimeError) as fault:
            why = f"what {callers} spent in this window can't be added up from the ledger: {fault or 'it is stopping'}"
            raise ConfigFaults([Complaint("caller", why)]) from fault
        return {caller: again.tally.figures(caller) for caller in window_seconds}

    def _account(self, caller: Caller, figures: Figures | None) -> Account:
        """The one that there is with the new ceiling, or one of these figures, or an empty one."""
        id_, ceiling = caller.id, caller.spend_ceiling_micro_usd
        known = self._reservations.account(id_) if id_ in self._reservations.window_seconds() else None
        if figures is not None:
            account = Account.of(self._reservations.noted(id_, figures), ceiling)
            account.over_runs = known.over_runs if known is not None else 0
        elif known is not None:
            known.ceiling_micro_usd = ceiling
            return known
        else:
            account = Account(caller.spend_window_seconds, ceiling)
        account.left_open = self._ledger.left_open_by(id_)
        if self._ledger.low_water_unix_ms:
            forget_dropped(account, self._ledger.low_water_unix_ms)
        return account

    # --- what is told -----------------------------------------------------------------------------------------

    def _tell(self, who: str, told: OperatorReloaded) -> None:
        for warning in told.warnings:
            self._log.warning("config_warning", what=Whole(warning))
        for complaint in told.complaints:
            self._log.warning("config_complaint", what=Whole(complaint))
        if not told.reloaded:
            now = "the configuration is as before"
            self._log.warning("reload_refused", by=who, complaints=len(told.complaints), now=now)
            return
        for change in told.changes:
            self._log.info("config_changed", what=Whole(change))
        self._log.notice("reloaded", by=who, changes=len(told.changes), warnings=len(told.warnings))


def _rebuilt(before: Config, built_before: Mapping[str, Built], loaded: Loaded) -> Iterable[str]:
    """Connectors of an unchanged table that are others all the same."""
    for name, one in loaded.built.items():
        was = built_before.get(name)
        if was is not None and was is not one and before.connectors.get(name) == loaded.config.connectors.get(name):
            yield f'connector "{name}": what it reads (a credential, a script, recordings) has been read again'


def _kept(complaints: Iterable[Complaint]) -> OperatorReloaded:
    return OperatorReloaded(
        schema_id=OPERATOR_RELOADED,
        reloaded=False,
        changes=(),
        complaints=_bounded(map(str, complaints)),
        warnings=(),
    )


def _bounded(lines: Iterable[str]) -> tuple[str, ...]:
    cut = [line if len(line) <= _LINE_CHARACTERS_MAX else line[:_LINE_CHARACTERS_MAX] + "..." for line in lines]
    more = len(cut) - LINES_MAX
    return (*cut[:LINES_MAX], f"and {more} more") if more > 0 else tuple(cut)


def _in_a_line(told: OperatorReloaded) -> str:
    if told.reloaded:
        return f"reloaded, changes: {len(told.changes)}"
    return f"reload refused, complaints: {len(told.complaints)}; the configuration is as before"
