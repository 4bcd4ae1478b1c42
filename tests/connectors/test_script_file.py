"""A script that changes under the connector, and the file of what was asked."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import msgspec
import pytest
from kit import build

from sidecar.config.keys import ConfigFaults
from sidecar.config.reading import read_config
from sidecar.connectors.asked_file import AskedFile
from sidecar.connectors.kinds import KINDS, config_keys
from sidecar.connectors.promise import Answer, Connector, Lowered, Rejected
from sidecar.connectors.script_file import ScriptFile
from sidecar.connectors.scripted import Scripted
from sidecar.contract import values as v

REQUEST = build.request()
_instants = count(10**18)


def write(path: Path, text: str) -> Path:
    """Whole, and with a time of writing that no other has, whatever the file system's clock says."""
    written = path.with_suffix(".new")
    written.write_text(text)
    os.utime(written, ns=(0, next(_instants)))
    written.replace(path)
    return path


def reread(path: Path) -> Scripted:
    return Scripted(script=ScriptFile(path))


async def ended(connector: Connector, lowered: Lowered) -> Answer:
    answer = Answer(lowered.call_ids, 10_000_000)
    await connector.exchange(lowered, answer)
    return answer


async def said(connector: Connector, request: v.ProviderRequest = REQUEST) -> str:
    answer = await ended(connector, connector.lower(request, "echo-1"))
    return "".join(event.text_delta.text for event in answer.events() if event.text_delta)


# --- a script that is looked at again -----------------------------------------------------------------------


async def test_a_changed_script_answers_from_the_next_request_on(tmp_path: Path) -> None:
    path = write(tmp_path / "script.toml", '[[rule]]\ndeltas = ["one"]\n')
    connector = reread(path)
    assert await said(connector) == "one"
    write(path, '[[rule]]\ndeltas = ["two"]\n')
    assert await said(connector) == "two"
    write(path, "")
    assert await said(connector) == "hello there"


async def test_without_script_reread_the_script_of_the_start_stays(tmp_path: Path) -> None:
    path = write(tmp_path / "script.toml", '[[rule]]\ndeltas = ["one"]\n')
    connector = built(tmp_path, 'script = "script.toml"')
    write(path, '[[rule]]\ndeltas = ["two"]\n')
    assert await said(connector) == "one"


async def test_a_request_is_answered_by_the_script_that_stood_when_it_was_lowered(tmp_path: Path) -> None:
    path = write(tmp_path / "script.toml", '[[rule]]\ndeltas = ["one"]\n')
    connector = reread(path)
    lowered = connector.lower(REQUEST, "echo-1")
    write(path, '[[rule]]\ndeltas = ["two"]\n')
    assert await said(connector) == "two"
    answer = await ended(connector, lowered)
    assert [event.text_delta.text for event in answer.events() if event.text_delta] == ["one"]


async def test_a_rule_that_stands_as_before_keeps_its_count(tmp_path: Path) -> None:
    twice = '[[rule]]\ntimes = 2\ndeltas = ["twice"]\n'
    path = write(tmp_path / "script.toml", twice)
    connector = reread(path)
    assert await said(connector) == "twice"
    write(path, '[[rule]]\ntext = "dragon"\ndeltas = ["new"]\n' + twice)
    assert [await said(connector) for _ in range(2)] == ["twice", "hello there"]


async def test_rules_that_are_alike_are_counted_apart_by_place_or_by_name(tmp_path: Path) -> None:
    once = '[[rule]]\ntimes = 1\ndeltas = ["once"]\n'
    path = write(tmp_path / "script.toml", once)
    connector = reread(path)
    assert await said(connector) == "once"
    write(path, once * 2)
    assert [await said(connector) for _ in range(2)] == ["once", "hello there"]
    write(path, once + 'name = "another"\n')
    assert [await said(connector) for _ in range(2)] == ["once", "hello there"]


@pytest.mark.parametrize("wrong", ["not toml", '[[rule]]\ndelta = ["x"]\n', None])
async def test_while_the_script_is_wrong_or_gone_every_request_is_refused_with_its_complaint(
    tmp_path: Path, wrong: str | None
) -> None:
    path = write(tmp_path / "script.toml", '[[rule]]\ntimes = 1\ndeltas = ["one"]\n')
    connector = reread(path)
    assert await said(connector) == "one"
    if wrong is None:
        path.unlink()
    else:
        write(path, wrong)
    for _ in range(2):
        with pytest.raises(Rejected, match=r"the script has become wrong: .*(TOML|did you mean deltas|No such file)"):
            connector.lower(REQUEST, "echo-1")
    write(path, '[[rule]]\ntimes = 1\ndeltas = ["one"]\n[[rule]]\ndeltas = ["right again"]\n')
    assert await said(connector) == "right again"


def test_a_script_that_is_wrong_at_the_start_is_a_mistake_of_the_configuration(tmp_path: Path) -> None:
    write(tmp_path / "script.toml", "[[rule]]\ntimes = 0\n")
    with pytest.raises(ConfigFaults, match=r"script: script\.toml:2:1: rule\[0\]\.times"):
        built(tmp_path, 'script = "script.toml"\nscript_reread = true')


# --- what was asked -----------------------------------------------------------------------------------------


async def test_a_line_holds_the_request_as_the_connector_was_asked_it(tmp_path: Path) -> None:
    connector = Scripted(asked_file=AskedFile(tmp_path / "asked.jsonl"))
    state = build.state(
        provider="provider", model="echo-1", opaque=b'{"k":"scripted","m":"echo-1","t":"\xc3\xa9","v":1}'
    )
    requests = [build.request(state, build.text("a\nb")), build.request(build.text("\N{DRAGON}"))]
    for request in requests:
        await said(connector, request)
    lines = (tmp_path / "asked.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=v.ProviderRequest) for line in lines] == requests


@pytest.mark.parametrize("more", ["", "delay_ms = 1\n", "calls = [{name = 'look'}]\n", "fail = {kind = 'timeout'}\n"])
async def test_a_request_is_kept_once_however_it_is_answered(tmp_path: Path, more: str) -> None:
    write(tmp_path / "script.toml", f"[[rule]]\n{more}")
    connector = built(tmp_path, 'script = "script.toml"\nasked_file = "asked.jsonl"')
    lowered = connector.lower(REQUEST, "echo-1")
    assert not (tmp_path / "asked.jsonl").exists()
    await ended(connector, lowered)
    assert len((tmp_path / "asked.jsonl").read_bytes().splitlines()) == 1


@pytest.mark.parametrize("more", ["", "delay_ms = 1\n"])
async def test_what_cannot_be_kept_is_not_answered(tmp_path: Path, more: str) -> None:
    write(tmp_path / "script.toml", f"[[rule]]\n{more}")
    connector = built(tmp_path, 'script = "script.toml"\nasked_file = "asked.jsonl"')
    (tmp_path / "asked.jsonl").mkdir()
    answer = await ended(connector, connector.lower(REQUEST, "echo-1"))
    assert answer.ended is not None
    assert (answer.ended.kind, answer.sent, answer.ended.usage) == ("unavailable", False, v.NOTHING_USED)
    assert "asked_file can't be written" in answer.ended.message


# --- in a configuration -------------------------------------------------------------------------------------

CONFIG = """
[daemon]
socket = "s.sock"
[ledger]
directory = "ledger"
[[caller]]
id = "dungeon"
models = ["npc"]
spend_ceiling_micro_usd = 1
spend_window_seconds = 1
[[connector]]
name = "provider"
kind = "scripted"
{}
[[model]]
name = "npc"
connector = "provider"
upstream = "echo-1"
[[model.price]]
input = 0
cache_read = 0
cache_write_short = 0
cache_write_long = 0
output = 0
"""


def built(folder: Path, settings: str) -> Connector:
    config = read_config(CONFIG.format(settings), folder, config_keys())
    return KINDS["scripted"].build(config.connectors["provider"], None)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("script_reread = true", "is for a connector with a script"),
        ('script_reread = "yes"', "true or false"),
        ('asked_file = "nowhere/asked.jsonl"', "asked_file: .*/nowhere is no folder"),
    ],
)
def test_what_cannot_work_is_complained_about(tmp_path: Path, settings: str, why: str) -> None:
    with pytest.raises(ConfigFaults, match=why):
        built(tmp_path, settings)
