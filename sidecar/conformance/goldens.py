"""Where the goldens are, and how their files are read. The spelling is that of goldens/README.md."""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_HERE: Final = Path(__file__).resolve().parent
_PLACES: Final = (
    _HERE / "goldens",  # an installed wheel carries them
    _HERE.parents[1] / "goldens",  # a checkout has them beside the package
)
_BINARY_MEMBERS: Final = frozenset({"state", "response"})


class NoGoldens(Exception):
    """The goldens are not there, or a file of theirs can't be read; the message says which and what to do."""


class Goldens:
    """One directory of goldens. Every reading raises NoGoldens for a file that is missing or broken."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def document(self, path: str) -> Mapping[str, Any]:
        document: Mapping[str, Any] = self._json(self.directory / path)
        return document

    def vectors(self, path: str) -> Sequence[Mapping[str, Any]]:
        """The vectors of one file."""
        vectors = self.document(path).get("vectors")
        if not isinstance(vectors, list):
            raise NoGoldens(f"{self.directory / path} has no vectors")
        return vectors

    def every(self, folder: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Each file of a folder by its name, in the order of the names."""
        for path in sorted((self.directory / folder).glob("*.json")):
            yield path.stem, self._json(path)

    def text(self, path: str) -> str:
        try:
            return (self.directory / path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise NoGoldens(f"{self.directory / path} can't be read: {error}") from None

    def _json(self, path: Path) -> Any:
        try:
            return json.loads(self.text(str(path.relative_to(self.directory))))
        except (ValueError, RecursionError) as error:
            raise NoGoldens(f"{path} is no JSON: {error}") from None


def found(directory: Path | None = None) -> Goldens:
    """The goldens in this directory; without one those of this installation. Raises NoGoldens."""
    place = installed_at() if directory is None else directory if _holds_goldens(directory) else None
    if place is not None:
        return Goldens(place)
    if directory is None:
        raise NoGoldens("this installation has no goldens: name their directory with --goldens")
    raise NoGoldens(f"{directory} holds no goldens: it needs values/ and transcripts/")


def installed_at() -> Path | None:
    """The directory of this installation's goldens; `schemas/` stands beside it."""
    return next(filter(_holds_goldens, _PLACES), None)


def _holds_goldens(directory: Path) -> bool:
    return (directory / "values").is_dir() and (directory / "transcripts").is_dir()


def read_bytes(spelt: Any) -> bytes:
    """The bytes of a vector: base64, or a list of pieces to put together."""
    try:
        if isinstance(spelt, str):
            return b64decode(spelt, validate=True)
        return b"".join(bytes.fromhex(piece["hex"]) * int(piece.get("times", 1)) for piece in spelt)
    except (NotBase64, ValueError, TypeError, KeyError) as error:
        raise NoGoldens(f"bytes that are spelt in no known way: {error!r}") from None


def read_value(spelt: Any, member: str = "") -> Any:
    """The value of a vector, as MessagePack has it: bytes where the wire has bin."""
    if isinstance(spelt, list):
        return [read_value(inner) for inner in spelt]
    if isinstance(spelt, str):
        return read_bytes(spelt) if member in _BINARY_MEMBERS else spelt
    if not isinstance(spelt, dict):
        return spelt
    if "$text" in spelt:
        return str(spelt["$text"]) * int(spelt["$times"])
    if "$base64" in spelt:
        return read_bytes(spelt["$base64"]) * int(spelt["$times"])
    return {key: read_value(inner, key) for key, inner in spelt.items()}
