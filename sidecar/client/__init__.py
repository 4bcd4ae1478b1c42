"""What a game imports: the two clients, what they take, what they return and what they raise.

Names are exported from here because games import them: they stay when the
modules behind them are redrawn. The package needs only `contract`,
`rules.framing` and anyio, so a game can ship it without the daemon's rooms.
"""

from sidecar.client.answers import Quote, Result
from sidecar.client.asking import new_request
from sidecar.client.async_client import AsyncClient, Stream
from sidecar.client.blocking_client import BlockingStream, Client
from sidecar.client.errors import (
    Capacity,
    CostBound,
    DaemonError,
    Disconnected,
    Expired,
    ForeignReasoningState,
    IdentitySubstitution,
    Indeterminate,
    InFlight,
    JoinedLate,
    Malformed,
    ModelNotAllowed,
    NotADaemon,
    OutputBound,
    PayloadBound,
    ProviderDigestSubstitution,
    ProviderRejected,
    Refused,
    ReplayConflict,
    RequestFailed,
    SidecarError,
    SpendCeiling,
    WhichCaller,
)

__all__ = [
    "AsyncClient",
    "BlockingStream",
    "Capacity",
    "Client",
    "CostBound",
    "DaemonError",
    "Disconnected",
    "Expired",
    "ForeignReasoningState",
    "IdentitySubstitution",
    "InFlight",
    "Indeterminate",
    "JoinedLate",
    "Malformed",
    "ModelNotAllowed",
    "NotADaemon",
    "OutputBound",
    "PayloadBound",
    "ProviderDigestSubstitution",
    "ProviderRejected",
    "Quote",
    "Refused",
    "ReplayConflict",
    "RequestFailed",
    "Result",
    "SidecarError",
    "SpendCeiling",
    "Stream",
    "WhichCaller",
    "new_request",
]
