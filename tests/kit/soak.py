"""Many callers of one daemon that is killed every few seconds, and the books that they keep.

Each caller writes down what it sends before it sends it, and every answer. An
answer that comes again must be the same bytes; what was refused must never
have run; what was never answered may be asked for again. When it is over, the
books alone say what the ledger must come to.
"""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
from kit.counted_provider import CountedProvider
from kit.daemon_process import Client, invocation
from kit.road import said

FRAME_BYTES_MAX = 32_768
CALLERS = 12
THINK_SECONDS_MAX = 0.1
RECONNECT_SECONDS = 0.02

# The model `npc` asks the counted provider; `bard` has this script. The words of a request choose the rule.
SCRIPT = """
[[rule]]
text = "slow"
delay_ms = 60
delta_delay_ms = 10
deltas = ["Once ", "upon ", "a ", "time."]
reasoning = ["what was it like"]
[[rule]]
text = "big"
deltas = ["and they marched on "]
repeat = 1000
[[rule]]
text = "huge"
deltas = ["and they marched on "]
repeat = 3000
[[rule]]
text = "unsent"
fail = {kind = "rate_limited", message = "slow down"}
nothing_sent = true
[[rule]]
text = "cut"
deltas = ["Once "]
fail = {kind = "unavailable", message = "the line was cut"}
usage = "absent"
[[rule]]
text = "hangs"
hang = true
[[rule]]
text = "rejected"
reject = "not that"
"""
WORDS = ("hello there", "hello there", "slow", "big", "huge", "unsent", "cut", "hangs", "rejected")
HANGING_SECONDS = 1.5

EXTRA_CALLERS = """
[[caller]]
id = "arena"
models = ["npc", "bard"]
concurrent_requests_max = 100
spend_ceiling_micro_usd = 1_000_000_000_000
spend_window_seconds = 86_400
[[caller]]
id = "poor"
models = ["npc", "bard"]
spend_ceiling_micro_usd = 20_000
spend_window_seconds = 86_400
"""

SCRIPTED_TOO = """
[[connector]]
name = "rehearsal"
kind = "scripted"
script = "script.toml"
[[model]]
name = "bard"
connector = "rehearsal"
upstream = "echo-2"
[[model.price]]
input = 1_000_003
cache_read = 100_000
cache_write_short = 1_000_000
cache_write_long = 2_000_000
output = 5_000_011
"""


class UnevenProvider(CountedProvider):
    """Takes up to 40 ms, and says up to 20,000 characters, as the words have it."""

    def characters_of(self, words: str) -> int:
        return 20_000 if zlib.crc32(words.encode()) % 10 == 0 else 60

    def answer(self, words: str) -> bytes:
        answer = super().answer(words)
        time.sleep(zlib.crc32(words.encode()) % 40 / 1000)
        return answer


class Key(NamedTuple):
    caller: str
    request_id: str


class Held(NamedTuple):
    """What a caller keeps of an answer."""

    sha256: bytes
    cost_micro_usd: int


class Broken(AssertionError):
    """A promise was broken before a caller's eyes."""


NOTHING_RAN = frozenset(
    {"CostBound", "ModelNotAllowed", "SpendCeiling", "Capacity", "Expired", "ProviderRejected", "IdentitySubstitution"}
)
NOT_NOW = frozenset({"ledger_unavailable", "shutting_down", "InFlight"})


class Books:
    """What was sent, what was answered, and what was never heard of again; all callers write into one."""

    def __init__(self) -> None:
        self.answers: dict[Key, Held] = {}
        self.frames: dict[Key, bytes] = {}
        self.unanswered: dict[Key, None] = {}
        self.indeterminate: set[Key] = set()
        self.refused: set[Key] = set()
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._answered: list[Key] = []

    def write_down(self, key: Key, frame: bytes) -> None:
        with self._lock:
            self.counts["frames sent"] += 1
            self.frames[key] = frame
            if key not in self.answers and key not in self.refused:
                self.unanswered[key] = None

    def hear(self, answer: bytes) -> str:
        """Raises Broken where the answer is none that may come now."""
        value = msgpack.unpackb(answer)
        key = Key(value["caller_runtime_id"], value["request_id"])
        word = said(answer)
        with self._lock:
            if "Transported" in value.get("disposition", {}):
                self._answer(key, answer, value["disposition"]["Transported"]["receipt"]["cost_micro_usd"])
            else:
                self.counts[word] += 1
                self._refusal(key, word)
        return word

    def _answer(self, key: Key, answer: bytes, cost_micro_usd: int) -> None:
        held = Held(sha256(answer).digest(), cost_micro_usd)
        before = self.answers.get(key)
        if key in self.indeterminate or key in self.refused or before not in (None, held):
            raise Broken(f"{key} was {before or 'refused'} and is now answered with {answer!r:.2000}")
        self.counts["replays" if before else "answers"] += 1
        self.unanswered.pop(key, None)
        if before is None:
            self.answers[key] = held
            self._answered.append(key)

    def _refusal(self, key: Key, word: str) -> None:
        if word == "ReplayConflict":
            return  # of other bytes under this id
        if key in self.answers and word not in NOT_NOW:
            raise Broken(f"{key} was answered, and now there is {word}")
        if word == "Indeterminate":
            self.indeterminate.add(key)
        elif word in NOTHING_RAN:
            if key in self.indeterminate:
                raise Broken(f"{key} was indeterminate, and now there is {word}")
            self.unanswered.pop(key, None)
            self.refused.add(key)
        elif word not in NOT_NOW:
            raise Broken(f"{key}: {word}")

    def one_answered(self, chance: random.Random) -> Key | None:
        with self._lock:
            return chance.choice(self._answered) if self._answered else None

    def one_unanswered(self, chance: random.Random) -> Key | None:
        """Rather a late one: who waits asks again soon."""
        with self._lock:
            keys = list(self.unanswered)[-200:]
        return chance.choice(keys) if keys else None


class Caller:
    """One game's thread: it does one thing after the other, over connections that break."""

    def __init__(self, socket_path: Path, books: Books, number: int) -> None:
        self._socket_path = socket_path
        self._books = books
        self._number = number
        self._chance = random.Random(number)
        self._sent = 0
        self._client: Client | None = None
        self._deeds: list[tuple[Callable[[], None], int]] = [
            (self.ask, 40),
            (self.ask_many, 8),
            (self.ask_twice, 4),
            (self.hang_up, 8),
            (self.replay, 20),
            (self.ask_again, 12),
            (self.ask_for_what_is_refused, 8),
        ]

    def run(self, over: threading.Event) -> None:
        deeds, weights = zip(*self._deeds, strict=True)
        while not over.is_set():
            try:
                self._chance.choices(deeds, weights)[0]()
            except OSError:
                self.close()
                over.wait(RECONNECT_SECONDS)
            over.wait(self._chance.uniform(0, THINK_SECONDS_MAX))
        self.close()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    # --- deeds ------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        self._exchange(self._new())

    def ask_many(self) -> None:
        self._exchange(*[self._new() for _ in range(6)])

    def ask_twice(self) -> None:
        """The same bytes over two connections at once: one ask, whoever comes first."""
        key = self._new()
        with Client(self._socket_path) as other:
            self._send(other, key)
            self._exchange(key)
            self._receive(other)

    def hang_up(self) -> None:
        keys = [self._new() for _ in range(self._chance.randint(1, 3))]
        with Client(self._socket_path) as client:
            for key in keys:
                self._send(client, key)

    def replay(self) -> None:
        if (key := self._books.one_answered(self._chance)) is not None:
            self._exchange(key)

    def ask_again(self) -> None:
        if (key := self._books.one_unanswered(self._chance)) is not None:
            self._exchange(key)

    def ask_for_what_is_refused(self) -> None:
        known = self._books.one_answered(self._chance)
        kind = self._chance.choice(("budget", "model", "ceiling", "conflict"))
        if kind == "budget":
            self._exchange(self._new(max_cost_micro_usd=1))
        elif kind == "model":
            self._exchange(self._new(model="oracle"))
        elif kind == "ceiling":
            self._exchange(self._new(caller_runtime_id="poor"))
        elif known is not None:
            client = self._connected()
            client.send(invocation(known.request_id, "something else", caller_runtime_id=known.caller))
            self._receive(client)

    # --- the wire ---------------------------------------------------------------------------------------------

    def _new(self, **changes: Any) -> Key:
        self._sent += 1
        request_id = f"{self._number:02}-{self._sent:06}"
        words = self._chance.choice(WORDS)
        caller = changes.setdefault("caller_runtime_id", self._chance.choice(("dungeon", "arena")))
        if caller == "dungeon" or self._chance.random() < 0.4:
            frame = invocation(request_id, request_id, seconds=290, **changes)
        else:
            seconds = HANGING_SECONDS if words == "hangs" else 290
            frame = invocation(request_id, words, seconds=seconds, **{"model": "bard", **changes})
        key = Key(caller, request_id)
        self._books.frames[key] = frame
        return key

    def _connected(self) -> Client:
        if self._client is None or self._chance.random() < 0.02:
            self.close()
            self._client = Client(self._socket_path)
        return self._client

    def _exchange(self, *keys: Key) -> None:
        client = self._connected()
        for key in keys:
            self._send(client, key)
        for _ in keys:
            self._receive(client)

    def _send(self, client: Client, key: Key) -> None:
        frame = self._books.frames[key]
        self._books.write_down(key, frame)
        client.send(frame)

    def _receive(self, client: Client) -> None:
        answer = client.receive()
        if answer is None:
            raise ConnectionResetError("the daemon has gone")
        self._books.hear(answer)
