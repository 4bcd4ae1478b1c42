"""A tool's JSON Schema as the flat map of parameters that Llama Stack's native route has for it. Pure.

The map says a type word, a description, whether a parameter is required, and
its default. Whatever else a schema says stands as its own text in the
description, where a model may still read it; that it is not held to it is
noted. Source: WIRE sections 5.2 and 5.4.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from sidecar.connectors.lowering import tool_name
from sidecar.connectors.promise import Rejected
from sidecar.contract.values import ToolDefinition

BUILTIN_TOOLS: Final = frozenset({"brave_search", "wolfram_alpha", "photogen", "code_interpreter"})
PARAMETER_TYPES: Final = frozenset({"string", "integer", "number", "boolean", "array", "object"})
_NEVER_FLAT: Final = frozenset({"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"})
_SAID_OF_ALL: Final = frozenset({"type", "properties", "required"})
_SAID_OF_ONE: Final = frozenset({"type", "description", "default"})
_Members = dict[str, msgspec.Raw]


def own_name(name: str) -> str:
    """A tool name that the server takes for none of its built-in tools. Raises Rejected."""
    if name in BUILTIN_TOOLS:
        raise Rejected(f"Llama Stack takes the tool name {name} for a tool of its own")
    return tool_name(name)


def flat_tool(tool: ToolDefinition) -> tuple[dict[str, Any], bool]:
    """The definition that is sent, and whether it says less than the schema does. Raises Rejected."""
    schema = _members(tool.parameters_json)
    if schema is None or _value(schema, "type") != "object" or _NEVER_FLAT & schema.keys():
        raise Rejected(f"the parameters of tool {tool.name:.80} are no plain object, and only such can be made flat")
    properties = _members(bytes(schema.get("properties", b"{}")))
    required = _value(schema, "required") or []
    if properties is None or not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise Rejected(f"the parameters of tool {tool.name:.80} are no JSON Schema of an object")
    parameters, is_less = {}, False
    for name, text in properties.items():
        members = _members(bytes(text))
        if members is None:
            raise Rejected(f"parameter {name:.80} of tool {tool.name:.80} has no object for a schema")
        parameters[name], is_one_less = _parameter(bytes(text).decode(), members, is_required=name in required)
        is_less = is_less or is_one_less
    rest = _rest(schema, has_others=any(name not in properties for name in required))
    description = tool.description
    if rest:
        rules = msgspec.json.encode(rest).decode()
        description = _beside(description, f"Its parameters also follow this JSON Schema: {rules}")
    made = {"tool_name": own_name(tool.name), "description": description, "parameters": parameters}
    try:
        msgspec.json.encode(made)
    except UnicodeEncodeError:
        raise Rejected(f"the parameters of tool {tool.name:.80} hold half a character") from None
    return made, is_less or bool(rest)


def _rest(schema: _Members, *, has_others: bool) -> _Members:
    """What the map can't say of all parameters together. That there are no others, it says by itself."""
    said = _SAID_OF_ALL - {"required"} if has_others else _SAID_OF_ALL
    rest = {name: text for name, text in schema.items() if name not in said}
    if bytes(rest.get("additionalProperties", b"")) == b"false":
        del rest["additionalProperties"]
    return rest


def _parameter(text: str, members: _Members, *, is_required: bool) -> tuple[dict[str, Any], bool]:
    word = _value(members, "type")
    is_less = not members.keys() <= _SAID_OF_ONE or word not in list(PARAMETER_TYPES)
    description = _value(members, "description")
    if is_less or not isinstance(description, str | None):
        description = _beside(description if isinstance(description, str) else "", f"JSON Schema: {text}")
    made: dict[str, Any] = {"param_type": _type_word(word, members), "required": is_required}
    if description:
        made["description"] = description
    if "default" in members:
        made["default"] = members["default"]
    return made, is_less


def _type_word(word: object, members: _Members) -> str:
    """The schema's own word, the first of several, or the one that its other members speak of."""
    words = word if isinstance(word, list) else [word]
    for one in words:
        if isinstance(one, str) and one in PARAMETER_TYPES:
            return one
    if "properties" in members:
        return "object"
    return "array" if "items" in members else "string"


def _beside(description: str, more: str) -> str:
    return f"{description}\n{more}" if description else more


def _members(text: str | bytes) -> _Members | None:
    """An object's members, each as it stands; None where the text is no object, or names one by half a character."""
    try:
        return msgspec.json.decode(text, type=_Members)
    except msgspec.DecodeError:
        return None


def _value(members: _Members, name: str) -> Any:
    return json.loads(bytes(members[name]), parse_int=str) if name in members else None
