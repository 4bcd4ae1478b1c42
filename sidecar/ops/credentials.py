"""Secrets, by name: found where the host keeps them, and never shown.

A name is a file in `$CREDENTIALS_DIRECTORY` (systemd's LoadCredential); an
explicit file must not be open to other users; an environment variable is for
development. Source: ECOSYSTEM section 1.3, CONTRACT section 7.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from hmac import compare_digest
from pathlib import Path
from typing import Final, NoReturn

from sidecar.contract.ids import is_id

_NAME_CHARACTERS_MAX: Final = 64
_KEYS_BEGIN: Final = ("sk-", "sk_", "AIza", "gsk_", "xai-")  # of keys that are often pasted
_CREDENTIAL_BYTES_MAX: Final = 65_536
_FOLDER_ID: Final = "sidecar"  # of our unit's LoadCredential=, which systemd puts before each file's name with a _


class CredentialFault(Exception):
    """A credential can't be used; the message names it and says why, and never shows it."""


class Secret:
    """A secret that prints as its name; `reveal()` is the one way to its text."""

    __slots__ = ("_name", "_text")

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text

    def reveal(self) -> str:
        return self._text

    def is_same(self, other: Secret) -> bool:
        """Whether both are one text, whatever they are called."""
        return compare_digest(self._text.encode(), other._text.encode())

    def __repr__(self) -> str:
        return f"<secret {self._name}>"

    __str__ = __repr__

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} can't be pickled")


def load(*, name: str | None, file: Path | None, env: str | None, environ: Mapping[str, str] = os.environ) -> Secret:
    """The secret that exactly one of the three names. Raises CredentialFault."""
    if env is not None:
        if env not in environ:
            raise CredentialFault(f"the environment variable {env} is not set")
        return _checked(f"${env}", environ[env])
    if file is not None:
        return _checked(str(file), _read(file, check_mode=True))
    assert name is not None, "a credential is named by nothing"
    if _is_rather_a_key(name):
        raise CredentialFault(
            f"a text of {len(name)} characters stands there: the name of a credential is wanted, never the key itself"
        )
    directory = environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        raise CredentialFault(f"{name}: $CREDENTIALS_DIRECTORY is not set, so there is no credential of this name")
    return _checked(name, _read(_of_the_service(Path(directory), name), check_mode=False))


def _of_the_service(directory: Path, name: str) -> Path:
    """The credential of this name, or the file of this name in the folder that our unit loads as a whole."""
    alone, of_the_folder = directory / name, directory / f"{_FOLDER_ID}_{name}"
    return of_the_folder if of_the_folder.exists() and not alone.exists() else alone


def _is_rather_a_key(name: str) -> bool:
    """Whether a key was pasted in place of a name; then it is not said again."""
    return len(name) > _NAME_CHARACTERS_MAX or name.startswith(_KEYS_BEGIN)


def _read(path: Path, *, check_mode: bool) -> str:
    """The file's bytes as text. A byte outside ASCII becomes U+FFFD, which `_checked` refuses without showing it."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CredentialFault(f"{path} is no file")
            if check_mode and stat.S_IMODE(status.st_mode) & 0o077:
                raise CredentialFault(
                    f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):04o}); chmod 600 it"
                )
            held = file.read(_CREDENTIAL_BYTES_MAX + 1)
    except OSError as error:
        raise CredentialFault(f"{path}: {error.strerror}") from error
    if len(held) > _CREDENTIAL_BYTES_MAX:
        raise CredentialFault(f"{path} is larger than {_CREDENTIAL_BYTES_MAX} bytes")
    return held.decode("ascii", errors="replace")


def _open_without_waiting(path: str, flags: int) -> int:
    """A FIFO that nobody writes to would otherwise keep us waiting before its kind can be seen."""
    return os.open(path, flags | os.O_NONBLOCK)


def _checked(name: str, text: str) -> Secret:
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise CredentialFault(f"{name} is empty")
    if not all(is_id(character) for character in text):
        raise CredentialFault(f"{name} holds spaces, control characters or what is not ASCII")
    return Secret(name, text)
