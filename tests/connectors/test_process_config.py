"""What a configuration may say of a process connector, and what is found when it is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.config.keys import Complaints, ConfigFaults, read_table
from sidecar.config.values import Connector
from sidecar.connectors.child import Plan
from sidecar.connectors.process import Process
from sidecar.connectors.process_config import KIND
from sidecar.ops.credentials import Secret


def read(table: dict[str, Any], folder: Path = Path("/")) -> dict[str, Any] | list[str]:
    complaints = Complaints({})
    values = read_table(table, KIND.config.keys(folder), "it", complaints)
    return values if values is not None else list(map(str, complaints.all))


def built(folder: Path, secret: str | None = None, **table: Any) -> Process:
    settings = read(table, folder)
    assert isinstance(settings, dict), settings
    config = Connector(
        name="it", kind="process", base_url=None, credential=None, time_limit_seconds=1, concurrent_requests_max=1,
        response_bytes_max=1, body_bytes_max=1, usage="required", settings=settings,
    )  # fmt: skip
    return KIND.build(config, Secret("key", secret) if secret else None)


def plan_of(connector: Process) -> Plan:
    return connector._plan


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({}, "it.argv: is missing"),
        ({"argv": []}, "it.argv: must name a program first"),
        ({"argv": ["", "a"]}, "it.argv: must name a program first"),
        ({"argv": "parrot"}, "it.argv: must be an array"),
        ({"argv": ["a", 1]}, "it.argv[1]: must be a text"),
        ({"argv": ["a\0"]}, "it.argv[0]: must be a text without NUL"),
        ({"argv": ["a"], "environment": ["A=1"]}, "it.environment: must be a table of texts"),
        ({"argv": ["a"], "environment": {"A": 1}}, "it.environment.A: must be a text"),
        ({"argv": ["a"], "environment": {"A=B": "1"}}, "it.environment.A=B: is no name"),
        ({"argv": ["a"], "environment": {"SIDECAR_CREDENTIAL": "x"}}, "is set by the connector's credential"),
        ({"argv": ["a"], "cwd": ""}, "it.cwd: must be a text that is not empty"),
        ({"argv": ["a"], "enviroment": {}}, "did you mean environment"),
    ],
)
def test_a_mistake_is_named(table: dict[str, Any], why: str) -> None:
    told = read(table)
    assert isinstance(told, list)
    assert why in told[0]


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["no-such-parrot"], "argv: there is no program 'no-such-parrot' on the child's PATH"),
        (["./absent"], "absent is no file"),
        (["./folder"], "folder is no file"),
        (["./plain"], "plain may not be run by this user"),
    ],
)
def test_a_program_that_can_not_be_run_is_found_when_it_is_built(tmp_path: Path, argv: list[str], why: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").write_text("")
    with pytest.raises(ConfigFaults, match=why):
        built(tmp_path, argv=argv)


def test_programs_are_found_on_the_childs_own_path_and_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "parrot").write_text("#!/bin/sh\n")
    (tmp_path / "parrot").chmod(0o755)
    assert plan_of(built(tmp_path, argv=["parrot"], environment={"PATH": str(tmp_path)})).argv == ("parrot",)
    assert plan_of(built(tmp_path, argv=["./parrot"])).cwd == tmp_path
    assert plan_of(built(Path("/"), argv=["./parrot"], cwd=str(tmp_path))).cwd == tmp_path
    with pytest.raises(ConfigFaults, match="absent is no directory"):
        built(tmp_path, argv=["sh"], cwd="absent")


def test_a_child_is_given_nothing_of_the_daemons_environment_but_path_and_lang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    monkeypatch.setenv("LANG", "C.UTF-8")
    plan = plan_of(built(tmp_path, argv=["sh"], environment={"A": "", "LANG": "de_DE.UTF-8"}))
    assert plan.environment == {"PATH": "/bin:/usr/bin", "LANG": "de_DE.UTF-8", "A": ""}
    connector = built(tmp_path, "sk-mine", argv=["sh"])
    assert plan_of(connector).environment["SIDECAR_CREDENTIAL"] == "sk-mine"
    assert "sk-mine" not in repr(connector) + repr(plan_of(connector))
