"""`--client`: a small client that is right passes everything; each fault that one can have is caught and named."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import trio
from conformance import small_driver

from sidecar.conformance.client_play import proven
from sidecar.conformance.client_vectors import client_vectors
from sidecar.conformance.driver import NoDriver
from sidecar.conformance.driver_lines import CLAIMS
from sidecar.conformance.goldens import found
from sidecar.conformance.verdicts import Verdict, counted

DRIVER = Path(small_driver.__file__)


async def verdicts(*names: str, timeout_seconds: float = 20, command: list[str] | None = None) -> list[Verdict]:
    """Of the vectors whose names begin so; of all without."""
    told: list[Verdict] = []
    playing = [one for one in client_vectors(found()) if not names or one.name.startswith(names)]
    assert playing, names
    await proven(playing, command or [sys.executable, str(DRIVER)], timeout_seconds=timeout_seconds, tell=told.append)
    assert len(told) == len(playing)
    return told


def test_every_vector_has_a_name_of_its_own() -> None:
    names = [one.name for one in client_vectors(found())]
    assert len(set(names)) == len(names) > 300


async def test_a_client_that_is_right_passes_everything() -> None:
    assert [one for one in await verdicts() if one.state != "passed"] == []


async def test_what_is_not_claimed_is_not_held_against_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAIMS", "")
    told = await verdicts()
    counts = counted(told)
    assert counts["failed"] == counts["not_played"] == 0
    assert counts["passed"] > 100, "every client invokes"
    assert {one.why for one in told if one.state == "not_claimed"} >= {
        (f"the client does not claim {claim}",) for claim in set(CLAIMS) - {"resend"}
    }


# The fault, the vectors that are played, and what the report must say of one of them.
CAUGHT = {
    "nil members": ("encode/optional members nil", "request.cache_retention is a nil that must be left out"),
    "signed integers": ("encode/the smallest", "request.max_output_tokens is a signed integer (512) in place of"),
    "floats": ("encode/the smallest", "expires_at_unix_ms is a float (1790000060000.0) in place of an unsigned"),
    "unsorted": ("encode/the smallest", "the keys of request are not sorted: schema_id stands where"),
    "long headers": ("encode/the smallest", "caller_runtime_id has the header db00000007 in place of a7"),
    "digest as bin": ("encode/the smallest", "native_request_sha256 is bin in place of an array"),
    "lossy integers": (
        "requests/max_cost_micro_usd 9007199254740993",
        "max_cost_micro_usd is 9007199254740992 in place of 9007199254740993",
    ),
    "normalises": ("requests/every member", "request.instructions is "),
    "other bytes again": ("lost/in mid-request", "was not sent again as it was: expires_at_unix_ms is"),
    "never again": ("lost/in mid-request", "the daemon still waited for the frame of action 0 (invoke) again"),
    "no hello again": ("lost/in mid-request", "on a connection that has not said hello, as the last had"),
    "first come": ("order/", "transported.events[0].payload.TextDelta.text is"),
    "one read": ("frames/", "the outcome is no_answer in place of transported"),
    "late events": ("streams/a text in pieces", "driver to tell of the live event"),
    "tells twice": ("streams/a text in pieces", "put together, are not those of the result: event[0].payload"),
    "tells no rest": ("streams/the rest was dropped", 'text is "A stair" in place of "A staircase'),
    "tells again what is void": ("streams/the connection is lost, and the daemon", "not those that came live: event"),
    "wants all in the result": ("streams/a failed outcome without", "the outcome is no_answer in place of transported"),
    "text only": ("streams/every kind of event", "are not those of the result: event[0].payload.ReasoningState is"),
    "refused is completed": ("results/Refused CostBound", "the outcome is transported in place of refused"),
    "makes up an answer": ("no daemon/HTTP, as the answer", "the outcome is transported in place of no_answer"),
    "hangs": ("lost/again and again", "the driver has not answered within 4 s; the daemon waited for the frame of"),
    "dies": ("encode/the smallest", "its stderr:\n    it dies here"),
    "speaks French": ("encode/the smallest", "the driver wrote what is no line of its protocol: \"Bonjour"),
    "cancels another": ("cancels/the smallest ids", "belongs to no action"),
    "quotes another": ("quotes/refusal nil", "invocation.max_cost_micro_usd is 100001 in place of 100000"),
}  # fmt: skip


def test_every_fault_of_the_small_client_is_looked_for() -> None:
    assert set(CAUGHT) | {"none", "no opening"} == set(small_driver.FAULTS)


@pytest.mark.parametrize("fault", CAUGHT)
async def test_a_client_that_does_one_thing_wrong_is_caught(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    names, words = CAUGHT[fault]
    monkeypatch.setenv("FAULT", fault)
    told = await verdicts(names, timeout_seconds=4 if fault == "hangs" else 20)
    failed = [one for one in told if one.state == "failed"]
    assert failed
    assert words in "\n".join(why for one in failed for why in one.why), failed


async def test_a_driver_that_ends_each_time_is_not_started_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "dies")
    counts = counted(await verdicts("encode/", timeout_seconds=20))
    assert counts["failed"] == 10
    assert counts["not_played"] > 50


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", "it ended before its opening line"),
        ("import sys; sys.exit('no such thing')", "its stderr:\n    no such thing$"),
        (
            "import sys; sys.exit('one\\ntwo')",
            "is no driver: it ended before its opening line\nits stderr:\n    one\n    two$",
        ),
        ("import time; time.sleep(60)", "no opening line came within 1 s"),
        ("print('hello')", "its opening line: .*is no JSON"),
        ("print('[1]')", "is no JSON object"),
        ("""print('{"driver": 2, "claims": []}')""", "says driver 2; it is 1"),
        ("""print('{"driver": 1}')""", "has no claims"),
        ("""print('{"driver": 1, "claims": ["magic"]}')""", "it claims magic; there are encode, concurrent"),
        ("""print('{"driver": {"$int": "no"}}')""", r"\$int is"),
    ],
)
async def test_what_is_no_driver_is_told_so(source: str, why: str) -> None:
    seconds = 1 if "sleep" in source else 20
    with pytest.raises(NoDriver, match=why):
        await verdicts("encode/the smallest", timeout_seconds=seconds, command=[sys.executable, "-c", source])


async def test_a_command_that_can_not_be_started_is_told_so() -> None:
    with pytest.raises(NoDriver, match="no-such-command can't be started"):
        await verdicts("encode/the smallest", command=["no-such-command"])


async def test_a_folder_that_no_socket_fits_into_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(NoDriver, match="set TMPDIR to a directory with a shorter name"):
        await verdicts("encode/the smallest")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('{"vector": "another", "outcomes": [{}]}', "it is about"),
        ('{"vector": "encode/the smallest", "outcomes": []}', "has not one outcome for each of 1 actions"),
        ('{"vector": "encode/the smallest", "outcomes": [1]}', "its outcome is 1; an outcome is an object"),
        ('{"vector": "encode/the smallest", "outcomes": [{}]}', "the outcome is nothing in place of bytes"),
        ('{"vector": "encode/the smallest", "outcomes": [{"bytes": "!"}]}', "bytes is no base64"),
        ('{"vector": "encode/the smallest", "outcomes": [{"fault": "oops"}]}', "the outcome is fault in place of"),
        ('{"vector": "encode/the smallest", "event": {}}', "belongs to no action"),
        ('{"vector": "encode/the smallest", "action": 0, "event": {}}', "is no event"),
        ("x" * 5_000_000, "a line of more than 4194304 bytes"),
    ],
)
async def test_an_answer_that_is_none_is_told_so(tmp_path: Path, answer: str, why: str) -> None:
    opening = '{"driver": 1, "claims": ["encode"]}'
    (tmp_path / "answer").write_text(answer)
    source = f"import sys; print('{opening}', flush=True); input(); print(open('answer').read(), flush=True); input()"
    script = tmp_path / "driver.py"
    script.write_text(source.replace("'answer'", repr(str(tmp_path / "answer"))))
    (told,) = [
        one
        for one in await verdicts("encode/the smallest", command=[sys.executable, str(script)])
        if one.name == "encode/the smallest"
    ]
    assert told.state == "failed"
    assert why in "\n".join(told.why), told.why


async def test_a_driver_that_reads_nothing_holds_nothing_up(tmp_path: Path) -> None:
    source = """import time; print('{"driver": 1, "claims": ["encode"]}', flush=True); time.sleep(60)"""
    told = await verdicts(
        "encode/state of 65536", "encode/text: emoji", timeout_seconds=1, command=[sys.executable, "-c", source]
    )
    assert {one.state for one in told} == {"failed"}
    assert told[0].why[0] == "the driver has not answered within 1 s"


@pytest.mark.parametrize("text", ["x", "x" * 1_000_000])
async def test_a_driver_that_tells_events_without_end_is_stopped_before_its_time_is_over(text: str) -> None:
    source = f"""
import json
print(json.dumps({{"driver": 1, "claims": ["stream"]}}), flush=True)
name = json.loads(input())["vector"]
event = {{"sequence": 0, "payload": {{"TextDelta": {{"text": "x" * {len(text)}}}}}}}
while True:
    print(json.dumps({{"vector": name, "action": 0, "event": event}}))
"""
    told = await verdicts("streams/a refusal", timeout_seconds=120, command=[sys.executable, "-c", source])
    assert [one.state for one in told] == ["failed"]
    assert "more than 10000 events, or 4194304 bytes of them, belong to no vector" in told[0].why[0]


@pytest.mark.parametrize("depth", [100, 900, 200_000])
async def test_an_answer_that_is_nested_deeply_is_a_verdict(tmp_path: Path, depth: int) -> None:
    opening = '{"driver": 1, "claims": ["encode"]}'
    answer = '\'{"vector": "encode/the smallest", "outcomes": [\' + "[" * DEPTH + "]" * DEPTH + "]}"'
    source = f"DEPTH = {depth}\nprint('{opening}', flush=True)\ninput()\nprint({answer}, flush=True)\ninput()\n"
    told = await verdicts("encode/the smallest", command=[sys.executable, "-c", source])
    assert [one.state for one in told] == ["failed"] * len(told)
    assert "has more than 64 levels" in told[0].why[0]


async def test_of_what_a_driver_writes_to_stderr_only_the_end_is_kept_and_shown() -> None:
    flood = (
        "import os, stat, sys\nfor _ in range(200): sys.stderr.write('x' * 1_000_000)\n"
        "sys.exit(f'\\non disk: {stat.S_ISREG(os.fstat(2).st_mode)}')"
    )
    with pytest.raises(NoDriver) as told:
        await verdicts("encode/the smallest", command=[sys.executable, "-c", flood])
    assert str(told.value).endswith("\n    on disk: False")
    assert len(str(told.value)) < 3000


async def test_a_stderr_that_somebody_else_holds_open_holds_nothing_up() -> None:
    left = (
        "import subprocess, sys\nsubprocess.Popen(['sleep', '60'], start_new_session=True, stdout=subprocess.DEVNULL)"
    )
    print_pid = left.replace("subprocess.Popen", "one = subprocess.Popen") + "\nsys.exit(f'left {one.pid}')"
    with trio.fail_after(30), pytest.raises(NoDriver, match=r"its stderr:\n    left \d+") as told:
        await verdicts("encode/the smallest", command=[sys.executable, "-c", print_pid])
    os.kill(int(str(told.value).rpartition(" ")[2]), signal.SIGKILL)
