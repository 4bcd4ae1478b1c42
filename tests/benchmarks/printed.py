"""What every benchmark prints alike: the machine, a median with its spread, and whether a bar holds."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from statistics import median


def machine() -> str:
    return f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} cores"


def filesystem(folder: str) -> str:
    found = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=False)
    kind = found.stdout.strip() or "not known"
    return kind + (" (in memory: a sync costs nothing here, use --directory)" if kind == "tmpfs" else "")


def spread(values: Sequence[float], form: str = "{:.0f}") -> str:
    return f"{form.format(median(values))} ({form.format(min(values))} to {form.format(max(values))})"


def bar(name: str, measured: str, bound: str, *, holds: bool) -> bool:
    """Whether it holds, for an exit code."""
    print(f"{name:37}{measured}   {bound}: {'holds' if holds else 'DOES NOT HOLD'}")
    return holds
