"""Ids: 1 to 256 bytes of printable ASCII without the space. Source: CONTRACT section 3, rule 3."""

from __future__ import annotations

import re
from typing import Final

_ID: Final = re.compile(r"[\x21-\x7e]{1,256}", re.ASCII)


def is_id(text: str) -> bool:
    """Whether the text can name a caller, request, conversation, model, provider, tool call or tool."""
    return _ID.fullmatch(text) is not None
