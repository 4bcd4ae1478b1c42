"""The recorded connector: what is kept of an exchange, what answers it again, and what never gets into a file."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from kit import build
from kit.connector_cases import CALL, CONNECTORS, TEXT, USED, Made
from kit.recorded_cases import recorded_in, recordings_in

from sidecar.connectors import recorded as module
from sidecar.connectors import recorded_directory
from sidecar.connectors.promise import Answer, Connector, Ended, Lowered, Rejected, ResponseTooLarge
from sidecar.connectors.recorded import Recorded
from sidecar.connectors.recorded_directory import Recordings
from sidecar.connectors.recorded_format import RecordedText, digests, pieces_of
from sidecar.connectors.script import Rule, ScriptedCall, ScriptedFailure
from sidecar.connectors.scripted import Scripted
from sidecar.contract import canonical
from sidecar.contract import values as v
from sidecar.ops.log import Log

RESPONSE_BYTES_MAX = 50_000
SAYS = Rule(deltas=TEXT, usage=USED)
CALLS = Rule(reasoning=("hm",), deltas=TEXT, calls=(ScriptedCall(CALL[1], CALL[2], CALL[0]),), usage=USED)
LIMITED = Rule(deltas=TEXT, fail=ScriptedFailure("rate_limited", "slow down (the provider asks to wait 3 s)"))


class NeverAsked(Scripted):
    """Only lowers."""

    def at_once(self, lowered: Lowered, answer: Answer) -> bool:
        raise AssertionError("it was asked")


class Counted(Scripted):
    """Says what it was asked last; a script of its own may be put in its place."""

    def __init__(self, *rules: Rule) -> None:
        super().__init__(rules)
        self.asked = 0

    def at_once(self, lowered: Lowered, answer: Answer) -> bool:
        self.asked += 1
        return super().at_once(lowered, answer)


class Told(Scripted):
    """Answers with whatever it is given to do with the Answer."""

    def __init__(self, tell: Any) -> None:
        super().__init__()
        self._tell = tell

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        answer.sent = True
        self._tell(answer)


async def asked(
    connector: Connector, request: v.ProviderRequest | None = None, heard: list[v.TransportEventPayload] | None = None
) -> Answer:
    lowered = connector.lower(request or build.request(), "tiny")
    on_event = None if heard is None else lambda _, payload: heard.append(payload)
    answer = Answer(lowered.call_ids, RESPONSE_BYTES_MAX, lowered.notes, on_event=on_event)
    await connector.exchange(lowered, answer)
    return answer


def text_of(answer: Answer) -> str:
    return "".join(event.text_delta.text for event in answer.events() if event.text_delta)


def end(answer: Answer) -> Ended:
    assert answer.ended is not None
    return answer.ended


def told(answer: Answer) -> tuple[Any, ...]:
    return answer.ended, answer.events(), answer.sent, tuple(answer.notes)


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def replaying(directory: Path) -> Recorded:
    return recorded_in(directory, NeverAsked(), "replay")


@asynccontextmanager
async def served(connector: Recorded) -> AsyncIterator[io.StringIO]:
    """Its log."""
    log = io.StringIO()
    async with trio.open_nursery() as nursery:
        await nursery.start(connector.serve, Log(log, "text"))
        yield log
        nursery.cancel_scope.cancel()


# --- what is kept ------------------------------------------------------------------------------------------------


async def test_an_exchange_is_one_file_that_a_person_reads(tmp_path: Path) -> None:
    request = build.request(build.text("Who goes there?"), instructions="Be brief.")
    await asked(recorded_in(tmp_path / "kept", Scripted((CALLS,)), "record"), request)
    digest = bytes(canonical.digest(canonical.encode(request))).hex()
    [file] = (tmp_path / "kept").iterdir()
    assert file.name == f"{digest}.json"
    assert file.read_text().startswith('{\n  "format": "sidecar.recording.v1",\n')
    assert json.loads(file.read_text()) == {
        "format": "sidecar.recording.v1",
        "provider_request_sha256": digest,
        "without_ids_sha256": digests(request).without_ids,
        "kind": "scripted",
        "upstream": "tiny",
        "recorded_at": "2026-09-21T14:13:20Z",
        "request": {
            "conversation_id": "conversation-1",
            "input": [{"UserText": {"text": "Who goes there?"}}],
            "instructions": "Be brief.",
            "max_output_tokens": 100,
            "model": "npc",
            "parallel_tool_calls": False,
            "request_id": "request-1",
            "schema_id": v.PROVIDER_REQUEST,
            "tool_choice": "auto",
            "tools": [],
        },
        "events": [
            {"ReasoningState": {"state": "eyJrIjogInNjcmlwdGVkIiwgIm0iOiAidGlueSIsICJ0IjogImhtIiwgInYiOiAxfQ=="}},
            {"TextDelta": {"text": "Hello there", "pieces": "5 6"}},
            {"ToolCall": {"call_id": CALL[0], "name": CALL[1], "arguments": CALL[2]}},
        ],
        "end": {
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 11, "cache_read_tokens": 0, "cache_write_tokens": 0, "output_tokens": 3},
            "provider_response_id": "scripted-request-1",
        },
        "sent": True,
        "notes": [],
    }  # fmt: skip


async def test_recordings_are_for_their_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "deep/kept"
    await asked(recorded_in(directory, Scripted((SAYS,)), "record"))
    assert directory.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in directory.iterdir()] == [0o600]


@pytest.mark.parametrize("rule", [SAYS, CALLS, LIMITED, Rule(), Rule(deltas=("x",), usage="absent")])
async def test_what_is_replayed_is_what_was_answered(tmp_path: Path, rule: Rule) -> None:
    live: list[v.TransportEventPayload] = []
    again: list[v.TransportEventPayload] = []
    answer = await asked(recorded_in(tmp_path, Scripted((rule,)), "record"), heard=live)
    replayed = await asked(replaying(tmp_path), heard=again)
    assert told(replayed) == told(answer)
    assert again == live, "in the same pieces"


@pytest.mark.parametrize("behaviour", ["text", "calls", "fails"])
@pytest.mark.parametrize("made", [CONNECTORS[name] for name in CONNECTORS if not name.startswith("recorded")])
async def test_what_any_kind_has_answered_can_be_replayed(tmp_path: Path, made: Made, behaviour: str) -> None:
    async with made(behaviour) as wrapped:
        answer = await asked(recorded_in(tmp_path, wrapped, "record"))
        lowering_alone = recorded_in(tmp_path, wrapped, "replay")
    assert told(await asked(lowering_alone)) == told(answer)


async def test_notes_response_ids_and_claims_come_again(tmp_path: Path) -> None:
    def tell(answer: Answer) -> None:
        answer.note("cache_kept_longer")
        answer.tool_call("", "look", "")
        answer.complete("tool_use", USED, "msg_1", claimed_cost_micro_usd=17)

    answer = await asked(recorded_in(tmp_path, Told(tell), "record"))
    replayed = await asked(replaying(tmp_path))
    assert told(replayed) == told(answer)
    assert end(replayed).claimed_cost_micro_usd == 17
    assert replayed.notes == ["cache_kept_longer", "call_id_replaced"]


async def test_a_call_id_that_the_request_holds_by_now_is_replaced_as_it_is_live(tmp_path: Path) -> None:
    await asked(recorded_in(tmp_path, Scripted((CALLS,)), "record"))
    [file] = tmp_path.iterdir()
    request = build.request(build.text("go"), build.call(CALL[0]), build.result(CALL[0]))
    of_request = digests(request)
    recording = {
        **json.loads(file.read_text()),
        "request": json.loads(msgspec.json.encode(request)),
        "provider_request_sha256": of_request.exact,
        "without_ids_sha256": of_request.without_ids,
    }
    (tmp_path / f"{of_request.exact}.json").write_text(json.dumps(recording))
    answer = await asked(replaying(tmp_path), request)
    [call] = [event.tool_call for event in answer.events() if event.tool_call]
    assert call.call_id != CALL[0]
    assert answer.notes == ["call_id_replaced"]


async def test_what_our_own_bounds_made_of_an_answer_is_not_kept(tmp_path: Path) -> None:
    connector = recorded_in(tmp_path, Scripted((Rule(deltas=("many ",), repeat=20_000),)), "record")
    with pytest.raises(ResponseTooLarge):
        await asked(connector)
    assert files_in(tmp_path) == []


async def test_that_nobody_was_there_is_not_kept(tmp_path: Path) -> None:
    rule = Rule(fail=ScriptedFailure("unavailable", "nobody is there"), nothing_sent=True)
    assert end(await asked(recorded_in(tmp_path, Scripted((rule,)), "record"))).kind == "unavailable"
    assert files_in(tmp_path) == []


async def test_a_request_that_was_cut_off_is_not_kept(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    connector = recorded_in(tmp_path, Scripted((Rule(deltas=TEXT, hang=True),)), "record")
    with trio.move_on_after(1):
        await asked(connector)
    assert files_in(tmp_path) == []


async def test_an_answer_that_ended_before_it_was_cut_off_is_kept(tmp_path: Path) -> None:
    scope = trio.CancelScope()

    def tell(answer: Answer) -> None:
        answer.text("just in time")
        answer.complete("end_turn", USED)
        scope.cancel()

    class Closes(Told):
        async def exchange(self, lowered: Lowered, answer: Answer) -> None:
            await super().exchange(lowered, answer)
            await trio.sleep_forever()

    with scope:
        await asked(recorded_in(tmp_path, Closes(tell), "record"))
    assert scope.cancelled_caught
    assert text_of(await asked(replaying(tmp_path))) == "just in time"


async def test_a_failure_takes_no_recording_s_place_and_an_answer_does(tmp_path: Path) -> None:
    for rule in (LIMITED, SAYS, LIMITED, Rule(deltas=("newer",), usage=USED)):
        await asked(recorded_in(tmp_path, Scripted((rule,)), "record"))
        if rule is LIMITED:
            continue
        assert text_of(await asked(replaying(tmp_path))) == "".join(rule.deltas or ())
    assert len(files_in(tmp_path)) == 1


async def test_many_that_record_the_same_leave_one_whole_file(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(asked, recorded_in(tmp_path / "kept", Scripted((SAYS,)), "record"))
    assert len(recordings_in(tmp_path / "kept")) == len(files_in(tmp_path / "kept")) == 1


# --- an answer that can't be kept --------------------------------------------------------------------------------


async def test_an_answer_that_can_not_be_written_stands_and_the_log_says_so(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file where the directory should be")
    connector = recorded_in(tmp_path / "kept", Scripted((SAYS,)), "record")
    async with served(connector) as log:
        assert end(await asked(connector)).stop_reason == "end_turn"
    assert "error not_recorded connector=kept" in log.getvalue()


async def test_a_write_that_breaks_off_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorded_directory.os, "fsync", no_room)
    connector = recorded_in(tmp_path, Scripted((SAYS,)), "record")
    async with served(connector) as log:
        assert end(await asked(connector)).stop_reason == "end_turn"
    assert "No space left on device" in log.getvalue()
    assert files_in(tmp_path) == []


async def test_a_disk_that_does_not_answer_holds_up_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = threading.Event()
    monkeypatch.setattr(recorded_directory.os, "fsync", lambda _: disk.wait(60))
    monkeypatch.setattr(module, "_WRITE_SECONDS_MAX", 0.01)
    connector = recorded_in(tmp_path, Scripted((SAYS,)), "record")
    async with served(connector) as log:
        assert end(await asked(connector)).stop_reason == "end_turn"
        disk.set()
    assert "the disk has not taken it within 0.01 s" in log.getvalue()


async def test_no_more_are_written_than_can_be_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_directory, "RECORDINGS_MAX", 1)
    connector = recorded_in(tmp_path, Scripted((SAYS,)), "record")
    async with served(connector) as log:
        for request_id in ("a", "b", "a"):
            await asked(connector, build.request(request_id=request_id))
    assert len(files_in(tmp_path)) == 1
    assert log.getvalue().count("error not_recorded") == 1


# --- what is found -----------------------------------------------------------------------------------------------


async def test_in_replay_nothing_is_sent_and_refusals_drops_and_notes_are_those_of_live(tmp_path: Path) -> None:
    request = build.request(build.text(), build.state(opaque=b"not ours"))
    live = recorded_in(tmp_path, Scripted((SAYS,)), "record")
    await asked(live, request)
    connector = replaying(tmp_path)
    lowered = connector.lower(request, "tiny")
    assert (lowered.states_dropped, lowered.call_ids, lowered.notes) == (1, frozenset(), ())
    assert text_of(await asked(connector, request)) == "Hello there"
    with pytest.raises(Rejected, match="nothing is left of the input"):
        connector.lower(build.request(build.state(opaque=b"not ours")), "tiny")


def test_an_unknown_request_is_rejected_with_its_digest_the_way_out_and_the_directory(tmp_path: Path) -> None:
    request = build.request()
    with pytest.raises(Rejected) as rejected:
        replaying(tmp_path).lower(request, "tiny")
    why = str(rejected.value)
    assert why == (
        f'no recording {digests(request).exact}; connector kept makes one with mode = "record" or "both"; in {tmp_path}'
    )
    assert len(why) - len(str(tmp_path)) <= 150, "so that a line of the log holds it"


async def test_fresh_ids_find_the_first_answer_that_was_recorded(tmp_path: Path) -> None:
    for at_ms, (name, rule) in enumerate([
        ("failed", LIMITED), ("z", Rule(deltas=("first",), usage=USED)), ("a", Rule(deltas=("second",), usage=USED)),
    ]):  # fmt: skip
        connector = recorded_in(tmp_path, Scripted((rule,)), "record", at_ms=at_ms)
        await asked(connector, build.request(request_id=name, conversation_id=f"of-{name}"))
    for directory_read in range(2):
        answer = await asked(replaying(tmp_path), build.request(request_id=f"fresh-{directory_read}"))
        assert text_of(answer) == "first"
    exact = build.request(request_id="a", conversation_id="of-a")
    assert text_of(await asked(replaying(tmp_path), exact)) == "second"
    failed = build.request(request_id="failed", conversation_id="of-failed")
    assert end(await asked(replaying(tmp_path), failed)).kind == "rate_limited"


async def conversation(connector: Recorded, name: str) -> list[v.InputItem]:
    """Three turns, each with a call, in requests whose ids are those of this name."""
    items = [build.text("go")]
    for turn in range(3):
        request = build.request(*items, request_id=f"{name}-{turn}", conversation_id=name)
        for event in (await asked(connector, request)).events():
            if event.text_delta:
                items.append(build.said(event.text_delta.text))
            elif event.tool_call:
                call = event.tool_call
                items += [build.call(call.call_id, call.name, call.arguments), build.result(call.call_id)]
            elif event.reasoning_state:
                items.append(build.state("kept", "tiny", event.reasoning_state.state))
    return items


async def test_a_whole_conversation_is_found_again_by_fresh_ids(tmp_path: Path) -> None:
    live = await conversation(recorded_in(tmp_path, Scripted((CALLS,)), "record"), "live")
    assert await conversation(replaying(tmp_path), "fresh") == live
    assert len({item.tool_call.call_id for item in live if item.tool_call}) == 3


async def test_another_model_s_or_kind_s_recording_answers_nothing_and_is_named(tmp_path: Path) -> None:
    await asked(recorded_in(tmp_path, Scripted((SAYS,)), "record"))
    with pytest.raises(Rejected, match="is of tiny by scripted, not large by scripted; connector kept makes one"):
        replaying(tmp_path).lower(build.request(), "large")
    with pytest.raises(Rejected, match="is of tiny by scripted, not tiny by gemini"):
        recorded_in(tmp_path, NeverAsked(), "replay", kind="gemini").lower(build.request(), "tiny")


async def test_a_file_that_has_gone_since_fails_unsent_and_unpaid(tmp_path: Path) -> None:
    await asked(recorded_in(tmp_path, Scripted((SAYS,)), "record"))
    connector = replaying(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    async with served(connector) as log:
        answer = await asked(connector)
    assert (end(answer).kind, end(answer).usage, answer.sent) == ("unavailable", v.NOTHING_USED, False)
    assert "can't be read: No such file or directory; nothing was sent" in end(answer).message
    assert "error recording_unusable" in log.getvalue()


# --- both --------------------------------------------------------------------------------------------------------


async def test_both_asks_once_what_is_not_there_whatever_its_ids(tmp_path: Path) -> None:
    wrapped = Counted(SAYS)
    connector = recorded_in(tmp_path / "kept", wrapped, "both")
    for request_id in ("a", "b", "a"):
        assert text_of(await asked(connector, build.request(request_id=request_id))) == "Hello there"
    assert wrapped.asked == 1
    await asked(connector, build.request(build.text("something else")))
    assert (wrapped.asked, len(files_in(tmp_path / "kept"))) == (2, 2)
    await asked(recorded_in(tmp_path / "kept", wrapped, "both"))
    assert wrapped.asked == 2


async def test_both_asks_again_what_failed_for_the_moment_only(tmp_path: Path) -> None:
    failing = Counted(LIMITED)
    connector = recorded_in(tmp_path, failing, "both")
    for _ in range(2):
        assert end(await asked(connector)).kind == "rate_limited"
    assert failing.asked == 2
    wrapped = Counted(SAYS)
    connector = recorded_in(tmp_path, wrapped, "both")
    for _ in range(2):
        assert end(await asked(connector)).stop_reason == "end_turn"
    assert wrapped.asked == 1
    assert end(await asked(replaying(tmp_path))).stop_reason == "end_turn"


async def test_both_keeps_a_failure_that_is_the_request_s_own(tmp_path: Path) -> None:
    wrapped = Counted(Rule(fail=ScriptedFailure("invalid_request", "no such model")))
    connector = recorded_in(tmp_path, wrapped, "both")
    for _ in range(2):
        assert end(await asked(connector)).kind == "invalid_request"
    assert wrapped.asked == 1


async def test_both_asks_again_where_a_file_has_gone(tmp_path: Path) -> None:
    wrapped = Counted(SAYS)
    connector = recorded_in(tmp_path, wrapped, "both")
    await asked(connector)
    for path in tmp_path.iterdir():
        path.unlink()
    assert end(await asked(connector)).stop_reason == "end_turn"
    assert (wrapped.asked, len(files_in(tmp_path))) == (2, 1)


# --- files that were edited, and files that are none -------------------------------------------------------------


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"ToolCall": {"call_id": "c1", "name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": "sidecar.recording.v9"}, "is no recording: Invalid enum value 'sidecar.recording.v9'"),
        ({"notes": ["nothing like it"]}, "is no recording"),
        ({"sent": 1}, "is no recording"),
        ({"more": 1}, "unknown field `more`"),
        ({"upstream": None}, "is no recording"),
        ({"without_ids_sha256": "0" * 64}, "holds digests that are not those of its request"),
        ({"end": {"usage": None}}, "must end with a stop_reason or with a failure's kind"),
        ({"end": {"usage": None, "stop_reason": "end_turn", "kind": "provider"}}, "and not with both"),
        ({"events": [call("a b\n", "{}")]}, r"holds a call of a tool whose name is none: 'a b\n'"),
        ({"events": [call("", "{}")]}, "whose name is none: ''"),
        ({"events": [call("look", "not json")]}, "holds a call of look whose arguments are no JSON object: Expecting"),
        ({"events": [call("look", "[]")]}, "whose arguments are no JSON object: it is JSON, but no object"),
        (
            {"events": [{"TextDelta": {"text": "abc", "pieces": "3 0"}}]},
            "pieces that are no lengths with a space between them: 3 0",
        ),
        ({"events": [{"TextDelta": {"text": "abc"}, "ToolCall": None}]}, "is no recording"),
        ({"events": [{"ReasoningState": {"state": "no base64"}}]}, "is no recording"),
    ],
)
async def test_a_file_that_can_not_be_replayed_is_complained_of(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    await asked(recorded_in(tmp_path, Scripted((SAYS,)), "record"))
    [file] = tmp_path.iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    recordings = Recordings(tmp_path, "scripted")
    [complaint] = recordings.index()
    assert complaint.path == "directory"
    assert complaint.what.startswith(f"{file.name}: ")
    assert why in complaint.what
    assert len(recordings) == 0


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "is no recording"), (b"[" * 100_000, "is no recording"), (b'{"a":"\xff"}', "is no recording")],
)
def test_bytes_that_are_no_json_are_complained_of(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "odd.json").write_bytes(content)
    assert [why in one.what for one in Recordings(tmp_path, "scripted").index()] == [True]


async def test_odd_files_are_complained_of_and_other_names_are_nobody_s_business(tmp_path: Path) -> None:
    await asked(recorded_in(tmp_path, Scripted((SAYS,)), "record"))
    [file] = tmp_path.iterdir()
    file.rename(tmp_path / "renamed.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "README").write_text("These are of last week.")
    (tmp_path / ".begun.tmp").write_text("{")
    told = sorted(one.what for one in Recordings(tmp_path, "scripted").index())
    assert told == ["folder.json: can't be read: Is a directory", f"renamed.json: holds the request of {file.name}"]


def test_very_many_bad_files_are_a_few_complaints(tmp_path: Path) -> None:
    for at in range(50):
        (tmp_path / f"{at}.json").write_text("{}")
    told = Recordings(tmp_path, "scripted").index()
    assert len(told) == 21
    assert told[-1].what == "and 30 more files that are no recordings"


def test_more_recordings_than_the_memory_is_meant_for_are_complained_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_directory, "RECORDINGS_MAX", 1)
    for at in range(2):
        (tmp_path / f"{at}.json").write_text("{}")
    [complaint] = Recordings(tmp_path, "scripted").index()
    assert "holds 2 recordings, more than 1" in complaint.what


@pytest.mark.parametrize("pieces", [{}, {"pieces": "5 6"}, {"pieces": "1 999999999"}])
async def test_an_answer_that_was_edited_by_hand_is_taken(tmp_path: Path, pieces: dict[str, str]) -> None:
    """With or without the pieces of what stood there; those that are none of the new text's are told of once."""
    await asked(recorded_in(tmp_path, Scripted((SAYS,)), "record"))
    [file] = tmp_path.iterdir()
    said = {"TextDelta": {"text": "Something kinder.", **pieces}}
    file.write_text(json.dumps({**json.loads(file.read_text()), "events": [said, call("look", "")]}))
    connector = replaying(tmp_path)
    answer = await asked(connector)
    assert text_of(answer) == "Something kinder."
    async with served(connector) as log:
        pass
    told = f"warning pieces_ignored connector=kept recordings=1 first={file.name}"
    assert log.getvalue().count(told) == len(pieces)


# --- connectors with tasks of their own --------------------------------------------------------------------------


class Tasked(Scripted):
    def __init__(self) -> None:
        super().__init__((SAYS,))
        self.served = 0
        self.killed = 0
        self.closed = 0

    async def serve(self, log: Log, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self.served += 1
        task_status.started()

    def kill(self) -> None:
        self.killed += 1

    async def aclose(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(("mode", "times"), [("replay", 0), ("record", 1), ("both", 1)])
async def test_tasks_of_the_recorded_connector_run_only_where_it_is_asked(
    tmp_path: Path, mode: Any, times: int
) -> None:
    wrapped = Tasked()
    connector = recorded_in(tmp_path, wrapped, mode)
    async with served(connector) as log:
        connector.kill()
    await connector.aclose()
    assert (wrapped.served, wrapped.killed, wrapped.closed) == (times, times, 1)
    assert f"info recorded_opened connector=kept mode={mode}" in log.getvalue()


def test_pieces_are_those_of_characters_and_not_of_bytes() -> None:
    assert list(pieces_of(RecordedText(text="aé🐉b", pieces="2 1 1"))) == ["aé", "🐉", "b"]
