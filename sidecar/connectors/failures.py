"""Which failure a provider's error is: its code first, its status second; as data.

Source: WIRE section 7; CONTRACT sections 5 (usage of a failure) and 6.
"""

from __future__ import annotations

import json
import re
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
            "enforced_spend_limit_reached",
            "contract_spend_limit_reached",
            "linked_organization_spend_limit_reached",
            "linked_organization_billing_unavailable",
            "organization_on_hold",
            "cmek_key_disabled",
            "cmek_key_unreachable",
            "cmek_key_network_blocked",
            "cmek_context_unavailable",
            "API_KEY_INVALID",  # Google's words from here on: the reasons among an error's details
            "API_KEY_EXPIRED",
            "API_KEY_SERVICE_BLOCKED",
            "SERVICE_DISABLED",
            "BILLING_DISABLED",
            "CONSUMER_SUSPENDED",
        ),
        "authentication",
    ),
    **dict.fromkeys(("rate_limit_exceeded", "slow_down", "rate_limit_error", "ramp_limit_exceeded"), "rate_limited"),
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
            "content_filter",
            "cyber_policy",
            "misalignment_policy_violation",
            "data_residency_mismatch",
            "bio_policy",
            "request_too_large",
            "conflict_error",
            "model_not_found",
            "request_body_encoding_invalid",
            "request_body_encoding_unsupported",
            "request_body_too_large_after_decoding",
        ),
        "invalid_request",
    ),
    **dict.fromkeys(
        ("server_error", "server_is_overloaded", "overloaded_error", "unavailable_error", "vector_store_timeout"),
        "unavailable",
    ),
    "timeout_error": "timeout",
}

# Words that many servers put beside any status: they decide only where there is none.
KIND_BY_VAGUE_WORD: Final[Mapping[str, FailureKind]] = {
    "invalid_request_error": "invalid_request",
    "not_found_error": "invalid_request",
    "api_error": "unavailable",
}
# Google's status words, where an error comes without the number that it belongs to.
STATUS_BY_WORD: Final[Mapping[str, int]] = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "INTERNAL": 500,
    "UNKNOWN": 500,
    "DATA_LOSS": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
_NOT_HERE: Final = "location is not supported"  # what Google says beside FAILED_PRECONDITION and no reason
_DAILY: Final = "PerDay"  # in the name of a quota that no wait of a request's length brings back
_DETAILS_MAX: Final = 64
_DELAY: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s")
_SECONDS: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?")


def kind_of_status(status: int) -> FailureKind:
    """By the status alone."""
    known = KIND_BY_STATUS.get(status)
    if known is not None:
        return known
    if status >= 500:
        return "unavailable"
    return "invalid_request" if status >= 400 else "provider"


def kind_of(error: Mapping[str, Any], status: int | None) -> FailureKind:
    """By the error object's `code`, its `type` and its details' reasons, then the status; a whole-number code is one.

    Anthropic's finer code stands in `details`, beside a type that is right for most of them only.
    OpenRouter's 403 for a prompt that its moderation flagged says nothing of the credential.
    """
    details = _details_of(error)
    said = (_finer_code(error), error.get("code"), error.get("type"), *(detail.get("reason") for detail in details))
    words = [word for word in said if isinstance(word, str)]
    for word in words:
        if word in KIND_BY_CODE:
            return KIND_BY_CODE[word]
    status_word = error.get("status")
    if status_word == "FAILED_PRECONDITION" and _NOT_HERE in words_of(error):
        return "authentication"
    if status_word == "RESOURCE_EXHAUSTED" and any(map(_is_daily, details)):
        return "authentication"
    named = STATUS_BY_WORD.get(status_word) if isinstance(status_word, str) else None
    status = _status_in(error.get("code")) or named or status
    if status == 403 and _is_moderation(error.get("metadata")):
        return "invalid_request"
    if status is not None:
        return kind_of_status(status)
    return next((KIND_BY_VAGUE_WORD[word] for word in words if word in KIND_BY_VAGUE_WORD), "provider")


def _finer_code(error: Mapping[str, Any]) -> object:
    details = error.get("details")
    return details.get("error_code") if isinstance(details, dict) else None


def _details_of(error: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Google's `details`: objects with a type each, of which only what they hold is looked at."""
    details = error.get("details")
    return [one for one in details[:_DETAILS_MAX] if isinstance(one, dict)] if isinstance(details, list) else []


def _is_daily(detail: Mapping[str, Any]) -> bool:
    violations = detail.get("violations")
    found = violations[:_DETAILS_MAX] if isinstance(violations, list) else []
    return any(_DAILY in str(one.get("quotaId"))[:256] for one in found if isinstance(one, dict))


def _is_moderation(metadata: object) -> bool:
    return isinstance(metadata, dict) and ("flagged_input" in metadata or "reasons" in metadata)


def _status_in(code: object) -> int | None:
    """The status that an error's code is, as OpenRouter and vLLM write it, also as text."""
    if isinstance(code, str) and len(code) == 3 and code.isascii() and code.isdecimal():
        code = int(code)
    if isinstance(code, int) and not isinstance(code, bool) and 300 <= code <= 599:
        return code
    return None


def error_of(body: bytes | str) -> dict[str, Any] | None:
    """The error object of a JSON body, in any of the shapes that servers use; None where the body is no JSON object."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if isinstance(document, list) and len(document) == 1:
        document = document[0]
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    if isinstance(error, str):
        return {**document, "message": error}
    return error if isinstance(error, dict) else document


def error_in(said: object) -> dict[str, Any]:
    """The error that stands in an answer, as an object, also where it is only a text."""
    return said if isinstance(said, dict) else {"message": said}


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False)
_WORDS_CHARACTERS_MAX: Final = 4096  # several times what a message can show


def words_of(error: Mapping[str, Any]) -> str:
    """What an error object says to a person; RFC 7807 and FastAPI call it `detail`. Empty where it says nothing."""
    for name in ("message", "detail", "title"):
        said = error.get(name)
        if said:
            return said if isinstance(said, str) else _json_begin(said)
    return ""


def _json_begin(said: object) -> str:
    """A value as JSON, no longer than can be shown; empty where it is nested too deeply."""
    shown = ""
    try:
        for piece in _ENCODER.iterencode(said):
            shown += piece
            if len(shown) >= _WORDS_CHARACTERS_MAX:
                break
    except RecursionError:
        return ""
    return shown[:_WORDS_CHARACTERS_MAX]


def wait_seconds(headers: Mapping[str, str], now_unix: float) -> float | None:
    """How long the provider asks to wait, by `retry-after-ms` or `Retry-After` (seconds or a date); None if unsaid."""
    for name, scale in (("retry-after-ms", 1000), ("retry-after", 1)):
        said = headers.get(name, "").strip()
        if _SECONDS.fullmatch(said):
            return float(said) / scale
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - now_unix)
    except (ValueError, TypeError, OverflowError):
        return None


def wait_in_error(error: Mapping[str, Any]) -> float | None:
    """How long Google asks to wait, in a detail of the error and in no header; None if unsaid."""
    for detail in _details_of(error):
        delay = detail.get("retryDelay")
        found = _DELAY.fullmatch(delay) if isinstance(delay, str) else None
        if found:
            return float(found[1])
    return None
