"""The daemon's process: as `python -m sidecar serve ...`, but it ends when the process of its test does.

Its stdin is a pipe whose other end only the process of the test has, and what
that forks without running another program. Nothing is written to it. When that
process is gone, however it went, the pipe ends, and so does this. The kernel's
own signal for a parent's death comes when the thread that has started a
process ends, which may be in the middle of a test.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def _end_with(test: int) -> None:
    while os.read(test, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)  # nobody is there who wants an answer, or a folder in order


def main() -> None:
    test = os.dup(sys.stdin.fileno())  # which no child of the daemon gets
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    threading.Thread(target=_end_with, args=(test,), name="sidecar test", daemon=True).start()
    runpy.run_module("sidecar", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
