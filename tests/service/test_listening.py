"""Which socket is served, what is said of it, and that one which was handed over is left as it was."""

from __future__ import annotations

import io
import os
import socket
from pathlib import Path

import pytest
from kit import road
from kit.service_manager import listening_at
from msgspec import structs

from sidecar.config.values import Daemon
from sidecar.ops.activation import Passed
from sidecar.ops.log import Log
from sidecar.service.listener import Bound, SocketUnavailable
from sidecar.service.listening import Inherited, Listening, listening


def terms(path: Path) -> Daemon:
    return structs.replace(road.config().daemon, socket=path, socket_mode=0o660)


def handed_over(held: socket.socket, wanted: Path, name: str = "requests") -> tuple[Listening, str]:
    """What is served where a copy of this socket was handed over, and what the log says of it."""
    text = io.StringIO()
    return listening(terms(wanted), [Passed(os.dup(held.fileno()), name)], Log(text, "text")), text.getvalue()


def test_where_nothing_was_handed_over_our_own_is_bound_with_its_mode(tmp_path: Path) -> None:
    served = listening(terms(tmp_path / "s"), (), Log(io.StringIO(), "text"))
    assert isinstance(served, Bound)
    assert (served.where, served.activated) == (str(tmp_path / "s"), False)
    assert os.stat(tmp_path / "s").st_mode & 0o777 == 0o660
    served.remove()
    assert not (tmp_path / "s").exists()


def test_one_that_was_handed_over_is_served_and_nothing_of_it_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listening_at(path) as held:
        os.chmod(path, 0o600)
        before = os.lstat(path)
        served, said = handed_over(held, path)
        assert isinstance(served, Inherited)
        assert (served.where, served.activated) == (str(path), True)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            served.socket.accept()[0].close()
        served.remove()
        served.remove()
        assert os.lstat(path) == before
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            held.accept()[0].close()
    assert said == ""


def test_where_the_config_says_another_path_that_one_is_not_bound_and_a_line_says_which_is_served(
    tmp_path: Path,
) -> None:
    with listening_at(tmp_path / "s") as held:
        os.chmod(tmp_path / "s", 0o660)
        served, said = handed_over(held, tmp_path / "other")
        served.remove()
    assert not (tmp_path / "other").exists()
    assert f"warning socket_elsewhere served={tmp_path}/s not_served={tmp_path}/other" in said


def test_another_way_to_the_same_path_is_no_other_socket(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "var").symlink_to(tmp_path / "run")
    with listening_at(tmp_path / "run/s") as held:
        os.chmod(tmp_path / "run/s", 0o660)
        served, said = handed_over(held, tmp_path / "var/s")
        served.remove()
    assert said == ""


def test_one_that_lets_more_users_in_than_the_config_does_is_a_line(tmp_path: Path) -> None:
    with listening_at(tmp_path / "s") as held:
        os.chmod(tmp_path / "s", 0o666)
        served, said = handed_over(held, tmp_path / "s")
        served.remove()
    assert "warning socket_more_open mode=0666 socket_mode=0660" in said
    assert "SocketMode=0660" in said


def test_one_whose_file_is_gone_is_a_line_that_says_what_to_do(tmp_path: Path) -> None:
    with listening_at(tmp_path / "s") as held:
        (tmp_path / "s").unlink()
        served, said = handed_over(held, tmp_path / "s")
        served.remove()
    assert f"warning socket_unreachable socket={tmp_path}/s" in said
    assert "restart the socket unit" in said


def test_an_abstract_name_is_served_too_and_shown_with_its_sign(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(f"\0sidecar-test-{os.getpid()}")
        held.listen()
        served, said = handed_over(held, tmp_path / "s")
        served.remove()
    assert served.where == f"@sidecar-test-{os.getpid()}"
    assert "socket_elsewhere" in said
    assert "socket_unreachable" not in said


def test_what_can_not_be_served_is_as_a_socket_that_can_not_be_bound(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held, pytest.raises(SocketUnavailable, match="datagram"):
        handed_over(held, tmp_path / "s")
    assert not (tmp_path / "s").exists()
