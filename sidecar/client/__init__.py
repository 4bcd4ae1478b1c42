"""What a game imports: the two clients, what they take, what they return and what they raise.

Names are exported from here, and only here, because games import them: they
stay when the modules behind them are redrawn. The package needs only `contract`,
`rules.framing` and anyio, so a game can ship it without the daemon's rooms.

The clients themselves are loaded when they are first asked for. The command
line uses other modules of this package, and must not load asyncio and anyio
for that; nor must a blocking game for the async client. Type checkers see
plain imports.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from sidecar.client.answers import Quote, Result
from sidecar.client.asking import TermsGiven, new_request
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
from sidecar.client.meanings import Retry
from sidecar.contract.client_frames import (
    CallerStatus,
    ConnectorStatus,
    DaemonStatus,
    LedgerState,
    ModelStatus,
    TransportStatusReport,
    TransportWelcome,
)
from sidecar.contract.values import (
    AssistantText,
    CacheRetention,
    Completed,
    EmittedReasoningState,
    Failed,
    FailureKind,
    InputItem,
    PriceRow,
    ProviderRequest,
    ReasoningEffort,
    ReasoningState,
    Refusal,
    StopReason,
    TextDelta,
    ToolCall,
    ToolChoice,
    ToolDefinition,
    ToolResult,
    TransportErrorCode,
    TransportEvent,
    TransportEventPayload,
    TransportInvocation,
    TransportOutcome,
    TransportReceipt,
    Usage,
    UserText,
)

if TYPE_CHECKING:
    from sidecar.client.async_client import AsyncClient, Stream
    from sidecar.client.blocking_client import BlockingStream, Client
else:
    _LOADED_WHEN_ASKED_FOR = {
        "AsyncClient": "sidecar.client.async_client",
        "Stream": "sidecar.client.async_client",
        "BlockingStream": "sidecar.client.blocking_client",
        "Client": "sidecar.client.blocking_client",
    }

    def __getattr__(name: str) -> object:
        home = _LOADED_WHEN_ASKED_FOR.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(home), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "AssistantText",
    "AsyncClient",
    "BlockingStream",
    "CacheRetention",
    "CallerStatus",
    "Capacity",
    "Client",
    "Completed",
    "ConnectorStatus",
    "CostBound",
    "DaemonError",
    "DaemonStatus",
    "Disconnected",
    "EmittedReasoningState",
    "Expired",
    "Failed",
    "FailureKind",
    "ForeignReasoningState",
    "IdentitySubstitution",
    "InFlight",
    "Indeterminate",
    "InputItem",
    "LedgerState",
    "Malformed",
    "ModelNotAllowed",
    "ModelStatus",
    "NotADaemon",
    "OutputBound",
    "PayloadBound",
    "PriceRow",
    "ProviderDigestSubstitution",
    "ProviderRejected",
    "ProviderRequest",
    "Quote",
    "ReasoningEffort",
    "ReasoningState",
    "Refusal",
    "Refused",
    "ReplayConflict",
    "RequestFailed",
    "Result",
    "Retry",
    "SidecarError",
    "SpendCeiling",
    "StopReason",
    "Stream",
    "TermsGiven",
    "TextDelta",
    "ToolCall",
    "ToolChoice",
    "ToolDefinition",
    "ToolResult",
    "TransportErrorCode",
    "TransportEvent",
    "TransportEventPayload",
    "TransportInvocation",
    "TransportOutcome",
    "TransportReceipt",
    "TransportStatusReport",
    "TransportWelcome",
    "Usage",
    "UserText",
    "WhichCaller",
    "new_request",
]
