"""The file for a collector: the old text or the new one, whole; one line where it fails; gone at a clean end."""

from __future__ import annotations

import io
import os
import stat
import threading
from functools import partial
from pathlib import Path

import pytest
import trio
from kit.daemon_process import running_daemon, wait_until
from kit.exposition import read_exposition

from sidecar.config.values import MetricsFile
from sidecar.ops.log import Log
from sidecar.ops.text_file import temporary_for, write_whole
from sidecar.service.metrics_file import keep_written


def test_a_file_is_written_whole_and_readable_for_all_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.prom"
    before = os.umask(0o077)
    try:
        write_whole(path, "one\n")
        write_whole(path, "two\n")
    finally:
        os.umask(before)
    assert path.read_text() == "two\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["sidecar.prom"]


def test_who_has_the_old_file_open_reads_it_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.prom"
    write_whole(path, "old\n" * 10_000)
    with path.open() as reader:
        assert reader.readline() == "old\n"
        write_whole(path, "new\n")
        assert reader.read() == "old\n" * 9_999
    assert path.read_text() == "new\n"


@pytest.mark.parametrize("fails_in", ["write", "rename"])
def test_where_writing_fails_the_old_text_stands_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_in: str
) -> None:
    path = tmp_path / "sidecar.prom"
    write_whole(path, "old\n")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod" if fails_in == "write" else "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new\n")
    assert path.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["sidecar.prom"]


def test_a_link_that_lies_in_the_way_is_not_written_through(tmp_path: Path) -> None:
    path, other = tmp_path / "sidecar.prom", tmp_path / "other"
    other.write_text("mine")
    temporary_for(path).symlink_to(other)
    write_whole(path, "new\n")
    assert (path.read_text(), other.read_text()) == ("new\n", "mine")


async def test_a_failure_is_one_line_until_it_works_again(tmp_path: Path) -> None:
    fails = iter([True, True, True, False, False, True])
    stream, texts = io.StringIO(), []
    times = 0

    def write(path: Path, text: str) -> None:
        texts.append(text)
        if next(fails):
            raise PermissionError(13, "Permission denied")

    async def text() -> str:
        return f"{len(texts)}\n"

    async def pause(seconds: float) -> None:
        nonlocal times
        times += 1
        assert seconds == 15
        if times == 6:
            nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint()

    file = MetricsFile(file=tmp_path / "m.prom", interval_seconds=15)
    async with trio.open_nursery() as nursery:
        await keep_written(file, text, Log(stream, "journal"), write=write, pause=pause)
    told = [line.split()[0] for line in stream.getvalue().splitlines()]
    assert told == ["<4>metrics_file_failed", "<5>metrics_file_written", "<4>metrics_file_failed"]
    assert texts == [f"{at}\n" for at in range(6)]


def test_a_daemon_writes_its_file_and_takes_it_away_at_a_clean_stop(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.prom"
    with running_daemon(tmp_path, callers='\n[metrics]\nfile = "sidecar.prom"\ninterval_seconds = 1\n') as daemon:
        wait_until(path.exists)
        read = read_exposition(path.read_text())
        assert read["sidecar_window_ceiling_usd"].value(caller="dungeon") == 10**6
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert daemon.stop() == 0
    assert not path.exists()


def test_a_daemon_whose_file_cannot_be_written_serves_and_says_so(tmp_path: Path) -> None:
    with running_daemon(tmp_path, callers='\n[metrics]\nfile = "no/such/folder/m.prom"\n') as daemon:
        wait_until(lambda: "metrics_file_failed" in daemon.log())
        assert daemon.stop() == 0
    assert daemon.log().count("metrics_file_failed") == 1


async def no_pause(seconds: float) -> None:
    await trio.sleep_forever()


async def some_text() -> str:
    return "text"


async def test_a_write_that_was_given_up_lands_before_the_removal_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "m.prom"
    begun, go_on = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    def slow(path: Path, text: str) -> None:
        token.run_sync_soon(begun.set)
        go_on.wait()
        write_whole(path, text)

    async with trio.open_nursery() as nursery:
        file = MetricsFile(file=path, interval_seconds=15)
        nursery.start_soon(partial(keep_written, file, some_text, Log(io.StringIO()), write=slow, pause=no_pause))
        await begun.wait()
        nursery.cancel_scope.cancel()
        go_on.set()
    assert os.listdir(tmp_path) == []


async def test_an_end_without_a_thread_to_remove_the_file_in_is_an_end_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.prom"
    written = trio.Event()

    async def told(seconds: float) -> None:
        written.set()
        await trio.sleep_forever()

    async def no_thread(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    async with trio.open_nursery() as nursery:
        file = MetricsFile(file=path, interval_seconds=15)
        nursery.start_soon(partial(keep_written, file, some_text, Log(io.StringIO()), pause=told))
        await written.wait()
        monkeypatch.setattr(trio.to_thread, "run_sync", no_thread)
        nursery.cancel_scope.cancel()
    assert path.exists()


def test_two_writers_of_one_file_have_temporaries_of_their_own(tmp_path: Path) -> None:
    names: list[Path] = [temporary_for(tmp_path / "m.prom")]
    other = threading.Thread(target=lambda: names.append(temporary_for(tmp_path / "m.prom")))
    other.start()
    other.join()
    assert len(set(names)) == 2
