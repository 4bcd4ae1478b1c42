"""The README's config serves, and its client works, as they stand there."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from kit.daemon_process import Process, running_daemon, wait_ready
from kit.messages_streams import begun, finished
from kit.messages_streams import said as text_said
from kit.stub_http import chunked, stub_on_a_thread
from msgspec import Struct
from msgspec.structs import fields

from sidecar.cli.main import main
from sidecar.connectors.script import Rule
from sidecar.contract.connector_frames import (
    CONNECTOR_EVENT,
    CONNECTOR_OUTCOME,
    CONNECTOR_REQUEST,
    ConnectorEvent,
    ConnectorOutcome,
    ConnectorRequest,
)
from sidecar.contract.operator_frames import (
    OPERATOR_CHECK,
    OPERATOR_CHECKED,
    OPERATOR_METERED,
    OPERATOR_METRICS,
    OPERATOR_RELOAD,
    OPERATOR_RELOADED,
    OPERATOR_RESOLVE,
    OPERATOR_RESOLVED,
    Found,
    OperatorCheck,
    OperatorChecked,
    OperatorMetered,
    OperatorMetrics,
    OperatorReload,
    OperatorReloaded,
    OperatorResolve,
    OperatorResolved,
)
from sidecar.contract.values import Refusal
from sidecar.testing.answers import Answers, How, HowEnded

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def block(language: str, at: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)[at]


def table(first_column: str) -> str:
    return README.partition(f"| {first_column} |")[2].partition("\n\n")[0]


def shell_call() -> list[str]:
    """The README's `sidecar call`, with this interpreter's sidecar."""
    [line] = re.findall(r"^\.venv/bin/sidecar (call .*)$", README, re.MULTILINE)
    return [sys.executable, "-m", "sidecar", *shlex.split(line)]


def operator_call() -> list[str]:
    [line] = re.findall(r"^\$ sidecar (ledger check .*)$", README, re.MULTILINE)
    return [sys.executable, "-m", "sidecar", *shlex.split(line)]


def test_the_first_config_serves_the_first_client_and_the_first_call(tmp_path: Path) -> None:
    (tmp_path / "sidecar.toml").write_text(block("toml"))
    (tmp_path / "client.py").write_text(block("python", 1))
    log = tmp_path / "log"
    with log.open("wb") as sink:
        serving = subprocess.Popen(
            [sys.executable, "-m", "sidecar", "serve", "--config", "sidecar.toml"], cwd=tmp_path, stderr=sink
        )
    try:
        wait_ready(Process(tmp_path, serving, log))
        done = subprocess.run(
            [sys.executable, "client.py"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30
        )
        assert "Who goes there?" in done.stdout
        assert "cost_micro_usd" in done.stdout
        called = subprocess.run(shell_call(), cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30)
        assert called.stdout == "Who goes there?"
        assert "charge:" in called.stderr
        checked = subprocess.run(operator_call(), cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30)
        assert checked.stdout.startswith("the accounts are what the records say\n")
    finally:
        serving.terminate()
        assert serving.wait(timeout=30) == 0


def test_the_block_for_a_real_server_is_sound_in_the_place_that_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    above, found, _ = block("toml").partition("[[connector]]")
    assert found
    server = block("toml", 1)
    config = tmp_path / "sidecar.toml"
    for written in (server, server.replace("# usage = ", "usage = ")):
        config.write_text(above + written)
        assert main(["check", "--config", str(config)]) == 0
        assert capsys.readouterr() == (f"{config}: good\n", "")
    assert '\nusage = "bound"' in config.read_text()


def test_the_script_answers_as_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_daemon(tmp_path, script=block("toml", 2)) as daemon:
        told = []
        for text in ("the dragon", "the dragon", "Look there", "a cat"):
            words = ("--socket", str(daemon.socket_path), "--caller", "dungeon", "--model", "npc", "--json")
            main(["call", *words, "--budget", "1_000_000", text])
            said = json.loads(capsys.readouterr().out)
            told.append((said["text"], said["stop"], said["failure"] and said["failure"]["message"]))
    assert told == [
        ("It sleeps. For now.", "end_turn", None),
        ("", None, "the dragon is tired"),
        ("", "tool_use", None),
        ("a cat", "end_turn", None),
    ]


def test_the_block_for_a_process_answers_with_the_example_that_it_names(tmp_path: Path) -> None:
    above, _, below = block("toml").partition("[[connector]]")
    model = below[below.index("[[model]]") :].replace('connector = "echo"', 'connector = "parrot"')
    shutil.copy(Path(__file__).parent / "clients/process_child.py", tmp_path)
    process = block("toml", 3).replace('"python3"', f'"{sys.executable}"')
    (tmp_path / "sidecar.toml").write_text(above + process + model)
    with running_daemon(tmp_path):
        called = subprocess.run(shell_call(), cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30)
    assert called.stdout == "Who goes there?"


LOOKS = """
[[rule]]
tool = "look"
deltas = ["A staircase leads down."]

[[rule]]
text = "Look"
calls = [{name = "look", arguments = '{"at": "door"}'}]
"""


def test_the_turn_with_a_tool_ends_in_what_is_said_to_its_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = README.partition("### Clients in Python\n")[2].partition("\n### ")[0]
    turn = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[1]
    with running_daemon(tmp_path, script=LOOKS) as daemon:
        exec(turn.replace("run/requests.sock", str(daemon.socket_path)).replace("npc-fast", "npc"), {})
    assert capsys.readouterr().out == "A staircase leads down.\n"


OF_PROCESSES = {
    CONNECTOR_REQUEST: ConnectorRequest,
    CONNECTOR_EVENT: ConnectorEvent,
    CONNECTOR_OUTCOME: ConnectorOutcome,
}
OF_OPERATORS = {
    OPERATOR_RESOLVE: OperatorResolve,
    OPERATOR_RESOLVED: OperatorResolved,
    OPERATOR_CHECK: OperatorCheck,
    OPERATOR_CHECKED: OperatorChecked,
    OPERATOR_RELOAD: OperatorReload,
    OPERATOR_RELOADED: OperatorReloaded,
    OPERATOR_METRICS: OperatorMetrics,
    OPERATOR_METERED: OperatorMetered,
}


@pytest.mark.parametrize(
    ("section", "frames"), [("### A connector in any language", OF_PROCESSES), ("## Operators", OF_OPERATORS)]
)
def test_every_frame_is_explained_with_its_members(section: str, frames: dict[str, type[Struct]]) -> None:
    below = README.partition(f"\n{section}\n")[2].partition("| `schema_id` |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(gamecult\.\S+)` \| .*? \| (.*) \|$", below, re.MULTILINE)
    assert [name for name, _ in rows] == list(frames)
    for name, explained in rows:
        members = {field.encode_name for field in fields(frames[name])} - {"schema_id"}
        assert members <= set(re.findall(r"`(\w+)`", explained))


def game_tests(folder: Path, mode: str) -> str:
    """What pytest says of the game's tests in this folder."""
    given = {"RECORDINGS": "record", "ANTHROPIC_API_KEY": "sk-of-a-stub-alone"} if mode == "record" else {}
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "ANTHROPIC"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "-p", "sidecar.testing.plugin"],
        cwd=folder,
        env={**environ, **given, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_game_s_tests_record_a_provider_once_and_then_need_none(tmp_path: Path) -> None:
    conftest = tmp_path / "conftest.py"
    (tmp_path / "test_game.py").write_text(
        "from sidecar.client import new_request\n\n"
        "def test_the_dragon(sidecar_shared_daemon):\n"
        "    with sidecar_shared_daemon.client() as client:\n"
        "        assert client.invoke(new_request('npc-fast', 'Where is the dragon?')).text == 'It sleeps.'\n"
    )
    with stub_on_a_thread(chunked(begun(), text_said("It ", "sleeps."), finished())) as stub:
        conftest.write_text(block("python").replace("https://api.anthropic.com", stub.url))
        recorded = game_tests(tmp_path, "record")
        assert "1 passed" in recorded, recorded
        assert len(stub.requests) == 1
    conftest.write_text(block("python"))
    replayed = game_tests(tmp_path, "replay")
    assert "1 passed" in replayed, replayed
    assert len(list((tmp_path / "recordings").iterdir())) == 1


def test_each_verb_of_the_kit_is_explained_with_what_it_takes() -> None:
    said = table("say") + table("verb")
    verbs = [name for name, verb in vars(Answers).items() if callable(verb) and not name.startswith("_")]
    assert [verb for verb in verbs if f"`daemon.{verb}(" not in said] == []
    assert [verb for verb in verbs if f"`{verb}`" not in table("verb")] == []
    assert [word for word in {**How.__annotations__, **HowEnded.__annotations__} if f"`{word}`" not in said] == []


def test_every_way_that_a_request_can_be_found_is_explained() -> None:
    told = README.partition("\n## Operators\n")[2].partition("\n## ")[0]
    assert set(get_args(Found)) <= set(re.findall(r"`(\w+)`", told))


def test_every_member_of_a_rule_is_explained() -> None:
    explained = [
        name
        for names in re.findall(r"^\| (`.*?) \|", table("member of a rule"), re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    ]
    assert sorted(explained) == sorted(Rule.__struct_fields__)


def test_every_refusal_is_explained_in_the_order_of_the_contract() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", table("refusal"), re.MULTILINE)
    assert sorted(explained) == sorted(get_args(Refusal))


def test_the_demo_ends_as_it_promises() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", "demo"], capture_output=True, text=True, check=True, timeout=60
    )
    for said in ("receipt: tool_use", "identical to the first answer", "refused: SpendCeiling", "closed", "chain head"):
        assert said in done.stdout
