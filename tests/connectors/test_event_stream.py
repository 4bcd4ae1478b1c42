"""The event-stream parser: any split of the bytes gives the same events, and nothing becomes other text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.connectors.event_stream import Event, EventStream, StreamFault

SMALL = {"line_bytes_max": 60, "event_bytes_max": 100}


def parsed(*pieces: bytes, line_bytes_max: int = 10_000, event_bytes_max: int = 10_000) -> list[Event | StreamFault]:
    stream = EventStream(line_bytes_max=line_bytes_max, event_bytes_max=event_bytes_max)
    events = [event for piece in pieces for event in stream.feed(piece)]
    return events + stream.close()


def byte_by_byte(whole: bytes, **bounds: int) -> list[Event | StreamFault]:
    return parsed(*(whole[at : at + 1] for at in range(len(whole))), **bounds)


LINES = st.sampled_from(
    [
        b"data: one", b"data:two", b"data", b"data:", b"data:  spaced", b"event: named", b": comment", b":", b"id: 7",
        b"", b"", b'data: {"a":1}', "data: 北京🙂".encode(), b"data: \xff\xfe", "data: a\u2028b\x0bc\x85d".encode(),
        b"unknown: x", b"data: " + b"x" * 55, b"retry: 5", b"\xef\xbb\xbfdata: bom",
    ]
)  # fmt: skip
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=12).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


@given(STREAMS, st.data())
def test_any_split_gives_the_same_events_and_the_same_fault(whole: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert parsed(*pieces, **SMALL) == parsed(whole, **SMALL)


_TAIL = st.sampled_from([b"\n\n", b"\n", b"\r\n\r\n", b"\n\r\n", b"\r\r", b"\n\n\n", b""])
_BLOCK = st.tuples(
    st.sampled_from([b"", b"event: named\n", b"event:named\n", b"event: \xff\n", b": c\n"]), LINES, _TAIL
)


@given(st.lists(_BLOCK.map(b"".join), max_size=5))
def test_events_that_arrive_one_by_one_are_what_their_bytes_are(arrived: list[bytes]) -> None:
    assert parsed(*arrived, **SMALL) == byte_by_byte(b"".join(arrived), **SMALL)


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1), min_size=1))
def test_every_text_comes_back_as_it_was_sent(texts: list[str]) -> None:
    whole = "".join(f"data: {text}\n\n" for text in texts).encode()
    assert parsed(whole) == [Event(text) for text in texts]


@given(st.binary(max_size=300))
def test_no_bytes_at_all_raise_and_a_fault_is_always_last(whole: bytes) -> None:
    events = parsed(whole, **SMALL)
    assert all(isinstance(event, Event) for event in events[:-1])


def test_e1_crlf_split_over_chunks_makes_no_phantom_blank_line() -> None:
    assert byte_by_byte(b"data: a\r\ndata: b\r\n\r\n") == [Event("a\nb")]


def test_e3_utf8_split_at_every_point_gives_the_same_string() -> None:
    document = '{"t":"北京🙂"}'
    whole = f"data: {document}\n\n".encode()
    for cut in range(len(whole) + 1):
        assert parsed(whole[:cut], whole[cut:]) == [Event(document)]
    assert json.loads(document)["t"] == "北京🙂"


def test_e4_comments_before_between_and_after_events_are_ignored() -> None:
    comment = b": OPENROUTER PROCESSING\n\n"
    assert parsed(comment, b'data: {"a":1}\n\n', comment, b"data: 2\n", comment[:-1], b"\n", comment) == [
        Event('{"a":1}'),
        Event("2"),
    ]


def test_e5_empty_data_and_doubled_colons_are_given_as_they_are() -> None:
    assert parsed(b"data:\n\ndata\n\ndata: : keepalive\n\n") == [Event(""), Event(""), Event(": keepalive")]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_each_line_end_ends_a_line(end: bytes) -> None:
    whole = end.join([b"event: ping", b"data: 1", b"data: 2", b"", b""])
    assert parsed(whole) == byte_by_byte(whole) == [Event("1\n2", "ping")]


def test_nothing_else_ends_a_line() -> None:
    text = "a\u2028b\u2029c\x0bd\x0ce\x1cf\x85g"
    assert parsed(f"data: {text}\n\n".encode()) == [Event(text)]


def test_one_space_behind_the_colon_is_dropped_and_no_more() -> None:
    assert parsed(b"data:  two\ndata:none\ndata:\tt\n\n") == [Event(" two\nnone\n\tt")]


def test_a_byte_order_mark_counts_only_at_the_very_start() -> None:
    mark = b"\xef\xbb\xbf"
    assert byte_by_byte(mark + b"data: 1\n\n" + mark + b"data: 2\n\n") == [Event("1")]


def test_an_event_name_lasts_for_one_event() -> None:
    assert parsed(b"event: error\ndata: 1\n\ndata: 2\n\nevent: lost\n\ndata: 3\n\n") == [
        Event("1", "error"),
        Event("2"),
        Event("3"),
    ]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_last_event_without_its_blank_line_is_given_if_it_is_whole_json(end: bytes) -> None:
    assert parsed(b'data: {"usage":1}' + end) == [Event('{"usage":1}')]


@pytest.mark.parametrize("cut", [b'data: {"usage":', b"data: [DONE", b"data: [DONE]", 'data: {"t":"北'.encode()[:-1]])
def test_a_last_event_that_is_no_whole_json_is_dropped(cut: bytes) -> None:
    assert parsed(b"data: 1\n\n" + cut) == [Event("1")]


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"])
def test_bytes_that_are_not_utf8_are_a_fault_behind_what_came_before(bad: bytes) -> None:
    events = parsed(b"data: 1\n\ndata: " + bad + b"\n\ndata: 3\n\n")
    assert events[0] == Event("1")
    assert isinstance(events[1], StreamFault)
    assert "UTF-8" in events[1].why
    assert len(events) == 2


def test_a_line_at_its_bound_passes_and_one_byte_more_is_a_fault() -> None:
    at_bound = b"data: " + b"x" * 54
    assert parsed(at_bound + b"\n\n", **SMALL) == [Event("x" * 54)]
    fault = StreamFault("a line of more than 60 bytes", is_too_large=True)
    assert parsed(at_bound + b"x\n\n", **SMALL) == [fault]
    assert parsed(at_bound + b"x", **SMALL) == [fault], "also before its end has come"


def test_an_event_at_its_bound_passes_and_one_byte_more_is_a_fault() -> None:
    lines = b"data: " + b"x" * 49 + b"\ndata: " + b"y" * 50
    assert parsed(lines + b"\n\n", **SMALL) == [Event("x" * 49 + "\n" + "y" * 50)]
    assert parsed(lines + b"\ndata:\n\n", **SMALL) == [
        StreamFault("an event of more than 100 bytes", is_too_large=True)
    ]


def test_after_a_fault_nothing_is_kept() -> None:
    stream = EventStream(**SMALL)
    assert len(stream.feed(b"x" * 100)) == 1
    assert stream.feed(b"data: 1\n\n" + b"x" * 100) == stream.close() == []
