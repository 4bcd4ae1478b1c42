"""What a refusal says to whoever called from the shell, where it takes more than the table of `exits`. Pure."""

from __future__ import annotations

from typing import Final

from sidecar.cli.exits import REFUSALS
from sidecar.cli.receipt import Sent
from sidecar.contract.values import Refusal

EXPIRY_SKEW_SECONDS_DEFAULT: Final = 300  # CONTRACT section 7: what a daemon takes unless its configuration says more


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
    flag = "a shorter --timeout" if by_timeout else "an earlier --expires-at-unix-ms"
    return (
        f"its expiry is {ahead_ms / 1000:.3f} s ahead, further than the daemon takes (expiry_skew_seconds_max,"
        f" {EXPIRY_SKEW_SECONDS_DEFAULT} unless configured): give {flag}"
    )
