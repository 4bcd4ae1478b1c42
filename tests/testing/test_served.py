"""What is said of a model, or asked of a script, that can never come is told at once."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from kit.daemon_process import Client as RawClient
from kit.daemon_process import invocation

from sidecar.client import Disconnected, WhichCaller, new_request
from sidecar.testing.configuration import config_text
from sidecar.testing.daemon import spawned
from sidecar.testing.faults import NotScripted, WrongRule
from sidecar.testing.served import Served, served_by

EXTRA = """
[[connector]]
name = "other"
kind = "scripted"

[[connector]]
name = "kept"
kind = "recorded"
records = "scripted"
mode = "{mode}"
directory = "recordings"

[[connector]]
name = "kept-other"
kind = "recorded"
records = "other"
mode = "both"
directory = "recordings"
"""


def served(folder: Path, mode: str, **models: str) -> Served:
    path = folder / "sidecar.toml"
    of_models = {name: {"connector": connector} for name, connector in models.items()}
    path.write_text(
        config_text(
            callers=["a"], models=of_models, daemon={}, ledger={}, connector={}, extra_toml=EXTRA.format(mode=mode)
        )
    )
    return served_by(path)


@pytest.mark.parametrize(
    ("connector", "mode", "where"),
    [
        ("scripted", "replay", None),
        ("kept", "record", None),
        ("kept", "both", None),
        ("kept", "replay", "connector kept (recorded, replay)"),
        ("other", "record", "connector other (scripted)"),
        ("kept-other", "record", "connector kept-other (recorded, both)"),
    ],
)
def test_the_script_answers_its_own_models_and_what_is_recorded_of_them(
    tmp_path: Path, connector: str, mode: str, where: str | None
) -> None:
    assert served(tmp_path, mode, npc=connector) == (Served((), {"npc": where}) if where else Served(("npc",), {}))


def test_a_model_that_nobody_serves_is_told_at_once_with_those_that_are() -> None:
    with spawned(models=["npc-fast", "npc-wise"]) as daemon:
        with pytest.raises(WrongRule, match="model: no nope is served; there are npc-fast, npc-wise"):
            daemon.on(model="nope")
        daemon.on(model="npc-wise").says("x")
        with pytest.raises(WrongRule, match="says is told nothing to say"):
            daemon.says()


def test_a_model_of_another_connector_is_none_of_a_test_s_words(tmp_path: Path) -> None:
    mixed = served(tmp_path, "replay", npc="scripted", sage="kept")
    mixed.check_sayable(None)
    mixed.check_sayable("npc")
    mixed.check_scripted("")
    with pytest.raises(WrongRule, match=r"sage is answered by connector kept \(recorded, replay\), and not by"):
        mixed.check_sayable("sage")


def test_where_the_script_answers_no_model_nothing_is_said_and_nothing_is_told_of_what_is_asked(tmp_path: Path) -> None:
    alone = served(tmp_path, "replay", sage="kept")
    with pytest.raises(NotScripted, match=r"\(sage by connector kept .*\), so what is said here is never answered"):
        alone.check_sayable(None)
    (tmp_path / "recordings").mkdir()
    with spawned(
        models={"sage": {"connector": "kept"}}, extra_toml=EXTRA.format(mode="replay"), folder=tmp_path
    ) as daemon:
        for tell in (lambda: daemon.asked, daemon.wait_asked):
            with pytest.raises(NotScripted, match="so asked can't tell: look at requests"):
                tell()
        with pytest.raises(NotScripted):
            daemon.says("x")
        daemon.begin_anew()


# --- the kit's clients ------------------------------------------------------------------------------------------


def test_of_several_callers_the_first_word_says_which() -> None:
    with spawned(callers=["a", "b"]) as daemon:
        for client in (daemon.client("a"), daemon.client(caller="a")):
            with client:
                client.invoke(new_request("npc-fast", "hello"))
        assert [one.caller_runtime_id for one in daemon.requests] == ["a", "a"]
        with daemon.client() as client, pytest.raises(WhichCaller):
            client.invoke(new_request("npc-fast", "hello"))
        assert daemon.async_client("b")._caller == "b"


def test_a_client_of_a_daemon_that_has_ended_waits_for_two_seconds_unless_it_is_told_otherwise() -> None:
    with spawned() as daemon:
        for made in (daemon.client(), daemon.async_client()):
            assert made._patience.connect_seconds_max == 2
        for made in (daemon.client(connect_seconds_max=0.1), daemon.async_client(connect_seconds_max=0.1)):
            assert made._patience.connect_seconds_max == 0.1
        daemon.kill()
        with daemon.client(connect_seconds_max=0.1) as client, pytest.raises(Disconnected):
            client.invoke(new_request("npc-fast", "hello"))


def test_a_hundred_requests_at_once_fit_and_fewer_where_a_test_says_so() -> None:
    with spawned() as daemon, RawClient(daemon.socket) as client:
        daemon.hangs()
        for at in range(100):
            client.send(invocation(f"r{at}", model="npc-fast"))
        assert len(daemon.wait_asked(100)) == 100
    with spawned(callers={"dungeon": {"concurrent_requests_max": 8}}) as daemon, RawClient(daemon.socket) as client:
        daemon.hangs()
        for at in range(9):
            client.send(invocation(f"r{at}", model="npc-fast"))
        assert msgpack.unpackb(client.receive())["disposition"] == {"Refused": "Capacity"}
