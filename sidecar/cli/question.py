"""What the commands have in common that ask a running daemon and run nothing: quote, status, cancel.

No answer means only that the question may be asked again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from msgspec import structs

from sidecar.cli import advice
from sidecar.cli.dial import Trouble
from sidecar.cli.exits import COMMAND_FAULTS, HUNG_UP, INTERRUPTED, TERMINATED, CommandFault, Meaning
from sidecar.contract.values import TransportError

SECONDS_MAX: Final = 10.0  # a daemon answers at once; one that doesn't has no time for anybody

EXIT_CODES: Final[Mapping[int, str]] = {
    os.EX_USAGE: "wrong command line",
    os.EX_UNAVAILABLE: "no daemon on the socket, or the connection broke",
    os.EX_SOFTWARE: "a bug in the daemon",
    os.EX_IOERR: "stdout can't be written",
    os.EX_TEMPFAIL: "not now: the daemon is busy, or has not answered in time",
    os.EX_PROTOCOL: "what listens on the socket is no daemon of this version",
    os.EX_NOPERM: "this user may call as nobody, or not as this caller, or may not connect",
    HUNG_UP: "stopped by SIGHUP",
    INTERRUPTED: "interrupted",
    TERMINATED: "stopped by SIGTERM",
}
_ADVICE: Final[Mapping[CommandFault, str]] = {
    "connection_lost": "nothing is run by asking: ask again",
    "no_answer": "nothing is run by asking: ask again",
    "interrupted": "nothing is run by asking",
    "output": "nothing is run by asking: ask again",
}


def meaning_of_trouble(trouble: Trouble) -> Meaning:
    """As that of a call, but for what a call may have run."""
    meaning = COMMAND_FAULTS[trouble.kind]
    return structs.replace(meaning, advice=_ADVICE.get(trouble.kind, meaning.advice))


def trouble_in_words(trouble: Trouble) -> str:
    return f"{trouble.kind}: {trouble}; {meaning_of_trouble(trouble).advice}"


def error_in_words(error: TransportError) -> str:
    return f"{error.code}: {error.message}; {advice.of_transport_error(error.code, error.message).advice}"
