"""What callers were told while a disk failed, held against the ledger, the provider's count and the next daemon.

A `Trial` keeps every frame that was sent and every answer that came. `check`
is the same for every fault: nothing acknowledged is lost, nothing that is not
on record was answered, nothing was sent upstream without a begin, what is open
is indeterminate and holds its money, and a restart serves again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgpack
from kit.counted_provider import CountedProvider
from kit.daemon_process import Client, Process, invocation, running_daemon, wait_until
from kit.ledger_view import LedgerView
from kit.road import receipt, said

from sidecar.audit.reading import Reading
from sidecar.audit.requests import Request, requests_of
from sidecar.ledger import recovery
from sidecar.ledger.files import DiskFiles

SEGMENT_BYTES = 1 << 20  # of the configuration that daemon_process writes


class Trial:
    """One folder with a ledger, its provider, and its callers. Ids should be of one length: they then cost the same."""

    def __init__(self, folder: Path, provider: CountedProvider) -> None:
        self.folder = folder
        self.ledger = folder / "ledger"
        self.provider = provider
        self.sent: dict[str, bytes] = {}
        self.answers: dict[str, bytes] = {}

    # --- calling ----------------------------------------------------------------------------------------------

    def frame(self, request_id: str) -> bytes:
        """The invocation under this id: the same bytes whenever it is sent."""
        if request_id not in self.sent:
            self.sent[request_id] = invocation(request_id, request_id, seconds=290)
        return self.sent[request_id]

    def send(self, client: Client, request_id: str) -> None:
        client.send(self.frame(request_id))

    def heard(self, frame: bytes) -> str:
        """What an answer says; an answer of the provider must be the one that was given before."""
        answer = msgpack.unpackb(frame)
        if "disposition" in answer and "Transported" in answer["disposition"]:
            assert self.answers.setdefault(answer["request_id"], frame) == frame
        return said(frame)

    def ask(self, client: Client, request_id: str) -> str:
        return self.heard(client.ask(self.frame(request_id)))

    def why(self, client: Client, request_id: str) -> str:
        """The message of the transport error that this request gets."""
        return str(msgpack.unpackb(client.ask(self.frame(request_id)))["message"])

    def warm_up(self, client: Client, count: int) -> list[str]:
        """Requests one after the other, all answered: each makes two writes and two syncs."""
        ids = [f"warm-{number:03}" for number in range(count)]
        assert [self.ask(client, request_id) for request_id in ids] == ["end_turn"] * count
        return ids

    def ask_until_refused(self, client: Client, most: int = 40) -> str:
        """New requests until the ledger takes none; the id of the first that was refused."""
        for number in range(most):
            request_id = f"fill-{number:03}"
            word = self.ask(client, request_id)
            if word == "ledger_unavailable":
                return request_id
            assert word == "end_turn"
        raise AssertionError(f"{most} requests were admitted")

    def hold_at_the_provider(self, client: Client, *ids: str) -> None:
        """Sends requests, and returns when all of them have begun and wait for the provider."""
        for request_id in ids:
            self.provider.held.add(request_id)
            self.send(client, request_id)
        wait_until(lambda: all(self.provider.asked[request_id] for request_id in ids))

    # --- what is on disk --------------------------------------------------------------------------------------

    def view(self) -> LedgerView:
        return LedgerView(self.ledger)

    def end(self) -> recovery.End:
        """Where the record ends now."""
        return recovery.read(DiskFiles(), self.ledger, lambda body, place: None, cold=False).end

    # --- what must hold -----------------------------------------------------------------------------------------

    def check(self, **config: Any) -> None:
        """After the end of a daemon: all promises, which takes two more daemons on the same ledger."""
        view = self.view()
        self.check_ledger(view)
        asked = self.provider.asked.copy()
        recorded = {begin.request_id: record.response[1:] for begin, record in view.completes}
        held = {begin.request_id for begin in view.open.values()}
        self._check_held_money(view, **config)
        asked["one-mor"] += 1
        with self._restarted(**config) as daemon, daemon.connect() as client:
            for request_id, frame in self.sent.items():
                answer = client.ask(frame)
                if request_id in recorded:
                    assert answer == recorded[request_id]
                elif request_id in held:
                    assert said(answer) == "Indeterminate"
                else:
                    assert self.heard(answer) == "end_turn", "what never began runs when it is sent again"
                    asked[request_id] += 1
            assert daemon.stop() == 0
            assert at_level(daemon, "critical") == at_level(daemon, "error") == []
        assert self.provider.asked == asked, "what was on record was not sent again"
        self.check_ledger(self.view())

    def check_ledger(self, view: LedgerView) -> None:
        recorded = {begin.request_id: record.response[1:] for begin, record in view.completes}
        for request_id, answer in self.answers.items():
            assert recorded[request_id] == answer, "an answer was given that is not on record"
        begun = {begin.request_id for begin in view.begins}
        assert self._charges(sound(self.ledger)) == {
            **{begin.request_id: (record.charge_micro_usd, 0) for begin, record in view.completes},
            **{begin.request_id: (None, begin.reservation_micro_usd) for begin in view.open.values()},
        }, "verify and the daemon read other sums"
        assert set(self.provider.asked) <= begun, "something was sent upstream without a begin"
        assert max(self.provider.asked.values(), default=0) <= 1, "something was sent upstream twice"
        assert self.provider.requests <= len(view.begins)

    def _charges(self, requests: Iterable[Request]) -> dict[str, tuple[int | None, int]]:
        """What each has cost and what it holds; what was answered has cost what its receipt says."""
        charges = {str(one.begun.members["request_id"]): (one.charge_micro_usd, one.held_micro_usd) for one in requests}
        for request_id, answer in self.answers.items():
            assert charges[request_id] == (receipt(answer)["cost_micro_usd"], 0)
        return charges

    def _check_held_money(self, view: LedgerView, **config: Any) -> None:
        """What is open is told and holds its whole reservation: a ceiling that leaves no room for one more has none."""
        spent = sum(record.charge_micro_usd for _, record in view.completes)
        one_more = view.begins[0].reservation_micro_usd
        held = sum(begin.reservation_micro_usd for begin in view.open.values())
        restarted = self._restarted(ceiling=spent + held + one_more - 1, **config)
        with restarted as daemon, daemon.connect() as client:
            for begin in view.open.values():
                told = f"request={begin.request_id} held_micro_usd={begin.reservation_micro_usd}"
                assert told in daemon.log()
            for request_id, answer in self.answers.items():
                assert client.ask(self.sent[request_id]) == answer
            assert said(client.ask(invocation("one-more", "one-more"))) == "SpendCeiling"
            assert said(client.ask(invocation("one-mor", "one-mor"))) == "end_turn", "no more is held than that"
            daemon.kill()

    def _restarted(self, **config: Any) -> Any:
        return running_daemon(self.folder, connector=self.provider.connector, **config)


def sound(ledger: Path) -> list[Request]:
    """The requests of a ledger as `verify` reads it: from the disk, with every checksum. Raises LedgerDamaged."""
    return list(requests_of(Reading(ledger, cold=True, every_id=True)))


def at_level(daemon: Process, level: str) -> list[str]:
    """The lines of its log at this level, but those of the configuration, and of upkeep: a seal meets a full disk too,

    and refuses nothing.
    """
    lines = [line.split(" ", 2) for line in daemon.log().splitlines()]
    said = [line[2] for line in lines if len(line) == 3 and line[1] == level]
    return [line for line in said if not line.startswith(("ledger_upkeep_failed ", "config_warning "))]


def refused_from_now_on(trial: Trial, client: Client, answered: Iterable[str]) -> None:
    """A poisoned ledger takes no begin and still replays."""
    assert trial.ask(client, "later-01") == "ledger_unavailable"
    for request_id in answered:
        assert trial.ask(client, request_id) == "end_turn"


def poisoned_once(daemon: Process, *texts: str) -> None:
    """One line at the critical level says why the daemon ends: the error's text, the file, and what it does now.

    Of several texts any one: which call meets the fault first is not the test's to say.
    """
    # A look-up in a seal meets the same disk, and says so of its own request.
    assert all(line.startswith("record_unreadable ") for line in at_level(daemon, "error"))
    (line,) = at_level(daemon, "critical")
    assert line.startswith("ledger_poisoned ")
    assert any(text in line for text in texts), line
    for word in (".segment", str(daemon.folder / "ledger"), "exit with 74"):
        assert word in line


def pressed(daemon: Process, text: str, times: int = 1) -> None:
    """Each time one line says why requests are refused, and one that it is over; none is an error."""
    assert at_level(daemon, "critical") == at_level(daemon, "error") == []
    lines = at_level(daemon, "warning")
    assert len(lines) == times
    for line in lines:
        assert line.startswith("ledger_pressure ")
        for word in (
            text,
            f"{SEGMENT_BYTES} bytes are needed",
            str(daemon.folder / "ledger"),
            "no request is admitted",
        ):
            assert word in line
    assert sum("ledger_pressure_over" in line for line in at_level(daemon, "notice")) == times
