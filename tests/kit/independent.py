"""A second opinion on frames, made of other parts: the msgpack library with hooks, jsonschema, and the rules again.

It shares no code with `sidecar`. `accepts(frame)` is whether a frame is a
valid invocation by the contract's sections 1 to 3 (rule 3 and the ids).
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import msgpack
from jsonschema.validators import extend

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"
ITEMS_MAX = 65_536
LEVELS_MAX = 16
JSON_LEVELS_MAX = 64
_FORMATS = {"uint8": 2**8, "uint32": 2**32, "uint64": 2**64}
_ID = re.compile(rb"[\x21-\x7e]{1,256}")


class Refused(Exception):
    pass


# --- the strict profile -----------------------------------------------------------------------------------------


def unpacked(frame: bytes) -> Any:
    """The value of a strict frame; raises Refused."""
    counted = 0

    def count(items: int) -> None:
        nonlocal counted
        counted += items
        if counted > ITEMS_MAX:
            raise Refused("too many items")

    def pairs(members: list[tuple[Any, Any]]) -> dict[str, Any]:
        count(len(members))
        if any(not isinstance(key, str) for key, _ in members):
            raise Refused("a key that is no string")
        if len({key for key, _ in members}) != len(members):
            raise Refused("a key twice")
        return dict(members)

    def array(items: list[Any]) -> list[Any]:
        count(len(items))
        return items

    def no_ext(code: int, _: bytes) -> Any:
        raise Refused(f"ext {code}")

    try:
        value = msgpack.unpackb(
            frame, raw=False, strict_map_key=False, object_pairs_hook=pairs, list_hook=array, ext_hook=no_ext
        )
    except Refused:
        raise
    except Exception as fault:
        raise Refused(str(fault)) from fault
    _walk(value, 0)
    return value


def _walk(value: Any, level: int) -> None:
    if isinstance(value, float | msgpack.Timestamp | msgpack.ExtType):
        raise Refused("a float or an ext type")
    if isinstance(value, dict | list):
        if level == LEVELS_MAX:
            raise Refused("too deep")
        for inner in value.values() if isinstance(value, dict) else value:
            _walk(inner, level + 1)


# --- the schemas ------------------------------------------------------------------------------------------------


def _is_text(_: Any, value: Any) -> bool:
    return isinstance(value, str | bytes)


def _is_whole(_: Any, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_types = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine_many({"string": _is_text, "integer": _is_whole})


def _type(validator: Any, types: Any, instance: Any, schema: Any) -> Any:
    """As ever, and: bytes where the format is binary, text where it is not."""
    yield from jsonschema.Draft202012Validator.VALIDATORS["type"](validator, types, instance, schema)
    is_text = isinstance(instance, str | bytes) and "string" in ([types] if isinstance(types, str) else types)
    if is_text and isinstance(instance, bytes) != (schema.get("format") == "binary"):
        yield jsonschema.ValidationError("bytes and text are not the same")


def _format(validator: Any, name: str, instance: Any, schema: Any) -> Any:
    if name in _FORMATS and _is_whole(None, instance) and not 0 <= instance < _FORMATS[name]:
        yield jsonschema.ValidationError(f"{instance} is no {name}")


def _enum(validator: Any, words: Any, instance: Any, schema: Any) -> Any:
    if not isinstance(instance, str) or instance not in words:
        yield jsonschema.ValidationError(f"{instance!r} is none of {words}")


_Validator = extend(
    jsonschema.Draft202012Validator, {"type": _type, "format": _format, "enum": _enum}, type_checker=_types
)
_SCHEMA_IDS = {
    "ProviderRequest": "provider_request.v1",
    "TransportInvocation": "transport_invocation.v1",
    "TransportReceipt": "transport_receipt.v1",
}


@cache
def schema(name: str) -> dict[str, Any]:
    """A published schema, with each `schema_id` held to its published name."""
    document: dict[str, Any] = json.loads((SCHEMAS / f"gamecult.model.{name}.schema.json").read_text())
    if "schema_id" in document["properties"]:
        document["properties"]["schema_id"] = {"const": f"gamecult.model.{name}"}
    for inner, published in _SCHEMA_IDS.items():
        if inner in document.get("$defs", {}):
            document["$defs"][inner]["properties"]["schema_id"] = {"const": f"gamecult.model.{published}"}
    return document


@cache
def _validator(name: str) -> Any:
    return _Validator(schema(name))


def is_valid(name: str, value: Any) -> bool:
    """Whether a value (bytes where the wire has bin) satisfies a published schema as the contract reads it."""
    return bool(_validator(name).is_valid(value))


# --- rule 3 beyond the schema -----------------------------------------------------------------------------------


def _is_id(text: str) -> bool:
    return _ID.fullmatch(text.encode("utf-8", "surrogatepass")) is not None


def _is_json_object(text: str) -> bool:
    class Twice(ValueError):
        pass

    def once(members: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in members}) < len(members):
            raise Twice
        return dict(members)

    def never(name: str) -> Any:
        raise ValueError(name)

    def depth(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return 1 + max(map(depth, inner), default=0) if isinstance(value, dict | list) else 0

    try:
        value = json.loads(text, object_pairs_hook=once, parse_constant=never, parse_int=str)
        return isinstance(value, dict) and depth(value) <= JSON_LEVELS_MAX
    except (ValueError, RecursionError):
        return False


def obeys_rule_3(invocation: dict[str, Any]) -> bool:
    request = invocation["request"]
    ids = [invocation["caller_runtime_id"], request["request_id"], request["conversation_id"], request["model"]]
    ids += [tool["name"] for tool in request["tools"]]
    for item in request["input"]:
        for inner in item.values():
            ids += [inner[name] for name in ("call_id", "name", "provider", "model") if name in inner]
    return (
        all(map(_is_id, ids))
        and 0 not in (invocation["max_cost_micro_usd"], invocation["expires_at_unix_ms"], request["max_output_tokens"])
        and any(invocation["native_request_sha256"])
        and bool(request["input"])
        and all(item[t]["text"] for item in request["input"] for t in ("UserText", "AssistantText") if t in item)
        and len({tool["name"] for tool in request["tools"]}) == len(request["tools"])
        and all(_is_json_object(tool["parameters_json"]) for tool in request["tools"])
        and (request.get("output_schema_json") is None or _is_json_object(request["output_schema_json"]))
        and (request["tool_choice"] != "required" or bool(request["tools"]))
        and calls_are_answered(request["input"])
    )


def calls_are_answered(items: list[dict[str, Any]]) -> bool:
    """By cutting the input into turns: what an assistant turn calls, the very next user side answers, each once."""
    turns: list[tuple[bool, list[dict[str, Any]]]] = []
    for item in items:
        user_side = "UserText" in item or "ToolResult" in item
        if not turns or turns[-1][0] != user_side:
            turns.append((user_side, []))
        turns[-1][1].append(item)
    called: list[str] = []
    ever: set[str] = set()
    for user_side, turn in [*turns, (False, [])]:
        if user_side:
            answered = [item["ToolResult"]["call_id"] for item in turn if "ToolResult" in item]
            if sorted(answered) != sorted(called):
                return False
            called = []
        else:
            if called:
                return False
            called = [item["ToolCall"]["call_id"] for item in turn if "ToolCall" in item]
            if len(set(called)) < len(called) or ever & set(called):
                return False
            ever |= set(called)
    return not called


def accepts(frame: bytes) -> bool:
    """Whether this frame is a valid invocation."""
    try:
        value = unpacked(frame)
    except Refused:
        return False
    return is_valid("transport_invocation.v1", value) and obeys_rule_3(value)
