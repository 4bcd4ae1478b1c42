"""What words on the command line may be, each as the value that it stands for."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sidecar.contract.ids import is_id

SECONDS_MAX: Final = 1e9


def a_socket(said: str) -> Path:
    if not said:
        raise argparse.ArgumentTypeError("it is empty; a path is wanted")
    return Path(said)


def an_id(said: str) -> str:
    if not is_id(said):
        raise argparse.ArgumentTypeError("an id is 1 to 256 characters of printable ASCII, without spaces")
    return said


def whole(at_most: int) -> Callable[[str], int]:
    def a_whole(said: str) -> int:
        plain = said.replace("_", "")
        if not (plain.isascii() and plain.isdecimal() and len(plain) <= 20 and 1 <= int(plain) <= at_most):
            raise argparse.ArgumentTypeError(f"a whole number from 1 to {at_most} is wanted")
        return int(plain)

    return a_whole


def seconds(said: str) -> float:
    try:
        number = float(said)
    except ValueError:
        number = math.nan
    if not 0 < number <= SECONDS_MAX:
        raise argparse.ArgumentTypeError("a number of seconds above 0 is wanted")
    return number
