"""The published types as frozen values: they accept exactly what the schemas in `schemas/` accept.

Every value is a msgspec struct that refuses unknown members. A tagged union (`InputItem`, `TransportOutcome` ...) is a
struct of optional members with exactly one set, because that is how the schemas write it: a map with one key. Integers
carry the bounds of `format: uint8/uint32/uint64`; MessagePack can say nothing above uint64, so U64 only refuses what is
negative. Digests are tuples of 32 integers, as on the wire; `bytes(digest)` gives the raw bytes.

Source: CONTRACT sections 1 and 2 and the published schemas.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import astuple

U8 = Annotated[int, Meta(ge=0, le=255)]
U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Meta(ge=0)]
Digest = Annotated[tuple[U8, ...], Meta(min_length=32, max_length=32)]

U64_MAX = 2**64 - 1

PROVIDER_REQUEST: Literal["gamecult.model.provider_request.v1"] = "gamecult.model.provider_request.v1"
TRANSPORT_INVOCATION: Literal["gamecult.model.transport_invocation.v1"] = "gamecult.model.transport_invocation.v1"
TRANSPORT_RECEIPT: Literal["gamecult.model.transport_receipt.v1"] = "gamecult.model.transport_receipt.v1"
TRANSPORT_RESULT: Literal["gamecult.model.transport_result.v1"] = "gamecult.model.transport_result.v1"
TRANSPORT_ERROR: Literal["gamecult.model.transport_error.v1"] = "gamecult.model.transport_error.v1"
REPLAY_RECORD: Literal["gamecult.model.replay_record.v2"] = "gamecult.model.replay_record.v2"

CacheRetention = Literal["short", "long"]
ReasoningEffort = Literal["low", "medium", "high", "max"]
ToolChoice = Literal["auto", "required"]
StopReason = Literal["end_turn", "tool_use", "max_output_tokens", "stop_sequence", "refusal", "context_window"]
FailureKind = Literal[
    "result_size", "invalid_request", "authentication", "rate_limited", "unavailable", "timeout", "provider"
]
Refusal = Literal[
    "Expired",
    "IdentitySubstitution",
    "ProviderDigestSubstitution",
    "ModelNotAllowed",
    "OutputBound",
    "PayloadBound",
    "Capacity",
    "InFlight",
    "Indeterminate",
    "ReplayConflict",
    "Malformed",
    "ForeignReasoningState",
    "ProviderRejected",
    "CostBound",
    "SpendCeiling",
]
TransportErrorCode = Literal[
    "not_admitted",
    "too_many_connections",
    "frame_size",
    "frame_timeout",
    "unsupported_protocol",
    "malformed_frame",
    "unknown_schema",
    "ledger_unavailable",
    "shutting_down",
    "internal",
]


# gc=False: a frozen value of frozen values is in no cycle; it saves 16 bytes a value, and the collector's visits.
class Value(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, gc=False):
    """One published map: unknown members refused, nil and missing optional members the same."""


class OneOf(Value, frozen=True):
    """A map with exactly one member, whose name says which alternative it is."""

    def __post_init__(self) -> None:
        alternatives = astuple(self)
        if alternatives.count(UNSET) != len(alternatives) - 1:
            raise ValueError(f"exactly one of {', '.join(self.__struct_encode_fields__)} is needed")

    @property
    def chosen(self) -> Any:
        """The one member that is set."""
        for member in astuple(self):
            if member is not UNSET:
                return member
        raise AssertionError("a value without an alternative can't be made")


# --- the provider-neutral request -------------------------------------------------------------------------------


class UserText(Value, frozen=True):
    """What the user said: `text`, never empty."""

    text: str


class AssistantText(Value, frozen=True):
    """What the model said: `text`, never empty."""

    text: str


class ToolCall(Value, frozen=True):
    """The model wants the tool `name` run with `arguments`, a JSON object as text; its result names the `call_id`."""

    arguments: str
    call_id: str
    name: str


class ToolResult(Value, frozen=True):
    """What the call of this `call_id` came to: `output`, any text. Each call needs one before the next answer."""

    call_id: str
    output: str


class ReasoningState(Value, frozen=True):
    """One reasoning block of this `provider` and `model` that a caller replays: `state`, opaque, untrusted."""

    model: str
    provider: str
    state: bytes


class InputItem(OneOf, frozen=True):
    """One item of a conversation, with one member set: `InputItem(user_text=UserText(text="..."))`."""

    user_text: UserText | UnsetType = field(default=UNSET, name="UserText")
    assistant_text: AssistantText | UnsetType = field(default=UNSET, name="AssistantText")
    tool_call: ToolCall | UnsetType = field(default=UNSET, name="ToolCall")
    tool_result: ToolResult | UnsetType = field(default=UNSET, name="ToolResult")
    reasoning_state: ReasoningState | UnsetType = field(default=UNSET, name="ReasoningState")


class InputReasoningState(Value, frozen=True):
    reasoning_state: ReasoningState = field(name="ReasoningState")


class ToolDefinition(Value, frozen=True):
    """A tool: its `name`, a `description` for the model, and `parameters_json`, the JSON Schema of its arguments."""

    description: str
    name: str
    parameters_json: str


class ProviderRequest(Value, frozen=True, kw_only=True):
    cache_retention: CacheRetention | None = None
    conversation_id: str
    input: tuple[InputItem, ...]
    instructions: str
    max_output_tokens: U32
    model: str
    output_schema_json: str | None = None
    parallel_tool_calls: bool
    reasoning_effort: ReasoningEffort | None = None
    request_id: str
    schema_id: Literal["gamecult.model.provider_request.v1"]
    tool_choice: ToolChoice
    tools: tuple[ToolDefinition, ...]


class TransportInvocation(Value, frozen=True):
    caller_runtime_id: str
    expires_at_unix_ms: U64
    max_cost_micro_usd: U64
    native_request_sha256: Digest
    provider_request_sha256: Digest
    request: ProviderRequest
    schema_id: Literal["gamecult.model.transport_invocation.v1"]


# --- the answer -------------------------------------------------------------------------------------------------


class Usage(Value, frozen=True, kw_only=True):
    """Token counts as the backend reports them; cache reads and writes are apart from plain input."""

    cache_read_tokens: U64
    cache_write_tokens: U64
    input_tokens: U64
    output_tokens: U64
    reasoning_tokens: U64 | None = None


NOTHING_USED = Usage(input_tokens=0, cache_read_tokens=0, cache_write_tokens=0, output_tokens=0)


class Completed(Value, frozen=True, kw_only=True):
    provider_response_id: str | None = None
    stop_reason: StopReason
    usage: Usage


class Failed(Value, frozen=True, kw_only=True):
    """`usage` None means that what the provider billed is not known."""

    kind: FailureKind
    message: str
    usage: Usage | None = None


class TransportOutcome(OneOf, frozen=True):
    completed: Completed | UnsetType = field(default=UNSET, name="Completed")
    failed: Failed | UnsetType = field(default=UNSET, name="Failed")


class TextDelta(Value, frozen=True):
    text: str


class EmittedReasoningState(Value, frozen=True):
    """One reasoning block of the provider that answered; the receipt names provider and model."""

    state: bytes


class TransportEventPayload(OneOf, frozen=True):
    text_delta: TextDelta | UnsetType = field(default=UNSET, name="TextDelta")
    tool_call: ToolCall | UnsetType = field(default=UNSET, name="ToolCall")
    reasoning_state: EmittedReasoningState | UnsetType = field(default=UNSET, name="ReasoningState")


class TransportEvent(Value, frozen=True):
    payload: TransportEventPayload
    sequence: U64


class TransportReceipt(Value, frozen=True, kw_only=True):
    caller_runtime_id: str
    cost_micro_usd: U64
    foreign_reasoning_dropped: U32
    model: str
    native_request_sha256: Digest
    outcome: TransportOutcome
    provider: str
    provider_request_sha256: Digest
    request_id: str
    schema_id: Literal["gamecult.model.transport_receipt.v1"]


class Transported(Value, frozen=True):
    events: tuple[TransportEvent, ...]
    receipt: TransportReceipt


class TransportDisposition(OneOf, frozen=True):
    refused: Refusal | UnsetType = field(default=UNSET, name="Refused")
    transported: Transported | UnsetType = field(default=UNSET, name="Transported")


class TransportResult(Value, frozen=True):
    caller_runtime_id: str
    disposition: TransportDisposition
    request_id: str
    schema_id: Literal["gamecult.model.transport_result.v1"]


class TransportError(Value, frozen=True, kw_only=True):
    """What no refusal can say; the ids are nil where the frame named none that can be read."""

    caller_runtime_id: str | None = None
    code: TransportErrorCode
    message: str
    request_id: str | None = None
    schema_id: Literal["gamecult.model.transport_error.v1"]


def refused(caller_runtime_id: str, request_id: str, refusal: Refusal) -> TransportResult:
    return TransportResult(
        schema_id=TRANSPORT_RESULT,
        request_id=request_id,
        caller_runtime_id=caller_runtime_id,
        disposition=TransportDisposition(refused=refusal),
    )


# --- what lands on disk -----------------------------------------------------------------------------------------


class PriceRow(Value, frozen=True, kw_only=True):
    """Micro-USD per million tokens, as in force at admission; see CONTRACT section 5.

    `above_input_tokens` None is the base row; otherwise the row reprices the
    whole request when its total input is strictly more.
    """

    above_input_tokens: U64 | None = None
    cache_read: U64
    cache_write_long: U64
    cache_write_short: U64
    input: U64
    output: U64


Note = Literal[
    "over_run",  # the charge is above the reservation
    "usage_bound",  # no usage came, and the connector's rule is to report the bound
    "usage_clamped",  # a part was above its total
    "usage_estimated",  # the server guesses its own numbers
    "other_model",  # the provider answered with a model of another family
    "result_degraded",  # the answer was too large to carry or to record
    "call_id_replaced",  # a call id was empty, ill-formed or used before
    "effort_dropped",  # the provider, or this model, knows no reasoning effort
    "retention_dropped",  # the provider has no cache that a request can ask for
    "parallel_calls_allowed",  # the provider can't be kept to one tool call at a time
    "tool_choice_hinted",  # the provider takes a required tool call for a wish
    "tools_flattened",  # the provider takes less of a tool's schema than was given
    "schema_loosened",  # the provider holds its answer to less of the schema than was given
    "provider_fallback",  # another model or a dearer service answered, too: charged as the bound at least
    "cache_kept_longer",  # the provider wrote its cache for longer than asked: every write is charged as a long one
    "state_dropped_upstream",  # the provider did not read a reasoning state that it was sent
]


class OpenedRecord(Value, frozen=True):
    """A daemon took the ledger; `clean` says whether the one before it had closed it."""

    clean: bool
    incarnation: U64
    opened_at_unix_ms: U64


class BeginRecord(Value, frozen=True, kw_only=True):
    """A request is claimed and its worst case reserved: written and synced before the provider hears of it."""

    admitted_at_unix_ms: U64
    cache_retention: CacheRetention | None = None
    caller_runtime_id: str
    expires_at_unix_ms: U64
    foreign_reasoning_dropped: U32
    identity_sha256: Digest
    input_bound_tokens: U64
    max_output_tokens: U32
    model: str
    native_request_sha256: Digest
    prices: tuple[PriceRow, ...]
    provider: str
    provider_request_sha256: Digest
    request_id: str
    reservation_micro_usd: U64
    upstream: str


STORED_AS_IS = b"\x00"  # the flag byte before a response that is stored as it was sent


class CompletedRecord(Value, frozen=True, kw_only=True):
    """A request is settled: the charge, and the response frame exactly as sent.

    `begin_segment` and `begin_offset` name the Begin. `response` is a flag byte (0: as is) and the frame, unprefixed.
    """

    begin_offset: U64
    begin_segment: U64
    charge_micro_usd: U64
    completed_at_unix_ms: U64
    first_event_at_unix_ms: U64 | None = None
    notes: tuple[Note, ...]
    outcome: Literal["completed", FailureKind]
    response: bytes
    usage: Usage | None = None


class CheckpointRecord(Value, frozen=True):
    """Segments up to this one may be gone: what of them still counts stands in a file of this SHA-256."""

    file_sha256: Digest
    segment: U64


class LowWaterRecord(Value, frozen=True):
    """Nothing that expires at or before this instant may run: its record may have been dropped."""

    expires_at_unix_ms: U64


class ClosedRecord(Value, frozen=True):
    """A clean exit: whatever follows in this segment is damage."""

    closed_at_unix_ms: U64


class RecordBody(OneOf, frozen=True):
    opened: OpenedRecord | UnsetType = field(default=UNSET, name="Opened")
    begin: BeginRecord | UnsetType = field(default=UNSET, name="Begin")
    completed: CompletedRecord | UnsetType = field(default=UNSET, name="Completed")
    checkpoint: CheckpointRecord | UnsetType = field(default=UNSET, name="Checkpoint")
    low_water: LowWaterRecord | UnsetType = field(default=UNSET, name="LowWater")
    closed: ClosedRecord | UnsetType = field(default=UNSET, name="Closed")


class ReplayRecord(Value, frozen=True):
    record: RecordBody
    schema_id: Literal["gamecult.model.replay_record.v2"]
