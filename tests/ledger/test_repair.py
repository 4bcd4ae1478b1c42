"""A damaged ledger is repaired into a new one: for each kind of damage, what is kept, held, lost and said."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from kit import records
from kit.ledger_view import LedgerView
from kit.small_ledgers import BLOCK, SEGMENT_BYTES, contents_of, open_small, segment_name, session, three_segments
from kit.whole_records import records_of

from sidecar.cli.ledger_reading import instant
from sidecar.cli.ledger_repair import repair
from sidecar.cli.main import main
from sidecar.cli.stops import Stopped
from sidecar.contract.values import CompletedRecord, LowWaterRecord, TransportDisposition, TransportResult
from sidecar.ledger import format as on_disk
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.landing import Place
from sidecar.ledger.lock import take_lock
from sidecar.repair import blocks as salvage_blocks
from sidecar.repair import order as salvage_order
from sidecar.repair import salvage
from sidecar.repair import seen as salvage_seen
from sidecar.repair import sources as salvage_sources
from sidecar.repair import start as salvage_start

# Where the batches of `three_segments` stand: segment 1 holds the Opened, then begins and ends of 1 to 3 in turn;
# segment 2 the begin and end of 4 and the begin of 5; segment 3 the Opened, begin and end of 6, and the Closed.
OPEN_END_MS = 300_000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    trio.run(three_segments, tmp_path / "ledger")
    return tmp_path / "ledger"


def repaired(directory: Path, files: DiskFiles | None = None) -> dict[str, Any]:
    """The report of a repair that succeeds; the damaged directory is as it was, and the new one is sound."""
    before = contents_of(directory)
    new = directory.with_name("new")
    assert repair(directory, new, as_json=False, files=files) == 0
    assert contents_of(directory) == before
    assert main(["ledger", "verify", str(new)]) == 0
    assert not new.with_name("new.partial").exists()
    told: dict[str, Any] = json.loads((new / "repair-report.json").read_bytes())
    return told


def change(directory: Path, number: int, offset: int, written: bytes) -> None:
    path = directory / segment_name(number)
    content = bytearray(path.read_bytes())
    content[offset : offset + len(written)] = written
    path.write_bytes(content)


def flip(directory: Path, number: int, offset: int) -> None:
    byte = (directory / segment_name(number)).read_bytes()[offset]
    change(directory, number, offset, bytes([byte ^ 1]))


def ids(told: dict[str, Any]) -> list[str]:
    return [one["request_id"] for one in told["indeterminate"]]


def lost(told: dict[str, Any]) -> list[tuple[int, int, int]]:
    return [(gap["segment"], gap["begin"], gap["end"]) for gap in told["gaps"] if gap["may_have_held"]]


def place_of(directory: Path, request: str) -> tuple[int, int]:
    """The segment and the offset of the batch that holds the begin of this request alone."""
    for path in sorted(directory.glob("*.segment")):
        content = path.read_bytes()
        for at in range(BLOCK, len(content), BLOCK):
            if b"Begin" in content[at : at + BLOCK] and request.encode() in content[at : at + BLOCK]:
                return int(path.name[:16]), at
    raise AssertionError(request)


def as_recorded(directory: Path) -> dict[str, tuple[Any, Any]]:
    """By request: its begin, and what stands of its end but for the place of its begin."""
    view = LedgerView(directory)
    names = [name for name in CompletedRecord.__struct_fields__ if not name.startswith("begin_")]
    ends = {begin.request_id: tuple(getattr(end, name) for name in names) for begin, end in view.completes}
    return {begin.request_id: (begin, ends.get(begin.request_id)) for begin in view.begins}


# --- nothing, or nothing that matters --------------------------------------------------------------------------------


def test_a_sound_ledger_is_copied_and_nothing_is_said_to_be_wrong(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = repaired(directory)
    assert told["verdict"] == "sound"
    assert "sound, nothing was wrong" in capsys.readouterr().out
    assert as_recorded(directory.with_name("new")) == as_recorded(directory)
    assert (told["gaps"], told["contradictions"], told["low_water"]["why"]) == ([], [], None)
    assert (told["new"]["charged_micro_usd"], told["new"]["held_micro_usd"]) == (300, 100)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_header_that_is_lost_loses_nothing(directory: Path, number: int) -> None:
    change(directory, number, 0, bytes(BLOCK))
    told = repaired(directory)
    assert told["verdict"] == "repaired"
    assert told["read"]["segments"][number - 1]["known_by"] == "first_batch"
    assert as_recorded(directory.with_name("new")) == as_recorded_before(directory)
    assert (lost(told), told["low_water"]["why"]) == ([], None)


def as_recorded_before(directory: Path) -> dict[str, tuple[Any, Any]]:
    """Of a fresh ledger made as `three_segments` makes it."""
    fresh = directory.with_name("fresh")
    trio.run(three_segments, fresh)
    return as_recorded(fresh)


def test_a_header_and_the_first_batch_lost_the_other_batches_say_what_segment_it_is(directory: Path) -> None:
    change(directory, 2, 0, bytes(2 * BLOCK))
    told = repaired(directory)
    assert told["read"]["segments"][1]["known_by"] == "most_batches"
    assert lost(told) == [(2, BLOCK, 2 * BLOCK)]


def test_what_is_no_zero_behind_the_end_of_a_segment_held_no_record_since_the_chain_goes_on(directory: Path) -> None:
    flip(directory, 2, SEGMENT_BYTES - 1)
    told = repaired(directory)
    assert [(gap["segment"], gap["may_have_held"]) for gap in told["gaps"]] == [(2, False)]
    assert as_recorded(directory.with_name("new")) == as_recorded_before(directory)


@pytest.mark.parametrize(
    "module", [salvage, salvage_blocks, salvage_order, salvage_seen, salvage_sources, salvage_start]
)
def test_what_reads_the_damaged_ledger_shares_no_decoder_with_what_wrote_it(module: Any) -> None:
    source = Path(module.__file__).read_text()
    for writers in ("format", "recovery", "ledger", "writer", "index", "landing"):
        assert not re.search(rf"from sidecar\.ledger(\.{writers}| import {writers})\b", source)


# --- batches ---------------------------------------------------------------------------------------------------------


def test_an_end_that_is_lost_leaves_its_request_indeterminate_with_its_reservation_held(directory: Path) -> None:
    segment, begin = place_of(directory, "request-2")
    change(directory, segment, begin + BLOCK, bytes(BLOCK))  # the batch behind it is its end
    told = repaired(directory)
    assert ids(told) == ["request-2", "request-5"]
    assert (told["new"]["charged_micro_usd"], told["new"]["held_micro_usd"]) == (240, 200)
    assert lost(told) == [(segment, begin + BLOCK, begin + 2 * BLOCK)]
    assert told["low_water"]["expires_at_unix_ms"] >= 61_000


def test_a_begin_that_is_lost_leaves_a_charge_that_no_sum_has_and_the_report_says_so(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment, begin = place_of(directory, "request-2")
    change(directory, segment, begin, os.urandom(BLOCK))
    told = repaired(directory)
    assert "request-2" not in as_recorded(directory.with_name("new"))
    assert told["unattributed_micro_usd"] == 60
    assert told["unattributed"][0]["begin_offset"] // BLOCK == begin // BLOCK
    assert told["new"]["charged_micro_usd"] == 240
    assert (
        "1 requests whose end is left and whose begin is not; no sum has their 60 micro-USD" in capsys.readouterr().out
    )


def test_a_batch_whose_own_header_is_damaged_still_gives_its_record(directory: Path) -> None:
    segment, begin = place_of(directory, "request-2")
    before = as_recorded_before(directory)
    for at in (0, 8, 44, 60, 80):  # magic, salt, count, head, CRC
        flip(directory, segment, begin + at)
        told = repaired(directory)
        assert [gap["taken"] for gap in told["gaps"]] == [1], at
        assert as_recorded(directory.with_name("new")) == before
        flip(directory, segment, begin + at)
        shutil.rmtree(directory.with_name("new"))


def test_two_segments_lost_in_the_middle_and_at_the_end_close_what_expires_until_all_clocks_agree(
    directory: Path,
) -> None:
    (directory / segment_name(2)).unlink()
    told = repaired(directory)
    assert lost(told)[0][0] == 2
    assert set(as_recorded(directory.with_name("new"))) == {"request-1", "request-2", "request-3", "request-6"}
    assert told["low_water"]["expires_at_unix_ms"] >= told["created_at_unix_ms"] - 60_000 + 2 * OPEN_END_MS


@pytest.mark.parametrize("number", [1, 3])
def test_a_first_or_a_last_segment_that_is_cut_gives_what_stands_before_the_cut(directory: Path, number: int) -> None:
    path = directory / segment_name(number)
    path.write_bytes(path.read_bytes()[: 2 * BLOCK + 100])
    told = repaired(directory)
    assert told["verdict"] == "repaired"
    assert lost(told)
    assert told["low_water"]["why"] is not None


def test_the_first_segment_missing_leaves_the_rest(directory: Path) -> None:
    (directory / segment_name(1)).unlink()
    told = repaired(directory)
    assert lost(told) == [(1, 0, SEGMENT_BYTES), (3, 5 * BLOCK, SEGMENT_BYTES)]
    assert "request-6" in as_recorded(directory.with_name("new"))


def test_a_torn_tail_gives_its_record_and_what_may_be_lost_is_refused(tmp_path: Path) -> None:
    trio.run(crash, tmp_path / "ledger")
    segment, begin = place_of(tmp_path / "ledger", "request-6")
    flip(tmp_path / "ledger", segment, begin + 4000)  # in the zeros behind the record
    told = repaired(tmp_path / "ledger")
    assert ids(told) == ["request-5", "request-6"]
    assert told["low_water"]["expires_at_unix_ms"] > told["created_at_unix_ms"]


async def crash(directory: Path) -> None:
    await session(directory, [1], unfinished=[5, 6], clean=False)


def test_a_tail_that_was_set_aside_is_no_record_although_it_reads_like_one(tmp_path: Path) -> None:
    directory = tmp_path / "ledger"
    trio.run(crash, directory)
    segment, begin = place_of(directory, "request-6")
    flip(directory, segment, begin + 4000)
    trio.run(session, directory, [6])  # the same id again, which ran this time
    for place in (None, SEGMENT_BYTES - 1):
        if place is not None:
            flip(directory, 1, place)
        told = repaired(directory)
        assert ids(told) == ["request-5"]
        assert as_recorded(directory.with_name("new"))["request-6"][1] is not None
        shutil.rmtree(directory.with_name("new"))


def test_a_tail_that_the_next_segment_proves_to_be_no_record_gives_none(tmp_path: Path) -> None:
    directory = tmp_path / "ledger"
    trio.run(crash, directory)
    segment, begin = place_of(directory, "request-6")
    flip(directory, segment, begin + 4000)
    trio.run(session, directory, [7])
    flip(directory, 2, 3 * BLOCK)
    assert ids(repaired(directory)) == ["request-5"]


def test_zeros_at_an_end_without_a_clean_exit_are_a_loss_where_something_else_is_damaged(tmp_path: Path) -> None:
    directory = tmp_path / "ledger"
    trio.run(crash, directory)
    segment, begin = place_of(directory, "request-6")
    change(directory, segment, begin, bytes(BLOCK))
    assert repaired(directory)["verdict"] == "sound"  # as any crash leaves it
    shutil.rmtree(tmp_path / "new")
    change(directory, 1, 0, bytes(BLOCK))  # a header, with which no record is lost
    told = repaired(directory)
    assert ids(told) == ["request-5"]
    assert told["low_water"]["expires_at_unix_ms"] >= told["created_at_unix_ms"]
    assert lost(told) == [(segment, begin, SEGMENT_BYTES)]


def test_a_record_of_a_torn_tail_gives_way_to_the_same_request_in_a_whole_batch(tmp_path: Path) -> None:
    """Nothing is left here that proves that the tail was set aside."""
    directory = tmp_path / "ledger"
    trio.run(crash, directory)
    segment, begin = place_of(directory, "request-6")
    flip(directory, segment, begin + 4000)
    trio.run(session, directory, [6])
    change(directory, 2, 0, bytes(2 * BLOCK))  # the next header, and the Opened that would continue the chain
    told = repaired(directory)
    assert ids(told) == ["request-5"]
    assert as_recorded(directory.with_name("new"))["request-6"][1] is not None


# --- bytes that pose ------------------------------------------------------------------------------------------------


def test_bytes_of_a_provider_in_a_damaged_batch_are_no_records(tmp_path: Path) -> None:
    """An answer of several blocks holds a whole batch of its own making, at a block's begin, and records."""
    directory = tmp_path / "ledger"
    framed = on_disk.encode_record(records.begin(66))
    posing = b"".join(
        on_disk.encode_batch([framed], salt=b"S" * 16, segment=1, number=4, previous_head=bytes(32)).pieces
    )

    async def written() -> None:
        ledger = open_small(directory)
        async with ledger.running():
            while ledger.statistics().spares_ready < 2:
                await trio.lowlevel.checkpoint()
            begin = records.begin(1)
            place = await ledger.begin(begin)
            await ledger.complete(begin, records.completed(place, response=framed * 30 + posing * 2))

    trio.run(written)
    for header in (False, True):
        if header:
            change(directory, 1, 0, bytes(BLOCK))
        for at in (3 * BLOCK, 3 * BLOCK + 44, 3 * BLOCK + 90):
            flip(directory, 1, at)
            repaired(directory)
            assert "request-66" not in as_recorded(directory.with_name("new"))
            shutil.rmtree(directory.with_name("new"))
            flip(directory, 1, at)


def test_a_batch_that_stands_twice_is_taken_once(directory: Path) -> None:
    content = (directory / segment_name(3)).read_bytes()
    change(directory, 3, 5 * BLOCK, content[3 * BLOCK : 4 * BLOCK])
    told = repaired(directory)
    assert as_recorded(directory.with_name("new")) == as_recorded_before(directory)
    assert "stands here again" in told["contradictions"][0]["what"]
    assert told["unattributed"] == []


def test_an_end_in_a_batch_that_was_changed_and_mended_is_not_believed(directory: Path) -> None:
    segment, begin = place_of(directory, "request-2")
    at = begin + BLOCK
    content = (directory / segment_name(segment)).read_bytes()
    header = on_disk.decode_segment_header(content[:BLOCK])
    batch_header = on_disk.decode_batch_header(content[at : at + BLOCK], salt=header.salt, segment=segment)
    assert batch_header
    [record] = records_of(batch_header, content[at : at + BLOCK], at)
    assert record.body.completed
    cheaper = records.completed(Place(segment, record.body.completed.begin_offset, 0), charge=1)
    mended = on_disk.encode_batch(
        [on_disk.encode_record(cheaper)],
        salt=header.salt,
        segment=segment,
        number=batch_header.number,
        previous_head=bytes(32),
    )
    change(directory, segment, at, b"".join(mended.pieces))
    told = repaired(directory)
    assert ids(told) == ["request-2", "request-5"]
    assert any("does not continue the chain" in one["what"] for one in told["contradictions"])


def test_files_that_are_no_part_of_it_are_left_out_and_named(directory: Path, tmp_path: Path) -> None:
    trio.run(session, tmp_path / "other", [9])
    shutil.copy(tmp_path / "other" / segment_name(1), directory / segment_name(4))
    (directory / segment_name(0)).write_bytes(b"zero")
    (directory / "0000000000000007.seal").write_bytes(b"x")
    told = repaired(directory)
    assert set(as_recorded(directory.with_name("new"))) == {f"request-{number}" for number in range(1, 7)}
    assert [one["file"] for one in told["read"]["not_taken"]] == [segment_name(0), segment_name(4)]
    assert any(gap["segment"] == 4 and gap["may_have_held"] for gap in told["gaps"])


def test_files_that_were_renamed_are_known_by_what_is_in_them(directory: Path) -> None:
    (directory / segment_name(1)).rename(directory / "hold")
    (directory / segment_name(2)).rename(directory / segment_name(1))
    (directory / "hold").rename(directory / segment_name(2))
    told = repaired(directory)
    assert as_recorded(directory.with_name("new")) == as_recorded_before(directory)
    assert len(told["contradictions"]) == 2


def test_a_directory_and_a_link_to_nothing_in_the_place_of_segments_are_segments_that_are_lost(
    directory: Path,
) -> None:
    before = as_recorded(directory)
    (directory / segment_name(1)).unlink()
    (directory / segment_name(1)).mkdir()
    (directory / segment_name(2)).unlink()
    (directory / segment_name(2)).symlink_to("nothing")
    told = repaired(directory)
    assert {gap["segment"] for gap in told["gaps"] if gap["may_have_held"]} >= {1, 2}
    assert as_recorded(directory.with_name("new"))["request-6"] == before["request-6"]


# --- the disk -------------------------------------------------------------------------------------------------------


class BadBlocks(DiskFiles):
    """Reads of the damaged directory that touch one of these blocks fail."""

    def __init__(self, directory: Path, number: int, blocks: set[int]) -> None:
        self._bad = (directory / segment_name(number), blocks)
        self._open: dict[int, Path] = {}

    def open_to_read(self, path: Path) -> int:
        descriptor = super().open_to_read(path)
        self._open[descriptor] = path
        return descriptor

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        path, blocks = self._bad
        touched = range(offset // BLOCK, -(-(offset + length) // BLOCK))
        if self._open.get(descriptor) == path and blocks & set(touched):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(descriptor, length, offset)


@pytest.mark.parametrize("block", range(8))
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_block_that_can_not_be_read_costs_that_block(directory: Path, number: int, block: int) -> None:
    told = repaired(directory, BadBlocks(directory, number, {block}))
    kept, before = as_recorded(directory.with_name("new")), as_recorded(directory)
    assert sum(kept.get(request) != before[request] for request in before) <= 1
    assert told["verdict"] == "repaired"
    if block:
        [gap] = [gap for gap in told["gaps"] if gap["begin"] == block * BLOCK or gap["end"] == (block + 1) * BLOCK][:1]
        assert "Input/output error" in gap["why"]


class FailingCalls(DiskFiles):
    """The nth call that changes the disk fails, and all after it."""

    def __init__(self, nth: int) -> None:
        self._left = nth

    def _call(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def sync(self, descriptor: int) -> None:
        self._call()
        super().sync(descriptor)

    def sync_directory(self, path: Path) -> None:
        self._call()
        super().sync_directory(path)

    def rename(self, old: Path, new: Path) -> None:
        self._call()
        super().rename(old, new)


def test_a_disk_that_fails_at_any_call_leaves_no_directory_of_the_final_name(directory: Path) -> None:
    flip(directory, 1, 3 * BLOCK)
    before, new = contents_of(directory), directory.with_name("new")
    codes = []
    for nth in range(200):
        codes.append(repair(directory, new, as_json=False, files=FailingCalls(nth)))
        if codes[-1] == 0:
            break
        assert codes[-1] in (os.EX_IOERR, os.EX_CANTCREAT)
        if new.exists():  # the last sync, of the name that it has by then
            assert (new / "repair-report.json").exists()
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(new.with_name("new.partial"), ignore_errors=True)
    assert codes[-1] == 0
    assert len(codes) > 20
    assert contents_of(directory) == before


KILLED_AT = """
import os, sys
from pathlib import Path
from sidecar.cli.ledger_reading import instant
from sidecar.cli.ledger_repair import repair
from sidecar.ledger.files import DiskFiles

left = int(sys.argv[1])
def counted(call):
    def killed_before(*terms):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return call(*terms)
    return killed_before
for name in ("sync", "sync_directory", "rename", "create"):
    setattr(DiskFiles, name, counted(getattr(DiskFiles, name)))
sys.exit(repair(Path("ledger"), Path("new"), as_json=False))
"""


def test_a_repair_that_is_killed_leaves_no_directory_of_the_final_name(directory: Path) -> None:
    flip(directory, 1, 3 * BLOCK)
    before, new = contents_of(directory), directory.with_name("new")
    codes = []
    for nth in (0, 3, 6, 10, 15, 20, 1000):
        done = subprocess.run(
            [sys.executable, "-c", KILLED_AT, str(nth)], cwd=directory.parent, capture_output=True, timeout=60
        )
        codes.append(done.returncode)
        assert new.exists() == (done.returncode == 0)
        assert contents_of(directory) == before
        shutil.rmtree(new.with_name("new.partial"), ignore_errors=True)
    assert codes[:3] == [9, 9, 9]
    assert codes[-1] == 0


def test_a_stop_ends_it_between_two_pieces_of_what_it_writes(tmp_path: Path) -> None:
    class Stopping(DiskFiles):
        def sync(self, descriptor: int) -> None:
            super().sync(descriptor)
            os.kill(os.getpid(), signal.SIGTERM)

    trio.run(session, tmp_path / "ledger", range(50))
    with pytest.raises(Stopped) as stopped:
        repair(tmp_path / "ledger", tmp_path / "new", as_json=False, files=Stopping())
    assert stopped.value.exit_code == 143
    assert [path.name for path in tmp_path.iterdir()] == ["ledger", "new.partial"]


# --- where it can't be done -----------------------------------------------------------------------------------------


def ended(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    code = main(["ledger", "repair", *map(str, words)])
    return code, capsys.readouterr().err


def test_a_daemon_that_holds_it_is_not_disturbed(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = DiskFiles()
    lock = take_lock(files, directory)
    code, said = ended(capsys, directory, directory.with_name("new"))
    files.close(lock)
    assert code == os.EX_TEMPFAIL
    assert f"held by pid {os.getpid()}: stop it first" in said
    assert not directory.with_name("new").exists()


def test_no_ledger_is_66(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(capsys, tmp_path / "nowhere", tmp_path / "new")[0] == os.EX_NOINPUT
    (tmp_path / "empty").mkdir()
    assert ended(capsys, tmp_path / "empty", tmp_path / "new")[0] == os.EX_NOINPUT


def test_nothing_that_can_be_read_is_65_and_nothing_is_written(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2, 3):
        change(directory, number, 0, bytes(SEGMENT_BYTES))
    code, said = ended(capsys, directory, directory.with_name("new"))
    assert code == os.EX_DATAERR
    assert "no record in it is whole" in said
    assert list(directory.parent.iterdir()) == [directory]


def test_a_ledger_of_a_newer_version_is_not_repaired_but_opened_by_it(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = bytearray((directory / segment_name(2)).read_bytes())
    content[8:12] = (2).to_bytes(4, "big")
    content[BLOCK - 4 : BLOCK] = on_disk.crc32(bytes(content[: BLOCK - 4])).to_bytes(4, "big")
    (directory / segment_name(2)).write_bytes(content)
    code, said = ended(capsys, directory, directory.with_name("new"))
    assert code == os.EX_DATAERR
    assert "open it with the version of sidecar that wrote it" in said


@pytest.mark.parametrize(
    "prepare",
    [
        lambda new: (new.mkdir(), (new / "x").touch()),
        lambda new: new.touch(),
        lambda new: new.with_name("new.partial").mkdir(),
        lambda new: new.symlink_to("elsewhere"),
    ],
)
def test_a_new_directory_that_is_not_free_is_73(
    directory: Path, capsys: pytest.CaptureFixture[str], prepare: Callable[[Path], object]
) -> None:
    prepare(directory.with_name("new"))
    assert ended(capsys, directory, directory.with_name("new"))[0] == os.EX_CANTCREAT


def test_the_damaged_directory_takes_no_new_one(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for new in (directory, directory / "new", directory / "new" / "newer"):
        code, said = ended(capsys, directory, new)
        assert (code, "stays as it is" in said) == (os.EX_CANTCREAT, True)


def test_the_report_names_the_damaged_directory_from_the_root_on(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory.parent)
    assert main(["ledger", "repair", directory.name, "new"]) == 0
    assert json.loads(Path("new/repair-report.json").read_bytes())["damaged_directory"] == str(directory)


def test_a_new_directory_that_is_not_empty_is_said_with_what_helps(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = directory.with_name("new")
    new.mkdir()
    (new / "x").touch()
    assert (
        f"{new} is there, and is not empty: name a directory that is not there yet" in ended(capsys, directory, new)[1]
    )


def test_a_ledger_of_another_user_is_left_to_that_user(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = directory.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    code, said = ended(capsys, directory, directory.with_name("new"))
    assert (code, f"the ledger belongs to uid {owner}: run this as that user" in said) == (os.EX_NOPERM, True)
    assert list(directory.parent.iterdir()) == [directory]


def test_a_file_that_may_not_be_read_is_named(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Closed(DiskFiles):
        def open_to_read(self, path: Path) -> int:
            if path.name == segment_name(2):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return super().open_to_read(path)

    assert repair(directory, directory.with_name("new"), as_json=False, files=Closed()) == os.EX_IOERR
    told = capsys.readouterr().err
    assert told == f"sidecar ledger repair: not repaired: {directory / segment_name(2)}: Permission denied\n"


@pytest.mark.parametrize("code", [os.EX_DATAERR, os.EX_NOINPUT, os.EX_CANTCREAT, os.EX_TEMPFAIL, os.EX_CONFIG])
def test_with_json_what_went_wrong_is_an_object(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    files, lock = DiskFiles(), None
    new, config = tmp_path / "new", tmp_path / "sidecar.toml"
    config.write_text("")
    words: list[object] = [directory, new]
    if code == os.EX_DATAERR:
        for number in (1, 2, 3):
            change(directory, number, 0, bytes(SEGMENT_BYTES))
    elif code == os.EX_NOINPUT:
        words = [tmp_path / "nowhere", new]
    elif code == os.EX_CANTCREAT:
        words = [directory, directory / "new"]
    elif code == os.EX_TEMPFAIL:
        lock = take_lock(files, directory)
    else:
        words += ["--config", config]
    assert main(["ledger", "repair", "--json", *map(str, words)]) == code
    if lock is not None:
        files.close(lock)
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["ok"], told["exit_code"], list(told), err) == (False, code, ["ok", "exit_code", "error"], "")


def test_an_empty_new_directory_is_taken(directory: Path) -> None:
    directory.with_name("new").mkdir()
    assert repaired(directory)["verdict"] == "sound"


def test_the_report_is_what_json_gives_and_the_text_names_it(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(directory, 1, 3 * BLOCK + 100)
    new = directory.with_name("new")
    assert main(["ledger", "repair", str(directory), str(new), "--json"]) == 0
    assert capsys.readouterr().out.encode() == (new / "repair-report.json").read_bytes()
    shutil.rmtree(new)
    assert main(["ledger", "repair", str(directory), str(new)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        f"{directory}: repaired into {new}\ndamage:     {segment_name(1)}, byte {3 * BLOCK}: expected "
    )
    assert str(new / "repair-report.json") in out


def test_low_waters_are_kept(directory: Path) -> None:
    async def raised() -> None:
        ledger = open_small(directory)
        async with ledger.running():
            await ledger.append(LowWaterRecord(expires_at_unix_ms=77))

    trio.run(raised)
    assert repaired(directory)["low_water"] == {"expires_at_unix_ms": 77, "why": None}
    ledger = open_small(directory.with_name("new"))
    assert ledger.low_water_unix_ms == 77


def test_many_open_requests_and_long_answers_find_room(tmp_path: Path) -> None:
    async def written() -> None:
        for first in range(0, 60, 3):
            await session(tmp_path / "ledger", [first], unfinished=[first + 1, first + 2], clean=False)

    trio.run(written)
    told = repaired(tmp_path / "ledger")
    assert told["kept"] == {"completed": 20, "indeterminate": 40}
    view = LedgerView(tmp_path / "new")
    assert [begin.request_id for begin in view.begins] == [f"request-{number}" for number in range(60)]


def test_records_share_batches_in_the_new_ledger(tmp_path: Path) -> None:
    trio.run(session, tmp_path / "ledger", range(40))
    told = repaired(tmp_path / "ledger")
    assert told["before_first_damage"]["batch"] == 82
    assert told["new"]["batch"] < 30


def test_the_advice_for_a_damaged_ledger_names_the_command(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(directory, 1, BLOCK)
    assert main(["ledger", "verify", str(directory)]) == os.EX_DATAERR
    assert "sidecar ledger repair writes what can be read into a new directory" in capsys.readouterr().err


def test_the_low_water_reaches_as_far_as_the_configuration_lets_a_request_live(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(directory, 1, 3 * BLOCK)
    config = tmp_path / "sidecar.toml"
    config.write_text("[daemon]\nexpiry_skew_seconds_max = 0\n")
    new = tmp_path / "new"
    assert main(["ledger", "repair", str(directory), str(new), "--config", str(config)]) == os.EX_CONFIG
    assert not new.exists()
    toml = (Path(__file__).resolve().parents[2] / "config.example.toml").read_text()
    config.write_text(re.sub(r"(?m)^#? ?expiry_skew_seconds_max = .*$", "expiry_skew_seconds_max = 86_400", toml))
    assert "86_400" in config.read_text()
    assert main(["ledger", "repair", str(directory), str(new), "--config", str(config)]) == 0
    out = capsys.readouterr().out
    until = json.loads((new / "repair-report.json").read_bytes())["low_water"]["expires_at_unix_ms"]
    assert "plus 86400000 ms, the longest that a request was given" in out
    assert f" = until {instant(until)} UTC: what expires by then is refused as Expired\n" in out


def test_an_end_whose_answer_names_another_request_is_not_its_own(tmp_path: Path) -> None:
    """A disk can put a begin where another one was, and then a place names the wrong one."""

    async def written() -> None:
        ledger = open_small(tmp_path / "ledger")
        async with ledger.running():
            while ledger.statistics().spares_ready < 2:
                await trio.lowlevel.checkpoint()
            for number, named in ((1, 1), (2, 9)):
                begin = records.begin(number)
                place = await ledger.begin(begin)
                answer = TransportResult(
                    caller_runtime_id="dungeon",
                    request_id=f"request-{named}",
                    disposition=TransportDisposition(refused="Capacity"),
                    schema_id="gamecult.model.transport_result.v1",
                )
                await ledger.complete(begin, records.completed(place, response=msgspec.msgpack.encode(answer)))

    trio.run(written)
    told = repaired(tmp_path / "ledger")
    assert ids(told) == ["request-2"]
    assert told["unattributed_micro_usd"] == 60
    assert "is that of request request-9" in told["unattributed"][0]["what"]


async def test_what_was_answered_is_answered_with_the_same_bytes_by_the_new_ledger(tmp_path: Path) -> None:
    answers = {number: os.urandom(3000) for number in range(5)}
    ledger = open_small(tmp_path / "ledger")
    async with ledger.running():
        for number, answer in answers.items():
            while ledger.statistics().spares_ready < 2:
                await trio.lowlevel.checkpoint()
            place = await ledger.begin(records.begin(number))
            await ledger.complete(records.begin(number), records.completed(place, response=answer))
    flip(tmp_path / "ledger", 1, 3 * BLOCK + 1000)  # in the answer of the first
    await trio.to_thread.run_sync(repaired_by_the_command, tmp_path)
    again = open_small(tmp_path / "new")
    async with again.running():
        for number, answer in answers.items():
            recorded = again.find("dungeon", f"request-{number}")
            assert recorded is not None
            if number:
                assert await again.read_response(recorded) == answer
            else:
                assert recorded.completed is None


def repaired_by_the_command(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", "ledger", "repair", str(place / "ledger"), str(place / "new")],
        check=True,
        capture_output=True,
        timeout=60,
    )
    assert done.stderr == b""


def test_the_readme_shows_it_with_an_output_of_its_form(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    [shown] = re.findall(r"```\n\$ sidecar ledger repair [^\n]*\n(.*?)```", readme, re.DOTALL)
    flip(directory, 1, 5 * BLOCK + 200)
    repaired(directory)
    out = capsys.readouterr().out.partition(f"{directory.with_name('new')}: sound")[0]
    labels = [re.findall(r"^[a-z ]+:", text, re.MULTILINE) for text in (shown, out)]
    assert labels[0] == labels[1]


# --- what is believed of single records ------------------------------------------------------------------------------


async def begins_and_ends(directory: Path, *numbers: int, answer: bytes = b"the answer") -> None:
    """In turn, each in a batch of its own; `answer` is that of the first."""
    ledger = open_small(directory)
    async with ledger.running():
        while ledger.statistics().spares_ready < 2:
            await trio.lowlevel.checkpoint()
        for number in numbers:
            begin = records.begin(number)
            place = await ledger.begin(begin)
            response = answer if number == numbers[0] else b"the answer"
            await ledger.complete(begin, records.completed(place, response=response))


def test_a_single_record_behind_a_gap_is_not_known_by_its_place_and_no_end_of_another_one_is_its_own(
    tmp_path: Path,
) -> None:
    """The begin of 3, damaged, stands where that of 2 stood: the end of 2 names this place."""
    directory = tmp_path / "ledger"
    trio.run(begins_and_ends, directory, 1, 2, 3)
    (_, second), (_, third) = place_of(directory, "request-2"), place_of(directory, "request-3")
    content = (directory / segment_name(1)).read_bytes()
    change(directory, 1, second, content[third : third + BLOCK])
    flip(directory, 1, second + 60)  # the head that it names: its record stays as it is
    change(directory, 1, third, bytes(BLOCK))
    change(directory, 1, second - BLOCK, os.urandom(BLOCK))
    told = repaired(directory)
    assert ids(told) == ["request-1", "request-3"]
    assert told["kept"]["completed"] == 0
    assert [one["what"] for one in told["unattributed"]] == ["Completed: its begin is lost"] * 2


def test_bytes_of_an_answer_behind_a_batch_that_was_put_into_its_midst_are_no_record(tmp_path: Path) -> None:
    """The begin of 3 stands in the second of three blocks of an answer, of which the third one poses as a batch's."""
    directory = tmp_path / "ledger"
    framed = on_disk.encode_record(records.begin(66))
    trial = on_disk.encode_record(records.completed(Place(1, 3 * BLOCK, 0), response=b"x" * 9000))
    behind_header = 2 * BLOCK - trial.index(b"x" * 9000)  # where a record of a batch in the third block would stand
    answer = (b"x" * behind_header + framed).ljust(9000, b"x")
    trio.run(lambda: begins_and_ends(directory, 2, 3, answer=answer))
    (_, second), (_, third) = place_of(directory, "request-2"), place_of(directory, "request-3")
    content = (directory / segment_name(1)).read_bytes()
    end = second + BLOCK
    assert third == end + 3 * BLOCK
    assert content.index(framed) == end + 2 * BLOCK + on_disk.BATCH_HEADER_BYTES
    change(directory, 1, end + BLOCK, content[third : third + BLOCK])
    change(directory, 1, third, bytes(BLOCK))
    told = repaired(directory)
    assert "request-66" not in as_recorded(directory.with_name("new"))
    assert ids(told) == ["request-2", "request-3"]
