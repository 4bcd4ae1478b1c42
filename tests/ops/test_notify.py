"""What a service manager is told: over a path and an abstract name, in one datagram, without ever waiting."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.service_manager import Manager

from sidecar.ops.notify import Notifier, take_notifier, take_watchdog_seconds


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_one_datagram_holds_all_that_is_said_at_once(tmp_path: Path, abstract: bool) -> None:
    address = f"@sidecar-test-{os.getpid()}" if abstract else str(tmp_path / "n")
    with Manager(address) as manager:
        notifier = Notifier(address)
        assert notifier.is_heard
        assert notifier.say(READY="1", STATUS="3 in flight, two = 2")
        assert notifier.say(WATCHDOG="1")
        manager.hear_all()
        assert manager.said == [{"READY": "1", "STATUS": "3 in flight, two = 2"}, {"WATCHDOG": "1"}]
        notifier.close()
        assert not notifier.is_heard


def test_a_value_begins_no_line_of_its_own(tmp_path: Path) -> None:
    with Manager.in_folder(tmp_path) as manager:
        notifier = Notifier(manager.address)
        notifier.say(STATUS="why\nSTOPPING=1\r\0\x85\u2028READY=1")
        manager.hear_all()
        assert manager.said == [{"STATUS": "why STOPPING=1    READY=1"}]
        notifier.close()


@given(st.text(st.characters(exclude_categories=()), max_size=3000))
def test_whatever_is_said_fits_into_what_an_older_manager_reads_and_is_one_line(value: str) -> None:
    address = f"@sidecar-test-{os.getpid()}"
    with Manager(address) as manager:
        notifier = Notifier(address)
        assert notifier.say(STATUS=value)
        told = manager.hear()
        assert told is not None
        assert list(told) == ["STATUS"]
        assert len(told["STATUS"].encode()) < 4000
        notifier.close()


@pytest.mark.parametrize("address", [None, "", "@", "/", "relative", "vsock:2:1234"])
def test_an_address_that_is_none_means_that_nobody_listens(address: str | None) -> None:
    notifier = Notifier(address)
    assert not notifier.is_heard
    assert notifier.say(READY="1")
    notifier.close()


def test_nobody_behind_the_address_is_no_fault(tmp_path: Path) -> None:
    gone = Notifier(str(tmp_path / "gone"))
    assert gone.say(READY="1")
    with Manager.in_folder(tmp_path):
        pass
    dead = Notifier(str(tmp_path / "n"))
    assert dead.say(READY="1")
    for notifier in (gone, dead):
        notifier.close()


def test_a_manager_that_does_not_read_is_not_waited_for_and_hears_it_later(tmp_path: Path) -> None:
    with Manager.in_folder(tmp_path) as manager:
        notifier = Notifier(manager.address)
        told = 0
        while notifier.say(STATUS=str(told)):
            told += 1
        assert told > 0
        manager.hear_all()
        assert notifier.say(READY="1")
        manager.hear_all()
        assert manager.values("STATUS") == [str(number) for number in range(told)]
        assert manager.values("READY") == ["1"]
        notifier.close()


def test_the_variables_are_gone_from_the_environment_whoever_they_were_for() -> None:
    environ = {"NOTIFY_SOCKET": "vsock:2:1", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    assert not take_notifier(environ).is_heard
    assert take_watchdog_seconds(environ, pid=2) is None
    assert environ == {"HOME": "/"}


def test_no_child_inherits_the_socket(tmp_path: Path) -> None:
    with Manager.in_folder(tmp_path) as manager:
        notifier = Notifier(manager.address)
        assert isinstance(notifier._socket, socket.socket)
        assert not notifier._socket.get_inheritable()
        notifier.close()


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "77"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "78"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_PID": "77"}, None),
    ],
)
def test_a_watchdog_waits_for_us_where_it_says_so(environ: dict[str, str], seconds: float | None) -> None:
    assert take_watchdog_seconds(environ, pid=77) == seconds
