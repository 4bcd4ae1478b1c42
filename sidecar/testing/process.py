"""The daemon's own process: started with this interpreter, and gone when it is told to, or when this process is."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import sidecar
from sidecar.testing.faults import NoSidecar, NotAnswering, NotReady
from sidecar.testing.log_lines import Followed, LogLine, LogLines

START_SECONDS_MAX: Final = 30.0
_END_SECONDS_MAX: Final = 60.0  # from SIGTERM; the daemon's own drain is shorter
_PIPE_BYTES: Final = 1 << 20  # the daemon waits for no reader, so a busy one needs room
_SHOWN_LINES: Final = 30
_NO_MODULE: Final = re.compile("No module named '?sidecar").search
_HINTS: Final[Mapping[int, str]] = {
    os.EX_CONFIG: "the settings that the test gave are wrong",
    os.EX_TEMPFAIL: "another daemon holds this folder: give each one of its own, or let the other end before",
    os.EX_CANTCREAT: "its socket can't be made",
    os.EX_DATAERR: "the ledger in this folder is damaged",
    os.EX_IOERR: "the disk takes or gives no ledger",
}


class Process:
    """One run of the daemon. Raises NoSidecar, NotReady; returns when it takes connections."""

    def __init__(self, config: Path, lines: LogLines) -> None:
        self._lines = lines
        reading, writing = os.pipe()
        with suppress(OSError):  # more than this user may have: then it is as long as it was
            fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            self._process = _started(config, writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        since = len(lines)
        self._log = Followed(reading, lines)
        try:
            self._wait_ready(since)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; a signal's number, negative, where it was killed."""
        return self._process.poll()

    def take_log(self) -> None:
        """Reads all that it has written."""
        self._log.take()

    def kill(self) -> None:
        """SIGKILL: nothing is finished, nothing is closed."""
        self._process.kill()
        self._process.wait()
        self._close()

    def stop(self) -> int:
        """SIGTERM: what runs may finish for a while. The exit code. Raises NotAnswering where that never ends."""
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(_END_SECONDS_MAX)
        except BaseException as why:
            self.kill()
            if isinstance(why, subprocess.TimeoutExpired):
                late = f"the daemon had not ended {_END_SECONDS_MAX:g} s after SIGTERM, and was killed"
                raise NotAnswering(late + shown(self._lines.all())) from None
            raise
        self._close()
        return code

    def _close(self) -> None:
        self._log.close()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _wait_ready(self, since: int) -> None:
        def is_over() -> bool:
            return self._log.ended or any(line.fact == "ready" for line in self._lines.all(since))

        in_time = self._lines.wait_until(is_over, START_SECONDS_MAX)
        said = self._lines.all(since)
        if any(line.fact == "ready" for line in said):
            return
        if not in_time:
            raise NotReady(f"the daemon was not ready after {START_SECONDS_MAX:g} s{shown(said)}")
        code = self._process.wait()
        if any(_NO_MODULE(line.text) for line in said):
            raise NoSidecar(_cannot_run("it finds no module of that name", said))
        hint = f": {_HINTS[code]}" if code in _HINTS else ""
        raise NotReady(f"the daemon ended with {code} before it was ready{hint}{shown(said)}")


def shown(lines: Sequence[LogLine], count: int = _SHOWN_LINES) -> str:
    """The last of them, below a heading; what is wrong with a file as `check` says it. Nothing where there are none."""
    last = [str(line.values["what"]) if line.fact == "config_complaint" else line.text for line in lines[-count:]]
    return "\nThe end of its log:\n  " + "\n  ".join(last) if last else "; it said nothing"


def _started(config: Path, stderr: int) -> subprocess.Popen[bytes]:
    """In the folder of its configuration, where no module of a test's lies in the way of one that it imports.

    Of its stdin this process alone has the other end (`sidecar.testing.child`).
    """
    if not sys.executable:
        raise NoSidecar(_cannot_run("this interpreter doesn't know its own path", ()))
    command = [sys.executable, "-m", "sidecar.testing.child", "serve", "--config", str(config), "--log-format", "json"]
    try:
        return subprocess.Popen(
            command,
            cwd=config.parent,
            env={**os.environ, **_python_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    except OSError as error:
        raise NoSidecar(_cannot_run(error.strerror or str(error), ())) from None


def _python_path() -> Mapping[str, str]:
    """So that it runs the very package that the test has imported, also where that is not installed."""
    here = str(Path(sidecar.__file__).parent.parent)
    given = [os.path.abspath(one) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    paths = given if here in installed or here in given else [here, *given]
    return {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}


def _cannot_run(why: str, said: Sequence[LogLine]) -> str:
    what = f"{sys.executable or 'python'} -m sidecar can't be run: {why}; install model-sidecar where the tests run"
    return what + shown(said) if said else what
