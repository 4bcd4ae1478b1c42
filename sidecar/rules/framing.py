"""Length-prefixed framing, as bytes in and frames out.

`FrameSplitter` knows nothing of sockets or time: it is fed what arrived and
says what comes next. It never holds a buffer for a frame that is too large,
and it gives one frame at a time, so that the caller decides it before the
next is looked at. Source: CONTRACT section 1.
"""

from __future__ import annotations

import struct
from typing import Final

PREFIX_BYTES: Final = 4
FRAME_BYTES_LIMIT: Final = 2**24 - 1  # so the first byte of every frame is zero
SOCKET_PATH_BYTES_MAX: Final = 107  # what the kernel takes: sun_path holds 108 with its closing NUL

_PREFIX: Final = struct.Struct(">I")


class FrameSize(ValueError):
    """A length that no frame can have: the stream can't be followed any further."""


class FrameTooLarge(FrameSize):
    """A length above the bound that a frame could have."""


class FrameSplitter:
    """Splits a byte stream into frames; any split of the stream gives the same frames.

    `feed` takes bytes in; `next_frame` gives the next whole frame without its
    prefix, None while more bytes are needed, and raises FrameSize for a
    length of 0 or above the bound.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        assert 0 < frame_bytes_max <= FRAME_BYTES_LIMIT
        self.frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()
        self._wanted: int | None = None  # of the frame that has begun, once its prefix is whole

    def feed(self, received: bytes | bytearray) -> None:
        self._buffer += received

    def only_frame(self, received: bytes) -> bytes | None:
        """The frame that these bytes are, if they are just one and none has begun; else None, and nothing is fed."""
        if self._buffer or len(received) <= PREFIX_BYTES:
            return None
        wanted = len(received) - PREFIX_BYTES
        if wanted > self.frame_bytes_max or _PREFIX.unpack_from(received)[0] != wanted:
            return None
        return received[PREFIX_BYTES:]

    @property
    def in_frame(self) -> bool:
        """Whether a frame has begun that is not whole yet or not taken yet."""
        return bool(self._buffer)

    def wanted_bytes(self) -> int | None:
        """The declared length of the frame that has begun; None until its prefix is whole; may raise FrameSize."""
        if self._wanted is None and self._buffer:
            self._wanted = self._declared()
        return self._wanted

    def whole_bytes(self) -> int | None:
        """The length of the frame that `next_frame` has to give; None while there is none; may raise FrameSize."""
        wanted = self.wanted_bytes()
        return wanted if wanted is not None and len(self._buffer) >= PREFIX_BYTES + wanted else None

    def next_frame(self) -> bytes | None:
        wanted = self.whole_bytes()
        if wanted is None:
            return None
        end = PREFIX_BYTES + wanted
        with memoryview(self._buffer) as buffer:
            frame = bytes(buffer[PREFIX_BYTES:end])
        del self._buffer[:end]
        self._wanted = None
        return frame

    def _declared(self) -> int | None:
        buffer = self._buffer
        if buffer[0] != 0:
            raise FrameSize(self._stray(buffer[0]))
        if len(buffer) < PREFIX_BYTES:
            return None
        length = int(_PREFIX.unpack_from(buffer)[0])
        if not 0 < length <= self.frame_bytes_max:
            fault = FrameTooLarge if length else FrameSize
            raise fault(f"a frame of {length} bytes; 1 to {self.frame_bytes_max} are taken")
        return length

    def _stray(self, first: int) -> str:
        known = {0x16: "this looks like TLS", **dict.fromkeys(b"GHPODCT", "this looks like HTTP")}
        hint = known.get(first, "the first byte of a frame's length is always zero")
        return f"{hint}; send a 4-byte big-endian length of at most {self.frame_bytes_max} and one MessagePack map"


def framed(encoded: bytes) -> bytes:
    """The bytes that go over the socket for one encoded value."""
    assert 0 < len(encoded) <= FRAME_BYTES_LIMIT
    return len(encoded).to_bytes(PREFIX_BYTES, "big") + encoded
