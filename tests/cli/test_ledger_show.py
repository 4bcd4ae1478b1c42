"""`sidecar ledger show`: the requests that are asked for, as a table and as JSON Lines, in little memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import trio
from kit import records
from kit.small_ledgers import BLOCK, DAY_MS, damage, mixed, three_segments

from sidecar.audit.decoder import Line
from sidecar.audit.reading import Batch, Reading
from sidecar.audit.requests import Request, requests_of
from sidecar.cli.ledger_show import Wanted
from sidecar.cli.main import main


def shown(capsys: pytest.CaptureFixture[str], directory: Path, *words: str) -> list[str]:
    assert main(["ledger", "show", str(directory), *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out.splitlines()


async def test_a_table_for_a_person(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await mixed(tmp_path)
    assert shown(capsys, tmp_path) == [
        "admitted (UTC)           caller   request    model  state                micro-USD  tokens out  seconds",
        "1970-01-01 00:00:00.005  dungeon  request-1  npc    completed                   60           0    1.500",
        "1970-01-02 00:00:00.000  dungeon  request-2  sage   completed                    7           0    1.500",
        "1970-01-01 23:59:59.999  arena    request-3  npc    failed, unavailable        100           -    1.500",
        "1970-01-02 00:00:00.001  dungeon  request-4  npc    indeterminate         250 held           -        -",
    ]


@pytest.mark.parametrize("charge", ["nothing", "reservation"])
def test_what_an_operator_settled_is_told_from_a_failure_of_the_provider(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], charge: str
) -> None:
    trio.run(mixed, tmp_path)
    words = [
        "--caller=dungeon",
        "--request=request-4",
        f"--charge={charge}",
        "--who=ada, of the night",
        "--why=no bill",
    ]
    assert main(["ledger", "resolve", str(tmp_path), *words]) == 0
    capsys.readouterr()
    *_, of_provider, resolved = shown(capsys, tmp_path)
    assert "  failed, unavailable  " in of_provider
    assert "  failed, resolved by ada, of the night  " in resolved
    assert resolved.split()[-1] == "-"
    told = [json.loads(line) for line in shown(capsys, tmp_path, "--json", "--state", "failed")]
    assert [(one["outcome"], one["resolved_by"]) for one in told] == [
        ("unavailable", None),
        ("unavailable", "ada, of the night"),
    ]


def test_where_nothing_is_given_there_is_no_heading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "show", str(tmp_path / "nowhere")]) == os.EX_NOINPUT
    assert capsys.readouterr().out == ""
    (tmp_path / "file").touch()
    assert main(["ledger", "show", str(tmp_path / "file")]) in (os.EX_NOINPUT, os.EX_IOERR)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ((), [1, 2, 3, 4]),
        (("--caller", "arena"), [3]),
        (("--model", "npc"), [1, 3, 4]),
        (("--model", "npc", "--caller", "dungeon"), [1, 4]),
        (("--state", "completed"), [1, 2]),
        (("--state", "failed"), [3]),
        (("--state", "indeterminate"), [4]),
        (("--since", str(DAY_MS)), [2, 4]),
        (("--until", str(DAY_MS)), [1, 3]),
        (("--since", "1970-01-02", "--until", "1970-01-02T00:00:00.001Z"), [2]),
        (("--since", "1970-01-02T01:00+01:00"), [2, 4]),
        (("--caller", "nobody"), []),
    ],
)
async def test_only_what_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], numbers: list[int]
) -> None:
    await mixed(tmp_path)
    told = [json.loads(line) for line in shown(capsys, tmp_path, "--json", *words)]
    assert [one["request_id"] for one in told] == [f"request-{number}" for number in numbers]


async def test_a_json_line_has_everything_but_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await mixed(tmp_path)
    first, *_, last = [json.loads(line) for line in shown(capsys, tmp_path, "--json")]
    assert first == {
        "caller_runtime_id": "dungeon", "request_id": "request-1", "model": "npc", "upstream": "echo-1",
        "provider": "echo", "state": "completed", "outcome": "completed", "admitted_at_unix_ms": 5,
        "first_event_at_unix_ms": None, "completed_at_unix_ms": 1505, "expires_at_unix_ms": 61_000,
        "reservation_micro_usd": 100, "charge_micro_usd": 60,
        "usage": {"input_tokens": 0, "cache_read_tokens": 0, "cache_write_tokens": 0, "output_tokens": 0},
        "notes": [], "begin_segment": 1, "begin_offset": 8276, "completed_segment": 1, "completed_offset": 12372,
        "resolved_by": None,
    }  # fmt: skip
    assert list(last) == list(first)
    assert (last["state"], last["charge_micro_usd"], last["usage"]) == ("indeterminate", None, None)


async def test_of_a_damaged_ledger_what_stands_before_is_given_and_then_65(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await three_segments(tmp_path)
    path = damage(tmp_path, 1, 4 * BLOCK)
    for words, lines in (((), 2), (("--json",), 1)):
        assert main(["ledger", "show", str(tmp_path), *words]) == os.EX_DATAERR
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == lines
        assert "request-1" in out.splitlines()[-1]
        assert err.startswith(f"sidecar ledger show: {path} is damaged at byte {4 * BLOCK}: ")
        assert "what stands before that place has been given" in err


def test_requests_are_given_while_they_are_read_and_only_what_is_open_is_kept() -> None:
    """A ledger without end: after each request nothing of it is left."""

    class Endless(Reading):
        def batches(self):
            number = 0
            while True:
                number += 1
                begun = Line(
                    segment=1, offset=number, length=1, kind="Begin", members={"caller_runtime_id": str(number)}
                )
                ended = Line(segment=1, offset=number, length=1, kind="Completed", members={}, begun=begun)
                yield Batch(segment=1, offset=number, number=number, head=b"", lines=(begun, ended))

    requests = requests_of(Endless(Path("ledger")))
    assert [next(requests).caller for _ in range(3)] == ["1", "2", "3"]


def test_the_bounds_of_time_hold_the_first_instant_and_not_the_last() -> None:
    begin = records.begin(1)
    line = Line(segment=1, offset=1, length=1, kind="Begin", members={"admitted_at_unix_ms": begin.admitted_at_unix_ms})
    request = Request(line, None)
    assert request.admitted_at_unix_ms == 1001
    members = {"caller_runtime_id": "c", "model": "m", **line.members}
    request = Request(Line(segment=1, offset=1, length=1, kind="Begin", members=members), None)
    assert Wanted(since_unix_ms=1001, until_unix_ms=1002).takes(request)
    assert not Wanted(since_unix_ms=1002).takes(request)
    assert not Wanted(until_unix_ms=1001).takes(request)
