"""The descriptors that a daemon begins with: the three that everybody expects, and as many more as it may need."""

from __future__ import annotations

import os
import resource
import sys
from typing import Final

from sidecar.config.values import Config
from sidecar.ledger.room import spares_wanted
from sidecar.ops.log import Log
from sidecar.service.listener import FAREWELLS_MAX

# The ledger's files, the event loop, replays that are read back, a spare being made, what a library opens.
_RESERVE: Final = 128


def open_missing_streams() -> None:
    """Where stdin, stdout or stderr is closed, /dev/null takes its number, before a file of the ledger can."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def descriptors_wanted(config: Config) -> int:
    """How many the daemon holds at most: its connections, those to providers (kept ones too), the ledger, a reserve."""
    daemon = config.daemon
    to_providers = sum(
        min(kept.concurrent_requests_max, daemon.requests_in_flight_max)
        for kept in config.connectors.values()
        if kept.name not in config.only_wrapped  # it is asked through the one that records it
    )
    spares = spares_wanted(daemon.requests_in_flight_max, config.ledger.segment_bytes)
    return daemon.connections_max + FAREWELLS_MAX + max(daemon.requests_in_flight_max, to_providers) + spares + _RESERVE


def raise_descriptor_limit(config: Config, log: Log) -> None:
    """The soft limit becomes what is wanted, or the hard limit and a warning where that is lower."""
    wanted = descriptors_wanted(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    reached = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reached, hard))
    except (OSError, ValueError):
        reached = soft
    if reached < wanted:
        log.warning(
            "descriptors_short", wanted=wanted, limit=reached, advice="raise LimitNOFILE or lower connections_max"
        )
