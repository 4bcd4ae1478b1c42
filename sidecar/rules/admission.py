"""Rules 4 to 8 of admission, one small function each; every answer is a sentence for the log, or None.

They are pure: the instant of admission, the caller's terms and the model's
terms come in as arguments. The order in which they are asked is not here but
in `sidecar.service.exchange`, where the whole road can be read in one place.
Source: CONTRACT section 3.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import structs

from sidecar.contract import canonical
from sidecar.contract.frames import Invocation
from sidecar.contract.values import ProviderRequest
from sidecar.rules.pricing import input_bound_tokens


class ModelTerms(Protocol):
    """What the bound needs to know of a model; `config.values.Model` is one."""

    @property
    def input_overhead_tokens(self) -> int: ...
    @property
    def input_overhead_tokens_per_item(self) -> int: ...
    @property
    def tools_rendered_twice(self) -> bool: ...


def expired(
    expires_at_unix_ms: int, *, now_unix_ms: int, expiry_skew_seconds_max: int, low_water_unix_ms: int
) -> str | None:
    """Rule 4."""
    if expires_at_unix_ms <= now_unix_ms:
        return f"expired {now_unix_ms - expires_at_unix_ms} ms ago"
    ahead_ms = expires_at_unix_ms - now_unix_ms
    if ahead_ms > expiry_skew_seconds_max * 1000:
        return f"expires {ahead_ms} ms ahead, at most {expiry_skew_seconds_max} s are taken"
    if expires_at_unix_ms <= low_water_unix_ms:
        return f"expires at or before {low_water_unix_ms}, up to which records may have been dropped"
    return None


def wrong_digest(invocation: Invocation) -> str | None:
    """Rule 5."""
    if bytes(invocation.value.provider_request_sha256) == invocation.request_sha256:
        return None
    return f"the carried request has the digest {invocation.request_sha256.hex()}"


def over_output(asked: int, *, caller_max: int, model_max: int) -> str | None:
    """Rule 7."""
    if asked <= min(caller_max, model_max):
        return None
    return f"{asked} output tokens are asked, the caller may have {caller_max} and the model {model_max}"


def over_cost(worst_case_micro_usd: int, *, max_cost_micro_usd: int) -> str | None:
    """Rule 8."""
    if worst_case_micro_usd <= max_cost_micro_usd:
        return None
    return f"the worst case is {worst_case_micro_usd} micro-USD, the budget {max_cost_micro_usd}"


def input_bound(invocation: Invocation, model: ModelTerms) -> int:
    """The most input tokens that this request can be billed, from its canonical bytes (CONTRACT section 5)."""
    request = invocation.value.request
    return input_bound_tokens(
        request_bytes=invocation.request_bytes,
        items=len(request.input),
        tools_bytes=canonical.length_of_array(request.tools) if model.tools_rendered_twice else 0,
        overhead_tokens=model.input_overhead_tokens,
        overhead_tokens_per_item=model.input_overhead_tokens_per_item,
        tools_rendered_twice=model.tools_rendered_twice,
    )


def without_foreign_states(request: ProviderRequest, provider: str) -> tuple[ProviderRequest, int]:
    """Rule 10: the request without the reasoning states of other providers, and how many those were."""
    kept = tuple(
        [item for item in request.input if not item.reasoning_state or item.reasoning_state.provider == provider]
    )
    dropped = len(request.input) - len(kept)
    if not dropped:
        return request, 0
    return structs.replace(request, input=kept), dropped
