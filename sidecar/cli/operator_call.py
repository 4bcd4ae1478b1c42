"""What an operator's commands ask of a running daemon: one frame, its answer, and what each way it fails means."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from sidecar.cli import advice
from sidecar.cli.dial import Trouble, answered, read_said
from sidecar.cli.exits import COMMAND_FAULTS, TRANSPORT_ERRORS
from sidecar.cli.output import fault_out
from sidecar.cli.stops import Stopped, Stops
from sidecar.contract import canonical
from sidecar.contract.operator_frames import (
    OperatorChecked,
    OperatorFrame,
    OperatorMetered,
    OperatorReloaded,
    OperatorResolve,
    OperatorResolved,
)
from sidecar.contract.values import TransportError

_Answer = TypeVar("_Answer", OperatorResolved, OperatorChecked, OperatorReloaded, OperatorMetered)

EXIT_CODES: Final = {
    os.EX_USAGE: "wrong command line",
    os.EX_UNAVAILABLE: "no daemon on the socket, or the connection broke",
    os.EX_SOFTWARE: "a bug in the daemon, or a ledger that it can't read again",
    os.EX_IOERR: "stdout can't be written, or the daemon's disk has failed",
    os.EX_TEMPFAIL: "not now: the daemon is busy, is stopping, or has not answered in time",
    os.EX_PROTOCOL: "what listens on the socket is no daemon of this version",
    os.EX_NOPERM: "this user is no operator, or may not connect",
}


def asked(
    command: str,
    socket: Path,
    frame: OperatorFrame,
    type_: type[_Answer],
    tell: Callable[[_Answer], int],
    *,
    seconds_max: float | None,
    as_json: bool = False,
) -> int:
    """Asks, and tells the answer; what else comes of it is said on stderr, or as JSON. Returns the exit code."""
    fault = partial(fault_out, f"sidecar {command}", as_json=as_json)
    with Stops() as stops:
        try:
            with stops.raising():
                answer = answered(socket, canonical.encode(frame), partial(_read, type_), seconds_max=seconds_max)
        except Trouble as trouble:
            then = "; ask again what has become of it" if trouble.kind == "no_answer" else ""
            return fault(COMMAND_FAULTS[trouble.kind].exit_code, f"{trouble}{then}")
        except Stopped as stopped:
            return fault(stopped.exit_code, f"{stopped.by}; the daemon may go on with what was asked")
        if isinstance(answer, TransportError):
            told = f"{answer.code}: {answer.message}{_what_helps(frame, answer)}"
            return fault(TRANSPORT_ERRORS[answer.code].exit_code, told)
        return tell(answer)


def _read(type_: type[_Answer], frame: bytes) -> _Answer | TransportError:
    try:
        return msgspec.msgpack.decode(frame, type=type_)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return read_said(frame, TransportError)


def _what_helps(frame: OperatorFrame, error: TransportError) -> str:
    if error.code == "not_admitted":
        return "; [[operator]] in the daemon's configuration names who may"
    is_damage = advice.of_transport_error(error.code, error.message) is advice.RECORD_DAMAGED
    return f"; {advice.RECORD_DAMAGED.advice}" if is_damage and isinstance(frame, OperatorResolve) else ""
