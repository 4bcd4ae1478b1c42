"""Everything that a call can raise, under one base: what it was, which retry is safe, and what to do.

Only a Completed outcome is returned. Each exception is made of plain values in
its `args`, so it survives pickling between processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import ClassVar, Final, Self

from sidecar.client import meanings
from sidecar.client.meanings import ConnectionFault, Meaning, Retry
from sidecar.contract.client_frames import CANCELLED
from sidecar.contract.ids import is_id
from sidecar.contract.values import (
    Failed,
    FailureKind,
    Refusal,
    Transported,
    TransportErrorCode,
    TransportEvent,
    TransportInvocation,
    TransportReceipt,
    Usage,
)
from sidecar.contract.waits import wait_in


class SidecarError(Exception):
    """A call that brought no answer. `retry` says which retry is safe, `what_to_do` is a sentence for a person.

    `invocation` is what the call was about, where it had one: invoke() takes it
    and sends the very same bytes again, which are never paid for twice.
    """

    invocation: TransportInvocation | None = None

    def about(self, invocation: TransportInvocation) -> Self:
        """The same, of this invocation. A copy: one trouble may be that of many."""
        mine = copy(self)
        mine.invocation = invocation
        return mine

    @property
    def meaning(self) -> Meaning:
        raise NotImplementedError

    @property
    def retry(self) -> Retry:
        return self.meaning.retry

    @property
    def what_to_do(self) -> str:
        if self.retry == "same_bytes" and self.invocation is not None:
            return f"{self.meaning.what_to_do}; the same bytes are invoke(error.invocation)"
        return self.meaning.what_to_do

    def told(self) -> str:
        """What happened, without the advice."""
        return str(self.args[0])

    def __str__(self) -> str:
        return f"{self.told()}; {self.what_to_do}"


# --- refused: nothing has run, and nothing was charged ------------------------------------------------------------


class Refused(SidecarError):
    """The daemon has not run it: `refusal` says why. One subclass for each refusal."""

    refusal: ClassVar[Refusal]

    def __init__(self, caller: str, request_id: str, complaint: str = "") -> None:
        super().__init__(caller, request_id, complaint)
        self.caller = caller
        self.request_id = request_id
        self.complaint = complaint

    @property
    def meaning(self) -> Meaning:
        return meanings.REFUSALS[self.refusal]

    def told(self) -> str:
        about = f" ({self.complaint})" if self.complaint else ""
        return f"{_shown(self.request_id)} of {_shown(self.caller)} is refused: {self.refusal}{about}"


def _shown(given: object) -> str:
    """An id as it is; what a program gave in its place so that it can be printed."""
    return given if isinstance(given, str) and is_id(given) else f"{given!a:.80}"


class Expired(Refused):
    refusal = "Expired"


class IdentitySubstitution(Refused):
    refusal = "IdentitySubstitution"


class ProviderDigestSubstitution(Refused):
    refusal = "ProviderDigestSubstitution"


class ModelNotAllowed(Refused):
    refusal = "ModelNotAllowed"


class OutputBound(Refused):
    refusal = "OutputBound"


class PayloadBound(Refused):
    refusal = "PayloadBound"


class Capacity(Refused):
    refusal = "Capacity"


class InFlight(Refused):
    refusal = "InFlight"


class Indeterminate(Refused):
    refusal = "Indeterminate"


class ReplayConflict(Refused):
    refusal = "ReplayConflict"


class Malformed(Refused):
    refusal = "Malformed"

    @property
    def what_to_do(self) -> str:
        told = super().what_to_do
        return told if self.complaint else f"{told}; the daemon's log says which rule"


class ForeignReasoningState(Refused):
    refusal = "ForeignReasoningState"


class ProviderRejected(Refused):
    refusal = "ProviderRejected"


class CostBound(Refused):
    refusal = "CostBound"


class SpendCeiling(Refused):
    refusal = "SpendCeiling"


REFUSED: Final[Mapping[Refusal, type[Refused]]] = {kind.refusal: kind for kind in Refused.__subclasses__()}


# --- failed: it is on record, and charged -------------------------------------------------------------------------


class RequestFailed(SidecarError):
    """It ran and failed, is recorded and charged: the same bytes get the same failure, a new try takes a new id."""

    def __init__(self, transported: Transported) -> None:
        super().__init__(transported)
        failed = transported.receipt.outcome.failed
        assert isinstance(failed, Failed)
        self._failed = failed
        self.receipt: TransportReceipt = transported.receipt
        self.events: tuple[TransportEvent, ...] = transported.events

    @property
    def kind(self) -> FailureKind:
        return self._failed.kind

    @property
    def message(self) -> str:
        return self._failed.message

    @property
    def usage(self) -> Usage | None:
        """None where what the provider billed is not known: then the whole reservation is charged."""
        return self._failed.usage

    @property
    def charge_micro_usd(self) -> int:
        return self.receipt.cost_micro_usd

    @property
    def retry_after_seconds(self) -> float | None:
        """How long the provider asks to wait, where it said so."""
        return wait_in(self.message)

    @property
    def is_cancelled(self) -> bool:
        """Whether a cancel brought it about."""
        return self.kind == "timeout" and self.message.startswith(CANCELLED)

    @property
    def meaning(self) -> Meaning:
        return meanings.CANCELLED if self.is_cancelled else meanings.FAILURES[self.kind]

    def told(self) -> str:
        return f"{self.receipt.request_id} has failed: {self.kind}: {self.message}"


# --- neither ------------------------------------------------------------------------------------------------------


class DaemonError(SidecarError):
    """What the daemon says where no refusal fits: `code` is that of the transport error, `message` its own words."""

    def __init__(self, code: TransportErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code: TransportErrorCode = code
        self.message = message

    @property
    def meaning(self) -> Meaning:
        return meanings.DAEMON_ERRORS[self.code]

    def told(self) -> str:
        return f"the daemon says {self.code}: {self.message}"


class Disconnected(SidecarError):
    """There is no daemon, or it was lost and not back in time, or it says nothing."""

    def __init__(self, why: str, fault: ConnectionFault = "no_daemon") -> None:
        super().__init__(why, fault)
        self.fault: ConnectionFault = fault

    def after(self, seconds: float) -> Disconnected:
        """The same, found after so long a wait."""
        return Disconnected(f"{self.args[0]} (waited {round(seconds, 1):g} s)", self.fault)

    @property
    def meaning(self) -> Meaning:
        return meanings.CONNECTION_FAULTS[self.fault]


class NotADaemon(SidecarError):
    """What listens on the socket speaks something else, or breaks the protocol."""

    def __init__(self, why: str) -> None:
        super().__init__(why)

    @property
    def meaning(self) -> Meaning:
        return meanings.NOT_A_DAEMON


class WhichCaller(SidecarError):
    """No caller was named, and this user may not be just one: `callers` are those, where the daemon was asked."""

    def __init__(self, callers: Sequence[str] | None) -> None:
        super().__init__(callers)
        self.callers: tuple[str, ...] = tuple(callers or ())

    @property
    def meaning(self) -> Meaning:
        return meanings.WHICH_CALLER

    def told(self) -> str:
        if self.args[0] is None:
            return "no caller was named, and the daemon has not been asked yet (await client.connect() asks it)"
        return f"this user may call as {', '.join(self.callers) or 'nobody'}"
