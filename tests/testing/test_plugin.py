"""The pytest plugin in runs of pytest of its own: plain, with pytest-trio, with anyio's plugin, with pytest-asyncio."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = Path(__file__).parent / "examples"
KIT = "sidecar.testing.plugin"


def run(folder: Path, *arguments: str, plugins: Sequence[str] = (KIT,)) -> subprocess.CompletedProcess[str]:
    """Pytest with these plugins and no others, so that it is the same wherever this is run; warnings are errors."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    with_plugins = [word for plugin in plugins for word in ("-p", plugin)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", *with_plugins, *arguments],
        cwd=folder,
        env={**environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def example(folder: Path, name: str, *plugins: str) -> str:
    """What pytest says of this example, which passes."""
    (folder / "test_game.py").write_text((EXAMPLES / name).read_text())
    done = run(folder, "--strict-markers", "-v", plugins=(KIT, *plugins))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_plain_tests_have_their_daemon(tmp_path: Path) -> None:
    assert "5 passed" in example(tmp_path, "plain.py")


def test_tests_under_pytest_trio_have_their_daemon(tmp_path: Path) -> None:
    assert "3 passed" in example(tmp_path, "under_trio.py", "pytest_trio.plugin")


def test_tests_under_anyio_s_plugin_have_their_daemon_on_both_loops(tmp_path: Path) -> None:
    said = example(tmp_path, "under_anyio.py", "anyio.pytest_plugin")
    assert "6 passed" in said
    assert said.count("[asyncio] PASSED") == said.count("[trio] PASSED") == 3


def test_tests_under_pytest_asyncio_have_their_daemon(tmp_path: Path) -> None:
    pytest.importorskip("pytest_asyncio", reason="pytest-asyncio is not installed, and no other test needs it")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    assert "3 passed" in example(tmp_path, "under_asyncio.py", "pytest_asyncio.plugin")


# --- what the plugin does besides -------------------------------------------------------------------------------


def said_of(folder: Path, source: str, *arguments: str) -> str:
    (folder / "test_game.py").write_text(source)
    done = run(folder, *arguments)
    return done.stdout + done.stderr


def test_a_failing_test_shows_the_end_of_the_daemon_s_log_and_a_passing_one_does_not(tmp_path: Path) -> None:
    said = said_of(
        tmp_path,
        "def test_passes(sidecar_daemon):\n    pass\n\n"
        "def test_fails(sidecar_daemon):\n    assert sidecar_daemon.asked\n",
    )
    assert "1 failed, 1 passed" in said
    assert said.count("- sidecar daemon ") == 1
    assert said.count('"fact": "ready"') == 1


def test_a_report_shows_only_daemons_of_its_own_test_and_of_the_shared_one_only_what_is_new(tmp_path: Path) -> None:
    said = said_of(
        tmp_path,
        "from sidecar.client import new_request\n\n"
        "def ask(daemon, request_id):\n"
        "    with daemon.client() as client:\n"
        "        client.invoke(new_request('npc-fast', 'hello', request_id=request_id))\n"
        "    assert daemon.asked == [], 'seen by ' + request_id\n\n"
        "def test_one(sidecar_shared_daemon):\n    ask(sidecar_shared_daemon, 'first')\n\n"
        "def test_two(sidecar_shared_daemon):\n    ask(sidecar_shared_daemon, 'second')\n\n"
        "def test_own(sidecar_daemon):\n    ask(sidecar_daemon, 'third')\n\n"
        "def test_none():\n    assert 0, 'without any'\n",
        "--tb=line",
    )
    assert "4 failed" in said
    assert said.count("- sidecar daemon ") == 3
    facts = [
        (json.loads(line)["fact"], json.loads(line).get("request")) for line in said.splitlines() if '"fact"' in line
    ]
    assert [request for fact, request in facts if fact == "completed"] == ["first", "second", "third"]
    assert [fact for fact, _ in facts].count("ready") == 1, "of the shared one it is older than the tests"


def test_a_daemon_that_cannot_start_is_told_once_and_in_its_own_words(tmp_path: Path) -> None:
    said = said_of(
        tmp_path, "def test_wrong(sidecar_daemon_factory):\n    sidecar_daemon_factory(daemon={'sockt': 1})\n"
    )
    assert "1 failed" in said
    assert "daemon.sockt: unknown key — did you mean socket" in said


def test_settings_of_a_game_are_those_of_all_fixtures(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n\n@pytest.fixture(scope='session')\ndef sidecar_settings():\n"
        "    return {'callers': ['tavern'], 'models': ['a', 'b']}\n"
    )
    said = said_of(
        tmp_path,
        "def test_each(sidecar_daemon, sidecar_shared_daemon, sidecar_daemon_factory):\n"
        "    other = sidecar_daemon_factory(models=['c'])\n"
        "    assert sidecar_daemon.callers == sidecar_shared_daemon.callers == other.callers == ('tavern',)\n"
        "    assert (sidecar_daemon.models, other.models) == (('a', 'b'), ('c',))\n"
        "    assert len({sidecar_daemon.pid, sidecar_shared_daemon.pid, other.pid}) == 3\n",
    )
    assert "1 passed" in said


def test_the_shared_daemon_is_one_process_and_is_started_again_where_a_test_has_killed_it(tmp_path: Path) -> None:
    said = said_of(
        tmp_path,
        "pids = []\n"
        "def test_first(sidecar_shared_daemon):\n    pids.append(sidecar_shared_daemon.pid)\n\n"
        "def test_second(sidecar_shared_daemon):\n"
        "    assert sidecar_shared_daemon.pid == pids[0]\n    sidecar_shared_daemon.kill()\n\n"
        "def test_third(sidecar_shared_daemon):\n"
        "    assert sidecar_shared_daemon.exit_code is None\n    assert sidecar_shared_daemon.pid != pids[0]\n",
    )
    assert "3 passed" in said


def test_reading_the_plugin_reads_nothing_else_of_the_package() -> None:
    code = (
        f"import sys, {KIT}\n"
        "print(*sorted(name for name in sys.modules if name.split('.')[0] in {'sidecar', 'trio', 'msgspec'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.split() == ["sidecar", "sidecar.testing", KIT]


def test_the_names_that_tests_import_are_those_of_their_homes() -> None:
    from sidecar import testing
    from sidecar.testing import Call, Daemon, KitFault, NotAsked, answers, daemon, faults, spawned

    assert (Call, KitFault, NotAsked) == (answers.Call, faults.KitFault, faults.NotAsked)
    assert (Daemon, spawned) == (daemon.Daemon, daemon.spawned)
    with pytest.raises(AttributeError, match="has no attribute 'Clal'"):
        _ = testing.Clal  # type: ignore[attr-defined]  # what must be refused
    with pytest.raises(ImportError):
        from sidecar.testing import nothing  # type: ignore[attr-defined]  # noqa: F401  # the same
