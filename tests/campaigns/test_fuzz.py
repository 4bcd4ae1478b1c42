"""Mutated frames against the real daemon: it lives, answers each once, runs only what is valid, and does not grow.

The frames are seeded, so a run can be had again. Each round of `ROUND` frames
shares a handful of request ids that no round before it had: whatever of it is
valid first is run, the rest is refused, replayed or in conflict, so that what
the daemon must keep (an index entry for each accepted id, a few hundred bytes)
stays far below the growth that is looked for.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgpack
import pytest
from kit import independent, mutate, wire
from kit.daemon_process import Process, invocation, running_daemon
from kit.ledger_view import LedgerView
from kit.road import said

FRAMES_CAMPAIGN = int(os.environ.get("SIDECAR_FUZZ_FRAMES", "1000000"))
FRAMES_ALWAYS = 20_000
ROUND = 4_000
CHUNK = 100  # frames in flight on one connection
CONNECTIONS = 4
GROWTH_BYTES_MAX = 2 * 1024 * 1024
LONG_TEXT = "a long story " * 6_000  # above what the typed decoder is trusted with alone


def canonical_invocation(invocation: dict[str, Any]) -> bytes:
    """Written by hand, with the digest of the request that it carries."""
    digest = list(sha256(wire.write(wire.without_nil(invocation["request"]))).digest())
    return wire.write(wire.without_nil({**invocation, "provider_request_sha256": digest}))


def seeds(round_number: int, expires_at_unix_ms: int) -> list[bytes]:
    """The kit's valid invocations, and a long one, under ids of this round."""
    values = [msgpack.unpackb(frame) for frame in mutate.seeds()]
    values.append({**values[0], "request": {**values[0]["request"], "input": [{"UserText": {"text": LONG_TEXT}}]}})
    for number, value in enumerate(values):
        value["expires_at_unix_ms"] = expires_at_unix_ms
        value["max_cost_micro_usd"] = 10**9
        value["request"] = {**value["request"], "request_id": f"round-{round_number}-{number}"}
    return [canonical_invocation(value) for value in values]


def round_of(seed: int, round_number: int, expires_at_unix_ms: int) -> Iterator[bytes]:
    """The frames of one round, always the same ones."""
    chance = random.Random(f"{seed} {round_number}")
    *short, long = seeds(round_number, expires_at_unix_ms)
    for _ in range(ROUND):
        frame = long if chance.random() < 0.005 else chance.choice(short)
        made = _digested(frame, chance) if chance.random() < 0.2 else mutate.mutated(frame, chance)
        yield made or b"\xc0"  # a frame of no bytes is a fault of the stream, not of the frame


def _digested(frame: bytes, chance: random.Random) -> bytes:
    """One member of the request changed and the digest made good, so that the rules behind it are reached."""
    value = msgpack.unpackb(frame)
    changed = dict(value["request"])
    name = chance.choice([name for name in changed if name != "request_id"])
    changed[name] = chance.choice([None, 0, 1, 2**32, "", "npc", "x y", "auto", [], {}, True, b"x", changed[name]])
    return canonical_invocation({**value, "request": changed})


class Shooter:
    """A connection that has many frames out at once."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(120)
        self._socket.connect(str(path))
        self._stream = self._socket.makefile("rb")

    def send(self, frames: list[bytes]) -> None:
        self._socket.sendall(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))

    def answers(self, number: int) -> Iterator[bytes]:
        for _ in range(number):
            length = int.from_bytes(self._stream.read(4), "big")
            assert length, "the daemon closed the connection"
            yield self._stream.read(length)

    def rest(self) -> bytes:
        """What comes after the last frame's answer, which should be nothing."""
        self._socket.shutdown(socket.SHUT_WR)
        rest = self._stream.read()
        self._stream.close()
        self._socket.close()
        return rest


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def fire(daemon: Process, rounds: int, seed: int, expires_at_unix_ms: int) -> tuple[Counter[str], int, int]:
    """All rounds, and: what was answered how often, and the daemon's memory after the first and the last tenth."""
    pid = daemon.pid
    shooters = [Shooter(daemon.socket_path) for _ in range(CONNECTIONS)]
    words: Counter[str] = Counter()
    first_tenth = 0
    for number in range(rounds):
        frames = list(round_of(seed, number, expires_at_unix_ms))
        for at in range(0, ROUND, CHUNK * CONNECTIONS):
            chunks = [frames[at + CHUNK * n : at + CHUNK * (n + 1)] for n in range(CONNECTIONS)]
            for shooter, chunk in zip(shooters, chunks, strict=True):
                shooter.send(chunk)
            for shooter, chunk in zip(shooters, chunks, strict=True):
                words.update(said(answer) for answer in shooter.answers(len(chunk)))
        if number + 1 == max(1, rounds // 10):
            first_tenth = resident_bytes(pid)
    last_tenth = resident_bytes(pid)
    assert [shooter.rest() for shooter in shooters] == [b""] * CONNECTIONS, "one answer a frame, and no more"
    return words, first_tenth, last_tenth


def assert_every_begin_is_of_a_valid_frame(ledger: LedgerView, seed: int, expires_at_unix_ms: int) -> None:
    for begin in ledger.begins:
        identity = bytes(begin.identity_sha256)
        round_number = int(begin.request_id.split("-")[1])
        frame = next(f for f in round_of(seed, round_number, expires_at_unix_ms) if identity_of(f) == identity)
        assert independent.accepts(frame), frame.hex()


def identity_of(frame: bytes) -> bytes | None:
    """SHA-256 of the canonical bytes, by the independent decoder and encoder; None for what is no strict frame."""
    try:
        return sha256(wire.write(wire.without_nil(independent.unpacked(frame)))).digest()
    except independent.Refused:
        return None


def campaign(folder: Path, frames: int, seed: int) -> None:
    rounds = max(2, frames // ROUND)
    began_at = time.monotonic()
    expires_at_unix_ms = int(time.time() * 1000) + 80_000_000
    with running_daemon(folder, daemon="expiry_skew_seconds_max = 86_400") as daemon:
        words, first_tenth, last_tenth = fire(daemon, rounds, seed, expires_at_unix_ms)
        seconds = time.monotonic() - began_at
        with daemon.connect() as client:
            assert said(client.ask(invocation("good"))) == "end_turn"
        assert daemon.stop() == 0
    (folder / "log").unlink()  # a line for each refusal
    ledger = LedgerView(folder / "ledger")
    ledger.begins = [begin for begin in ledger.begins if begin.request_id != "good"]
    assert not ledger.open
    assert_every_begin_is_of_a_valid_frame(ledger, seed, expires_at_unix_ms)
    assert words.total() == rounds * ROUND
    assert len(ledger.begins) >= rounds, "frames that are valid were among them"
    print(f"\n{words.total()} frames in {seconds:.0f} s, {words.total() / seconds:.0f}/s; begun {len(ledger.begins)}")
    print(f"resident after the first tenth {first_tenth:,} bytes, after the last {last_tenth:,}")
    print(dict(words.most_common()))
    assert abs(last_tenth - first_tenth) <= GROWTH_BYTES_MAX


def test_twenty_thousand_mutated_frames(tmp_path: Path) -> None:
    campaign(tmp_path, FRAMES_ALWAYS, seed=1)


@pytest.mark.campaign
@pytest.mark.timeout(7200)
def test_a_million_mutated_frames(tmp_path: Path) -> None:
    campaign(tmp_path, FRAMES_CAMPAIGN, seed=2)
