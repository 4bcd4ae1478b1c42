"""The README's example test, as it stands there: in a checkout, and where only the built wheel and pytest are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTALL_SECONDS_MAX = 300
RUN_SECONDS_MAX = 100


def example() -> str:
    """The first Python of the README's section for those who test games."""
    section = (ROOT / "README.md").read_text().partition("\n## Testing a game\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]


def run(
    command: Sequence[str], folder: Path, environ: dict[str, str], seconds_max: int
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=seconds_max, check=False
    )


def installed(folder: Path, *pip: str) -> None:
    """Runs pip to its end, or the test is over."""
    try:
        done = run(pip, folder, clean_environment(), INSTALL_SECONDS_MAX)
        why = done.stderr.strip()[-500:] if done.returncode else None
    except subprocess.TimeoutExpired:
        why = f"not done within {INSTALL_SECONDS_MAX} s"
    if why is not None:
        why = f"{' '.join(pip[2:])}: {why}"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)


def clean_environment() -> dict[str, str]:
    """Without what would lead Python, pip or pytest back to this checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}


def test_it_is_ten_lines_and_passes_beside_the_package(tmp_path: Path) -> None:
    assert len([line for line in example().splitlines() if line.strip()]) <= 10
    (tmp_path / "test_tavern.py").write_text(example())
    environ = {**clean_environment(), "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    pytest_alone = [sys.executable, "-m", "pytest", "-p", "sidecar.testing.plugin", "-p", "no:cacheprovider"]
    done = run(pytest_alone, tmp_path, environ, RUN_SECONDS_MAX)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_it_passes_in_a_fresh_environment_with_only_the_wheel_and_pytest(tmp_path: Path) -> None:
    python = str(tmp_path / "venv/bin/python")
    made = run([sys.executable, "-m", "venv", str(tmp_path / "venv")], tmp_path, clean_environment(), RUN_SECONDS_MAX)
    assert made.returncode == 0, made.stderr
    pip = (python, "-m", "pip", "--disable-pip-version-check", "-q")
    installed(tmp_path, *pip, "wheel", str(ROOT), "--no-deps", "--wheel-dir", "dist")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    installed(tmp_path, *pip, "install", str(wheel), "pytest")
    (tmp_path / "game").mkdir()
    (tmp_path / "game/test_tavern.py").write_text(example())
    done = run([python, "-m", "pytest", "-W", "error"], tmp_path / "game", clean_environment(), RUN_SECONDS_MAX)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert "sidecar" in done.stdout.partition("plugins:")[2].partition("\n")[0]
