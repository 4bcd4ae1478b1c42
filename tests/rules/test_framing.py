"""Frames out of a byte stream, however it is split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.rules.framing import FRAME_BYTES_LIMIT, FrameSize, FrameSplitter, framed

FRAME_BYTES_MAX = 300


def split_into_frames(pieces: list[bytes]) -> list[bytes]:
    splitter = FrameSplitter(FRAME_BYTES_MAX)
    frames = []
    for piece in pieces:
        only = splitter.only_frame(piece)
        if only is not None:
            frames.append(only)
            continue
        splitter.feed(piece)
        while (frame := splitter.next_frame()) is not None:
            frames.append(frame)
    return frames


@given(st.lists(st.binary(min_size=1, max_size=FRAME_BYTES_MAX), max_size=6), st.data())
def test_any_split_of_the_stream_gives_the_same_frames(frames: list[bytes], draw: st.DataObject) -> None:
    stream = b"".join(map(framed, frames))
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert split_into_frames(pieces) == frames
    assert split_into_frames([stream[at : at + 1] for at in range(len(stream))]) == frames


def test_a_frame_that_comes_alone_and_whole_is_taken_as_it_is_and_nothing_else_is() -> None:
    splitter = FrameSplitter(FRAME_BYTES_MAX)
    assert splitter.only_frame(framed(b"whole")) == b"whole"
    largest = bytes(FRAME_BYTES_MAX)
    assert splitter.only_frame(framed(largest)) == largest
    for other in (b"", bytes(3), bytes(4), framed(b"cut short")[:-1], framed(b"a") + b"\0", framed(largest + b"\0")):
        assert splitter.only_frame(other) is None
        assert not splitter.in_frame, "what is refused is not kept"
    splitter.feed(framed(b"begun")[:5])
    assert splitter.only_frame(framed(b"egun")) is None, "these bytes belong to the frame that has begun"


@pytest.mark.parametrize(
    ("received", "hint"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"POST", "HTTP"),
        (b"\x16\x03\x01", "TLS"),
        (b"\x81\xa1", "first byte"),
        (bytes(4), "0 bytes"),
        ((FRAME_BYTES_MAX + 1).to_bytes(4, "big"), "301 bytes"),
    ],
)
def test_a_length_that_no_frame_has_is_told_from_its_first_bytes(received: bytes, hint: str) -> None:
    splitter = FrameSplitter(FRAME_BYTES_MAX)
    splitter.feed(received)
    with pytest.raises(FrameSize, match=hint):
        splitter.next_frame()


def test_a_stray_client_is_recognised_from_one_byte() -> None:
    splitter = FrameSplitter(FRAME_BYTES_MAX)
    splitter.feed(b"G")
    with pytest.raises(FrameSize):
        splitter.wanted_bytes()


def test_the_largest_frame_still_begins_with_a_zero() -> None:
    assert FRAME_BYTES_LIMIT.to_bytes(4, "big")[0] == 0


@pytest.mark.parametrize("length", [1, FRAME_BYTES_MAX])
def test_both_bounds_of_a_length_are_taken(length: int) -> None:
    splitter = FrameSplitter(FRAME_BYTES_MAX)
    splitter.feed(framed(b"x" * length))
    assert splitter.wanted_bytes() == length
    assert splitter.next_frame() == b"x" * length
    assert not splitter.in_frame


@pytest.mark.parametrize("length", [0, FRAME_BYTES_MAX + 1, FRAME_BYTES_LIMIT])
def test_a_length_that_no_frame_has_is_refused_before_any_of_its_bytes_came(length: int) -> None:
    splitter = FrameSplitter(FRAME_BYTES_MAX)
    splitter.feed(length.to_bytes(4, "big"))
    with pytest.raises(FrameSize, match=f"{length} bytes"):
        splitter.next_frame()


def test_an_oversize_frame_behind_a_sound_one_is_refused_when_its_turn_comes() -> None:
    splitter = FrameSplitter(FRAME_BYTES_MAX)
    splitter.feed(framed(b"first") + b"\x00\xff\xff\xff")
    assert splitter.next_frame() == b"first"
    with pytest.raises(FrameSize):
        splitter.next_frame()


def test_a_frame_has_begun_from_its_first_byte_until_it_is_taken() -> None:
    splitter = FrameSplitter(FRAME_BYTES_MAX)
    begun = []
    for byte in framed(b"ab"):
        begun.append(splitter.in_frame)
        splitter.feed(bytes([byte]))
        assert splitter.in_frame
    assert begun == [False, True, True, True, True, True]
    assert splitter.next_frame() == b"ab"
    assert not splitter.in_frame
    assert splitter.next_frame() is None
    assert splitter.wanted_bytes() is None


@given(st.binary(max_size=60))
def test_any_bytes_give_frames_or_more_wanted_or_one_refusal(received: bytes) -> None:
    splitter = FrameSplitter(FRAME_BYTES_MAX)
    splitter.feed(received)
    taken = b""
    try:
        while (frame := splitter.next_frame()) is not None:
            taken += framed(frame)
    except FrameSize:
        with pytest.raises(FrameSize):
            splitter.next_frame()
    assert received.startswith(taken)
