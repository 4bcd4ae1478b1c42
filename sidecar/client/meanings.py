"""What each way a call can go wrong means to a program: which retry is safe, and what to do. One table, in four parts.

`same_bytes`: the very same invocation again is safe, and gets the one answer
that was or will be paid for. `new_id`: only a new request makes sense, and it
is a new charge. `no`: nothing changes until somebody changes something.
Source: CONTRACT sections 1, 3 and 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from sidecar.contract.values import FailureKind, Refusal, TransportErrorCode

Retry = Literal["same_bytes", "new_id", "no"]
ConnectionFault = Literal[
    "no_daemon",  # nothing listens, or it was lost and not back in time
    "not_permitted",  # the socket is there, and not for this user
    "no_answer",  # the daemon is there and says nothing
    "cancelled_unsent",  # cancelled before it was sent
    "closed",  # our side has closed
    "crashed",  # a bug of the client's own
    "forked",  # a client of another process
]


class Meaning(Struct, frozen=True):
    retry: Retry
    what_to_do: str


REFUSALS: Final[Mapping[Refusal, Meaning]] = {
    "IdentitySubstitution": Meaning("no", "use a caller that the daemon's configuration gives to this user"),
    "PayloadBound": Meaning("no", "send less: the request is above the caller's payload_bytes_max"),
    "Malformed": Meaning("no", "mend the request: it breaks a rule of the contract"),
    "Expired": Meaning("new_id", "make a new invocation: this one ran out, or expires too far ahead"),
    "ProviderDigestSubstitution": Meaning("no", "let prepare() compute the digest: this one is of another request"),
    "ModelNotAllowed": Meaning("no", "ask for a model that the daemon's configuration allows this caller"),
    "OutputBound": Meaning("no", "lower max_output_tokens: it is above the caller's bound or the model's"),
    "CostBound": Meaning("no", "raise max_cost_micro_usd or ask for less; quote() says the worst case"),
    "ReplayConflict": Meaning(
        "no",
        "send a retry as it was before, which is the first error's invocation or what prepare() gave;"
        " only what is a new request takes a new request_id",
    ),
    "InFlight": Meaning("same_bytes", "wait until it has ended, then send the same bytes again for its answer"),
    "Indeterminate": Meaning(
        "no",
        "let a person decide with `sidecar ledger resolve`: a crash left it unknown whether it ran,"
        " and a new id may pay twice",
    ),
    "ForeignReasoningState": Meaning("no", "leave out the reasoning states of other providers"),
    "ProviderRejected": Meaning("no", "change the request: its provider is known not to take it"),
    "Capacity": Meaning("same_bytes", "try again in a moment: all slots are in use, and nothing has run"),
    "SpendCeiling": Meaning("new_id", "wait for the caller's next spend window; status() says when the last began"),
}

FAILURES: Final[Mapping[FailureKind, Meaning]] = {
    "invalid_request": Meaning("no", "change the request: its provider doesn't take it"),
    "authentication": Meaning("no", "let a person look at the daemon's credential and account for this provider"),
    "rate_limited": Meaning("new_id", "wait, for retry_after_seconds where it is known, then ask with a new id"),
    "unavailable": Meaning("new_id", "ask again with a new id: the provider could not be reached or broke off"),
    "timeout": Meaning("new_id", "ask again with a new id and perhaps more time"),
    "provider": Meaning("no", "look at the message: the provider's answer made no sense, and seldom will"),
    "result_size": Meaning("no", "ask for less: the answer was larger than a bound of the daemon"),
}

# The failure of a request that somebody cancelled is a timeout by its kind.
CANCELLED: Final = Meaning("new_id", "it was cancelled: a new try takes a new id")

DAEMON_ERRORS: Final[Mapping[TransportErrorCode, Meaning]] = {
    "not_admitted": Meaning("no", "let the daemon's configuration name a caller for this user"),
    "too_many_connections": Meaning("same_bytes", "share one client, or try again shortly"),
    "frame_size": Meaning("no", "send less: it is above the daemon's frame_bytes_max"),
    "frame_timeout": Meaning("same_bytes", "send it again: it did not reach the daemon in one go"),
    "unsupported_protocol": Meaning("no", "install the client and the daemon from the same release"),
    "malformed_frame": Meaning("no", "install the client and the daemon from the same release, or report this bug"),
    "unknown_schema": Meaning("no", "install the client and the daemon from the same release: the daemon is older"),
    "ledger_unavailable": Meaning("same_bytes", "let a person look at the daemon's disk, then send the same bytes"),
    "shutting_down": Meaning("same_bytes", "send the same bytes once the daemon is back: nothing has run"),
    "internal": Meaning("same_bytes", "look into the daemon's log, then send the same bytes; it may have run"),
}

CONNECTION_FAULTS: Final[Mapping[ConnectionFault, Meaning]] = {
    "no_daemon": Meaning(
        "same_bytes", "start the daemon, then send the same bytes: what was sent before is not paid for again"
    ),
    "not_permitted": Meaning("no", "join the group of the daemon's socket; its socket_mode and folder decide"),
    "no_answer": Meaning("same_bytes", "send the same bytes again later: it may be running still, or be on record"),
    "cancelled_unsent": Meaning("same_bytes", "nothing: it was cancelled before it was sent, and has not run"),
    "closed": Meaning("same_bytes", "send the same bytes with a client that is open: what was sent goes on"),
    "crashed": Meaning("same_bytes", "report this bug; a new client may send the same bytes: what was sent goes on"),
    "forked": Meaning("same_bytes", "make a new client in this process: a fork takes no threads with it"),
}

NOT_A_DAEMON: Final = Meaning("no", "look at the socket path; an invocation that was sent is safe to send again")
WHICH_CALLER: Final = Meaning("no", "name the caller: AsyncClient(path, caller=...) or Client(path, caller=...)")
