"""What a real server has counted of its own accord."""

from __future__ import annotations

import re
import urllib.request
from dataclasses import dataclass

from upstream.llama import Llama

_NAMES = (
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "tokens_predicted_total",
    "requests_processing",
    "n_decode_total",
)


@dataclass(frozen=True)
class Counted:
    """Since the server began: plain input, input read from its cache, output, all once a request has ended.

    And how many requests run right now, and how many steps have been made, also of those that still run.
    """

    plain: int
    read: int
    made: int
    running: int
    steps: int

    def since(self, before: Counted) -> tuple[int, int, int]:
        """(plain input, cache read, output) of what ran between the two."""
        return self.plain - before.plain, self.read - before.read, self.made - before.made


def counted(llama: Llama) -> Counted:
    headers = {"authorization": f"Bearer {llama.api_key}"} if llama.api_key else {}
    with urllib.request.urlopen(urllib.request.Request(f"{llama.base_url}/metrics", headers=headers)) as response:
        text = response.read().decode()
    found = {name: re.search(rf"^llamacpp:{name} (\d+)", text, re.MULTILINE) for name in _NAMES}
    return Counted(*(int(match[1]) for name in _NAMES if (match := found[name])))
