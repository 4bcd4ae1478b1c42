"""What a caller asks, made whole: fresh ids, digests, an expiry, a budget, and bytes that the daemon can read.

What is sealed here is parsed by the daemon's own reading first, so nothing
that it could not read ever goes out on a connection that others share.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence
from typing import Final, TypedDict

from msgspec import Struct

from sidecar.client.errors import Malformed
from sidecar.contract import canonical
from sidecar.contract.client_frames import TRANSPORT_QUOTE, TRANSPORT_STATUS, TransportQuote, TransportStatus
from sidecar.contract.frames import BadFrame, BrokenInvocation, Invocation, parse
from sidecar.contract.values import (
    PROVIDER_REQUEST,
    TRANSPORT_INVOCATION,
    CacheRetention,
    InputItem,
    ProviderRequest,
    ReasoningEffort,
    ToolChoice,
    ToolDefinition,
    TransportInvocation,
    UserText,
)

Asking = ProviderRequest | TransportInvocation  # what every call takes: a request, or an invocation made of one before


def new_request(
    model: str,
    text: str | None = None,
    *,
    input: Sequence[InputItem] | None = None,
    instructions: str = "",
    tools: Sequence[ToolDefinition] = (),
    tool_choice: ToolChoice = "auto",
    parallel_tool_calls: bool = False,
    max_output_tokens: int = 512,
    conversation_id: str | None = None,
    request_id: str | None = None,
    output_schema_json: str | None = None,
    reasoning_effort: ReasoningEffort | None = None,
    cache_retention: CacheRetention | None = None,
) -> ProviderRequest:
    """A request to this model, with one user's text or a whole conversation as `input`, and fresh ids unless given.

    Raises TypeError for both or neither of them, and ValueError for one that is empty.
    """
    if (text is None) == (input is None):
        raise TypeError("a request takes either a text or input=")
    if text == "":
        raise ValueError("the text is empty: a request says something")
    items = tuple(input) if input is not None else (InputItem(user_text=UserText(text=text or "")),)
    if not items:
        raise ValueError("the input is empty: a request has one item at least")
    return ProviderRequest(
        schema_id=PROVIDER_REQUEST,
        request_id=request_id or f"request-{secrets.token_hex(12)}",
        conversation_id=conversation_id or f"conversation-{secrets.token_hex(12)}",
        model=model,
        instructions=instructions,
        input=items,
        tools=tuple(tools),
        tool_choice=tool_choice,
        parallel_tool_calls=parallel_tool_calls,
        max_output_tokens=max_output_tokens,
        output_schema_json=output_schema_json,
        reasoning_effort=reasoning_effort,
        cache_retention=cache_retention,
    )


class Terms(Struct, frozen=True, kw_only=True):
    """What an invocation adds to its request. `expires_at_unix_ms` wins over `timeout_seconds`."""

    max_cost_micro_usd: int = 100_000  # ten cents, as `sidecar call` has it
    timeout_seconds: float = 60.0
    expires_at_unix_ms: int | None = None
    native_request_sha256: bytes | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.timeout_seconds < math.inf:
            raise ValueError(
                f"timeout_seconds is {self.timeout_seconds}: a number of seconds from 0 on is wanted, until the request"
                " expires; the daemon takes at most its expiry_skew_seconds_max"
            )


class TermsGiven(TypedDict, total=False):
    """The keywords of every call that makes an invocation; what is not given is as Terms has it."""

    max_cost_micro_usd: int
    timeout_seconds: float
    expires_at_unix_ms: int | None
    native_request_sha256: bytes | None


def terms_of(request: Asking, given: TermsGiven) -> Terms:
    """The terms of a call. Raises TypeError for what is no request or no term, and for any beside an invocation."""
    if not isinstance(request, ProviderRequest | TransportInvocation):
        raise TypeError(f"a request is wanted: new_request(model, text); this is {type(request).__name__}")
    if unknown := given.keys() - TermsGiven.__annotations__.keys():
        known = ", ".join(TermsGiven.__annotations__)
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}: the terms of an invocation are {known}")
    if given and isinstance(request, TransportInvocation):
        raise TypeError("an invocation has its own budget, expiry and native digest: give none beside it")
    return Terms(**given)


def invocation_of(request: Asking, caller: str, terms: Terms) -> TransportInvocation:
    """The invocation of this request, with its digests; one that is whole already stays as it is."""
    if isinstance(request, TransportInvocation):
        return request
    try:
        digest = canonical.digest(canonical.encode(request))
    except (TypeError, ValueError, OverflowError) as fault:
        raise Malformed(caller, request.request_id, str(fault)) from None
    native = digest if terms.native_request_sha256 is None else tuple(terms.native_request_sha256)
    expires_at_unix_ms = terms.expires_at_unix_ms
    if expires_at_unix_ms is None:
        expires_at_unix_ms = unix_ms() + math.ceil(terms.timeout_seconds * 1000)
    return TransportInvocation(
        schema_id=TRANSPORT_INVOCATION,
        caller_runtime_id=caller,
        expires_at_unix_ms=expires_at_unix_ms,
        max_cost_micro_usd=terms.max_cost_micro_usd,
        native_request_sha256=native,
        provider_request_sha256=digest,
        request=request,
    )


def sealed(invocation: TransportInvocation) -> bytes:
    """The bytes that go out for it, each time. Raises Malformed where the daemon could not read them."""
    ids = ids_of(invocation)
    try:
        frame = canonical.encode(invocation)
    except (TypeError, ValueError, OverflowError) as fault:
        raise Malformed(*ids, str(fault)) from None
    parsed = parse(frame)
    if isinstance(parsed, BrokenInvocation):
        raise Malformed(*ids, parsed.complaint)
    if isinstance(parsed, BadFrame):
        raise Malformed(*ids, parsed.message)
    assert isinstance(parsed, Invocation)
    return frame


def sealed_quote(invocation: TransportInvocation) -> bytes:
    """The quote's frame around a sealed invocation."""
    sealed(invocation)
    frame = canonical.encode(TransportQuote(schema_id=TRANSPORT_QUOTE, invocation=invocation))
    parsed = parse(frame)
    if isinstance(parsed, BadFrame):  # it holds a few items more than the invocation
        raise Malformed(*ids_of(invocation), parsed.message)
    return frame


def ids_of(invocation: TransportInvocation) -> tuple[str, str]:
    """The caller and the request id, which an answer is matched by."""
    return invocation.caller_runtime_id, invocation.request.request_id


STATUS_FRAME: Final = canonical.encode(TransportStatus(schema_id=TRANSPORT_STATUS))


def unix_ms() -> int:
    return time.time_ns() // 1_000_000


def seconds_left(invocation: TransportInvocation) -> float:
    """Until it expires; 0 once it has: what is on record is still answered."""
    return max(0.0, (invocation.expires_at_unix_ms - unix_ms()) / 1000)
