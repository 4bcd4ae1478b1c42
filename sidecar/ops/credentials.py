"""Secrets, by name: found where the host keeps them, and never shown.

A name is a file in `$CREDENTIALS_DIRECTORY` (systemd's LoadCredential); an
explicit file must not be open to other users; an environment variable is for
development. Source: ECOSYSTEM section 1.3, CONTRACT section 7.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from hmac import compare_digest
from pathlib import Path
from typing import Final, NoReturn

from sidecar.contract.ids import is_id

_NAME_CHARACTERS_MAX: Final = 64
_KEYS_BEGIN: Final = ("sk-", "sk_", "AIza", "gsk_", "xai-")  # of keys that are often pasted
_LETTER_BESIDE_DIGIT: Final = re.compile(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])")
_KEY_CHARACTERS_MIN, _CHANGES_MIN = 20, 5  # whoever names a file goes from letters to digits and back once or twice
_CREDENTIAL_BYTES_MAX: Final = 65_536
_FOLDER: Final = "/etc/sidecar/credentials"  # which our unit loads as a whole
_FOLDER_ID: Final = "sidecar"  # ... under this id, which systemd puts before each file's name with a _


class CredentialFault(Exception):
    """A credential can't be used; the message names it and says why, and never shows it. `hint` says what to do."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.hint = hint


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
            what = f"the environment variable {env} is not set"
            raise CredentialFault(what, f'export {env}, or write {{file = "..."}} or the name of a credential')
        return _checked(f"${env}", environ[env])
    if file is not None:
        return _checked(str(file), _read(file, check_mode=True))
    assert name is not None, "a credential is named by nothing"
    if is_rather_a_key(name):
        raise CredentialFault(
            f"a text of {len(name)} characters stands there: the name of a credential is wanted, never the key itself",
            'put the key into a file, and write that one\'s name: "openai-key"',
        )
    directory = environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        raise CredentialFault(
            f"{name}: $CREDENTIALS_DIRECTORY is not set, so there is no credential of this name",
            f'the service has it from {_FOLDER}/{name}; by hand: CREDENTIALS_DIRECTORY={_FOLDER}; or {{file = "..."}}',
        )
    if_missing = f"install -m 600 /dev/stdin {_FOLDER}/{name}, and restart the service, which reads it when it starts"
    return _checked(name, _read(_of_the_service(Path(directory), name), check_mode=False, if_missing=if_missing))


def _of_the_service(directory: Path, name: str) -> Path:
    """The credential of this name, or the file of this name in the folder that our unit loads as a whole."""
    alone, of_the_folder = directory / name, directory / f"{_FOLDER_ID}_{name}"
    return of_the_folder if os.path.exists(of_the_folder) and not os.path.exists(alone) else alone


def is_rather_a_key(name: str, *, of_file: bool = False) -> bool:
    """Whether a key was pasted in place of a name; then it is not said again. Files may have long names."""
    is_random = len(name) >= _KEY_CHARACTERS_MIN and len(_LETTER_BESIDE_DIGIT.findall(name)) >= _CHANGES_MIN
    return name.startswith(_KEYS_BEGIN) or (not of_file and (len(name) > _NAME_CHARACTERS_MAX or is_random))


def _read(path: Path, *, check_mode: bool, if_missing: str | None = None) -> str:
    """The file's bytes as text. A byte outside ASCII becomes U+FFFD, which `_checked` refuses without showing it."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CredentialFault(f"{path} is no file", "name the file that holds the key and nothing else")
            if check_mode and stat.S_IMODE(status.st_mode) & 0o077:
                what = f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):04o})"
                raise CredentialFault(what, f"chmod 600 {path}")
            if check_mode and status.st_uid not in (0, os.geteuid()):
                what = f"{path} belongs to another user (uid {status.st_uid}), who could read and change it"
                raise CredentialFault(what, f"chown it to uid {os.geteuid()}")
            held = file.read(_CREDENTIAL_BYTES_MAX + 1)
    except OSError as error:
        raise CredentialFault(f"{path}: {error.strerror}", _file_hint(path, error, if_missing)) from error
    if len(held) > _CREDENTIAL_BYTES_MAX:
        what = f"{path} is larger than {_CREDENTIAL_BYTES_MAX} bytes"
        raise CredentialFault(what, "name the file that holds the key and nothing else")
    return held.decode("ascii", errors="replace")


def _file_hint(path: Path, error: OSError, if_missing: str | None) -> str:
    if isinstance(error, FileNotFoundError):
        return if_missing or f"put the key there: install -m 600 /dev/stdin {path}"
    if isinstance(error, PermissionError):
        return f"let the daemon's user (uid {os.geteuid()}) own it, with chmod 600 {path}"
    return "name a file that can be read"


def _open_without_waiting(path: str, flags: int) -> int:
    """A FIFO that nobody writes to would otherwise keep us waiting before its kind can be seen."""
    return os.open(path, flags | os.O_NONBLOCK)


def _checked(name: str, text: str) -> Secret:
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise CredentialFault(f"{name} is empty", "put the key into it, in one line")
    if not all(is_id(character) for character in text):
        what = f"{name} holds spaces, control characters or what is not ASCII"
        raise CredentialFault(
            what, "put the key into it and nothing else: one line, without quotes or a name before it"
        )
    return Secret(name, text)
