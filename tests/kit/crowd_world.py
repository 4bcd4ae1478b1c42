"""What surrounds the crowd's daemon: a provider that behaves as the story says, and a ledger that meets troubles."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import trio
from kit.crowd_story import Behaviour, Key, Trouble
from kit.memory_ledger import MemoryLedger
from msgspec import structs

from sidecar.connectors.promise import NO_SETTINGS, Answer, Lowered
from sidecar.connectors.scripted import Scripted
from sidecar.contract.values import BeginRecord, CompletedRecord, ProviderRequest, Usage
from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.landing import Place

Said = tuple[float, str]  # when the provider said it, and what; a tool call by its id


class Provider:
    """Behaves as the story says, and remembers what it was asked and what it said."""

    def __init__(self, behaviours: Mapping[str, Behaviour]) -> None:
        self.asked: Counter[Key] = Counter()
        self.said: defaultdict[Key, list[Said]] = defaultdict(list)
        self._behaviours = behaviours
        self._scripted = Scripted()

    def lower(self, request: ProviderRequest, upstream: str, settings: Mapping[str, Any] = NO_SETTINGS) -> Lowered:
        return self._scripted.lower(request, upstream, settings)

    def at_once(self, lowered: Lowered, answer: Answer) -> bool:
        behaviour = self._behaviours[lowered.request.request_id]
        if not behaviour.at_once or behaviour.end == "hang":
            return False
        self.asked[_asked_key(lowered)] += 1
        answer.sent = True
        for number, size in enumerate(behaviour.pieces):
            self._say(lowered, answer, number, size)
        _end(behaviour, answer)
        return True

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        behaviour = self._behaviours[lowered.request.request_id]
        self.asked[_asked_key(lowered)] += 1
        answer.sent = True
        for number, size in enumerate(behaviour.pieces):
            await trio.sleep(behaviour.pause_seconds)
            self._say(lowered, answer, number, size)
        if behaviour.end == "hang":
            await trio.sleep_forever()
        _end(behaviour, answer)

    async def aclose(self) -> None:
        pass

    def _say(self, lowered: Lowered, answer: Answer, number: int, size: int) -> None:
        """Each piece can be told from all others of this answer."""
        if size:
            text = f"{number}:" + "x" * size
            answer.text(text)
        else:
            text = f"call_{number}"
            answer.tool_call(text, "look", "{}")
        self.said[_asked_key(lowered)].append((trio.current_time(), text))


def _asked_key(lowered: Lowered) -> Key:
    return lowered.request.conversation_id, lowered.request.request_id


def _end(behaviour: Behaviour, answer: Answer) -> None:
    if behaviour.end == "break":
        raise RuntimeError("a connector's bug")
    if behaviour.end == "fail":
        answer.fail("unavailable", "the provider is away")
    if behaviour.end == "complete":
        usage = Usage(input_tokens=5, cache_read_tokens=0, cache_write_tokens=0, output_tokens=5)
        answer.complete("end_turn", usage)


class TroubledLedger(MemoryLedger):
    """Knows when each request completed, and how long its record is."""

    def __init__(self) -> None:
        super().__init__()
        self.ended_at: dict[Key, float] = {}

    def _complete(self, begin: BeginRecord, record: CompletedRecord) -> Place:
        key = begin.caller_runtime_id, begin.request_id
        self.ended_at[key] = trio.current_time()
        place = structs.replace(super()._complete(begin, record), length=len(record.response))
        self._recorded[key] = structs.replace(self._recorded[key], completed=place)
        return place

    def meet(self, trouble: Trouble) -> None:
        if trouble == "poison":
            self.poison("the disk is gone")
        why = "the disk is full" if trouble.endswith("_fail") else None
        if trouble.startswith("begins"):
            self.fail_begin_with = why
        elif trouble.startswith("ends"):
            self.fail_complete_with = why
        elif trouble.startswith("finds"):
            self.fail_find_with = LedgerUnavailable(why) if why else None
