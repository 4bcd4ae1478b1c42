"""Ids: 1 to 256 bytes of printable ASCII without the space. Source: CONTRACT section 3, rule 3."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

# Whether a text can name a caller, request, conversation, model, provider, tool call or tool: a match, or None.
# The bare method, because it is asked half a dozen times for each request.
is_id: Final[Callable[[str], re.Match[str] | None]] = re.compile(r"[\x21-\x7e]{1,256}", re.ASCII).fullmatch
