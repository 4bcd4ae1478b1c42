"""Which failure a provider's error is: its code first, its status second; as data.

Source: WIRE section 7; CONTRACT sections 5 (usage of a failure) and 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

from sidecar.contract.values import FailureKind

# After these the provider may have begun, so that what it billed is not known.
USAGE_UNKNOWN_STATUSES: Final = frozenset({408, 499, 502, 504, *range(520, 525)})

KIND_BY_STATUS: Final[Mapping[int, FailureKind]] = {
    400: "invalid_request",
    401: "authentication",
    402: "authentication",
    403: "authentication",
    404: "invalid_request",
    408: "timeout",
    429: "rate_limited",
    499: "provider",
    501: "invalid_request",
    504: "timeout",
    524: "timeout",
    529: "unavailable",
}

KIND_BY_CODE: Final[Mapping[str, FailureKind]] = {
    **dict.fromkeys(
        (
            "insufficient_quota",
            "credit_balance_exhausted",
            "organization_spend_limit_exceeded",
            "project_spend_limit_exceeded",
            "organization_usage_limit_exceeded",
            "invalid_api_key",
            "account_deactivated",
            "billing_not_active",
            "unsupported_country_region_territory",
            "authentication_error",
            "permission_error",
            "billing_error",
        ),
        "authentication",
    ),
    **dict.fromkeys(("rate_limit_exceeded", "slow_down", "rate_limit_error"), "rate_limited"),
    **dict.fromkeys(
        (
            "context_length_exceeded",
            "exceed_context_size_error",
            "string_above_max_length",
            "unsupported_value",
            "unsupported_parameter",
            "invalid_json_schema",
            "invalid_function_parameters",
            "invalid_prompt",
            "content_policy_violation",
            "cyber_policy",
            "bio_policy",
            "invalid_request_error",
            "not_found_error",
            "model_not_found",
        ),
        "invalid_request",
    ),
    **dict.fromkeys(
        ("server_error", "server_is_overloaded", "overloaded_error", "unavailable_error", "api_error"), "unavailable"
    ),
    "timeout_error": "timeout",
}


def kind_of_status(status: int) -> FailureKind:
    """By the status alone."""
    known = KIND_BY_STATUS.get(status)
    if known is not None:
        return known
    if status >= 500:
        return "unavailable"
    return "invalid_request" if status >= 400 else "provider"


def kind_of(error: Mapping[str, Any], status: int | None) -> FailureKind:
    """By the error object's `code`, then its `type`, then the status; a whole-number code is a status."""
    code = error.get("code")
    for word in (code, error.get("type")):
        if isinstance(word, str) and word in KIND_BY_CODE:
            return KIND_BY_CODE[word]
    if isinstance(code, int) and not isinstance(code, bool) and 300 <= code <= 599:
        return kind_of_status(code)
    if isinstance(code, str) and code.isdigit() and 300 <= int(code) <= 599:
        return kind_of_status(int(code))
    return "provider" if status is None else kind_of_status(status)


def wait_seconds(headers: Mapping[str, str], now_unix: float) -> float | None:
    """How long the provider asks to wait, by `retry-after-ms` or `Retry-After` (seconds or a date); None if unsaid."""
    for name, scale in (("retry-after-ms", 1000), ("retry-after", 1)):
        said = headers.get(name, "").strip()
        if said and said.replace(".", "", 1).isdecimal():
            return float(said) / scale
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - now_unix)
    except (ValueError, TypeError):
        return None
