"""`python -m sidecar`, and where the console script begins."""

from __future__ import annotations

import os
import signal
import sys


def run() -> int:
    """Runs the command line. Ctrl-C ends it with 130 and no traceback from here on, also while modules are read."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # who ignores it is left alone
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    from sidecar.cli.main import main  # only now: reading it takes longer than most commands run

    return main()


if __name__ == "__main__":
    sys.exit(run())
