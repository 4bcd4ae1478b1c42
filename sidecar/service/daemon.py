"""The daemon: who is wired to whom, and what starts and ends when.

    run
    +-- ledger.running()          the commit thread and who releases batches to it, the spare preparer
        +-- requests              connectors that are waited for, replays that are read back; they end by themselves
            +-- connections       the accept loop, what arrives, a reader for each connection, writers for what is slow,
            |                     the watchdog's questions to the ledger
            +-- the first end     a drain or a poisoned ledger, whichever comes first
    +-- connectors                those with tasks of their own: a task for each child process
    +-- the metrics' file                  written at intervals, where the configuration wants one
    +-- signals                   heard from first to last, so that none of them ends the process by itself
    +-- supervision               what the service manager is told: status, and while we stop that it takes time
    +-- a reload, while one runs, and a task for each connector that is gone until its last request has ended
    +-- the end of the turn       sends the answers, asks connectors and writes the log lines of one turn together

An exit has three ways. A drain (SIGTERM, SIGINT): what runs may finish until
`drain_seconds_max`, a second signal shortens it, the rest is cancelled and
recorded; exit 0, or 70 where it began because the accounts were found to
contradict the ledger. Then no connection is taken any more, what was sent until
then is answered, and what waits in the queue of a socket that was handed over
is left to whoever serves it next. A poisoned ledger: running calls are dropped,
what is durable is answered for at most ten seconds, exit 74. A ledger that
doesn't answer past the drain: the process ends with 74, since its thread can't
be waited for.
Source: CONTRACT sections 4 and 6.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

import trio

from sidecar.config.values import Config
from sidecar.connectors.building import Built
from sidecar.connectors.promise import Connector
from sidecar.ledger.face import LedgerFace
from sidecar.ops.clock import unix_ms
from sidecar.ops.log import Log
from sidecar.ops.version import version_of_sidecar
from sidecar.rules.reservations import Reservations
from sidecar.service.accept_lines import accept_faults_in
from sidecar.service.accepting import Accepting
from sidecar.service.arrivals import Arrivals
from sidecar.service.asked_connectors import AskedConnectors
from sidecar.service.backlogs import Backlogs
from sidecar.service.connection import Connection
from sidecar.service.exchange import Exchange
from sidecar.service.exposition import Exposition, Seen
from sidecar.service.few_lines import FewLines
from sidecar.service.held import HeldBytes
from sidecar.service.in_force import InForce
from sidecar.service.listener import Doorkeeper
from sidecar.service.listening import Listening
from sidecar.service.metrics import Meter
from sidecar.service.metrics_file import keep_written
from sidecar.service.operators import Operators
from sidecar.service.peer import Standing
from sidecar.service.reloading import Load, Reloading, no_file
from sidecar.service.services import Services
from sidecar.service.signals import Terminal, heard_signals
from sidecar.service.status import Status
from sidecar.service.status_line import status_line
from sidecar.service.stream import SocketStream
from sidecar.service.supervision import Supervision
from sidecar.service.tasks import Tasks
from sidecar.service.turn import Act, EndOfTurn

DISK_ERROR: Final = os.EX_IOERR
_POISONED_SECONDS_MAX: Final = 9.5  # CONTRACT section 4: ten, with the way out
_LEDGER_SECONDS_MAX: Final = 10.0  # how long past the drain the ledger may take to answer
_FLUSH_SECONDS_MAX: Final = 2.0  # how long the last answers may take to be read
_POISONED_FLUSH_SECONDS_MAX: Final = 0.25
_AFTER_DRAIN_SECONDS_MAX: Final = 2 * (_LEDGER_SECONDS_MAX + _FLUSH_SECONDS_MAX)  # the last requests, and the closing


class Daemon:
    """Serves until it is told to stop or its ledger fails; `run` returns the exit code.

    `built` says what the connectors were made of and `load` reads the configuration again: without them there is no
    reload. `on_config` is told of another configuration that is in force now.
    """

    def __init__(
        self,
        config: Config,
        connectors: Mapping[str, Connector],
        ledger: LedgerFace,
        reservations: Reservations,
        log: Log,
        supervision: Supervision | None = None,
        *,
        built: Mapping[str, Built] | None = None,
        load: Load | None = None,
        on_config: Callable[[Config], None] = lambda config: None,
        clock_unix_ms: Callable[[], int] = unix_ms,
        die: Callable[[int], None] = os._exit,
        meter: Meter | None = None,
    ) -> None:
        self._in_force = InForce(config, connectors, built)
        self._asked_connectors = AskedConnectors(self._in_force, reservations, log, self._until)
        self._on_config = on_config
        self._ledger = ledger
        self._log = log
        self._die = die
        self._supervision = supervision or Supervision()
        self._meter = meter = meter or Meter()
        self._turn = EndOfTurn()
        self._exchange = Exchange(
            self._in_force, ledger, reservations, log, clock_unix_ms, self._wake, self._later, meter
        )
        self._reloading = Reloading(
            self._in_force,
            ledger,
            reservations,
            log,
            load or no_file,
            start=self._asked_connectors.start,
            on_swap=self._swapped,
            on_begin=self._supervision.reloading,
            on_end=self._supervision.reloaded,
            on_told=lambda ok: meter.reloaded("ok" if ok else "refused", clock_unix_ms()),
        )
        self._reservations = reservations
        self._clock_unix_ms = clock_unix_ms
        self._server = f"sidecar {version_of_sidecar()}"
        self._held = HeldBytes(config.daemon.frames_held_bytes_max)
        self._backlogs = Backlogs()
        self._exposition = Exposition(meter, self._seen(), lambda: self._in_force.config, clock_unix_ms)
        self._operators = Operators(
            config.ledger.directory,
            ledger,
            reservations,
            log,
            clock_unix_ms,
            on_mismatch=self._stop_for_mismatch,
            reload=self._reloading.reload,
            meter=meter,
            exposition=self._exposition.text,
            on_end=self._wake,
        )
        self._changed = trio.lowlevel.ParkingLot()
        self._signals = 0
        self._terminal = Terminal()
        self._listeners_of_stop = trio.Event()
        self._end_code = os.EX_OK
        log.gather(self._turn.soon)
        self._told_poisoned = False

    def _seen(self) -> Seen:
        return Seen(
            ledger=self._ledger,
            reservations=self._reservations,
            log=self._log,
            held=self._held,
            backlogs=self._backlogs,
            connections=lambda: self._doorkeeper.connections,
            draining=lambda: self._exchange.draining,
        )

    async def run(self, listening: Listening) -> int:
        """From the first accept to the exit code. The ledger is closed when this returns."""
        with heard_signals() as signals, accept_faults_in(self._log, self._clock_unix_ms):
            async with trio.open_nursery() as self._whole:
                whole = self._whole
                whole.start_soon(self._hear_signals, signals)
                whole.start_soon(self._turn.serve)
                whole.start_soon(self._supervision.serve, self._status_line)
                whole.start_soon(self._keep_metrics_file)
                await self._asked_connectors.start_all(whole)
                code = await self._run(listening)
                whole.cancel_scope.cancel()
        meter = self._meter
        self._log.notice("stopped", exit_code=code, requests=meter.requests, charged_micro_usd=meter.charged_micro_usd)
        return code

    async def _run(self, listening: Listening) -> int:
        last_patience = threading.Timer(_LEDGER_SECONDS_MAX + _FLUSH_SECONDS_MAX, self._die_of_silence)
        last_patience.daemon = True
        try:
            async with self._ledger.running(), trio.open_nursery() as requests:
                self._requests = Tasks(requests, self._wake)
                self._replays = Tasks(requests, self._wake)
                try:
                    code = await self._serve_until_an_end(listening, last_patience)
                finally:
                    self._requests.end()
                    self._replays.end()
            await self._asked_connectors.aclose()
        finally:
            last_patience.cancel()
        if self._ledger.poisoned is None:
            return code
        if not self._told_poisoned:  # the ledger's own goodbye failed
            self._tell_poisoned(f"exit with {DISK_ERROR}")
        return DISK_ERROR

    async def _serve_until_an_end(self, listening: Listening, last_patience: threading.Timer) -> int:
        self._doorkeeper = Doorkeeper(
            self._in_force, self._log, self._serve, os.getuid(), self._clock_unix_ms, self._meter
        )
        status = Status(
            self._in_force,
            self._ledger,
            self._reservations,
            self._clock_unix_ms,
            server=self._server,
            connections=lambda: self._doorkeeper.connections,
            draining=lambda: self._exchange.draining,
        )
        with Arrivals() as self._arrivals:
            async with trio.open_nursery() as connections:
                self._writers = Tasks(connections, self._wake)
                self._services = self._services_with(status)
                self._accepting = Accepting(listening, self._doorkeeper, connections)
                connections.start_soon(self._arrivals.serve)
                await connections.start(self._accepting.serve)
                self._log.notice("ready", socket=listening.where, activated=listening.activated, pid=os.getpid())
                self._supervision.ready()
                self._reloading.ready()
                connections.start_soon(self._supervision.watch, self._ledger.answers)
                code = await self._first_end()
                # From here on only the disk can make us wait, in threads that can't be cancelled.
                last_patience.start()
                connections.cancel_scope.cancel()
        return code

    def _services_with(self, status: Status) -> Services:
        return Services(
            in_force=self._in_force,
            exchange=self._exchange,
            held=self._held,
            backlogs=self._backlogs,
            operate=self._operators.take,
            report=status.report,
            log=self._log,
            meter=self._meter,
            connections=FewLines(self._log, self._clock_unix_ms, "connected"),
            server=self._server,
            start_request=self._requests.start_soon,
            start_replay=self._replays.start_soon,
            start_writer=self._writers.start_soon,
            at_end_of_turn=self._turn.soon,
        )

    async def _hear_signals(self, signals: AsyncIterator[int]) -> None:
        """The first one to stop begins the drain, a second one ends its patience, any more change nothing."""
        async for number in signals:
            if number == signal.SIGHUP and not self._terminal.is_lost:
                self._whole.start_soon(self._reloading.on_signal)
                continue
            self._signals += 1
            self._listeners_of_stop.set()
            self._changed.unpark_all()

    async def _serve(self, stream: trio.SocketStream, standing: Standing) -> None:
        taken = SocketStream.taken_from(stream, self._arrivals)
        try:
            with self._accepting.hearing(taken):
                await Connection(taken, standing, self._services).serve()
        finally:
            self._wake()

    async def _keep_metrics_file(self) -> None:
        """The one that the configuration in force wants, if it wants one."""
        while True:
            with trio.CancelScope() as self._metrics_file:
                if (file := self._in_force.config.metrics) is None:
                    await trio.sleep_forever()
                else:
                    await keep_written(file, self._exposition.text, self._log)

    # --- reload -----------------------------------------------------------------------------------------------

    def _swapped(self, before: Config, connectors: Mapping[str, Connector]) -> None:
        """Another configuration is in force; all of this is its turn."""
        config = self._in_force.config
        self._doorkeeper.regard()
        self._held.change(config.daemon.frames_held_bytes_max)
        if before.metrics != config.metrics:
            self._metrics_file.cancel()
        self._on_config(config)
        self._asked_connectors.retire(connectors)

    # --- how it ends ------------------------------------------------------------------------------------------

    async def _first_end(self) -> int:
        """The exit code of whichever end comes first."""
        codes: list[int] = []

        async def end(way: Callable[[], Awaitable[int]]) -> None:
            codes.append(await way())
            ways.cancel_scope.cancel()

        async with trio.open_nursery() as ways:
            ways.start_soon(end, self._drain)
            ways.start_soon(end, self._poisoned)
        return codes[0]

    async def _drain(self) -> int:
        await self._listeners_of_stop.wait()
        self._log.notice(
            "draining", running=self._exchange.running, seconds_max=self._in_force.config.daemon.drain_seconds_max
        )
        self._exchange.draining = True
        self._supervision.stopping(self._in_force.config.daemon.drain_seconds_max + _AFTER_DRAIN_SECONDS_MAX)
        await self._finish_requests()
        await self._hear_out(_FLUSH_SECONDS_MAX)
        return self._end_code

    def _stop_for_mismatch(self) -> None:
        """The accounts are wrong, so nothing more may be reserved from them. What runs is paid for, and recorded."""
        self._end_code = os.EX_SOFTWARE
        self._exchange.draining = True
        self._listeners_of_stop.set()

    async def _hear_out(self, seconds_max: float) -> None:
        """No connection is taken any more, and those that are open end behind the answers to what they have sent."""
        await self._accepting.end()
        with trio.move_on_after(seconds_max):
            await self._flush()
            await self._until(lambda: self._doorkeeper.connections == 0)

    async def _flush(self) -> None:
        """Returns when every answer has left: none is read back, put off or being written."""
        while self._replays.count or self._operators.resolving or self._turn.pending or self._writers.count:
            await self._until(lambda: self._replays.count == 0 and self._operators.resolving == 0)
            await self._turn.over()
            await self._until(lambda: self._writers.count == 0)

    async def _finish_requests(self) -> None:
        with trio.move_on_after(self._in_force.config.daemon.drain_seconds_max):
            await self._until(lambda: self._exchange.running == 0 or self._signals > 1)
        if self._exchange.running:
            self._log.warning("cancelling", running=self._exchange.running)
        self._exchange.stop("the daemon was stopped while this request ran")
        self._operators.stop("the daemon is stopping")
        self._reloading.stop()
        with trio.move_on_after(_LEDGER_SECONDS_MAX) as patience:
            await self._until(lambda: self._exchange.running == 0)
        if patience.cancelled_caught and self._exchange.running:
            self._die_of_silence()

    def _die_of_silence(self) -> None:
        """The disk has not answered in all the time that it may take."""
        self._log.critical("ledger_silent", running=self._exchange.running, seconds=_LEDGER_SECONDS_MAX)
        self._asked_connectors.kill()
        self._die(DISK_ERROR)

    async def _poisoned(self) -> int:
        await self._ledger.wait_poisoned()
        self._tell_poisoned(
            f"no request is admitted, running ones are dropped, replays go on for {_POISONED_SECONDS_MAX:g} s at most;"
            f" then exit with {DISK_ERROR}"
        )
        self._supervision.stopping(_POISONED_SECONDS_MAX + _AFTER_DRAIN_SECONDS_MAX)
        self._exchange.stop("the ledger failed")
        self._operators.stop("the ledger failed")
        self._reloading.stop()
        with trio.move_on_after(_POISONED_SECONDS_MAX):
            await self._until(lambda: self._exchange.running == 0 and self._doorkeeper.connections == 0)
        await self._hear_out(_POISONED_FLUSH_SECONDS_MAX)
        return DISK_ERROR

    def _tell_poisoned(self, now: str) -> None:
        self._told_poisoned = True
        why, directory = self._ledger.poisoned or "", self._in_force.config.ledger.directory
        self._log.critical("ledger_poisoned", why=why, directory=directory, now=now)

    def _wake(self) -> None:
        if self._changed:
            self._changed.unpark_all()
        self._supervision.changed()

    def _later(self, act: Act) -> None:
        """A request goes to its connector now."""
        self._turn.later(act)
        self._supervision.changed()

    def _status_line(self) -> str:
        return status_line(
            self._in_force.config.callers,
            self._reservations,
            self._ledger,
            self._clock_unix_ms(),
            draining=self._exchange.draining,
        )

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.park()
