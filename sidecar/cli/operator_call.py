"""What an operator's commands ask of a running daemon: one frame, its answer, and what each way it fails means."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from sidecar.cli.dial import Trouble, dialed
from sidecar.cli.exits import COMMAND_FAULTS, TRANSPORT_ERRORS
from sidecar.cli.output import say
from sidecar.cli.stops import Stopped, Stops
from sidecar.contract import canonical
from sidecar.contract.operator_frames import OperatorChecked, OperatorFrame, OperatorResolved
from sidecar.contract.values import TransportError
from sidecar.rules.framing import FrameSize

_Answer = TypeVar("_Answer", OperatorResolved, OperatorChecked)
_errors: Final = msgspec.msgpack.Decoder(TransportError)

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
) -> int:
    """Asks, and tells the answer; what else comes of it is said on stderr. Returns the exit code."""
    with Stops() as stops:
        try:
            with stops.raising():
                answer = _answered(socket, frame, type_, seconds_max)
        except Trouble as trouble:
            say(f"sidecar ledger {command}: {trouble}")
            return COMMAND_FAULTS[trouble.kind].exit_code
        except Stopped as stopped:
            say(f"sidecar ledger {command}: {stopped.by}; the daemon may go on with what was asked")
            return stopped.exit_code
        if isinstance(answer, TransportError):
            say(f"sidecar ledger {command}: {answer.code}: {answer.message}")
            return TRANSPORT_ERRORS[answer.code].exit_code
        return tell(answer)


def _answered(
    socket: Path, frame: OperatorFrame, type_: type[_Answer], seconds_max: float | None
) -> _Answer | TransportError:
    give_up_at = None if seconds_max is None else time.monotonic() + seconds_max
    with dialed(socket, give_up_at) as daemon:
        try:
            answer = daemon.ask(canonical.encode(frame))
        except TimeoutError:
            raise Trouble("no_answer", "the daemon has not answered in time; ask again what has become of it") from None
        except FrameSize:
            raise Trouble("no_daemon_protocol", f"what listens on {socket} does not speak as sidecar does") from None
        except OSError as error:
            raise Trouble("connection_lost", str(error.strerror or error)) from None
    try:
        return msgspec.msgpack.decode(answer, type=type_)
    except msgspec.MsgspecError:
        pass
    try:
        return _errors.decode(answer)
    except msgspec.MsgspecError:
        raise Trouble("no_daemon_protocol", f"what listens on {socket} does not speak as sidecar does") from None
