"""`sidecar status`: what the daemon holds, as a table that a person reads; `--watch` keeps it up to date."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from sidecar.cli import question, status_table, typed
from sidecar.cli.dial import Dialed, Trouble, dialed, read_said, telling
from sidecar.cli.exits import TRANSPORT_ERRORS
from sidecar.cli.output import drop, fault_out, line_out, screen_out, write_out
from sidecar.cli.stops import Stopped, Stops
from sidecar.contract import canonical
from sidecar.contract.client_frames import TRANSPORT_STATUS, TransportStatus, TransportStatusReport
from sidecar.contract.values import TransportError

EXIT_CODES: Final[Mapping[int, str]] = {os.EX_OK: "told", **question.EXIT_CODES}
_WATCH_SECONDS: Final = 1.0
_WATCH_HELP: Final = (
    "again every so many seconds (%(const)g where none are given), until it is interrupted or the daemon goes; a"
    " terminal is drawn anew, anything else gets one report below the other, with --json one a line; default: off"
)
_WHO_SEES_WHAT: Final = """\
It tells of the callers that this user may call as, of their models and of the connectors behind those; an operator is
told of all. Money is in dollars, to the micro-dollar; spent and reserved are of the spend window that stands beside."""
_asked: Final = canonical.encode(TransportStatus(schema_id=TRANSPORT_STATUS))

Show = Callable[[TransportStatusReport], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sidecar status` takes; the exit codes stand below it."""
    add = parser.add_argument
    add("--socket", type=typed.a_socket, required=True, metavar="PATH", help="where the daemon listens; always wanted")
    add("--watch", type=typed.seconds, nargs="?", const=_WATCH_SECONDS, metavar="SECONDS", help=_WATCH_HELP)
    add("--json", action="store_true", help="the report as it is published, within one JSON object; default: off")
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser.epilog = f"{_WHO_SEES_WHAT}\n\nexit codes:\n{codes}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def run(arguments: argparse.Namespace, *, pause: Callable[[float], None] = time.sleep) -> int:
    """Returns the exit code. `pause` is the wait between two reports."""
    fault = partial(fault_out, "sidecar status", as_json=arguments.json)
    show = _show_json if arguments.json else _show_again() if arguments.watch else _show_once
    with Stops() as stops:
        try:
            with stops.raising():
                error = _told(arguments.socket, show, arguments.watch, pause)
        except Trouble as trouble:
            return fault(question.meaning_of_trouble(trouble).exit_code, question.trouble_in_words(trouble))
        except Stopped as stopped:
            drop(sys.stdout)
            return stopped.exit_code
        if error is not None:
            return fault(TRANSPORT_ERRORS[error.code].exit_code, question.error_in_words(error))
    return os.EX_OK


def _told(
    socket: Path, show: Show, every_seconds: float | None, pause: Callable[[float], None]
) -> TransportError | None:
    """Over one connection, however often. Raises Trouble, StdoutLost."""
    with dialed(socket, _give_up_at()) as daemon:
        while True:
            report = _report(daemon, socket)
            if isinstance(report, TransportError):
                return report
            show(report)
            if every_seconds is None:
                return None
            pause(every_seconds)


def _report(daemon: Dialed, socket: Path) -> TransportStatusReport | TransportError:
    daemon.give_up_at = _give_up_at()
    with telling(socket):
        return read_said(daemon.ask(_asked), TransportStatusReport)


def _give_up_at() -> float:
    return time.monotonic() + question.SECONDS_MAX


def _show_once(report: TransportStatusReport) -> None:
    write_out("".join(status_table.lines(report)))


def _show_again() -> Show:
    """Each report in place of the one before, or below it."""
    is_first = True

    def show(report: TransportStatusReport) -> None:
        nonlocal is_first
        screen_out("".join(status_table.lines(report)), is_first=is_first)
        is_first = False

    return show


def _show_json(report: TransportStatusReport) -> None:
    line_out(json.dumps({"ok": True, "exit_code": os.EX_OK, "report": msgspec.to_builtins(report)}))
