"""`sidecar serve`: the daemon in the foreground. Exit codes after sysexits (CONTRACT section 7)."""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import trio

from sidecar.cli.descriptors import open_missing_streams, raise_descriptor_limit
from sidecar.cli.ledger_opening import open_ledger
from sidecar.cli.output import say
from sidecar.cli.setup import add_config_argument, load
from sidecar.config.keys import ConfigFaults
from sidecar.ledger.faults import LedgerDamaged, LedgerHeld
from sidecar.ledger.ledger import Ledger
from sidecar.ops.activation import ActivationFault, Passed, take_passed
from sidecar.ops.log import Form, Log, Whole
from sidecar.ops.notify import take_notifier, take_watchdog_seconds
from sidecar.ops.stray import forbid_dumps, take_strays, tell_bug
from sidecar.rules.conservation import Tally
from sidecar.service.accounts import listeners_of
from sidecar.service.conservation_lines import told_mismatches
from sidecar.service.daemon import Daemon
from sidecar.service.limits import make_accounts, make_reservations
from sidecar.service.listener import SocketUnavailable
from sidecar.service.listening import listening
from sidecar.service.metrics import Meter
from sidecar.service.signals import hold_signals
from sidecar.service.supervision import Supervision

_LEDGER_DAMAGED = os.EX_DATAERR
_ALREADY_RUNNING = os.EX_TEMPFAIL
_COLLECT_AFTER_ALLOCATIONS = 50_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sidecar serve` takes."""
    add_config_argument(parser)
    parser.add_argument("--log-format", choices=("text", "journal", "json"), help="default: what fits stderr")


def run(arguments: argparse.Namespace) -> int:
    return serve(arguments.config, arguments.log_format)


def serve(config_path: Path, log_form: Form | None) -> int:
    open_missing_streams()
    log = Log(form=log_form)
    take_strays(log)
    forbid_dumps(log)
    try:
        passed = take_passed(log)
        return _serve(config_path, log, Supervision(take_notifier(), take_watchdog_seconds()), passed)
    except ConfigFaults as faults:
        for complaint in faults.complaints:
            if log.is_for_a_person:
                say(str(complaint))  # as `check` does: an editor or a terminal finds the place
            else:
                log.error("config_complaint", what=Whole(complaint))
        return os.EX_CONFIG
    except LedgerHeld as held:
        log.error("ledger_held", why=str(held))
        return _ALREADY_RUNNING
    except LedgerDamaged as damage:
        log.critical("ledger_damaged", segment=damage.segment, offset=damage.offset, expected=damage.expected)
        say(f"sidecar: {damage}")
        return _LEDGER_DAMAGED
    except (SocketUnavailable, ActivationFault) as fault:
        log.error("socket_unavailable", why=str(fault))
        return os.EX_CANTCREAT
    except Exception as bug:
        # A broken invariant stops the daemon: nothing more is written, and the next open finds no clean exit.
        tell_bug(log, bug)
        return os.EX_SOFTWARE


def _serve(config_path: Path, log: Log, supervision: Supervision, passed: Sequence[Passed]) -> int:
    loaded = load(config_path, {})
    config = loaded.config
    for warning in loaded.warnings:
        log.warning("config_warning", what=Whole(warning))
    accounts = make_accounts(config)
    meter = Meter()
    tally = Tally({caller.id: caller.spend_window_seconds for caller in config.callers.values()})

    raise_descriptor_limit(config, log)
    hold_signals()
    try:
        ledger = open_ledger(config, accounts, listeners_of(accounts, tally), meter, supervision, log)
    except OSError as error:
        log.error("ledger_unusable", directory=config.ledger.directory, why=error.strerror or str(error))
        return os.EX_IOERR
    compared = tally.compared({caller: account.figures() for caller, account in accounts.items()})
    if compared.mismatches:
        told_mismatches(log, compared.mismatches, now="nothing is served")
        return os.EX_SOFTWARE
    try:
        served = listening(config.daemon, passed, log)
    except SocketUnavailable:
        trio.run(_close, ledger)
        raise
    daemon = Daemon(
        config,
        {name: built.connector for name, built in loaded.built.items()},
        ledger,
        make_reservations(config, accounts),
        log,
        supervision,
        meter=meter,
        built=loaded.built,
        load=partial(load, config_path),
        on_config=lambda config: raise_descriptor_limit(config, log),
    )
    gc.freeze()  # what was imported stays; there is no use in looking through it again and again
    gc.set_threshold(_COLLECT_AFTER_ALLOCATIONS)  # requests leave few cycles, and each look costs their time
    try:
        return trio.run(daemon.run, served)
    finally:
        served.remove()


async def _close(ledger: Ledger) -> None:
    """The clean end of a ledger that was never used: what comes after it crashed nowhere."""
    async with ledger.running():
        pass
