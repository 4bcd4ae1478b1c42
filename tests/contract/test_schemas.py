"""The typed values accept exactly what the published schemas accept, in both directions."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import independent

from sidecar.contract import canonical
from sidecar.contract import client_frames as f
from sidecar.contract import connector_frames as c
from sidecar.contract import operator_frames as o
from sidecar.contract import values as v

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "../shared/contract/schemas"

TYPES: dict[str, type[v.Value]] = {
    "input_reasoning_state.v1": v.InputReasoningState,
    "provider_request.v1": v.ProviderRequest,
    "transport_invocation.v1": v.TransportInvocation,
    "transport_receipt.v1": v.TransportReceipt,
    "transport_result.v1": v.TransportResult,
    "transport_error.v1": v.TransportError,
    "replay_record.v2": v.ReplayRecord,
    "connector_request.v1": c.ConnectorRequest,
    "connector_event.v1": c.ConnectorEvent,
    "connector_outcome.v1": c.ConnectorOutcome,
    "operator_resolve.v1": o.OperatorResolve,
    "operator_resolved.v1": o.OperatorResolved,
    "operator_check.v1": o.OperatorCheck,
    "operator_checked.v1": o.OperatorChecked,
    "operator_reload.v1": o.OperatorReload,
    "operator_reloaded.v1": o.OperatorReloaded,
    "operator_metrics.v1": o.OperatorMetrics,
    "operator_metered.v1": o.OperatorMetered,
    "transport_hello.v1": f.TransportHello,
    "transport_welcome.v1": f.TransportWelcome,
    "transport_quote.v1": f.TransportQuote,
    "transport_quoted.v1": f.TransportQuoted,
    "transport_cancel.v1": f.TransportCancel,
    "transport_status.v1": f.TransportStatus,
    "transport_status_report.v1": f.TransportStatusReport,
    "transport_event.v1": f.LiveEvent,
}
EDGES = [0, 1, 127, 128, 255, 256, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1]


def test_our_schemas_are_the_published_ones() -> None:
    if not PUBLISHED.is_dir():
        pytest.skip("the contract's own folder is not beside this checkout")
    for path in PUBLISHED.glob("*.json"):
        assert json.loads((ROOT / "schemas" / path.name).read_text()) == json.loads(path.read_text())


def generated(schema: dict[str, Any], root: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema accepts, bytes where it says binary."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return st.deferred(lambda: generated(root["$defs"][name], root))
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    for several in ("oneOf", "anyOf"):
        if several in schema:
            return st.one_of([generated(one, root) for one in schema[several]])
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return st.one_of([_of_type(one, schema, root) for one in types])


def _of_type(name: str, schema: dict[str, Any], root: dict[str, Any]) -> st.SearchStrategy[Any]:
    if name == "integer":
        top = {"uint8": 2**8, "uint32": 2**32, "uint64": 2**64}[schema["format"]] - 1
        return st.integers(0, top) | st.sampled_from([edge for edge in EDGES if edge <= top])
    if name == "string":
        return st.binary(max_size=8) if schema.get("format") == "binary" else st.text(max_size=8)
    if name == "array":
        sizes = {"min_size": schema.get("minItems", 0), "max_size": schema.get("maxItems", 3)}
        return st.lists(generated(schema["items"], root), **sizes)
    if name == "object":
        members = {key: generated(inner, root) for key, inner in schema["properties"].items()}
        needed = {key: inner for key, inner in members.items() if key in schema["required"]}
        return st.fixed_dictionaries(
            needed, optional={key: inner for key, inner in members.items() if key not in needed}
        )
    return {"boolean": st.booleans(), "null": st.none()}[name]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


WRONG = st.sampled_from(
    [
        None,
        True,
        False,
        -1,
        256,
        2**32,
        2**64 - 1,
        1.0,
        0.5,
        "",
        "x",
        b"",
        b"x",
        [],
        {},
        [1],
        {"a": 1},
        "short",
        "Expired",
    ]
)


FAULTS = ["replace", "remove", "add", "rename", "twice", "other kind", "one beyond", "two tags", "other schema"]


def mutated(value: Any, draw: Callable[..., Any], like: st.SearchStrategy[Any]) -> Any:
    """One fault, or what looks like one, at one place."""
    value = copy.deepcopy(value)
    *above, last = draw(st.sampled_from([place for place in places(value) if place]))
    holder = value
    for key in above:
        holder = holder[key]
    fault = draw(st.sampled_from(FAULTS))
    if fault == "replace":
        holder[last] = draw(WRONG)
    elif fault == "remove":
        del holder[last]
    elif fault == "other kind":
        holder[last] = other_kind(holder[last])
    elif fault == "one beyond":
        holder[last] = draw(st.sampled_from([-1, 256, 2**32, 2**64 - 1, -(2**63), 1.0, float("nan")]))
    elif fault == "two tags":
        add_tag(value, draw(like), draw)
    elif fault == "other schema":
        rename_schema(value, draw)
    elif isinstance(holder, dict):
        if fault == "add":
            holder[draw(st.sampled_from(["extra", "", "Failed", "UserText", "usage"]))] = draw(WRONG)
        elif fault == "rename":
            holder[f"{last}_"] = holder.pop(last)
    else:
        holder.append(copy.deepcopy(holder[last]))
    return value


def other_kind(value: Any) -> Any:
    """The same thing as another type: what a careless encoder makes of it."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list):
        return dict(zip(map(str, range(len(value))), value, strict=True))
    if isinstance(value, bool) or value is None:
        return int(bool(value))
    return float(value) if value < 2**53 else str(value)


def tagged(value: Any) -> list[dict[str, Any]]:
    """Every map inside a value that says by its one key which alternative it is."""
    maps = [inner for inner in walked(value) if isinstance(inner, dict)]
    return [inner for inner in maps if len(inner) == 1 and next(iter(inner))[:1].isupper()]


def walked(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(place for one in inner for place in walked(one))]


def add_tag(value: Any, other: Any, draw: Callable[..., Any]) -> None:
    """Puts a second sound alternative, from another sound value, beside the first; or takes the only one away."""
    ours, theirs = tagged(value), tagged(other)
    if ours and theirs and draw(st.booleans()):
        draw(st.sampled_from(ours)).update(draw(st.sampled_from(theirs)))
    elif ours:
        draw(st.sampled_from(ours)).clear()


def rename_schema(value: Any, draw: Callable[..., Any]) -> None:
    named = [inner for inner in walked(value) if isinstance(inner, dict) and "schema_id" in inner]
    if named:
        name = draw(st.sampled_from([f"gamecult.model.{name}" for name in TYPES] + ["", "gamecult.model.x.v1"]))
        draw(st.sampled_from(named))["schema_id"] = name


def ours_accepts(name: str, value: Any) -> bool:
    try:
        msgspec.msgpack.decode(msgpack.packb(value), type=TYPES[name])
    except msgspec.ValidationError:
        return False
    return True


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=60, deadline=None)
@given(draw=st.data())
def test_what_the_schema_accepts_is_accepted_and_comes_back(name: str, draw: st.DataObject) -> None:
    schema = independent.schema(name)
    value = draw.draw(generated(schema, schema))
    assert independent.is_valid(name, value)
    typed = msgspec.msgpack.decode(msgpack.packb(value), type=TYPES[name])
    assert without_nil(msgpack.unpackb(canonical.encode(typed))) == without_nil(value)


def without_nil(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nil(inner) for key, inner in value.items() if inner is not None}
    return [without_nil(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=200, deadline=None)
@given(draw=st.data())
def test_one_fault_is_accepted_by_both_or_refused_by_both(name: str, draw: st.DataObject) -> None:
    schema = independent.schema(name)
    like = generated(schema, schema)
    value = mutated(draw.draw(like), draw.draw, like)
    assert ours_accepts(name, value) == independent.is_valid(name, value)
