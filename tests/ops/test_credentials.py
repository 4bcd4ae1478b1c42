"""Secrets: found by name, refused where others could read them, and never shown."""

from __future__ import annotations

import copy
import os
import pickle
import traceback
from pathlib import Path

import pytest

from sidecar.ops.credentials import CredentialFault, Secret, load

KEY = "sk-live-0123456789"


def written(path: Path, held: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(held)
    path.chmod(mode)
    return path


def fault(**place: object) -> str:
    asked = {"name": None, "file": None, "env": None, "environ": {}, **place}
    with pytest.raises(CredentialFault) as raised:
        load(**asked)
    assert KEY not in "".join(traceback.format_exception(raised.value))
    return str(raised.value)


def test_a_name_is_a_file_in_the_credentials_directory_whatever_its_mode(tmp_path: Path) -> None:
    written(tmp_path / "openai-key", KEY.encode(), 0o444)
    secret = load(name="openai-key", file=None, env=None, environ={"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert secret.reveal() == KEY


def test_a_name_is_a_file_of_the_folder_that_the_unit_loads_unless_it_was_loaded_alone(tmp_path: Path) -> None:
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    written(tmp_path / "sidecar_openai-key", KEY.encode(), 0o400)
    assert load(name="openai-key", file=None, env=None, environ=environ).reveal() == KEY
    written(tmp_path / "openai-key", b"another", 0o400)
    assert load(name="openai-key", file=None, env=None, environ=environ).reveal() == "another"
    assert fault(name="other-key", environ=environ) == f"{tmp_path}/other-key: No such file or directory"


def test_a_file_of_our_own_and_an_environment_variable_hold_one_too(tmp_path: Path) -> None:
    path = written(tmp_path / "key", KEY.encode())
    assert load(name=None, file=path, env=None, environ={}).reveal() == KEY
    assert load(name=None, file=None, env="API_KEY", environ={"API_KEY": KEY}).reveal() == KEY


@pytest.mark.parametrize(("held", "secret"), [(b"k\n", "k"), (b"k\r\n", "k"), (b"k", "k")])
def test_one_newline_at_the_end_is_not_part_of_it(tmp_path: Path, held: bytes, secret: str) -> None:
    assert load(name=None, file=written(tmp_path / "key", held), env=None, environ={}).reveal() == secret


@pytest.mark.parametrize(
    ("held", "what"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"k\n\n", "holds spaces, control characters or what is not ASCII"),
        (KEY.encode() + b"\x00", "holds spaces, control characters or what is not ASCII"),
        (KEY.encode() + b" 2", "holds spaces, control characters or what is not ASCII"),
        (KEY.encode() + b"\x7f", "holds spaces, control characters or what is not ASCII"),
        (KEY.encode() + b"\xff", "holds spaces, control characters or what is not ASCII"),
        (KEY.encode() + "é".encode(), "holds spaces, control characters or what is not ASCII"),
        (KEY.encode() * 5000, "is larger than 65536 bytes"),
    ],
)
def test_what_can_be_no_header_is_refused_without_being_shown(tmp_path: Path, held: bytes, what: str) -> None:
    path = written(tmp_path / "key", held)
    assert fault(file=path) == f"{path} {what}"


def test_a_variable_is_held_to_the_same(tmp_path: Path) -> None:
    assert fault(env="API_KEY") == "the environment variable API_KEY is not set"
    assert fault(env="API_KEY", environ={"API_KEY": ""}) == "$API_KEY is empty"
    assert fault(env="API_KEY", environ={"API_KEY": f"{KEY}\n\n"}).startswith("$API_KEY holds spaces")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_a_file_of_our_own_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "key", KEY.encode(), mode)
    assert fault(file=path) == f"{path} is open to other users (mode {mode:04o})"


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    assert fault(file=tmp_path / "key") == f"{tmp_path / 'key'}: No such file or directory"
    assert fault(file=tmp_path) == f"{tmp_path}: Is a directory"
    assert fault(name="key").startswith("key: $CREDENTIALS_DIRECTORY is not set")
    assert "No such file" in fault(name="key", environ={"CREDENTIALS_DIRECTORY": str(tmp_path)})


def test_a_fifo_that_nobody_writes_to_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    assert fault(file=tmp_path / "key") == f"{tmp_path / 'key'} is no file"


def test_a_secret_shows_its_name_alone() -> None:
    secret = Secret("openai-key", KEY)
    for shown in (str(secret), repr(secret), f"{secret}", f"{secret!r:>40}", f"{[secret]}"):
        assert "<secret openai-key>" in shown
        assert KEY not in shown
    assert not hasattr(secret, "__dict__")


@pytest.mark.parametrize("take_apart", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_secret_can_be_neither_pickled_nor_copied(take_apart: object) -> None:
    with pytest.raises(TypeError, match="<secret openai-key> can't be pickled"):
        take_apart(Secret("openai-key", KEY))


@pytest.mark.parametrize("pasted", ["sk-proj-abcdef", "AIzaSyabcdef", "x" * 65])
def test_a_key_that_was_pasted_in_place_of_a_name_is_not_said_again(pasted: str) -> None:
    for environ in ({}, {"CREDENTIALS_DIRECTORY": "/nowhere"}):
        with pytest.raises(CredentialFault) as fault:
            load(name=pasted, file=None, env=None, environ=environ)
        assert pasted not in str(fault.value)


def test_a_file_of_another_user_is_refused_with_what_to_do(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    path = written(tmp_path / "key", KEY.encode())
    os.chown(path, 12345, -1)
    assert "belongs to another user (uid 12345)" in fault(file=path)
