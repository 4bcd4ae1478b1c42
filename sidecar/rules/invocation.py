"""Rule 3 beyond the schema: what makes a well-typed invocation malformed all the same.

Source: CONTRACT section 3, rule 3.
"""

from __future__ import annotations

from sidecar.contract.ids import is_id
from sidecar.contract.json_text import NotJsonObject, check_object
from sidecar.contract.values import InputItem, ProviderRequest, ToolCall, ToolResult, TransportInvocation


def complaint(invocation: TransportInvocation) -> str | None:
    """The first reason, with its path, why this invocation is `Malformed`; None for a well-formed one."""
    request = invocation.request
    return (
        _ids(invocation)
        or _amounts(invocation)
        or _texts(request)
        or _tools(request)
        or _input_ids(request)
        or _calls(request.input)
    )


def _ids(invocation: TransportInvocation) -> str | None:
    request = invocation.request
    for path, text in (
        ("caller_runtime_id", invocation.caller_runtime_id),
        ("request.request_id", request.request_id),
        ("request.conversation_id", request.conversation_id),
        ("request.model", request.model),
    ):
        if not is_id(text):
            return _no_id(path)
    return None


def _no_id(path: str) -> str:
    return f"{path}: not 1 to 256 bytes of 0x21 to 0x7e"


def _amounts(invocation: TransportInvocation) -> str | None:
    for path, amount in (
        ("max_cost_micro_usd", invocation.max_cost_micro_usd),
        ("expires_at_unix_ms", invocation.expires_at_unix_ms),
        ("request.max_output_tokens", invocation.request.max_output_tokens),
    ):
        if amount == 0:
            return f"{path}: zero"
    if not any(invocation.native_request_sha256):
        return "native_request_sha256: all zero"
    return None


def _texts(request: ProviderRequest) -> str | None:
    if not request.input:
        return "request.input: empty"
    for at, item in enumerate(request.input):
        if item.user_text and not item.user_text.text:
            return f"request.input[{at}].UserText.text: empty"
        if item.assistant_text and not item.assistant_text.text:
            return f"request.input[{at}].AssistantText.text: empty"
    return None


def _tools(request: ProviderRequest) -> str | None:
    names: set[str] = set()
    for at, tool in enumerate(request.tools):
        path = f"request.tools[{at}]"
        if not is_id(tool.name):
            return _no_id(f"{path}.name")
        if tool.name in names:
            return f"{path}.name: {tool.name!r:.80} is the name of an earlier tool"
        names.add(tool.name)
        if why := _no_object(tool.parameters_json):
            return f"{path}.parameters_json: {why}"
    if request.output_schema_json is not None and (why := _no_object(request.output_schema_json)):
        return f"request.output_schema_json: {why}"
    if request.tool_choice == "required" and not request.tools:
        return "request.tool_choice: required without a tool"
    return None


def _no_object(text: str) -> str | None:
    try:
        check_object(text)
    except NotJsonObject as fault:
        return str(fault)
    return None


def _input_ids(request: ProviderRequest) -> str | None:
    for at, item in enumerate(request.input):
        chosen = item.chosen
        for member in ("call_id", "name", "provider", "model"):
            text = getattr(chosen, member, None)
            if text is not None and not is_id(text):
                return _no_id(f"request.input[{at}].{member}")
    return None


def _calls(items: tuple[InputItem, ...]) -> str | None:
    """Every call is answered once, by a later result, before the next assistant turn begins."""
    used: set[str] = set()
    unanswered: set[str] = set()
    assistant_turn = False
    for at, item in enumerate(items):
        if item.user_text or item.tool_result:
            assistant_turn = False
        elif not assistant_turn:
            if unanswered:
                return f"request.input[{at}]: an assistant turn begins while {min(unanswered)!r} is unanswered"
            assistant_turn = True
        chosen = item.chosen
        if isinstance(chosen, ToolCall):
            if chosen.call_id in used:
                return f"request.input[{at}].ToolCall.call_id: used by an earlier call"
            used.add(chosen.call_id)
            unanswered.add(chosen.call_id)
        elif isinstance(chosen, ToolResult):
            if chosen.call_id not in unanswered:
                return f"request.input[{at}].ToolResult.call_id: answers no earlier call that is unanswered"
            unanswered.remove(chosen.call_id)
    if unanswered:
        return f"request.input: the call {min(unanswered)!r} is unanswered"
    return None
