"""What a configuration allows to run at once, and the accounts that a daemon begins with."""

from __future__ import annotations

from sidecar.config.values import Config
from sidecar.rules.reservations import Limits, Reservations
from sidecar.rules.windows import Account


def limits_of(config: Config) -> Limits:
    """How many requests may run at once, by this configuration."""
    return Limits(
        daemon=config.daemon.requests_in_flight_max,
        callers={caller.id: caller.concurrent_requests_max for caller in config.callers.values()},
        connectors={kept.name: kept.concurrent_requests_max for kept in config.connectors.values()},
    )


def make_accounts(config: Config) -> dict[str, Account]:
    """An empty account for every caller, by its ceiling and window of today."""
    return {
        caller.id: Account(caller.spend_window_seconds, caller.spend_ceiling_micro_usd)
        for caller in config.callers.values()
    }


def make_reservations(config: Config, accounts: dict[str, Account]) -> Reservations:
    return Reservations(limits_of(config), accounts)
