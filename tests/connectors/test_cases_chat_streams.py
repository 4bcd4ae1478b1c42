"""The field's cases of section E: each from a provider's bytes on a socket to the receipt and the charge."""

from __future__ import annotations

import json

import pytest
from kit import build
from kit.chat_road import (
    DONE,
    USED,
    USED_COST,
    called,
    chat_road,
    chunk,
    finished,
    one_piece_a_byte,
    said,
    told,
)
from kit.stub_http import Reply, chunked, head, whole

CHARGED = -(-USED_COST // 1_000_000)


async def test_e1_crlf_split_over_chunks_joins_the_data_lines_of_one_event() -> None:
    event = b'data: {"choices":[{"index":0,"delta":\r\ndata: {"content":"a\\nb"}}]}\r\n\r\n'
    answer = await told(one_piece_a_byte(event + finished().replace(b"\n", b"\r\n")))
    assert (answer.word, answer.text, answer.charge) == ("end_turn", "a\nb", CHARGED)


async def test_e3_text_split_at_every_byte_is_the_same_string() -> None:
    literal = '{"t":"北京🙂"}'
    event = (
        b"data: " + json.dumps({"choices": [{"delta": {"content": literal}}]}, ensure_ascii=False).encode() + b"\n\n"
    )
    first = event.index("北".encode())
    cuts = range(first - 1, first + len("北京🙂".encode()) + 2)
    replies = [chunked(event[:cut], event[cut:], finished()) for cut in cuts]
    async with chat_road(lambda count: replies[count - 1]) as chat:
        for at in range(len(replies)):
            assert (await chat.ask(request_id=f"r{at}")).text == literal
    assert (await told(one_piece_a_byte(event + finished()))).text == literal


async def test_e4_comments_before_between_and_after_events_are_ignored() -> None:
    comment = b": OPENROUTER PROCESSING\n\n"
    inside = b": OPENROUTER PROCESSING\n" + said("there")
    answer = await told(comment + said("Hi ") + comment + comment + inside + comment + finished() + comment)
    assert (answer.word, answer.text, answer.charge) == ("end_turn", "Hi there", CHARGED)


@pytest.mark.parametrize("alive", [b"data: : keepalive\n\n", b"data:\n\n", b"data: \n\n"])
async def test_e5_empty_data_and_a_keepalive_in_data_are_ignored(alive: bytes) -> None:
    answer = await told(alive + said("Hi") + alive + chunk(None, "stop") + alive + chunk(usage=USED) + alive + DONE)
    assert (answer.word, answer.text, answer.charge) == ("end_turn", "Hi", CHARGED)


@pytest.mark.parametrize("nonsense", [b"ping", b"keepalive", b"{"])
async def test_e5_other_data_that_is_no_json_is_a_provider_failure_at_the_whole_reservation(nonsense: bytes) -> None:
    answer = await told(said("Hi") + b"data: " + nonsense + b"\n\n" + finished())
    assert (answer.word, answer.usage, answer.charge) == ("provider", None, answer.reservation)


OVERLOADED = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'


async def test_e6_an_overloaded_error_behind_text_is_unavailable_and_costs_the_reservation() -> None:
    answer = await told(said("Part") + OVERLOADED)
    assert (answer.word, answer.message) == ("unavailable", "Overloaded")
    assert (answer.usage, answer.charge) == (None, answer.reservation)
    assert answer.text == "Part", "kept as an event of a failure, and no turn"
    assert "Completed" not in answer.receipt["outcome"]


async def test_e6_an_error_with_usage_costs_the_usage_that_it_reports() -> None:
    with_usage = OVERLOADED.replace(b'{"type":"error",', b'{"usage":' + json.dumps(USED).encode() + b',"type":"error",')
    answer = await told(said("Part") + with_usage)
    assert (answer.word, answer.charge) == ("unavailable", CHARGED)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ('{"error":{"code":429}}', "rate_limited"),
        ('{"id":"x","choices":null}', "provider"),
        ('{"choices":null}', "provider"),
        ('{"choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"error"}]}', "unavailable"),
        ('data: {"error":{"code":429}}\n\n', "rate_limited"),
        ('data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"error"}]}\n\n', "unavailable"),
    ],
)
async def test_e8_a_200_that_carries_an_error_is_a_failure_at_the_whole_reservation(body: str, word: str) -> None:
    for content_type in ("application/json", "text/event-stream"):
        answer = await told(whole(body, content_type=content_type))
        assert (answer.word, answer.usage, answer.charge) == (word, None, answer.reservation)


async def test_e9_an_error_of_null_in_every_event_is_none() -> None:
    stream = chunk({"content": "Hi"}, error=None) + chunk(None, "stop", error=None, usage=USED) + DONE
    assert (await told(stream)).word == "end_turn"
    message = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": USED, "error": None}
    assert (await told(whole(json.dumps(message)))).word == "end_turn"


async def test_e10_a_stream_that_is_cut_anywhere_before_its_finish_reason_never_ends_a_turn() -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": "{}"}}
    before = said("The answer is") + called(call)
    finish = chunk(None, "stop")
    cuts = [0, 5, *(at for at in range(1, len(before)) if at % 23 == 0), len(before), len(before) + len(finish) - 3]
    replies = [chunked(*filter(None, [(before + finish)[:cut]])) for cut in cuts]
    async with chat_road(lambda count: replies[count - 1]) as chat:
        for at in range(len(cuts)):
            answer = await chat.ask(request_id=f"r{at}")
            assert (answer.word, answer.usage, answer.calls) == ("unavailable", None, []), cuts[at]
            assert answer.charge == answer.reservation
    answer = await told(chunked(before, finish, chunk(usage=USED)))
    assert (answer.word, answer.charge) == ("tool_use", CHARGED), "the same, whole"


async def test_e10_done_without_a_finish_reason_is_no_end_of_a_turn() -> None:
    answer = await told(said("The answer") + chunk(usage=USED) + DONE)
    assert (answer.word, answer.usage, answer.charge) == ("unavailable", None, answer.reservation)


def frame_of(length: int) -> bytes:
    """A frame of exactly so many bytes; the digests in it take a byte more or less each, whatever the text."""
    frames = (build.frame(build.request(build.text("x" * words))) for words in range(length - 800, length))
    return next(frame for frame in frames if len(frame) == length)


async def test_e12_a_request_at_the_payload_bound_is_sent_and_one_byte_more_reserves_and_sends_nothing() -> None:
    async with chat_road(chunked(said("Hi"), finished())) as chat:
        assert chat.road.refusal(frame_of(20_001)) == "PayloadBound"
        assert (chat.road.ledger.begins, chat.stub.requests) == ([], [])
        assert (await chat.ask(frame=frame_of(20_000))).word == "end_turn"
        assert len(chat.stub.requests) == 1


@pytest.mark.parametrize("many", [said("x" * 1000), b": alive\n\n" * 3000], ids=["answer", "raw body"])
async def test_e12_a_response_over_its_limit_is_result_size_and_drops_the_connection(many: bytes) -> None:
    reply = chunked(*[many] * 1000, ends=False, then="hang")
    async with chat_road(reply, response_bytes_max=30_000) as chat:
        answer = await chat.ask()
        assert (answer.word, answer.usage, answer.charge) == ("result_size", None, answer.reservation)
        assert (answer.text, answer.calls) == ("", [])
        await chat.stub.gone.wait()


@pytest.mark.parametrize(
    "pieces", [(), (head(),), chunked(said("Hi"), ends=False).pieces], ids=["never answers", "headers", "body"]
)
async def test_e14_a_silent_provider_is_a_timeout_by_the_deadline_in_every_phase(pieces: tuple[bytes, ...]) -> None:
    async with chat_road(Reply(pieces, "hang"), time_limit=0.25) as chat:
        answer = await chat.ask()
        assert (answer.word, answer.usage, answer.charge) == ("timeout", None, answer.reservation)
        await chat.stub.gone.wait()
        assert len(chat.stub.requests) == 1
