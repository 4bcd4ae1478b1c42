"""The package as a game sees it: one surface for both clients, and nothing of the daemon's rooms with it."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sidecar
from sidecar import client
from sidecar.client import AsyncClient, Client

MODULES = sorted(Path(client.__file__).parent.glob("*.py"))
CALLS = ["connect", "prepare", "invoke", "stream", "quote", "status", "cancel"]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_it_needs_only_the_contract_and_framing_and_anyio(module: Path) -> None:
    for node in ast.walk(ast.parse(module.read_text())):
        imports = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        imports += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in imports:
            room = ".".join(name.split(".")[:2])
            is_standard = name.split(".")[0] in sys.stdlib_module_names
            assert (
                is_standard
                or room in {"sidecar.client", "sidecar.contract", "anyio", "anyio.abc", "msgspec"}
                or (name == "sidecar.rules.framing")
            ), name


def test_importing_it_brings_neither_trio_nor_the_daemon() -> None:
    program = "import sys, sidecar.client; print(*sorted(sys.modules))"
    environ = {**os.environ, "PYTHONPATH": str(Path(sidecar.__file__).parent.parent)}
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env=environ, timeout=60)
    modules = said.stdout.decode().split()
    assert not {"trio", "httpx2", "sidecar.config", "sidecar.ledger", "sidecar.service", "sidecar.ops"} & set(modules)


@pytest.mark.parametrize("call", ["__init__", *CALLS])
def test_both_clients_take_the_same(call: str) -> None:
    one, other = (inspect.signature(getattr(kind, call)).parameters for kind in (AsyncClient, Client))
    assert {name: (p.kind, p.default) for name, p in one.items() if name != "name"} == {
        name: (p.kind, p.default) for name, p in other.items() if name != "name"
    }


def test_every_exported_name_is_there_and_every_public_error_is_exported() -> None:
    assert client.__all__ == sorted(client.__all__)
    exported = {name: getattr(client, name) for name in client.__all__}
    errors = {
        name
        for name, value in vars(sys.modules["sidecar.client.errors"]).items()
        if isinstance(value, type) and issubclass(value, client.SidecarError)
    }
    assert errors <= set(exported)
