"""The road with fakes: a config, scripted answers, a ledger in memory, a clock that tests set."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import trio
from kit import build
from kit.memory_ledger import MemoryLedger
from msgspec import structs

from sidecar.audit.tallying import tallied
from sidecar.config.reading import read_config
from sidecar.config.values import Config
from sidecar.connectors.kinds import config_keys
from sidecar.connectors.promise import NO_SETTINGS, Answer, Lowered
from sidecar.connectors.scripted import Scripted
from sidecar.contract import frames
from sidecar.contract.operator_frames import OperatorReloaded
from sidecar.contract.values import ProviderRequest
from sidecar.ops.log import Log
from sidecar.ops.metrics import exposed
from sidecar.service.backlogs import Backlogs
from sidecar.service.connection import Connection
from sidecar.service.decision import Admitted, Answered, Decision, Replay
from sidecar.service.exchange import Exchange
from sidecar.service.few_lines import FewLines
from sidecar.service.held import HeldBytes
from sidecar.service.in_force import InForce
from sidecar.service.limits import make_accounts, make_reservations
from sidecar.service.metrics import Meter
from sidecar.service.operators import Operators, ReadAgain
from sidecar.service.peer import Peer, Standing
from sidecar.service.services import Services
from sidecar.service.status import Status
from sidecar.service.stream import RECEIVE_BYTES_MAX

CONFIG = """
[daemon]
socket = "s.sock"
[ledger]
directory = "ledger"

[[caller]]
id = "dungeon"
models = ["npc", "npc-refusing"]
concurrent_requests_max = {concurrent}
payload_bytes_max = 20_000
output_tokens_max = 1000
spend_ceiling_micro_usd = {ceiling}
spend_window_seconds = 86_400
foreign_reasoning = "{foreign}"

[[caller]]
id = "other"
models = ["npc"]
spend_ceiling_micro_usd = 1_000_000_000
spend_window_seconds = 86_400

[[connector]]
name = "echo"
kind = "scripted"
time_limit_seconds = {time_limit}
concurrent_requests_max = {connector_concurrent}
response_bytes_max = {response_bytes_max}
usage = "{usage}"

[[model]]
name = "npc"
connector = "echo"
upstream = "echo-1"
output_tokens_max = 500
input_overhead_tokens = 0
[[model.price]]
input = 2_000_003
cache_read = 3_000_017
cache_write_short = 5_000_011
cache_write_long = 7_000_003
output = 11_000_027

[[model]]
name = "npc-refusing"
connector = "echo"
upstream = "echo-2"
[[model.price]]
input = 1
cache_read = 1
cache_write_short = 1
cache_write_long = 1
output = 1

[[model]]
name = "npc-private"
connector = "echo"
upstream = "echo-3"
[[model.price]]
input = 1
cache_read = 1
cache_write_short = 1
cache_write_long = 1
output = 1
"""
STRANGER = Peer(pid=4712, uid=4321, gids=frozenset({4321}))
DEFAULTS = {
    "concurrent": 1000,
    "ceiling": 1_000_000_000,
    "foreign": "drop",
    "time_limit": 240,
    "connector_concurrent": 1000,
    "response_bytes_max": 4_194_304,
    "usage": "required",
}


def config(**changes: object) -> Config:
    return read_config(CONFIG.format(**{**DEFAULTS, **changes}), Path("/nowhere"), config_keys())


class HeldConnector:
    """Asks nobody: each exchange waits until the test lets it go, then answers as the scripted connector does."""

    def __init__(self) -> None:
        self.asked: list[Lowered] = []
        self.let_go = trio.Event()
        self.on_ask: Callable[[], None] = lambda: None
        self._scripted = Scripted()

    def lower(self, request: ProviderRequest, upstream: str, settings: Mapping[str, Any] = NO_SETTINGS) -> Lowered:
        return self._scripted.lower(request, upstream, settings)

    def at_once(self, lowered: Lowered, answer: Answer) -> bool:
        return False

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        self.asked.append(lowered)
        answer.sent = True
        self.on_ask()
        await self.let_go.wait()
        await self._scripted.exchange(lowered, answer)

    async def aclose(self) -> None:
        pass


class InMemory:
    """A memory stream as the connection wants one: nothing is taken at once, so every answer takes the writer's way."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def send_now(self, _: bytes) -> int:
        return 0

    async def receive_each(self, take: Callable[[bytes], bool]) -> None:
        while take(bytes(await self._stream.receive_some(RECEIVE_BYTES_MAX))):
            pass
        await trio.lowlevel.checkpoint()  # as with a socket, who listened goes on in a later turn

    @contextmanager
    def telling_hang_up(self, _: Callable[[], None]) -> Iterator[None]:
        yield  # a memory stream can't tell

    def hang_up(self) -> None:
        self._stream.receive_stream.close()
        self._stream.send_stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Road:
    """One daemon's worth of decisions without a daemon. `now` is the wall clock in Unix milliseconds."""

    def __init__(
        self,
        *,
        connector: Any = None,
        ledger: MemoryLedger | None = None,
        read_again: ReadAgain = tallied,
        **changes: object,
    ) -> None:
        self.now = build.NOW
        self.config = config(**changes)
        self.ledger = ledger or MemoryLedger()
        self.connector = connector or HeldConnector()
        self.accounts = make_accounts(self.config)
        for begin in self.ledger.begins:
            account = self.accounts[begin.caller_runtime_id]
            account.reserve(begin.admitted_at_unix_ms, begin.reservation_micro_usd)
            account.left_open += 1
        for begin, record in self.ledger.completes:
            account = self.accounts[begin.caller_runtime_id]
            account.left_open -= 1
            account.settle(begin.admitted_at_unix_ms, begin.reservation_micro_usd, record.charge_micro_usd)
        self.reservations = make_reservations(self.config, self.accounts)
        self.log = io.StringIO()
        self.ended = trio.lowlevel.ParkingLot()  # woken whenever a request has ended
        self.in_force = InForce(self.config, {"echo": self.connector})
        self.meter = Meter()
        self.exchange = Exchange(
            self.in_force,
            self.ledger,
            self.reservations,
            Log(self.log, "text"),
            lambda: self.now,
            self.ended.unpark_all,
            meter=self.meter,
        )
        self.mismatches_found = 0
        self.operators = Operators(
            self.config.ledger.directory,
            self.ledger,
            self.reservations,
            Log(self.log, "text"),
            lambda: self.now,
            on_mismatch=self.found_mismatch,
            reload=self.reload,
            read_again=read_again,
            meter=self.meter,
            exposition=self.exposition,
        )

        self.status = Status(
            self.in_force,
            self.ledger,
            self.reservations,
            lambda: self.now,
            server="sidecar test",
            connections=lambda: 1,
            draining=lambda: self.exchange.draining,
        )

    async def reload(self, who: str) -> OperatorReloaded:
        raise AssertionError("no test of this road reloads")

    async def exposition(self) -> str:
        return exposed(self.meter.read())

    def found_mismatch(self) -> None:
        self.mismatches_found += 1

    def decide(self, frame: bytes, callers: frozenset[str] = frozenset({"dungeon", "other"})) -> Decision:
        parsed = frames.parse(frame)
        assert isinstance(parsed, frames.Invocation | frames.BrokenInvocation), parsed
        return self.exchange.decide(parsed, callers)

    def refusal(self, frame: bytes, callers: frozenset[str] = frozenset({"dungeon", "other"})) -> str | None:
        """The refusal (or transport error code) of a frame; None if it is admitted (and let go again) or replayed."""
        decision = self.decide(frame, callers)
        if isinstance(decision, Admitted):
            self.reservations.release(decision.live)
            return None
        if isinstance(decision, Replay):
            return None
        return said(decision.frame)

    async def answer(self, frame: bytes) -> bytes:
        """The answer's frame, however it was decided."""
        decision = self.decide(frame)
        if isinstance(decision, Answered):
            return decision.frame
        if isinstance(decision, Replay):
            return await self.exchange.replay(decision)
        return await self.carried(decision)

    async def carried(self, admitted: Admitted) -> bytes:
        answers: list[bytes] = []
        answered = trio.Event()

        def answer(frame: bytes) -> None:
            answers.append(frame)
            answered.set()

        async with trio.open_nursery() as nursery:
            self.exchange.carry(admitted, nursery.start_soon, answer)
            await answered.wait()
        assert len(answers) == 1
        return answers[0]

    def connection(self, stream: Any, nursery: trio.Nursery, **changes: Any) -> Connection:
        start: dict[str, Any] = dict.fromkeys(("start_request", "start_replay", "start_writer"), nursery.start_soon)
        terms: dict[str, Any] = {**start, **changes}
        callers = terms.pop("callers", frozenset({"dungeon", "other"}))
        operator = terms.pop("operator", None)
        bounds = {name: terms.pop(name) for name in ("frame_bytes_max", "frame_timeout_seconds") if name in terms}
        daemon = structs.replace(self.config.daemon, **{"frame_bytes_max": 1_000_000, **bounds})
        in_force = InForce(structs.replace(self.config, daemon=daemon), self.in_force.connectors)
        services = Services(
            in_force=in_force,
            exchange=terms.pop("exchange", None) or self.exchange,
            held=terms.pop("held", None) or HeldBytes(1 << 30),
            backlogs=terms.pop("backlogs", None) or Backlogs(),
            operate=self.operators.take,
            report=self.status.report,
            log=Log(self.log, "text"),
            meter=self.meter,
            connections=FewLines(Log(self.log, "text"), lambda: self.now, "connected"),
            server="sidecar test",
            at_end_of_turn=terms.pop("at_end_of_turn", None) or (lambda act: act()),
            **terms,
        )
        standing = Standing(peer=operator or STRANGER, callers=callers, is_operator=operator is not None)
        return Connection(stream if hasattr(stream, "send_now") else InMemory(stream), standing, services)


def said(frame: bytes) -> str:
    """In a word: a refusal, a transport error's code, a failure's kind, or a stop reason."""
    value = msgpack.unpackb(frame)
    if "code" in value:
        return str(value["code"])
    disposition = value["disposition"]
    if "Refused" in disposition:
        return str(disposition["Refused"])
    outcome = disposition["Transported"]["receipt"]["outcome"]
    return str(outcome["Failed"]["kind"] if "Failed" in outcome else outcome["Completed"]["stop_reason"])


def receipt(frame: bytes) -> dict[str, Any]:
    return dict(msgpack.unpackb(frame)["disposition"]["Transported"]["receipt"])
