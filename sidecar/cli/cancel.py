"""`sidecar cancel`: the deadline of a running request is now.

The contract gives a cancel no answer of its own: what became of the request
its result says, which whoever sent it gets. So only this is told: that the
daemon has read it. That is known, because frames take effect in their order,
and the daemon closes behind the last one.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from sidecar.cli import question, typed
from sidecar.cli.asking import login_name
from sidecar.cli.dial import Dialed, Trouble, dialed, greeted, read_said, telling
from sidecar.cli.exits import REFUSALS, TRANSPORT_ERRORS
from sidecar.cli.output import fault_out, line_out
from sidecar.cli.stops import Stopped, Stops
from sidecar.contract import canonical
from sidecar.contract.client_frames import TRANSPORT_CANCEL, TransportCancel
from sidecar.contract.values import TransportError

EXIT_CODES: Final[Mapping[int, str]] = {os.EX_OK: "the daemon has read it", **question.EXIT_CODES}
_WHAT_IT_COSTS: Final = """\
A request that is cancelled is recorded as failed, timeout, and is charged: where its usage is not known, its whole
reservation. An id that is not running is left alone, without a word."""
_THEN: Final = (
    "where it runs, its deadline is now, and its result says how it ended; where it does not, nothing changes"
)


class _NotOurs(Exception):
    """This user may not call as the caller whose request it is."""


class _Refused(Exception):
    def __init__(self, error: TransportError) -> None:
        super().__init__(error.code)
        self.error = error


class _Names(Struct, frozen=True):
    caller: str
    request_id: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sidecar cancel` takes; the exit codes stand below it."""
    add = parser.add_argument
    add("--socket", type=typed.a_socket, required=True, metavar="PATH", help="where the daemon listens; always wanted")
    add("--caller", type=typed.an_id, metavar="ID", help="whose request it is; default: your login name")
    add("--request-id", type=typed.an_id, required=True, metavar="ID", help="the request; always wanted")
    add("--json", action="store_true", help="one JSON object on stdout; default: off")
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser.epilog = f"{_WHAT_IT_COSTS}\n\nexit codes:\n{codes}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def run(arguments: argparse.Namespace) -> int:
    """Returns the exit code: 0 once the daemon has read it."""
    fault = partial(fault_out, "sidecar cancel", as_json=arguments.json)
    with Stops() as stops:
        try:
            with stops.raising():
                names = _Names(arguments.caller or login_name(), arguments.request_id)
                _cancelled(arguments.socket, names)
        except Trouble as trouble:
            return fault(question.meaning_of_trouble(trouble).exit_code, question.trouble_in_words(trouble))
        except _Refused as refused:
            return fault(TRANSPORT_ERRORS[refused.error.code].exit_code, question.error_in_words(refused.error))
        except _NotOurs as not_ours:
            return fault(REFUSALS["IdentitySubstitution"].exit_code, str(not_ours))
        except Stopped as stopped:
            return fault(
                stopped.exit_code, f"interrupted: {stopped.by}; it may have been read: to be sure, say it again"
            )
        with stops.raising():
            _tell(names, as_json=arguments.json)
        return os.EX_OK


def _cancelled(socket: Path, names: _Names) -> None:
    with dialed(socket, time.monotonic() + question.SECONDS_MAX) as daemon, telling(socket):
        callers = _callers(daemon)
        if names.caller not in callers:
            may = ", ".join(callers) or "nobody"
            raise _NotOurs(f"this user may not call as {names.caller}, but as {may}: --caller says whose request it is")
        daemon.send(
            canonical.encode(
                TransportCancel(schema_id=TRANSPORT_CANCEL, caller_runtime_id=names.caller, request_id=names.request_id)
            )
        )
        if (said := daemon.finish()) is not None:
            error = read_said(said, TransportError)
            raise _Refused(error)


def _callers(daemon: Dialed) -> tuple[str, ...]:
    """Whom this user may call as. A cancel of anybody else's the daemon would ignore, without a word."""
    welcome = greeted(daemon, "cancel")
    if isinstance(welcome, TransportError):
        raise _Refused(welcome)
    return welcome.callers


def _tell(names: _Names, *, as_json: bool) -> None:
    if as_json:
        line_out(
            json.dumps({"ok": True, "exit_code": 0, "caller_runtime_id": names.caller, "request_id": names.request_id})
        )
    else:
        line_out(f"sent: cancel {names.request_id} of caller {names.caller}; {_THEN}")
