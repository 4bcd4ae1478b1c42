"""The tables of WIRE section 7: which kind an error is, by code, status and body; and how long to wait."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest

from sidecar.connectors.failures import (
    STATUS_BY_WORD,
    error_of,
    kind_of,
    kind_of_status,
    wait_in_error,
    wait_seconds,
    words_of,
)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (300, "provider"), (304, "provider"), (400, "invalid_request"), (401, "authentication"),
        (402, "authentication"), (403, "authentication"), (404, "invalid_request"), (405, "invalid_request"),
        (408, "timeout"),
        (409, "invalid_request"), (413, "invalid_request"), (418, "invalid_request"), (422, "invalid_request"),
        (429, "rate_limited"), (499, "provider"), (500, "unavailable"), (501, "invalid_request"), (502, "unavailable"),
        (503, "unavailable"), (504, "timeout"), (520, "unavailable"), (523, "unavailable"), (524, "timeout"),
        (529, "unavailable"), (599, "unavailable"), (201, "provider"),
    ],
)  # fmt: skip
def test_a_status_alone_has_its_kind(status: int, kind: str) -> None:
    assert kind_of_status(status) == kind


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        ({"code": "insufficient_quota"}, 429, "authentication"),
        ({"code": None, "type": "insufficient_quota"}, 429, "authentication"),
        ({"code": "rate_limit_exceeded", "type": "tokens"}, 429, "rate_limited"),
        ({"code": "context_length_exceeded", "type": "invalid_request_error"}, 400, "invalid_request"),
        ({"code": 400, "type": "exceed_context_size_error"}, 400, "invalid_request"),
        ({"code": None, "type": "invalid_request_error"}, 401, "authentication"),
        ({"code": 401, "type": "authentication_error"}, 401, "authentication"),
        ({"code": None, "type": "api_error"}, 403, "authentication"),
        (
            {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}},
            429,
            "authentication",
        ),
        (
            {"type": "rate_limit_error", "details": {"error_code": "contract_spend_limit_reached"}},
            429,
            "authentication",
        ),
        ({"type": "rate_limit_error", "details": {"error_code": "ramp_limit_exceeded"}}, 429, "rate_limited"),
        ({"type": "invalid_request_error", "details": {"error_code": "organization_on_hold"}}, 400, "authentication"),
        ({"type": "api_error", "details": {"error_code": "cmek_key_unreachable"}}, 503, "authentication"),
        ({"type": "api_error", "details": {"error_code": "request_body_encoding_invalid"}}, None, "invalid_request"),
        ({"type": "rate_limit_error", "details": {"error_code": "not_heard_of"}}, 429, "rate_limited"),
        ({"type": "rate_limit_error", "details": {"error_code": 7}}, 429, "rate_limited"),
        ({"type": "rate_limit_error", "details": None}, 429, "rate_limited"),
        ({"type": "overloaded_error"}, 529, "unavailable"),
        ({"type": "overloaded_error"}, None, "unavailable"),
        ({"type": "api_error"}, None, "unavailable"),
        ({"type": "invalid_request_error"}, None, "invalid_request"),
        ({"code": 429}, 200, "rate_limited"),
        ({"code": 429}, None, "rate_limited"),
        ({"code": "503"}, None, "unavailable"),
        ({"code": 402}, 400, "authentication"),
        ({"code": 403}, 403, "authentication"),
        ({"code": 403, "metadata": {"provider_name": "x", "raw": "y"}}, 403, "authentication"),
        ({"code": 403, "metadata": {"reasons": ["violence"], "flagged_input": "a ..."}}, 403, "invalid_request"),
        ({"code": 403, "metadata": {"reasons": ["violence"]}}, None, "invalid_request"),
        ({"code": 400, "metadata": {"reasons": ["violence"]}}, None, "invalid_request"),
        ({"code": 403, "metadata": "reasons"}, 403, "authentication"),
        ({"code": "content_filter"}, 400, "invalid_request"),
        ({"code": "content_filter"}, None, "invalid_request"),
        ({"code": "model_not_found", "type": "invalid_request_error"}, 403, "invalid_request"),
        ({"code": "model_not_found"}, 404, "invalid_request"),
        ({"code": 404, "type": "NotFoundError", "object": "error"}, 404, "invalid_request"),
        ({"code": 500, "type": "InternalServerError"}, None, "unavailable"),
        ({"code": None, "type": "not_found_error"}, 404, "invalid_request"),
        ({"code": 503, "type": "unavailable_error"}, 503, "unavailable"),
        ({"code": "credit_balance_exhausted", "type": "insufficient_quota"}, 429, "authentication"),
        ({"code": "rate_limit_exceeded", "type": "insufficient_quota"}, 429, "rate_limited"),
        ({"code": "slow_down"}, 503, "rate_limited"),
        ({"code": "server_is_overloaded"}, 429, "unavailable"),
        ({"code": True}, None, "provider"),
        ({"code": 10**30}, 500, "unavailable"),
        ({"code": "²²²"}, None, "provider"),
        ({"code": []}, None, "provider"),
        ({}, None, "provider"),
        ({}, 503, "unavailable"),
    ],
)
def test_the_code_decides_before_the_status(error: dict[str, Any], status: int | None, kind: str) -> None:
    assert kind_of(error, status) == kind


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"slow down"}}', "slow down"),
        (b'{"error":"no such model"}', "no such model"),
        (b'{"object":"error","message":"too long","code":400}', "too long"),
        (b'{"detail":"not found"}', "not found"),
        (b'{"detail":[{"loc":["body"],"msg":"bad"}]}', '[{"loc": ["body"], "msg": "bad"}]'),
        (b'[{"error":{"message":"listed"}}]', "listed"),
        (b'{"error":{"message":null}}', ""),
        (b'{"error":null,"message":"outside"}', "outside"),
    ],
)
def test_an_error_says_its_words_in_any_usual_shape(body: bytes, words: str) -> None:
    error = error_of(body)
    assert error is not None
    assert words_of(error) == words


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"7", b"\xff\xfe", b"[" * 100_000, b"null", b'{"a":' + b"9" * 9999]
)
def test_a_body_that_is_no_json_object_has_no_error(body: bytes) -> None:
    assert error_of(body) is None


def test_words_that_are_no_text_are_written_out_no_further_than_they_can_be_shown() -> None:
    words = words_of({"detail": [{"msg": "bad"}] * 1_000_000})
    assert words.startswith('[{"msg": "bad"}, {"msg": "bad"}')
    assert len(words) == 4096
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]
    assert words_of({"message": deep}) == ""


NOW = 1_790_000_000.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "20"}, 20),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": formatdate(NOW + 90, usegmt=True)}, 90),
        ({"retry-after": formatdate(NOW - 90, usegmt=True)}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "later", "retry-after": "3"}, 3),
        ({"retry-after": "Fri, 99 Zed 20260 99:99:99 GMT"}, None),
    ],
)
def test_a_wait_is_read_in_seconds_from_either_header(headers: dict[str, str], seconds: float | None) -> None:
    assert wait_seconds(headers, NOW) == seconds


# --- Google's errors ----------------------------------------------------------------------------------------------


def google(code: int | None, status: str, message: str = "", **detail: Any) -> dict[str, Any]:
    error = {"code": code, "status": status, "message": message, "details": [None, {"@type": "x"}, detail]}
    return {name: said for name, said in error.items() if said is not None}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (google(400, "INVALID_ARGUMENT"), "invalid_request"),
        (google(400, "FAILED_PRECONDITION"), "invalid_request"),
        (google(400, "FAILED_PRECONDITION", "User location is not supported for the API use."), "authentication"),
        (google(400, "INVALID_ARGUMENT", "API key not valid.", reason="API_KEY_INVALID"), "authentication"),
        (google(403, "PERMISSION_DENIED", reason="SERVICE_DISABLED"), "authentication"),
        (google(400, "FAILED_PRECONDITION", reason="BILLING_DISABLED"), "authentication"),
        (google(400, "FAILED_PRECONDITION", reason="CONSUMER_SUSPENDED"), "authentication"),
        (google(402, "RESOURCE_EXHAUSTED"), "authentication"),
        (google(429, "RESOURCE_EXHAUSTED"), "rate_limited"),
        (google(429, "RESOURCE_EXHAUSTED", violations=[{"quotaId": "RequestsPerMinutePerProject"}]), "rate_limited"),
        (google(429, "RESOURCE_EXHAUSTED", violations=[None, {"quotaId": "RequestsPerDayPerProject-FreeTier"}]),
         "authentication"),
        (google(429, "RESOURCE_EXHAUSTED", violations="PerDay"), "rate_limited"),
        (google(None, "UNAUTHENTICATED"), "authentication"), (google(None, "PERMISSION_DENIED"), "authentication"),
        (google(None, "NOT_FOUND"), "invalid_request"), (google(None, "RESOURCE_EXHAUSTED"), "rate_limited"),
        (google(None, "CANCELLED"), "provider"), (google(None, "INTERNAL"), "unavailable"),
        (google(None, "UNIMPLEMENTED"), "invalid_request"), (google(None, "UNAVAILABLE"), "unavailable"),
        (google(None, "DEADLINE_EXCEEDED"), "timeout"), (google(None, "NEW_WORD"), "provider"),
        ({"status": ["odd"], "details": "odd"}, "provider"), ({"details": {"reason": "API_KEY_INVALID"}}, "provider"),
        ({"details": [{"reason": ["API_KEY_INVALID"]}]}, "provider"),
    ],
)  # fmt: skip
def test_a_google_error_has_its_kind_by_its_reason_then_its_number_then_its_word(
    error: dict[str, Any], kind: str
) -> None:
    assert kind_of(error, None) == kind


def test_every_status_word_belongs_to_a_status_of_an_error() -> None:
    assert all(400 <= status <= 504 for status in STATUS_BY_WORD.values())


@pytest.mark.parametrize(
    ("delay", "wait"),
    [("34.4s", 34.4), ("34.074824224s", 34.074824224), ("0s", 0.0), ("7s", 7.0), ("7", None), ("-7s", None),
     ("1e9s", None), ("9" * 40 + "s", None), (7, None), (None, None), ({"seconds": 7}, None)],
)  # fmt: skip
def test_a_retry_delay_is_seconds(delay: Any, wait: float | None) -> None:
    assert wait_in_error({"details": [{"retryDelay": delay}]}) == wait
    assert wait_in_error({"details": {"retryDelay": delay}}) is None
    assert wait_in_error({}) is None
