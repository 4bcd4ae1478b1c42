"""What happens while records are added up anew is noted, and the sum is what one account would have heard."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.rules.conservation import Tally
from sidecar.rules.reservations import Limits, Live, Reservations
from sidecar.rules.windows import Account

LIMITS = Limits(daemon=99, callers={"a": 99}, connectors={"c": 99})
BEFORE, AFTER = 60, 7  # seconds of the window, in force and to come


def live(number: int, at_unix_ms: int, amount: int) -> Live:
    return Live(
        caller="a", request_id=str(number), connector="c", identity=b"", reservation_micro_usd=amount,
        admitted_at_unix_ms=at_unix_ms,
    )  # fmt: skip


class World:
    """Reservations of one caller, and the records that have landed of what they do."""

    def __init__(self) -> None:
        self.reservations = Reservations(
            Limits(daemon=99, callers={"a": 99}, connectors={"c": 99}), {"a": Account(BEFORE, 10**9)}
        )
        self.tally = Tally({"a": AFTER})
        self.unbegun: list[Live] = []
        self.begun: list[Live] = []
        self.left_open = [live(-1 - at, at * 5000, 100 + at) for at in range(4)]
        for one in self.left_open:
            self.reservations.account("a").reserve(one.admitted_at_unix_ms, one.reservation_micro_usd)
            self.tally.begun("a", one.admitted_at_unix_ms, one.reservation_micro_usd)
        self.number = 0
        self.frozen = False

    def step(self, kind: str, which: int, at_unix_ms: int, amount: int) -> None:
        """One thing that happens; while the tally is frozen its records are behind what is read."""
        if kind == "take":
            self.number += 1
            self.unbegun.append(live(self.number, at_unix_ms, amount))
            self.reservations.take(self.unbegun[-1])
        elif kind == "begun" and self.unbegun:
            one = self.unbegun.pop(which % len(self.unbegun))
            self.reservations.begun(one)
            self.begun.append(one)
            self._landed(begun=one)
        elif kind == "release" and self.unbegun:
            self.reservations.release(self.unbegun.pop(which % len(self.unbegun)))
        elif kind == "settle" and self.begun:
            one = self.begun.pop(which % len(self.begun))
            self.reservations.settle(one, amount)
            self._landed(ended=(one, amount))
        elif kind == "resolve" and self.left_open:
            one = self.left_open.pop(which % len(self.left_open))
            self.reservations.settle_left_open("a", one.admitted_at_unix_ms, one.reservation_micro_usd, amount)
            self._landed(ended=(one, amount))

    def _landed(self, *, begun: Live | None = None, ended: tuple[Live, int] | None = None) -> None:
        if self.frozen:
            return
        if begun is not None:
            self.tally.begun("a", begun.admitted_at_unix_ms, begun.reservation_micro_usd)
        if ended is not None:
            one, charge = ended
            self.tally.ended("a", one.admitted_at_unix_ms, one.reservation_micro_usd, charge)


Steps = list[tuple[str, int, int, int]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "begun", "release", "settle", "resolve"]),
        st.integers(0, 99),
        st.integers(0, 40_000),
        st.integers(0, 1000),
    ),
    max_size=40,
)


@given(STEPS, STEPS, STEPS)
def test_figures_of_an_instant_and_what_was_noted_since_are_the_account_that_had_heard_of_all(
    first: Steps,
    meanwhile: Steps,
    after: Steps,
) -> None:
    world = World()
    for step in first:
        world.step(*step)
    world.reservations.note_changes({"a": AFTER})
    world.frozen = True
    for step in meanwhile:
        world.step(*step)
    account = Account.of(world.reservations.noted("a", world.tally.figures("a")), 5)
    world.reservations.change(LIMITS, {"a": account})
    for step in after:
        world.step(*step)

    in_both = world.reservations.account("a").figures()
    assert in_both.window_seconds == AFTER
    expected = Account(AFTER, 5)
    for one in (*world.unbegun, *world.begun, *world.left_open):
        expected.reserve(one.admitted_at_unix_ms, one.reservation_micro_usd)
    assert dict(in_both.reserved) == dict(expected.figures().reserved)


@given(STEPS, STEPS)
def test_what_was_spent_is_by_the_new_windows_what_it_was_by_the_old_ones(first: Steps, meanwhile: Steps) -> None:
    world = World()
    for step in first:
        world.step(*step)
    world.reservations.note_changes({"a": AFTER})
    world.frozen = True
    for step in meanwhile:
        world.step(*step)
    old = world.reservations.account("a").figures()
    new = world.reservations.noted("a", world.tally.figures("a"))
    assert sum(new.spent.values()) == sum(old.spent.values())
    assert sum(new.reserved.values()) == sum(old.reserved.values())


def test_who_runs_more_than_is_allowed_now_gets_no_slot_until_it_runs_less() -> None:
    world = World()
    for number in range(3):
        world.step("take", 0, number, 1)
    world.reservations.change(Limits(daemon=2, callers={"a": 2}, connectors={"c": 2}), {})
    assert world.reservations.full("a", "c") is not None
    world.step("release", 0, 0, 0)
    assert world.reservations.full("a", "c") is not None
    world.step("release", 0, 0, 0)
    assert world.reservations.full("a", "c") is None
