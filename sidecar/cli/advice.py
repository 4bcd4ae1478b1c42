"""What a refusal says to whoever called from the shell, where it takes more than the table of `exits`. Pure."""

from __future__ import annotations

import os
import re
from typing import Final

from sidecar.cli.exits import FAILURES, REFUSALS, TRANSPORT_ERRORS, Meaning
from sidecar.cli.receipt import Sent
from sidecar.contract.client_frames import CANCELLED
from sidecar.contract.values import Failed, Refusal, TransportErrorCode

EXPIRY_SKEW_SECONDS_DEFAULT: Final = 300  # CONTRACT section 7: what a daemon takes unless its configuration says more

RECORD_DAMAGED: Final = Meaning(
    os.EX_SOFTWARE,
    "no",
    "the daemon's disk has damaged what is on record about this request: nothing was run, nothing charged; its"
    " operator's log (record_unreadable) says where, and what helps",
)
_CANCELLED: Final = Meaning(os.EX_TEMPFAIL, "new_id", "it was cancelled: a new try takes a new id")
_OF_DAMAGE: Final = re.compile("can't be read back|is damaged at byte")  # what the daemon says of a record, of a seal


def of_transport_error(code: TransportErrorCode, message: str) -> Meaning:
    """By its message where a code has more than one cause."""
    if code == "internal" and _OF_DAMAGE.search(message):
        return RECORD_DAMAGED
    return TRANSPORT_ERRORS[code]


def of_failure(failed: Failed) -> Meaning:
    """A cancel and a deadline are of one kind."""
    is_cancelled = failed.kind == "timeout" and failed.message.startswith(CANCELLED)
    return _CANCELLED if is_cancelled else FAILURES[failed.kind]


def what_is_refused(refusal: Refusal) -> str:
    if refusal == "InFlight":
        return "refused: this try ran nothing; the one before it under this id runs, and is the one that is charged"
    if refusal == "Indeterminate":
        return "refused: this try ran nothing; the one before it under this id may have, and its reservation is held"
    return "refused: it ran nothing and cost nothing"


def of_refusal(refusal: Refusal, sent: Sent, *, by_timeout: bool, now_unix_ms: int) -> str:
    """`by_timeout`: the expiry came from --timeout and not from --expires-at-unix-ms."""
    if refusal == "IdentitySubstitution":
        return (
            f"this user may not call as {sent.caller}, or the daemon's configuration has no such caller: --caller sets"
            " who it calls as"
        )
    if refusal == "Expired":
        return _of_expiry(sent.expires_at_unix_ms - now_unix_ms, by_timeout=by_timeout)
    return REFUSALS[refusal].advice


def _of_expiry(ahead_ms: int, *, by_timeout: bool) -> str:
    if ahead_ms <= 0:
        flag = "a longer --timeout" if by_timeout else "a later --expires-at-unix-ms"
        return f"its expiry passed {-ahead_ms / 1000:.3f} s ago, and no answer is on record: give {flag}"
    if ahead_ms <= 1000 * EXPIRY_SKEW_SECONDS_DEFAULT:
        flag = "a longer --timeout" if by_timeout else "a later --expires-at-unix-ms"
        return (
            f"its expiry is {ahead_ms / 1000:.3f} s ahead, and may be at or before the daemon's low water (after a"
            f" repair, or what its retention has dropped): give {flag}, or wait; the daemon's log says which it is"
        )
    flag = "a shorter --timeout" if by_timeout else "an earlier --expires-at-unix-ms"
    return (
        f"its expiry is {ahead_ms / 1000:.3f} s ahead, further than the daemon takes (expiry_skew_seconds_max,"
        f" {EXPIRY_SKEW_SECONDS_DEFAULT} unless configured): give {flag}"
    )
