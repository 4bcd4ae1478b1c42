"""What a configuration may say of a recorded connector, and what is built of it in each mode."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from kit import build
from kit.built_connectors import build_connectors
from kit.one_connector import config_of
from kit.process_cases import ODD_CHILD

from sidecar.cli.check import check
from sidecar.config.keys import ConfigFaults
from sidecar.config.reading import read_config
from sidecar.config.values import Config
from sidecar.connectors.http_connector import HttpConnector
from sidecar.connectors.kinds import config_keys
from sidecar.connectors.process import Process
from sidecar.connectors.promise import Answer
from sidecar.connectors.recorded import Recorded
from sidecar.connectors.recorded_config import wrapped_as_it_counts
from sidecar.ops.log import Log

CLAUDE = """kind = "anthropic_messages"
base_url = "https://nobody.test"
credential = {env = "NO_SUCH_KEY_HERE"}
"""
STACK = 'kind = "llama_stack"\nbase_url = "http://127.0.0.1:9"\n'
OWN_MODEL = """
[[model]]
name = "direct"
connector = "live"
upstream = "tiny"
[[model.price]]
input = 1
cache_read = 1
cache_write_short = 1
cache_write_long = 1
output = 1
"""


def with_live(live: str, recorded: str = "", *, more: str = "", records: str = "live") -> str:
    """The lines of a recorded connector, and the table of the one that it records behind them."""
    own = f'kind = "recorded"\nrecords = "{records}"\ndirectory = "kept"\n{recorded}'
    return f'{own}\n[[connector]]\nname = "live"\n{live}\n{more}'


def complaints(connector: str, model: str = "", folder: Path = Path(".")) -> list[str]:
    with pytest.raises(ConfigFaults) as faults:
        build_connectors(config_of(connector, model, folder=folder))
    return [f"{one.path}: {one.what}" for one in faults.value.complaints]


def recorder(config: Config) -> Recorded:
    built = build_connectors(config)["it"]
    assert isinstance(built, Recorded)
    return built


# --- the tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connector", "why"),
    [
        (with_live(CLAUDE, records="lvie"), 'connector "it".records: no connector is named lvie'),
        (with_live(CLAUDE, records="it"), 'connector "it".records: names this connector itself'),
        (
            with_live('kind = "recorded"\nrecords = "it"\ndirectory = "other"'),
            'connector "it".records: live stands before another connector itself: name that one',
        ),
        ('kind = "recorded"\ndirectory = "kept"', 'connector "it".records: is missing'),
        ('kind = "recorded"\nrecords = "x"', 'connector "it".directory: is missing'),
        (
            with_live(CLAUDE, 'mode = "relpay"'),
            'connector "it".mode: must be one of replay, record, both',
        ),
        (with_live(CLAUDE, 'base_url = "https://x.test"'), 'connector "it".base_url: the kind recorded has none'),
        (
            with_live(CLAUDE, 'credential = "key"'),
            'connector "it".credential: belongs to the connector that records names',
        ),
        (with_live(CLAUDE, 'version = "1"'), 'connector "it".version: is a key of the kind anthropic_messages'),
        (with_live(CLAUDE + 'mode = "both"'), 'connector "live".mode: is a key of the kind recorded'),
        (with_live('kind = "anthropic_messages"'), 'connector "live".base_url: is missing'),
    ],
)
def test_a_mistake_is_one_complaint_with_its_path(connector: str, why: str) -> None:
    told = complaints(connector)
    assert any(one.startswith(why) for one in told), told


def test_a_recorded_of_itself_is_one_complaint() -> None:
    assert len(complaints(with_live(CLAUDE, records="it"))) == 1


def test_model_keys_are_those_of_the_recorded_connector() -> None:
    model = config_of(with_live(CLAUDE), 'thinking = "budget"\nefforts = ["low", "high"]').models["npc"]
    assert (model.settings["thinking"], model.settings["efforts"]) == ("budget", ("low", "high"))
    told = complaints(with_live(CLAUDE), "cache = 1")
    assert 'model "npc".cache: is a key of the kind openai_chat and openai_responses' in told[0]


def test_a_model_s_settings_are_held_against_those_of_the_recorded_connector() -> None:
    told = complaints(with_live(STACK), 'efforts = ["low"]')
    assert told[0].startswith('model "npc".efforts: the native route has no reasoning effort')
    assert config_of(with_live(STACK + 'route = "openai"'), 'efforts = ["low"]').models["npc"].settings


def test_bounds_are_those_of_the_recorded_table_also_for_whom_it_asks() -> None:
    config = config_of(with_live(STACK + "time_limit_seconds = 7", 'usage = "estimate"\nconcurrent_requests_max = 3'))
    asked = wrapped_as_it_counts(config.connectors["it"])
    assert (asked.name, asked.kind, asked.usage, asked.concurrent_requests_max) == ("it", "llama_stack", "estimate", 3)
    assert (asked.time_limit_seconds, asked.base_url) == (240, "http://127.0.0.1:9")
    assert config.connectors["live"].usage == "required"


# --- what is built -----------------------------------------------------------------------------------------------


def test_replay_wants_no_credential_no_program_and_no_server(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for live, kind in ((CLAUDE, HttpConnector), ('kind = "process"\nargv = ["no-such-program"]', Process)):
        built = build_connectors(config_of(with_live(live), folder=tmp_path))
        assert built.keys() == {"it"}
        assert isinstance(built["it"], Recorded)
        assert isinstance(built["it"]._wrapped, kind)
        assert built["it"]._secret is None


@pytest.mark.parametrize("mode", ["record", "both"])
def test_to_record_the_credential_is_read_and_a_fault_names_whose_it_is(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector = with_live(CLAUDE, f'mode = "{mode}"')
    told = complaints(connector, folder=tmp_path)
    assert told == ['connector "live".credential: the environment variable NO_SUCH_KEY_HERE is not set']
    monkeypatch.setenv("NO_SUCH_KEY_HERE", "sk-of-this-test")
    built = recorder(config_of(connector, folder=tmp_path))
    assert built._secret == "sk-of-this-test"
    assert [path.name for path in tmp_path.iterdir()] == [], "nothing is made before there is something to keep"


def test_a_model_that_names_the_recorded_connector_itself_has_it_built_for_it(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    told = complaints(with_live(CLAUDE, more=OWN_MODEL), folder=tmp_path)
    assert told == ['connector "live".credential: the environment variable NO_SUCH_KEY_HERE is not set']
    built = build_connectors(config_of(with_live('kind = "scripted"', more=OWN_MODEL), folder=tmp_path))
    assert built.keys() == {"it", "live"}


@pytest.mark.parametrize(
    ("connector", "why"),
    [
        (
            with_live('kind = "scripted"'),
            'connector "it".directory: {0}/kept is no directory',
        ),
        (
            with_live('kind = "process"\nargv = ["no-such-program"]', 'mode = "record"'),
            'connector "it".records: argv: there is no program',
        ),
        (
            with_live('kind = "scripted"\nscript = "absent.toml"', 'mode = "both"'),
            'connector "it".records: script: ',
        ),
        (
            with_live('kind = "scripted"', 'mode = "record"').replace('"kept"', '"file/kept"'),
            'connector "it".directory: {0}/file is no directory',
        ),
    ],
)
def test_what_only_building_can_find_is_complained_of(tmp_path: Path, connector: str, why: str) -> None:
    (tmp_path / "file").write_text("")
    told = complaints(connector, folder=tmp_path)
    assert len(told) == 1
    assert told[0].startswith(why.format(tmp_path))


async def test_a_program_is_run_to_be_recorded_and_not_to_be_replayed(tmp_path: Path) -> None:
    argv = json.dumps([sys.executable, str(ODD_CHILD), "calls"])
    live = f'kind = "process"\nargv = {argv}'
    answers, logs = [], []
    for mode in ("record", "replay"):
        connector = recorder(config_of(with_live(live, f'mode = "{mode}"'), folder=tmp_path))
        log = io.StringIO()
        async with trio.open_nursery() as nursery:
            await nursery.start(connector.serve, Log(log, "text"))
            lowered = connector.lower(build.request(), "tiny")
            answer = Answer(lowered.call_ids, 50_000)
            await connector.exchange(lowered, answer)
            await connector.aclose()
            nursery.cancel_scope.cancel()
        answers.append((answer.ended, answer.events(), answer.sent, answer.notes))
        logs.append(log.getvalue())
    assert answers[0] == answers[1]
    assert "child_started connector=it" in logs[0]
    assert "child_started" not in logs[1]


# --- check -------------------------------------------------------------------------------------------------------

FILE = """
[daemon]
socket = "s.sock"
{daemon}
[ledger]
directory = "ledger"
[[caller]]
id = "dungeon"
models = ["npc"]
spend_ceiling_micro_usd = 10_000_000
spend_window_seconds = 60
[[connector]]
name = "it"
kind = "recorded"
records = "live"
directory = "kept"
{recorded}
[[connector]]
name = "live"
{live}
[[model]]
name = "npc"
connector = "it"
upstream = "tiny"
[[model.price]]
input = 1_000_000
cache_read = 1_000_000
cache_write_short = 1_000_000
cache_write_long = 1_000_000
output = 1_000_000
"""


def checked(folder: Path, capsys: pytest.CaptureFixture[str], **parts: str) -> tuple[int, dict[str, Any]]:
    path = folder / "sidecar.toml"
    path.write_text(FILE.format(**{"daemon": "", "recorded": "", "live": CLAUDE, **parts}))
    code = check(path, as_json=True)
    told = json.loads(capsys.readouterr().out)
    about_connectors = [one for one in told["warnings"] if one["path"].startswith("connector")]
    return code, {**told, "warnings": about_connectors}


def test_check_is_content_with_a_replay_that_has_no_credential(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept").mkdir()
    live = 'kind = "anthropic_messages"\nbase_url = "https://nobody.test"'
    code, told = checked(tmp_path, capsys, live=live)
    assert (code, told["complaints"], told["warnings"]) == (os.EX_OK, [], [])


def test_check_complains_of_every_file_that_is_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept").mkdir()
    for name in ("a.json", "b.json"):
        (tmp_path / "kept" / name).write_text("{}")
    code, told = checked(tmp_path, capsys)
    assert code == os.EX_CONFIG
    assert [one["path"] for one in told["complaints"]] == ['connector "it".directory'] * 2
    assert [one["what"].partition(": ")[0] for one in told["complaints"]] == ["a.json", "b.json"]


def test_check_warns_by_the_values_that_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept").mkdir()
    _, told = checked(tmp_path, capsys, live=STACK)
    assert [one["path"] for one in told["warnings"]] == ['connector "it".usage']
    assert 'is "required"' in told["warnings"][0]["what"]
    _, told = checked(tmp_path, capsys, live=STACK, recorded='usage = "estimate"')
    assert told["warnings"] == []
    _, told = checked(tmp_path, capsys, live=STACK + 'usage = "bound"', recorded='usage = "estimate"')
    assert [(one["path"], one["what"]) for one in told["warnings"]] == [
        ('connector "it".usage', "counts as it stands here, and not as bound in the table of live")
    ]
    _, told = checked(tmp_path, capsys, live=STACK + "time_limit_seconds = 500", recorded='usage = "estimate"')
    assert [one["path"] for one in told["warnings"]] == ['connector "it".time_limit_seconds'], "not of the drain"


def test_check_warns_of_a_missing_credential_only_where_one_would_be_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = 'kind = "anthropic_messages"\nbase_url = "https://nobody.test"'
    _, told = checked(tmp_path, capsys, live=live, recorded='mode = "record"')
    assert [one["path"] for one in told["warnings"]] == ['connector "live".credential']


def test_the_kinds_that_can_be_recorded_are_all_others() -> None:
    assert [name for name, keys in config_keys().items() if keys.wraps] == ["recorded"]
    assert read_config(FILE.format(daemon="", recorded="", live=CLAUDE), Path("."), config_keys()).only_wrapped == {
        "live"
    }


async def test_a_replay_lowers_as_the_recorded_connector_does(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    connector = recorder(config_of(with_live(CLAUDE), folder=tmp_path))
    settings = config_of(with_live(CLAUDE)).models["npc"].settings
    lowered = connector._wrapped.lower(build.request(), "tiny", settings)
    assert isinstance(lowered.body, bytes)
    await connector.aclose()
