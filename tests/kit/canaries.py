"""Words that must be found nowhere: planted as keys, prompts and answers, and looked for in every spelling."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

KEY = 'sk-canary-K3y"\\/z'  # JSON and URLs have other spellings for these
PROMPT = "canary-prompt-Gr\u00fcn-7f3a"
ANSWER = "canary-answer-Bl\u00e4u-9c1d"


def spellings(canary: str) -> set[bytes]:
    """As it may stand in a text: itself, escaped, quoted, in base64 at each of its three offsets, in hexadecimal."""
    raw = canary.encode()
    said = {
        canary, json.dumps(canary)[1:-1], json.dumps(json.dumps(canary))[1:-1], repr(canary)[1:-1], quote(canary),
        quote(canary, safe=""), ascii(canary)[1:-1], repr(raw)[2:-1], raw.hex(), raw.hex().upper(),
    }  # fmt: skip
    encoded = {base64.b64encode(b"x" * lead + raw)[4:-4] for lead in range(3)}
    return {one.encode() for one in said} | encoded


def found_in(text: bytes, *canaries: str) -> list[str]:
    """The canaries that stand in this text, whatever their spelling."""
    return [canary for canary in canaries if any(spelling in text for spelling in spellings(canary))]


def seen_of(pid: int) -> bytes:
    """What anybody who may look sees of a process: its environment, its command line, its name."""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline", "comm", "status"))
