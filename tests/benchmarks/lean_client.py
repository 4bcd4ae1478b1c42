"""A client that costs the machine little: a C program where there is a compiler, else the same loop in Python."""

from __future__ import annotations

import select
import shutil
import socket
import struct
import subprocess
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

_SOURCE = Path(__file__).with_name("lean_client.c")
_NANOSECONDS = 1_000_000_000
_RECEIVE_BYTES = 262_144


class Run(Struct, frozen=True):
    """One closed loop: its wall time in seconds, and each exchange's nanoseconds, ascending."""

    seconds: float
    took: Sequence[int]

    @property
    def per_second(self) -> float:
        return len(self.took) / self.seconds

    def quantile_us(self, share: float) -> float:
        return self.took[min(len(self.took) - 1, int(share * len(self.took)))] / 1000


def find_compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


class LeanClient:
    """Built once in `folder` by `compiler`, the Python loop where there is none; `kind` says which of the two it is."""

    def __init__(self, folder: Path, compiler: str | None) -> None:
        self._folder = folder
        self._program: Path | None = None
        if compiler:
            self._program = folder / "lean_client"
            subprocess.run([compiler, "-O2", "-o", str(self._program), str(_SOURCE)], check=True)
        self.kind = "C" if self._program else "Python (no C compiler here; it takes more of the machine)"

    def run(self, path: Path, frames: Sequence[bytes], connections: int, expected: str) -> Run:
        """Sends all frames, each connection one at a time; every answer must hold `expected`."""
        if self._program is None:
            return _loop(path, frames, connections, expected.encode())
        packed = self._folder / "frames"
        packed.write_bytes(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
        command = [str(self._program), str(path), str(packed), str(connections), expected]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        took = array("Q", printed[8:])
        assert len(took) == len(frames), f"{len(took)} answers to {len(frames)} frames"
        return Run(struct.unpack_from("d", printed)[0], sorted(took))


def _loop(path: Path, frames: Sequence[bytes], connections: int, expected: bytes) -> Run:
    waiting = iter(frames)
    poll = select.epoll()
    sockets: dict[int, socket.socket] = {}
    sent_at: dict[int, int] = {}
    answers: dict[int, bytearray] = {}
    took: list[int] = []

    def send_next(number: int) -> None:
        frame = next(waiting, None)
        if frame is not None:
            answers[number] = bytearray()
            sent_at[number] = time.monotonic_ns()
            sockets[number].sendall(len(frame).to_bytes(4, "big") + frame)

    for _ in range(connections):
        dialed = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        dialed.connect(str(path))
        sockets[dialed.fileno()] = dialed
        poll.register(dialed, select.EPOLLIN)
    began = time.monotonic_ns()
    for number in sockets:
        send_next(number)
    while len(took) < len(frames):
        for number, _ in poll.poll(60):
            received = sockets[number].recv(_RECEIVE_BYTES)
            assert received, "the daemon closed the connection"
            answer = answers[number]
            answer += received
            if len(answer) >= 4 and len(answer) == 4 + int.from_bytes(answer[:4], "big"):
                took.append(time.monotonic_ns() - sent_at[number])
                assert expected in answer, f"not the answer that was expected: {bytes(answer[:600])!r}"
                send_next(number)
    seconds = (time.monotonic_ns() - began) / _NANOSECONDS
    poll.close()
    for dialed in sockets.values():
        dialed.close()
    return Run(seconds, sorted(took))
