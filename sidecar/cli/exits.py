"""What each way a call can go wrong means to whoever made it: an exit code, whether a retry may help, and what to do.

The help text and the README are read from these tables. Exit codes are those
of sysexits; 75 always says that it may work in a while, and no other code does
for all of its causes.
Source: CONTRACT sections 1, 3, 6 and 7; WIRE section 7.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from sidecar.contract.values import FailureKind, Refusal, TransportErrorCode

INTERRUPTED: Final = 130  # what a shell makes of SIGINT
HUNG_UP: Final = 129  # ... of SIGHUP
TERMINATED: Final = 143  # ... of SIGTERM

_FIGURES: Final = "the daemon's log has the figures"

Retry = Literal["no", "new_id", "same_id"]
CommandFault = Literal[
    "usage",
    "text",
    "no_input",
    "no_socket",
    "no_daemon",
    "not_permitted",
    "busy",
    "no_daemon_protocol",
    "connection_lost",
    "no_answer",
    "interrupted",
    "output",
]


class Meaning(Struct, frozen=True):
    """`retry`: `same_id` where the request may have run, so that only its own id and expiry are safe to send again,
    and where it `never_left`: then its id is as good as a new one."""

    exit_code: int
    retry: Retry
    advice: str
    never_left: bool = False


EXIT_CODES: Final[Mapping[int, str]] = {
    os.EX_OK: "answered",
    os.EX_USAGE: "wrong command line",
    os.EX_DATAERR: "the request can't be taken as it is, or its answer not be carried: change it",
    os.EX_NOINPUT: "stdin can't be read",
    os.EX_UNAVAILABLE: "no daemon on the socket, the connection broke, or the provider can't be reached",
    os.EX_SOFTWARE: "a bug in the daemon or in this command, or a record that the daemon's disk has damaged",
    os.EX_IOERR: "the answer can't be written to stdout, or the daemon's disk takes no request",
    os.EX_TEMPFAIL: "not now: busy, limited, out of time, or the ceiling of this window is reached",
    os.EX_PROTOCOL: "an answer that makes no sense, from the provider or from what listens on the socket",
    os.EX_NOPERM: "not allowed, or not settled, until a person acts",
    HUNG_UP: "stopped by SIGHUP",
    INTERRUPTED: "interrupted",
    TERMINATED: "stopped by SIGTERM",
}

REFUSALS: Final[Mapping[Refusal, Meaning]] = {
    "IdentitySubstitution": Meaning(os.EX_NOPERM, "no", "this user may not call as this caller: look at --caller"),
    "PayloadBound": Meaning(
        os.EX_DATAERR, "no", f"the request is above the caller's payload_bytes_max: shorten it; {_FIGURES}"
    ),
    "Malformed": Meaning(os.EX_DATAERR, "no", "it breaks a rule of the contract; the daemon's log says which"),
    "Expired": Meaning(
        os.EX_DATAERR,
        "no",
        "its expiry has passed, is not behind the daemon's low water, or is further ahead than it takes",
    ),
    "ProviderDigestSubstitution": Meaning(os.EX_SOFTWARE, "no", "its digest is not that of its request"),
    "ModelNotAllowed": Meaning(os.EX_NOPERM, "no", "this caller may not use this model, or nothing serves it"),
    "OutputBound": Meaning(
        os.EX_DATAERR, "no", f"--max-output-tokens is above what this caller or this model may ask for; {_FIGURES}"
    ),
    "CostBound": Meaning(
        os.EX_DATAERR, "no", f"at worst it would cost more than --budget: raise that, or ask for less; {_FIGURES}"
    ),
    "ReplayConflict": Meaning(
        os.EX_DATAERR,
        "no",
        "another request is on record under this id: the same one has its text, model, expiry, budget and"
        " --max-output-tokens all the same; anything else takes a new id",
    ),
    "InFlight": Meaning(os.EX_TEMPFAIL, "same_id", "this very request is running: wait until it has ended"),
    "Indeterminate": Meaning(
        os.EX_NOPERM,
        "no",
        "a crash left it unknown whether it ran: a person decides, with sidecar ledger resolve; a new id may pay twice",
    ),
    "ForeignReasoningState": Meaning(os.EX_DATAERR, "no", "it holds a reasoning state of another provider"),
    "ProviderRejected": Meaning(
        os.EX_DATAERR, "no", "the provider is known not to take this; the daemon's log says why"
    ),
    "Capacity": Meaning(os.EX_TEMPFAIL, "new_id", "all slots are in use: try again shortly"),
    "SpendCeiling": Meaning(
        os.EX_TEMPFAIL,
        "new_id",
        f"the caller's spend ceiling would be passed: wait for the next window, or raise it; {_FIGURES}",
    ),
}

FAILURES: Final[Mapping[FailureKind, Meaning]] = {
    "invalid_request": Meaning(os.EX_DATAERR, "no", "the provider doesn't take this request: change it"),
    "result_size": Meaning(os.EX_DATAERR, "no", "the answer was larger than a bound of the daemon: ask for less"),
    "authentication": Meaning(
        os.EX_NOPERM, "no", "the provider refuses the daemon's credential or account, until a person acts"
    ),
    "rate_limited": Meaning(os.EX_TEMPFAIL, "new_id", "wait, then try again under a new id"),
    "timeout": Meaning(
        os.EX_TEMPFAIL,
        "new_id",
        "what ended first cut it, the request's expiry (--timeout) or the connector's time_limit_seconds: a new try,"
        " under a new id, may help, or more time",
    ),
    "unavailable": Meaning(os.EX_UNAVAILABLE, "new_id", "a new try, under a new id, may help"),
    "provider": Meaning(os.EX_PROTOCOL, "no", "the provider's answer makes no sense; a new try seldom helps"),
}

TRANSPORT_ERRORS: Final[Mapping[TransportErrorCode, Meaning]] = {
    "not_admitted": Meaning(os.EX_NOPERM, "no", "the daemon's configuration names no caller for this user"),
    "too_many_connections": Meaning(os.EX_TEMPFAIL, "new_id", "try again shortly"),
    "frame_size": Meaning(os.EX_DATAERR, "no", "the request is larger than the daemon takes: shorten it"),
    "frame_timeout": Meaning(os.EX_TEMPFAIL, "new_id", "the request did not arrive in time: try again"),
    "unsupported_protocol": Meaning(os.EX_PROTOCOL, "no", "the daemon and this command are of different versions"),
    "malformed_frame": Meaning(os.EX_PROTOCOL, "no", "the daemon and this command are of different versions"),
    "unknown_schema": Meaning(os.EX_PROTOCOL, "no", "the daemon and this command are of different versions"),
    "ledger_unavailable": Meaning(
        os.EX_IOERR, "same_id", "the daemon can't record it now; most likely nothing ran, and its log says why"
    ),
    "shutting_down": Meaning(os.EX_TEMPFAIL, "new_id", "nothing was run: try again after its restart"),
    "internal": Meaning(os.EX_SOFTWARE, "same_id", "a bug in the daemon; its log says more"),
}

COMMAND_FAULTS: Final[Mapping[CommandFault, Meaning]] = {
    "usage": Meaning(os.EX_USAGE, "no", "nothing was sent"),
    "text": Meaning(os.EX_DATAERR, "no", "nothing was sent"),
    "no_input": Meaning(os.EX_NOINPUT, "no", "nothing was sent"),
    "no_socket": Meaning(os.EX_UNAVAILABLE, "no", "nothing was sent; look at --socket"),
    "no_daemon": Meaning(
        os.EX_UNAVAILABLE, "same_id", "nothing was sent; start it with: sidecar serve --config FILE", never_left=True
    ),
    "not_permitted": Meaning(os.EX_NOPERM, "no", "nothing was sent; socket_mode and the folder's group decide"),
    "busy": Meaning(os.EX_TEMPFAIL, "same_id", "nothing was sent; try again shortly", never_left=True),
    "no_daemon_protocol": Meaning(os.EX_PROTOCOL, "no", "look at --socket"),
    "connection_lost": Meaning(os.EX_UNAVAILABLE, "same_id", "it may have run"),
    "no_answer": Meaning(os.EX_TEMPFAIL, "same_id", "it may be running still"),
    "interrupted": Meaning(INTERRUPTED, "same_id", "what was sent goes on, and is paid for"),
    "output": Meaning(os.EX_IOERR, "same_id", "the answer is on record"),
}
