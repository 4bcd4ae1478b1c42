"""Whether the model that answered is of the family that was asked for. Pure.

Providers answer an alias with the dated snapshot behind it, put a reseller's
name in front, or leave the name out. All of that is the same family; anything
else is noted, and never priced: the price is that of the name that was asked
for. Source: WIRE section 9, CONTRACT section 4 (notes).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_SNAPSHOT: Final = re.compile(r"[-@:_](?:\d{4}-\d\d-\d\d|\d\d-\d{4}|\d\d-\d\d|\d{8}|\d{6}|\d{3,4}|latest|free)$")
_WEIGHTS: Final = re.compile(r"\.gguf$")


@lru_cache(maxsize=256)  # every answer says one of few names
def is_same_family(asked: str, said: str) -> bool:
    """An empty name says nothing, and is taken for the one that was asked for."""
    return not said or _family(asked) == _family(said)


def _family(name: str) -> str:
    last = name.lower().replace("\\", "/").rpartition("/")[2]
    return _SNAPSHOT.sub("", _WEIGHTS.sub("", last))
