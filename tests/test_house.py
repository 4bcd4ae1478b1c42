"""The house checks itself: layers, names, sizes, and what must not be left behind."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import sidecar

PACKAGE = Path(sidecar.__file__).parent
ROOT = PACKAGE.parent
MODULES = sorted(PACKAGE.rglob("*.py"))
DEAF = {"contract", "rules"}
NOT_HEARD = {"trio", "anyio", "socket", "os", "time", "random", "secrets", "logging", "threading", "asyncio"}
BANNED_NAMES = {"utils", "util", "helpers", "common", "manager", "handler", "info", "data", "misc"}
LINES_MAX = 400
FUNCTION_LINES_MAX = 70


def the_map() -> list[str]:
    """The packages that the package's docstring names, in its order."""
    return re.findall(r"^    (\w+) {2,}\S", sidecar.__doc__ or "", re.MULTILINE)


def package_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0] if module.parent != PACKAGE else ""


def imported(module: Path) -> set[str]:
    """Dotted names that a module imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_the_map_names_every_package_and_nothing_else() -> None:
    there = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert set(the_map()) == there


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_stands_above_it(module: Path) -> None:
    order = the_map()
    package = package_of(module)
    if not package:
        return  # the package itself and its __main__ stand above and below everything
    for name in imported(module):
        parts = name.split(".")
        if parts[0] == "sidecar" and len(parts) > 1 and parts[1] in order:
            assert order.index(parts[1]) <= order.index(package), f"{module.name} imports {name}"


@pytest.mark.parametrize("module", [m for m in MODULES if package_of(m) == "audit"], ids=lambda path: path.name)
def test_the_second_reading_shares_no_code_with_the_writer(module: Path) -> None:
    of_the_ledger = {name.split(".")[2] for name in imported(module) if name.startswith("sidecar.ledger.")}
    assert of_the_ledger <= {"faults", "files"}


@pytest.mark.parametrize("module", [m for m in MODULES if package_of(m) in DEAF], ids=lambda path: path.name)
def test_contract_and_rules_are_deaf(module: Path) -> None:
    assert not {name.split(".")[0] for name in imported(module)} & NOT_HEARD
    assert not [n for n in ast.walk(ast.parse(module.read_text())) if isinstance(n, ast.AsyncFunctionDef | ast.Await)]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_and_functions_stay_small(module: Path) -> None:
    source = module.read_text()
    assert len(source.splitlines()) <= LINES_MAX
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES_MAX, node.name


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert not {path.stem for path in MODULES} & BANNED_NAMES


@pytest.mark.parametrize(
    ("what", "where"),
    [
        (r"\b107\b", "rules/framing.py"),  # how long a socket's path may be
        (r"asks to wait \(\[", "contract/waits.py"),
        (r"this user may not connect to", "client/reaching.py"),
        (r"[^.\w]TransportInvocation\(\n", "client/asking.py"),  # the proofs make theirs apart from what they prove
    ],
)
def test_what_must_be_the_same_everywhere_is_written_once(what: str, where: str) -> None:
    found = {str(path.relative_to(PACKAGE)) for path in MODULES if re.search(what, path.read_text())}
    assert found == {where}


def test_only_the_command_line_prints() -> None:
    for module in MODULES:
        calls = [n for n in ast.walk(ast.parse(module.read_text())) if isinstance(n, ast.Call)]
        prints = [n for n in calls if isinstance(n.func, ast.Name) and n.func.id == "print"]
        assert not prints or package_of(module) == "cli", module


def test_nothing_is_left_behind() -> None:
    reminders = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")))
    for path in [*MODULES, *sorted((ROOT / "tests").rglob("*.py"))]:
        if "node_modules" not in path.parts:
            assert not reminders.search(path.read_text()), path


def test_the_package_needs_nothing_beside_the_checkout() -> None:
    for module in MODULES:
        assert "../shared" not in module.read_text()
