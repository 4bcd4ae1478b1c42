"""`sidecar config`: what it writes can be read, says what was meant, and shows no secret."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from kit.daemon_process import invocation, running_daemon
from kit.road import said

from sidecar.cli.main import main
from sidecar.cli.setup import load_config
from sidecar.config.effective import as_toml, document
from sidecar.config.reading import read_config
from sidecar.connectors.kinds import config_keys

ROOT = Path(__file__).resolve().parents[2]
PRICES = [
    "--price-input=1",
    "--price-cache-read=0",
    "--price-cache-write-short=1",
    "--price-cache-write-long=1",
    "--price-output=5",
]
REAL = '[[connector]]\nname = "real"\nkind = "openai_chat"\nbase_url = "https://h.test"\ncredential = {}\n'


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = os.EX_OK) -> str:
    assert main(["config", *words]) == code
    out, err = capsys.readouterr()
    return err if code else out


def examples() -> list[str]:
    text = (ROOT / "config.example.toml").read_text()
    return [text, re.sub(r"^#(?=[a-z\[])(?!:)", "", text, flags=re.MULTILINE)]


@pytest.mark.parametrize("with_defaults", [True, False])
@pytest.mark.parametrize("text", examples(), ids=["as it stands", "all of it"])
def test_what_is_shown_is_read_as_the_very_same_configuration(text: str, with_defaults: bool) -> None:
    text = re.sub(r"^(user|group|uid|gid|unit) = .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^environment = .*\n", "", text, flags=re.MULTILINE)
    config = read_config(text, Path("/somewhere"), config_keys())
    shown = as_toml(document(config, config_keys(), with_defaults=with_defaults))
    assert read_config(shown, Path("/elsewhere"), config_keys()) == config


def test_every_default_is_shown_with_effective_and_none_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(examples()[0])
    whole = tomllib.loads(told(capsys, "show", "--effective", "--config", str(path)))
    short = tomllib.loads(told(capsys, "show", "--config", str(path)))
    assert (whole["daemon"]["connections_max"], whole["daemon"]["socket_mode"]) == (256, "0660")
    assert short["daemon"] == {"socket": str(tmp_path / "run/requests.sock")}
    assert whole["caller"][0]["id"] == short["caller"][0]["id"] == "dungeon"
    assert json.loads(told(capsys, "show", "--effective", "--json", "--config", str(path))) == json.loads(
        json.dumps(whole, default=str)
    )


def test_a_secret_is_shown_by_its_name_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_KEY", "sk-canary-123")
    (tmp_path / "key").write_text("sk-canary-456")
    (tmp_path / "key").chmod(0o600)
    for credential in ('{env = "CANARY_KEY"}', '{file = "key"}'):
        path = tmp_path / "c.toml"
        path.write_text(examples()[0] + REAL.format(credential))
        for words in (["--effective"], [], ["--json"]):
            shown = told(capsys, "show", *words, "--config", str(path))
            assert "canary" not in shown.replace(str(tmp_path), "")
            assert "CANARY_KEY" in shown or str(tmp_path / "key") in shown


def test_a_broken_file_is_told_as_by_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[daemon]\nsockett = 1\n")
    said_of_it = told(capsys, "show", "--effective", "--config", str(path), code=os.EX_CONFIG)
    assert f"{path}:2:1: daemon.sockett: unknown key" in said_of_it


def test_what_init_writes_serves_as_it_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sidecar.toml"
    told(capsys, "init", "--output", str(path))
    assert main(["check", "--config", str(path)]) == os.EX_OK
    out, err = capsys.readouterr()
    assert (out, err) == (f"{path}: good\n", "")
    with running_daemon(tmp_path) as daemon:
        assert "config_warning" not in daemon.log()
        (tmp_path / "s.sock").symlink_to(tmp_path / "run" / "requests.sock")
        with daemon.connect() as client:
            assert said(client.ask(invocation("r1", model="npc-rehearsal"))) == "end_turn"


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.toml"
    path.write_text("mine")
    assert "left as it is" in told(capsys, "init", "--output", str(path), code=os.EX_CANTCREAT)
    assert path.read_text() == "mine"
    assert "No such file" in told(capsys, "init", "--output", str(tmp_path / "no" / "c"), code=os.EX_CANTCREAT)


@pytest.mark.parametrize("kind", ["openai_chat", "openai_responses", "anthropic_messages", "gemini"])
def test_a_provider_s_model_is_written_with_the_prices_that_were_given(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--provider", kind, "--model", "npc", "--upstream", "real-1", "--credential", "the-key", *PRICES]
    path = tmp_path / "c.toml"
    path.write_text(told(capsys, "init", "--system", "--user", "root", "--unit", "dungeon.service", *words))
    config = load_config(path)
    [model] = config.models.values()
    assert (model.name, model.upstream, model.prices[0].row.output) == ("npc", "real-1", 5)
    [connector] = config.connectors.values()
    assert (connector.kind, connector.credential and connector.credential.name) == (kind, "the-key")
    [caller] = config.callers.values()
    assert (caller.peer.uid, caller.peer.unit) == (0, "dungeon.service")
    assert str(config.daemon.socket) == "/run/sidecar/requests.sock"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--provider", "gemini"], "--credential, --model, --price-input"),
        (["--provider", "gemini", "--model", "m", "--credential", "k", *PRICES[1:]], "--price-input"),
        (["--model", "m", *PRICES], "--model, --price-input"),
    ],
)
def test_what_a_provider_needs_is_asked_for_and_no_price_is_guessed(
    words: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wanted in told(capsys, "init", *words, code=os.EX_USAGE)


def test_the_schema_is_the_published_one(capsys: pytest.CaptureFixture[str]) -> None:
    published: Any = json.loads((ROOT / "schemas" / "config.schema.json").read_text())
    assert json.loads(told(capsys, "schema")) == published
    assert told(capsys, "init").startswith(f"#:schema {ROOT}/schemas/config.schema.json\n")


@pytest.mark.parametrize(
    ("words", "told_of"),
    [
        (["--caller", "a b"], "must be an id"),
        (["--unit", "dungeon"], 'write "dungeon.service"'),
        (["--user", "no-such-user"], "this host has no user"),
        (
            ["--provider", "gemini", "--model", "m", "--credential", "sk-canary-0123456789", *PRICES],
            "never write a key",
        ),
    ],
)
def test_what_check_would_refuse_is_not_written_and_a_key_is_not_said_again(
    words: list[str], told_of: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.toml"
    said_of_it = told(capsys, "init", *words, "--output", str(path), code=os.EX_USAGE)
    assert told_of in said_of_it
    assert "canary" not in said_of_it
    assert not path.exists()


def test_a_server_of_ones_own_needs_no_credential(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--provider", "openai_chat", "--base-url", "http://127.0.0.1:8080/v1", "--model", "npc", *PRICES]
    path = tmp_path / "c.toml"
    path.write_text(told(capsys, "init", *words))
    [connector] = load_config(path).connectors.values()
    assert (connector.credential, connector.base_url) == (None, "http://127.0.0.1:8080/v1")


def test_the_environment_of_a_connector_is_named_and_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.toml"
    connector = '[[connector]]\nname = "child"\nkind = "process"\nargv = ["true"]\nenvironment = {TOKEN = "canary"}\n'
    path.write_text(examples()[0] + connector)
    for words in (["--effective"], [], ["--json"]):
        shown = told(capsys, "show", *words, "--config", str(path))
        assert "canary" not in shown
        assert "TOKEN" in shown
