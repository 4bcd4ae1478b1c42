"""How goldens spell bytes and values in JSON, so that files stay small and survive every editor.

Bytes are one base64 string, or, where a run repeats, a list of pieces
`{"hex": ..., "times": n}`. In a value, a long repeating string is
`{"$text": ..., "$times": n}`, and bytes are base64, or
`{"$base64": ..., "$times": n}`. Everything is ASCII with `\\u` escapes. The
same words stand in `goldens/README.md`; `tests/clients/typescript` reads them
a second time.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from typing import Any

PLAIN_MAX = 300  # what is no longer than this is never abbreviated
BINARY_MEMBERS = frozenset({"state", "response"})  # the members whose published format is binary

_RUN = re.compile(rb"(.{1,8}?)\1{63,}", re.DOTALL)
_WHOLE = re.compile(r"(.{1,8}?)\1{63,}", re.DOTALL)


def spelt_bytes(raw: bytes) -> Any:
    if len(raw) <= PLAIN_MAX or not _RUN.search(raw):
        return b64encode(raw).decode()
    pieces: list[dict[str, Any]] = []
    at = 0
    for run in _RUN.finditer(raw):
        if run.start() > at:
            pieces.append({"hex": raw[at : run.start()].hex()})
        unit = run.group(1)
        pieces.append({"hex": unit.hex(), "times": (run.end() - run.start()) // len(unit)})
        at = run.end()
    return [*pieces, {"hex": raw[at:].hex()}] if at < len(raw) else pieces


def read_bytes(spelt: Any) -> bytes:
    if isinstance(spelt, str):
        return b64decode(spelt, validate=True)
    return b"".join(bytes.fromhex(piece["hex"]) * piece.get("times", 1) for piece in spelt)


def spelt_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: spelt_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [spelt_value(inner) for inner in value]
    if isinstance(value, str) and len(value) > PLAIN_MAX and (run := _WHOLE.fullmatch(value)):
        return {"$text": run.group(1), "$times": len(value) // len(run.group(1))}
    if isinstance(value, bytes):
        if len(value) > PLAIN_MAX and (whole := _RUN.fullmatch(value)):
            return {"$base64": b64encode(whole.group(1)).decode(), "$times": len(value) // len(whole.group(1))}
        return b64encode(value).decode()
    return value


def read_value(spelt: Any, member: str = "") -> Any:
    if isinstance(spelt, list):
        return [read_value(inner) for inner in spelt]
    if isinstance(spelt, str):
        return b64decode(spelt, validate=True) if member in BINARY_MEMBERS else spelt
    if not isinstance(spelt, dict):
        return spelt
    if "$text" in spelt:
        return str(spelt["$text"]) * int(spelt["$times"])
    if "$base64" in spelt:
        return b64decode(spelt["$base64"], validate=True) * int(spelt["$times"])
    return {key: read_value(inner, key) for key, inner in spelt.items()}


_DIGEST = re.compile(r"\[\n\s+(\d+(?:,\n\s+\d+){31})\n\s+\]")


def written(document: Any) -> str:
    """The file's text: indented, but a digest's 32 integers on one line."""
    text = json.dumps(document, indent=1, ensure_ascii=True)
    return _DIGEST.sub(lambda digest: "[" + ", ".join(re.findall(r"\d+", digest.group(1))) + "]", text) + "\n"
