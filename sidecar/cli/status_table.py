"""A status report as a person reads it. Pure.

Every name in it comes from a configuration or from whatever listens on the
socket, so each is put on one line that can't drive a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from sidecar.cli.ledger_reading import instant
from sidecar.cli.receipt import dollars, one_line
from sidecar.cli.table import table
from sidecar.contract.client_frames import (
    CallerStatus,
    ConnectorStatus,
    DaemonStatus,
    LedgerState,
    ModelStatus,
    TransportStatusReport,
)
from sidecar.contract.values import PriceRow

LEDGER_WORDS: Final[dict[LedgerState, str]] = {
    "ready": "ready",
    "pressure": "under pressure: no room for new requests, until there is",
    "failed": "failed: nothing is written any more, and the daemon is about to exit",
}
CALLERS: Final = (
    "caller", ">live", ">spent", ">reserved", ">ceiling", "window from (UTC)", "until (UTC)", ">seconds", ">over-runs",
    ">indeterminate",
)  # fmt: skip
MODELS: Final = (
    "model", "connector", "upstream", ">output tokens", ">above tokens", ">input", ">cache read", ">write short",
    ">write long", ">output",
)  # fmt: skip
CONNECTORS: Final = ("connector", "kind", ">live", ">at most")
_OF_PRICES: Final = (
    "prices are of a million tokens, and in force now; a row above so many input tokens is for all of the request's\n"
)
BASE_ROW: Final = "-"  # it is above no threshold
NO_PRICE: Final = "none"  # no row is in force; a price of zero is $0.000000


def lines(report: TransportStatusReport) -> Iterator[str]:
    """Lines, each with its end."""
    yield from _daemon(report.daemon)
    yield "\n"
    yield from _section("callers", CALLERS, [_caller(caller) for caller in report.callers])
    yield "\n"
    yield from _section("models", MODELS, [row for model in report.models for row in _model(model)])
    if report.models:
        yield _OF_PRICES
    yield "\n"
    yield from _section("connectors", CONNECTORS, [_connector(connector) for connector in report.connectors])


def _section(what: str, columns: Sequence[str], rows: list[tuple[str, ...]]) -> Iterator[str]:
    if not rows:
        yield f"{what}: none that this user may see\n"
        return
    yield from table(columns, rows)


def _daemon(daemon: DaemonStatus) -> Iterator[str]:
    up = lasting(daemon.now_unix_ms - daemon.started_at_unix_ms)
    told = [
        ("daemon", f"{daemon.server}, up {up}{', draining: nothing new begins' if daemon.draining else ''}"),
        ("now", f"{instant(daemon.now_unix_ms)[:19]} UTC"),
        ("ledger", LEDGER_WORDS[daemon.ledger]),
        ("requests", f"{daemon.live_requests} running, of at most {daemon.requests_in_flight_max}"),
        ("connections", f"{daemon.connections}, of at most {daemon.connections_max}"),
    ]
    for name, what in told:
        yield one_line(f"{name + ':':<13}{what}") + "\n"


def _caller(caller: CallerStatus) -> tuple[str, ...]:
    start = caller.window_start_unix_ms
    until = start + 1000 * caller.window_seconds
    money = (caller.spent_micro_usd, caller.reserved_micro_usd, caller.ceiling_micro_usd)
    return (
        one_line(caller.caller_runtime_id),
        str(caller.live_requests),
        *map(dollars, money),
        instant(start)[:19],
        instant(until)[:19],
        str(caller.window_seconds),
        str(caller.over_runs),
        str(caller.indeterminate),
    )


def _model(model: ModelStatus) -> Iterator[tuple[str, ...]]:
    """A line for each price row; the model's own cells stand in the first."""
    names = (one_line(model.name), one_line(model.connector), one_line(model.upstream), str(model.output_tokens_max))
    if not model.prices:
        yield (*names, "", NO_PRICE, "", "", "", "")
    for number, row in enumerate(model.prices):
        yield (*(names if number == 0 else ("",) * len(names)), *_price(row))


def _price(row: PriceRow) -> tuple[str, ...]:
    above = BASE_ROW if row.above_input_tokens is None else str(row.above_input_tokens)
    prices = (row.input, row.cache_read, row.cache_write_short, row.cache_write_long, row.output)
    return (above, *map(dollars, prices))


def _connector(connector: ConnectorStatus) -> tuple[str, ...]:
    most = str(connector.concurrent_requests_max)
    return one_line(connector.name), one_line(connector.kind), str(connector.live_requests), most


def lasting(milliseconds: int) -> str:
    """A length of time in its two largest units. A clock that was set back makes it nothing."""
    seconds = max(0, milliseconds) // 1000
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    for (name, size), (smaller, smaller_size) in pairwise(units):
        if seconds >= size:
            return f"{seconds // size} {name} {seconds % size // smaller_size} {smaller}"
    return f"{seconds} s"
