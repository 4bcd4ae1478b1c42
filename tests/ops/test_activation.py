"""Sockets that were handed over: whose they are, which one is served, and what the rest becomes."""

from __future__ import annotations

import io
import os
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sidecar.ops import activation
from sidecar.ops.activation import ActivationFault, Passed, take_listening, take_passed
from sidecar.ops.log import Log

# In place of 3: a test process has that in use, and hundreds more.
FIRST = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096) - 16


class Handed:
    """Descriptors from `FIRST` on, as a service manager would leave them."""

    def __init__(self) -> None:
        self._next = FIRST

    def over(self, one: socket.socket | int) -> int:
        descriptor = one if isinstance(one, int) else one.fileno()
        os.dup2(descriptor, self._next)
        self._next += 1
        return self._next - 1

    def close(self) -> None:
        for descriptor in range(FIRST, self._next):
            if is_open(descriptor):
                os.close(descriptor)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Handed]:
    monkeypatch.setattr(activation, "_FIRST", FIRST)
    made = Handed()
    yield made
    made.close()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
        made.listen()
        yield made


def a_log() -> tuple[Log, Callable[[], str]]:
    text = io.StringIO()
    return Log(text, "text"), text.getvalue


def taken(environ: dict[str, str], pid: int = 77) -> tuple[Passed, ...]:
    try:
        return take_passed(a_log()[0], environ, pid)
    finally:
        assert not [name for name in environ if name.startswith("LISTEN_")], "the variables are gone in any case"


# --- whose they are ---------------------------------------------------------------------------------------------


def test_descriptors_come_with_their_names_and_no_child_inherits_them(handed: Handed, listener: socket.socket) -> None:
    numbers = [handed.over(listener), handed.over(listener)]
    assert all(os.get_inheritable(number) for number in numbers)
    passed = taken({"LISTEN_FDS": "2", "LISTEN_PID": "77", "LISTEN_FDNAMES": "requests:x.socket", "HOME": "/"})
    assert passed == (Passed(FIRST, "requests"), Passed(FIRST + 1, "x.socket"))
    assert not any(os.get_inheritable(number) for number in numbers)


def test_without_names_they_are_unknown(handed: Handed, listener: socket.socket) -> None:
    handed.over(listener)
    assert taken({"LISTEN_FDS": "1", "LISTEN_PID": "77"}) == (Passed(FIRST, "unknown"),)


@pytest.mark.parametrize("environ", [{}, {"LISTEN_FDS": "0", "LISTEN_PID": "77"}, {"LISTEN_PID": "77"}])
def test_nothing_is_handed_over_to_most(environ: dict[str, str]) -> None:
    assert taken(environ) == ()


@pytest.mark.parametrize("whose", [{"LISTEN_PID": "78"}, {}], ids=["another's", "nobody's"])
def test_what_was_meant_for_another_process_is_left_alone_with_a_line(
    handed: Handed, listener: socket.socket, whose: dict[str, str]
) -> None:
    number = handed.over(listener)
    log, said = a_log()
    assert take_passed(log, {"LISTEN_FDS": "1", **whose}, 77) == ()
    assert os.get_inheritable(number)
    assert f"sockets_not_ours count=1 meant_for={whose.get('LISTEN_PID', 'nobody')}" in said()


def own_pidfd_id() -> int:
    own = os.pidfd_open(os.getpid())
    try:
        return os.fstat(own).st_ino
    finally:
        os.close(own)


@pytest.mark.parametrize("off_by", [0, 1])
def test_a_process_that_only_has_the_number_of_the_one_that_was_meant_takes_nothing(
    handed: Handed, listener: socket.socket, off_by: int
) -> None:
    handed.over(listener)
    environ = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_PIDFDID": str(own_pidfd_id() + off_by)}
    assert len(taken(environ, pid=os.getpid())) == 1 - off_by


def test_where_the_kernel_gives_no_pidfd_the_process_id_has_to_do(
    handed: Handed, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(pid: int) -> int:
        raise PermissionError

    handed.over(listener)
    monkeypatch.setattr(os, "pidfd_open", refused)
    assert len(taken({"LISTEN_FDS": "1", "LISTEN_PID": "77", "LISTEN_PIDFDID": "5"})) == 1


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"LISTEN_FDS": "two"}, "LISTEN_FDS is 'two', which is no number"),
        ({"LISTEN_FDS": "-1"}, "LISTEN_FDS is '-1', which is no number"),
        ({"LISTEN_FDS": "9" * 5000}, "LISTEN_FDS is '9+', which is no number"),
        ({"LISTEN_FDS": "99999"}, "at most 1024 descriptors"),
        ({"LISTEN_FDS": "1", "LISTEN_PID": "x"}, "LISTEN_PID is 'x', which is no number"),
        ({"LISTEN_FDS": "1", "LISTEN_FDNAMES": "a:b"}, "LISTEN_FDNAMES has 2 names for 1 descriptors"),
        ({"LISTEN_FDS": "2"}, rf"descriptor {FIRST + 1} \(unknown\) was announced by LISTEN_FDS and is not open"),
    ],
)
def test_variables_that_contradict_each_other_are_a_clear_error(
    handed: Handed, listener: socket.socket, environ: dict[str, str], why: str
) -> None:
    handed.over(listener)
    with pytest.raises(ActivationFault, match=why):
        taken({"LISTEN_PID": "77", **environ})


# --- which one is served ----------------------------------------------------------------------------------------


def test_the_one_that_is_named_requests_is_served_and_all_others_are_closed_and_said(
    handed: Handed, listener: socket.socket
) -> None:
    names = ["debug", "requests", "more"]
    passed = [Passed(handed.over(listener), name) for name in names]
    log, said = a_log()
    given = take_listening(passed, log)
    assert given is not None
    with given:
        assert given.fileno() == passed[1].descriptor
        assert given.getsockname() == listener.getsockname()
        assert [is_open(one.descriptor) for one in passed] == [False, True, False]
    assert said().count("descriptor_closed") == 2
    assert "name=debug" in said()
    assert "name=more" in said()


@pytest.mark.parametrize("name", ["sidecar.socket", "unknown"])
def test_the_only_one_is_served_whatever_its_name_and_the_line_says_what_to_write(
    handed: Handed, listener: socket.socket, name: str
) -> None:
    log, said = a_log()
    given = take_listening([Passed(handed.over(listener), name)], log)
    assert given is not None
    given.close()
    assert f"socket_name name={name}" in said()
    assert "FileDescriptorName=requests" in said()


def test_nothing_handed_over_is_nothing_to_serve() -> None:
    log, said = a_log()
    assert take_listening((), log) is None
    assert said() == ""


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["requests", "requests"], "2 descriptors are named requests, and one is served"),
        (["a.socket", "b"], r"2 descriptors were handed over \(a\.socket, b\) and none is named requests"),
    ],
)
def test_where_it_can_not_be_told_which_is_meant_none_is_served(
    handed: Handed, listener: socket.socket, names: list[str], why: str
) -> None:
    passed = [Passed(handed.over(listener), name) for name in names]
    with pytest.raises(ActivationFault, match=why):
        take_listening(passed, a_log()[0])


def a_file() -> int:
    return os.open("/dev/null", os.O_RDONLY)


def an_internet_listener() -> int:
    made = socket.socket(socket.AF_INET)
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made.detach()


def of_type(kind: int) -> Callable[[], int]:
    return lambda: socket.socket(socket.AF_UNIX, kind).detach()


def a_connection() -> int:
    one, other = socket.socketpair()
    other.close()
    return one.detach()


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (a_file, "is no socket; a socket unit with ListenStream="),
        (an_internet_listener, "is a socket of AF_INET"),
        (of_type(socket.SOCK_DGRAM), "is a datagram socket .ListenDatagram=.; ListenStream= is wanted"),
        (of_type(socket.SOCK_SEQPACKET), "is a sequential packet socket"),
        (of_type(socket.SOCK_STREAM), "doesn't listen"),
        (a_connection, "Accept=no is wanted"),
    ],
    ids=["file", "AF_INET", "datagram", "seqpacket", "unbound", "connection"],
)
def test_what_can_not_be_served_is_a_clear_error(handed: Handed, made: Callable[[], int], why: str) -> None:
    descriptor = made()
    one = Passed(handed.over(descriptor), "requests")
    os.close(descriptor)
    with pytest.raises(ActivationFault, match=rf"descriptor {one.descriptor} \(requests\) .*{why}"):
        take_listening([one], a_log()[0])
