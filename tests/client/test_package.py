"""The package as a game sees it: one surface for both clients, and nothing of the daemon's rooms with it."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import sidecar
from sidecar import client
from sidecar.client import AsyncClient, Client
from sidecar.client.asking import Terms
from sidecar.contract import client_frames, values

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


def modules_after(program: str) -> set[str]:
    """The modules that a fresh interpreter has once it has run this."""
    told = f"{program}; import sys; print(*sorted(sys.modules))"
    environ = {**os.environ, "PYTHONPATH": str(Path(sidecar.__file__).parent.parent)}
    said = subprocess.run([sys.executable, "-c", told], capture_output=True, check=True, env=environ, timeout=60)
    return set(said.stdout.decode().split())


DAEMONS = {"trio", "httpx2", "sidecar.config", "sidecar.ledger", "sidecar.service", "sidecar.ops"}
OF_THE_ASYNC_CLIENT = {"asyncio", "anyio", "sidecar.client.async_client"}


def test_importing_all_of_it_brings_neither_trio_nor_the_daemon() -> None:
    assert not DAEMONS & modules_after("from sidecar.client import *")


def test_a_client_is_loaded_when_it_is_first_asked_for() -> None:
    assert not (OF_THE_ASYNC_CLIENT | {"sidecar.client.blocking_client"}) & modules_after("import sidecar.client")
    assert not OF_THE_ASYNC_CLIENT & modules_after("from sidecar.client import Client, new_request")
    assert modules_after("from sidecar.client import AsyncClient") >= OF_THE_ASYNC_CLIENT


def test_the_package_lists_what_it_has_and_says_what_it_has_not() -> None:
    assert set(client.__all__) <= set(dir(client))
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        client.Cleint  # noqa: B018  # looked up for what it raises
    with pytest.raises(ImportError, match="Cleint"):
        exec("from sidecar.client import Cleint")


@pytest.mark.parametrize("call", ["__init__", *CALLS])
def test_both_clients_take_the_same(call: str) -> None:
    one, other = (inspect.signature(getattr(kind, call)).parameters for kind in (AsyncClient, Client))
    assert {name: (p.kind, p.default) for name, p in one.items() if name != "name"} == {
        name: (p.kind, p.default) for name, p in other.items() if name != "name"
    }


@pytest.mark.parametrize("kind", [AsyncClient, Client])
def test_the_help_of_invoke_says_every_term_and_what_it_is_by_default(kind: type) -> None:
    told = " ".join((kind.invoke.__doc__ or "").split())
    assert set(client.TermsGiven.__annotations__) == set(Terms.__struct_fields__)
    for term, default in inspect.signature(Terms).parameters.items():
        shown = "" if default.default is None else f" ({default.default:_})"
        assert f"`{term}`{shown}" in told
    for call in ("prepare", "stream", "quote"):
        assert "`terms` are those of invoke()" in getattr(kind, call).__doc__


def test_every_exported_name_is_there_and_every_public_error_is_exported() -> None:
    assert client.__all__ == sorted(client.__all__)
    exported = {name: getattr(client, name) for name in client.__all__}
    errors = {
        name
        for name, value in vars(sys.modules["sidecar.client.errors"]).items()
        if isinstance(value, type) and issubclass(value, client.SidecarError)
    }
    assert errors <= set(exported)


def test_the_help_of_what_a_game_makes_names_each_of_its_members() -> None:
    made = [client.UserText, client.AssistantText, client.ToolCall, client.ToolResult, client.ToolDefinition]
    for kind in [*made, client.ReasoningState, client.InputItem]:
        told = kind.__doc__ or ""
        members = kind.__struct_fields__ if kind is not client.InputItem else ("user_text",)
        assert [member for member in members if not re.search(rf"\b{member}\b", told)] == []


NO_NAMES_OF_TYPES = {"Digest", "U32", "U64", "UnsetType"}  # how a plain int or tuple is bounded


def test_every_type_that_an_exported_one_is_made_of_is_exported() -> None:
    told: set[str] = {"Retry"}
    for kind in [value for name in client.__all__ if isinstance(value := getattr(client, name), type)]:
        members = [value.fget for value in vars(kind).values() if isinstance(value, property)]
        for hints in [vars(kind).get("__annotations__", {}), *(one.__annotations__ for one in members)]:
            told |= set(re.findall(r"\w+", " ".join(map(str, hints.values()))))
    published = told & {*vars(values), *vars(client_frames), "Retry"} - {*vars(typing), *NO_NAMES_OF_TYPES}
    assert published
    assert published <= set(client.__all__)
