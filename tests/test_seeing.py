"""Every fact of the log and every metric stands in systemd/OPERATING.md, so that neither is there unexplained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import sidecar
from sidecar.ops.metrics import Family
from sidecar.service.families import FAMILIES

PACKAGE = Path(sidecar.__file__).parent
OPERATING = PACKAGE.parent / "systemd" / "OPERATING.md"
LEVELS = {"critical", "error", "warning", "notice", "info"}


def _calls() -> Iterator[tuple[Path, ast.Call]]:
    for module in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call):
                yield module, node


def _is_a_line(call: ast.Call) -> bool:
    """`log.info(...)`, of anything that is called a log."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in LEVELS:
        return False
    return ast.unparse(call.func.value).rpartition(".")[2].strip("_") == "log"


def _is_about_a_stranger(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and ast.unparse(call.func).endswith("strangers.tell")


def facts() -> set[str]:
    """All facts by name: the first argument of each call, and what few lines are made for."""
    found: set[str] = set()
    for module, call in _calls():
        if _is_a_line(call) or _is_about_a_stranger(call):
            names = {node.value for node in ast.walk(call.args[0]) if isinstance(node, ast.Constant)}
            assert all(isinstance(name, str) for name in names), module
            is_handed = isinstance(call.args[0], ast.Name | ast.Attribute | ast.JoinedStr)
            assert is_handed or len(names) == 1, f"{module}: a fact that can't be told from the code"
            if not is_handed:
                found |= {str(name) for name in names}
        elif isinstance(call.func, ast.Name) and call.func.id == "FewLines":
            fact = call.args[2]
            assert isinstance(fact, ast.Constant), module
            found |= {str(fact.value), f"{fact.value}_more"}
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ("_line", "_tell_wrong"):
            found |= {str(word.value) for word in call.args if isinstance(word, ast.Constant)} - LEVELS
    return {fact for fact in found if re.fullmatch(r"[a-z][a-z0-9_]+", fact)}


def rows(text: str) -> set[str]:
    """What is named in the first cell of a table's rows."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([a-z0-9_]+)(?:\{[^}]*\})?`", cell)}


def test_facts_are_found_however_they_are_told() -> None:
    found = facts()
    assert {"completed", "refused", "refused_more", "connected", "lines_lost", "ledger_poisoned", "child_said"} <= found
    assert len(found) > 40


def test_every_fact_of_the_log_is_explained_with_its_values() -> None:
    text = OPERATING.read_text()
    assert facts() - rows(text) == set()
    explained = {
        line.split("`")[1]: set(re.findall(r"`(\w+)`", line)) for line in text.splitlines() if line[:3] == "| `"
    }
    levels = {line.split("`")[1]: line.split("|")[2] for line in text.splitlines() if line[:3] == "| `"}
    for module, call in _calls():
        if _is_a_line(call) and isinstance(call.args[0], ast.Constant):
            assert isinstance(call.func, ast.Attribute)
            fact = str(call.args[0].value)
            assert call.func.attr in levels[fact], f"{module}: {fact} is logged at {call.func.attr}"
            said = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
            assert said <= explained[fact], f"{module}: {fact}"


def row(family: Family) -> str:
    labels = "{" + ", ".join(family.labels) + "}" if family.labels else ""
    return f"| `{family.name}{labels}` | {family.kind} | {family.what} |"


def test_every_metric_is_explained_as_it_is_and_none_that_there_is_not() -> None:
    lines = OPERATING.read_text().splitlines()
    told = {line for line in lines if re.search(r"` \| (counter|gauge|histogram) \| ", line)}
    assert told == {row(family) for family in FAMILIES}
