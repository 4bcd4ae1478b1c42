"""A game's tests without an event loop."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from sidecar.client import Client, CostBound, Indeterminate, ProviderRejected, RequestFailed, new_request
from sidecar.testing.daemon import Daemon


def test_an_answer_is_said_by_the_test(sidecar_daemon: Daemon) -> None:
    sidecar_daemon.on(text="dragon").says("It ", "sleeps.")
    with sidecar_daemon.client() as client:
        result = client.invoke(new_request("npc-fast", "Where is the dragon?"))
    assert result.text == "It sleeps."
    assert sidecar_daemon.charged_micro_usd == result.charge_micro_usd > 0
    (request,) = sidecar_daemon.asked
    assert request.input[0].user_text.text == "Where is the dragon?"


def test_refusals_and_failures_are_what_the_game_meets(sidecar_daemon: Daemon) -> None:
    sidecar_daemon.on(text="odd").rejects("too odd")
    sidecar_daemon.fails("rate_limited", "slow down", nothing_sent=True)
    with sidecar_daemon.client(caller="dungeon") as client:
        with pytest.raises(ProviderRejected):
            client.invoke(new_request("npc-fast", "odd"))
        with pytest.raises(CostBound):
            client.invoke(new_request("npc-fast", "dear"), max_cost_micro_usd=1)
        with pytest.raises(RequestFailed) as failed:
            client.invoke(new_request("npc-fast", "hello"))
    assert failed.value.kind == "rate_limited"
    assert sidecar_daemon.refused[0].why == "too odd"
    assert [one.refusal for one in sidecar_daemon.refused] == ["ProviderRejected", "CostBound"]
    assert [(one.outcome, one.charge_micro_usd) for one in sidecar_daemon.requests] == [("rate_limited", 0)]


def test_a_program_of_its_own_finds_the_daemon(sidecar_daemon: Daemon) -> None:
    game = """
import os
from sidecar.client import Client, new_request
with Client(os.environ["SIDECAR_SOCKET"]) as client:
    print(client.invoke(new_request("npc-fast", "Who goes there?")).text)
"""
    environ = {**sidecar_daemon.env, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", game], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "Who goes there?\n"


def test_a_crash_in_mid_request_is_met_as_a_player_would_meet_it(sidecar_daemon: Daemon) -> None:
    sidecar_daemon.hangs("It ")
    with sidecar_daemon.client() as client, client.stream(new_request("npc-fast", "hello")) as stream:
        assert next(stream).payload.text_delta  # so it has been asked
        sidecar_daemon.kill()
        sidecar_daemon.restart()
        with pytest.raises(Indeterminate):
            next(stream)
    (request,) = sidecar_daemon.requests
    assert (request.state, request.charge_micro_usd) == ("indeterminate", None)
    assert [one.refusal for one in sidecar_daemon.refused] == ["Indeterminate"]


def test_several_daemons_can_be_had(sidecar_daemon_factory: Callable[..., Daemon]) -> None:
    dear = sidecar_daemon_factory(models={"npc-fast": {"price": {"output": 10**9}}})
    free = sidecar_daemon_factory(models={"npc-fast": {"price": {"input": 0, "output": 0}}})
    for daemon in (dear, free):
        with Client(daemon.socket) as client:
            client.invoke(new_request("npc-fast", "hello"), max_cost_micro_usd=10**9)
    assert (dear.charged_micro_usd > 1000, free.charged_micro_usd) == (True, 0)
