"""The line that a service manager shows."""

from __future__ import annotations

import pytest
from kit.memory_ledger import MemoryLedger

from sidecar.rules.reservations import Limits, Live, Reservations
from sidecar.rules.windows import Account
from sidecar.service.status_line import status_line

DAY_MS = 86_400_000


def line(*accounts: Account, ledger: MemoryLedger | None = None, now: int = 5 * DAY_MS, draining: bool = False) -> str:
    by_name = {f"caller-{number}": account for number, account in enumerate(accounts)}
    limits = Limits(daemon=8, callers=dict.fromkeys(by_name, 8), connectors={"one": 8})
    reservations = Reservations(limits, by_name)
    for number, caller in enumerate(by_name):
        reservations.take(
            Live(
                caller=caller, request_id=str(number), connector="one", identity=b"", reservation_micro_usd=1,
                admitted_at_unix_ms=now,
            )
        )  # fmt: skip
    return status_line(by_name, reservations, ledger or MemoryLedger(), now, draining=draining)


def spent(micro_usd: int, ceiling: int, *, window_seconds: int = 86_400, at: int = 5 * DAY_MS) -> Account:
    account = Account(window_seconds, ceiling)
    account.reserve(at, micro_usd)
    account.settle(at, micro_usd, micro_usd)
    return account


def test_it_sums_over_the_callers_and_their_present_windows() -> None:
    told = line(spent(400_000, 4_000_000), spent(19_999, 1_000_000))
    assert told == "2 in flight, 2 callers, ledger 0, spent 0.42 of 5.00 USD today"


def test_what_was_spent_yesterday_is_not_of_today() -> None:
    assert line(spent(400_000, 4_000_000), now=6 * DAY_MS).endswith("spent 0.00 of 4.00 USD today")


@pytest.mark.parametrize(
    ("windows", "when"),
    [
        ([86_400], "today"),
        ([3600, 3600], "this hour"),
        ([60, 60], "in the present window"),
        ([86_400, 3600], "in the present windows"),
    ],
)
def test_it_says_which_windows_these_are(windows: list[int], when: str) -> None:
    assert line(*[spent(1, 1_000_000, window_seconds=one) for one in windows]).endswith(f"USD {when}")


def test_one_caller_is_one() -> None:
    assert line(spent(0, 1)).startswith("1 in flight, 1 caller, ")


@pytest.mark.parametrize(
    ("micro_usd", "shown"),
    [(0, "0.00"), (4_999, "0.00"), (5_000, "0.01"), (994_999, "0.99"), (995_000, "1.00"), (2**63, "9223372036854.78")],
)
def test_money_is_shown_to_the_cent_without_a_float(micro_usd: int, shown: str) -> None:
    assert f"spent {shown} of " in line(spent(micro_usd, 2**64 - 1))


def test_what_an_operator_must_know_stands_first() -> None:
    ledger = MemoryLedger()
    assert line(spent(0, 1), draining=True).startswith("draining; 1 in flight")
    ledger.pressure = "no space left"
    assert line(spent(0, 1), ledger=ledger).startswith("no request is admitted: no space left; 1 in flight")
    ledger.poisoned = "writing failed: Input/output error"
    assert line(spent(0, 1), ledger=ledger).startswith("the ledger failed: writing failed: Input/output error; 1 in")
