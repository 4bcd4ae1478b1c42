"""What every end means: a retry and a sentence for each, and exceptions that survive a trip to another process."""

from __future__ import annotations

import pickle
from typing import Any, get_args

import msgspec
import pytest
from kit import daemon_says

from sidecar import client
from sidecar.client import meanings
from sidecar.client.asking import Terms, invocation_of
from sidecar.client.errors import (
    REFUSED,
    CostBound,
    DaemonError,
    Disconnected,
    Indeterminate,
    Malformed,
    NotADaemon,
    Refused,
    ReplayConflict,
    RequestFailed,
    SidecarError,
    WhichCaller,
)
from sidecar.connectors.messages import with_wait
from sidecar.contract.client_frames import CANCELLED
from sidecar.contract.values import Failed, FailureKind, Refusal, Transported, TransportErrorCode, TransportResult

INVOCATION = invocation_of(client.new_request("npc", "hello", request_id="r1"), "dungeon", Terms())


def failed(message: str, kind: FailureKind = "rate_limited") -> RequestFailed:
    frame = daemon_says.result("r1", "half", failed=Failed(kind=kind, message=message))
    transported = msgspec.msgpack.decode(frame, type=TransportResult).disposition.transported
    assert isinstance(transported, Transported)
    return RequestFailed(transported)


def test_the_table_has_a_line_for_everything_that_the_contract_can_say() -> None:
    assert set(meanings.REFUSALS) == set(get_args(Refusal))
    assert set(meanings.FAILURES) == set(get_args(FailureKind))
    assert set(meanings.DAEMON_ERRORS) == set(get_args(TransportErrorCode))
    assert set(meanings.CONNECTION_FAULTS) == set(get_args(meanings.ConnectionFault))


def test_there_is_an_exported_exception_for_each_refusal_under_its_own_name() -> None:
    assert set(REFUSED) == set(get_args(Refusal))
    for refusal, kind in REFUSED.items():
        assert kind is getattr(client, refusal)


def test_a_failed_outcome_is_never_retried_with_the_same_bytes() -> None:
    assert {meaning.retry for meaning in meanings.FAILURES.values()} == {"new_id", "no"}


@pytest.mark.parametrize(
    "error",
    [
        CostBound("dungeon", "r1"),
        failed("why"),
        DaemonError("internal", "why"),
        Disconnected("why", "no_answer"),
        NotADaemon("why"),
        WhichCaller(("a", "b")),
        WhichCaller(None),
        Disconnected("why").about(INVOCATION),
        Malformed("dungeon", "r1").about(INVOCATION),
        failed("why").about(INVOCATION),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_pickling_and_says_what_to_do(error: SidecarError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert (again.retry, again.what_to_do) == (error.retry, error.what_to_do)
    assert str(error).endswith(error.what_to_do)
    assert again.invocation == error.invocation


def test_the_wait_that_a_connector_notes_is_read_back() -> None:
    assert failed(with_wait("slow down", 12.5)).retry_after_seconds == 12.5
    assert failed("slow down").retry_after_seconds is None


def test_what_was_cancelled_says_so_and_what_ran_out_of_time_does_not() -> None:
    cancelled = failed(f"{CANCELLED} before the provider had ended", "timeout")
    assert cancelled.is_cancelled
    assert (cancelled.retry, cancelled.what_to_do) == ("new_id", "it was cancelled: a new try takes a new id")
    for other in (failed("its time was over", "timeout"), failed(CANCELLED, "provider")):
        assert not other.is_cancelled
        assert "cancelled" not in other.what_to_do


def test_the_advice_names_what_has_the_rest_of_it() -> None:
    assert "sidecar ledger resolve" in Indeterminate("dungeon", "r1").what_to_do
    assert Malformed("dungeon", "r1").what_to_do.endswith("the daemon's log says which rule")
    assert "log" not in str(Malformed("dungeon", "r1", "request.input: empty"))
    assert "invocation" in ReplayConflict("dungeon", "r1").what_to_do
    assert Disconnected("lost").about(INVOCATION).what_to_do.endswith("invoke(error.invocation)")
    assert "error.invocation" not in Disconnected("lost").what_to_do


@pytest.mark.parametrize("request_id", ["\ud800", "x y", "x" * 300, 5, None])
def test_a_refusal_of_what_is_no_id_can_still_be_printed(request_id: Any) -> None:
    str(Malformed("dungeon", request_id, "request.request_id: no id")).encode()


def test_one_trouble_of_many_is_told_to_each_with_its_own_invocation() -> None:
    trouble = Disconnected("lost")
    mine = trouble.about(INVOCATION)
    assert mine.invocation is INVOCATION
    assert trouble.invocation is None


def test_refusals_can_be_caught_as_one() -> None:
    assert all(issubclass(kind, Refused) and issubclass(kind, SidecarError) for kind in REFUSED.values())
