"""A stranger's JavaScript client, written from the README, `schemas/` and `goldens/` alone, against the real daemon."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from kit.daemon_process import running_daemon, write_config

CLIENT = Path(__file__).resolve().parent / "javascript"
GOLDENS = Path(__file__).resolve().parents[2] / "goldens"
INSTALL_SECONDS_MAX = 120
RUN_SECONDS_MAX = 60


def need(tool: str) -> str:
    found = shutil.which(tool)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{tool} is needed, and CI may not do without it")
        pytest.skip(f"{tool} is not on this machine")
    return found


def run(folder: Path, *command: str, seconds_max: int = RUN_SECONDS_MAX) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds_max)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client with its one package, in a folder of its own."""
    npm, _ = need("npm"), need("node")
    folder = tmp_path_factory.mktemp("javascript") / "client"
    shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns("node_modules"))
    done = run(folder, npm, "ci", seconds_max=INSTALL_SECONDS_MAX)
    if done.returncode != 0:
        why = f"npm can't install @msgpack/msgpack here: {done.stderr.strip()[-500:]}"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)
    return folder


def test_the_lock_names_no_registry() -> None:
    assert "resolved" not in (CLIENT / "package-lock.json").read_text()


def test_it_computes_every_golden_digest_from_the_json_values(installed: Path) -> None:
    done = run(installed, need("node"), "check-goldens.mjs", str(GOLDENS))
    assert (done.returncode, done.stderr) == (0, "")
    vectors = [
        vector
        for path in [*(GOLDENS / "values").glob("*.json"), GOLDENS / "frames/variants.json"]
        for vector in json.loads(path.read_text())["vectors"]
    ]
    assert int(done.stdout.split()[0]) >= len(vectors) > 200


def test_its_check_notices_a_wrong_golden(installed: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "goldens"
    shutil.copytree(GOLDENS, spoilt)
    path = spoilt / "values/provider_request.v1.json"
    document = json.loads(path.read_text())
    document["vectors"][3]["sha256"] = "00" * 32
    path.write_text(json.dumps(document))
    done = run(installed, need("node"), "check-goldens.mjs", str(spoilt))
    assert done.returncode == 1
    assert document["vectors"][3]["name"] in done.stderr


def test_it_completes_an_exchange(installed: Path, tmp_path: Path) -> None:
    write_config(tmp_path)
    question = "Who goes there? \U0001f409 Ça va?"
    with running_daemon(tmp_path) as daemon:
        done = run(installed, need("node"), "client.mjs", str(daemon.socket_path), "dungeon", "npc", question)
    assert (done.returncode, done.stderr) == (0, "")
    printed = json.loads(done.stdout)
    assert printed["text"] == question
    receipt = printed["receipt"]
    assert receipt["schema_id"] == "gamecult.model.transport_receipt.v1"
    assert receipt["caller_runtime_id"] == "dungeon"
    assert receipt["outcome"]["Completed"]["stop_reason"] == "end_turn"
    assert receipt["cost_micro_usd"] > 0
    assert len(receipt["provider_request_sha256"]) == 32


def test_it_says_why_it_was_refused(installed: Path, tmp_path: Path) -> None:
    write_config(tmp_path)
    with running_daemon(tmp_path) as daemon:
        socket_path = str(daemon.socket_path)
        model = run(installed, need("node"), "client.mjs", socket_path, "dungeon", "unknown", "hello")
        caller = run(installed, need("node"), "client.mjs", socket_path, "not an id", "npc", "hello")
    assert (model.returncode, model.stderr) == (1, "refused: ModelNotAllowed\n")
    assert caller.returncode == 1
    assert caller.stderr.startswith("malformed_frame: ")
