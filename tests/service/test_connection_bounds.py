"""How many connections the real daemon holds, over its real socket: one too many is told so, and let in later."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from kit.daemon_process import Client, invocation, packed, running_daemon, wait_until
from kit.road import said

STATUS = packed({"schema_id": "gamecult.model.transport_status.v1"})


def connections_of(client: Client) -> int:
    return int(msgpack.unpackb(client.ask(STATUS))["daemon"]["connections"])


@pytest.mark.parametrize(
    ("bounds", "named"),
    [
        ("connections_max = 3", "connections_max"),
        ("connections_per_user_max = 3", "connections_per_user_max"),
        ("connections_max = 9\nconnections_per_user_max = 3", "connections_per_user_max"),
    ],
)
def test_one_connection_too_many_is_answered_and_closed_and_once_one_leaves_the_next_is_let_in(
    tmp_path: Path, bounds: str, named: str
) -> None:
    with running_daemon(tmp_path, daemon=bounds) as daemon, daemon.connect() as first, daemon.connect() as second:
        with daemon.connect():
            wait_until(lambda: connections_of(first) == 3)
            for _ in range(5):  # who is turned away takes no place
                with daemon.connect() as refused:
                    answer = refused.receive()
                    assert answer is not None
                    error = msgpack.unpackb(answer)
                    assert error["schema_id"] == "gamecult.model.transport_error.v1"
                    assert error["code"] == "too_many_connections"
                    assert error["message"].startswith("3 connections")
                    assert error["message"].endswith(named)
                    assert refused.receive() is None
            assert said(second.ask(invocation("r1"))) == "end_turn"  # those that are in notice nothing
        wait_until(lambda: connections_of(first) == 2)
        with daemon.connect() as let_in:
            assert said(let_in.ask(invocation("r2"))) == "end_turn"
    assert daemon.log().count(" too_many_connections ") == 5
