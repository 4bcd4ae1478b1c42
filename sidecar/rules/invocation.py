"""Rule 3 beyond the schema: what makes a well-typed invocation malformed all the same.

Source: CONTRACT section 3, rule 3.
"""

from __future__ import annotations

from sidecar.contract.ids import is_id
from sidecar.contract.json_text import NotJsonObject, check_object
from sidecar.contract.values import InputItem, ProviderRequest, TransportInvocation


def complaint(invocation: TransportInvocation) -> str | None:
    """The first reason, with its path, why this invocation is `Malformed`; None for a well-formed one."""
    request = invocation.request
    return _ids(invocation) or _amounts(invocation) or _tools(request) or _input(request.input)


# Branches where tables would do: these run for every request, and a table is built each time it is gone through.
def _ids(invocation: TransportInvocation) -> str | None:
    request = invocation.request
    if not is_id(invocation.caller_runtime_id):
        return _no_id("caller_runtime_id")
    if not is_id(request.request_id):
        return _no_id("request.request_id")
    if not is_id(request.conversation_id):
        return _no_id("request.conversation_id")
    if not is_id(request.model):
        return _no_id("request.model")
    return None


def _no_id(path: str) -> str:
    return f"{path}: not 1 to 256 bytes of 0x21 to 0x7e"


def _amounts(invocation: TransportInvocation) -> str | None:
    if invocation.max_cost_micro_usd == 0:
        return "max_cost_micro_usd: zero"
    if invocation.expires_at_unix_ms == 0:
        return "expires_at_unix_ms: zero"
    if invocation.request.max_output_tokens == 0:
        return "request.max_output_tokens: zero"
    if not any(invocation.native_request_sha256):
        return "native_request_sha256: all zero"
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


def _input(items: tuple[InputItem, ...]) -> str | None:
    """Texts say something, ids are ids, and every call is answered once, before the next assistant turn begins."""
    if not items:
        return "request.input: empty"
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
        if said := item.user_text or item.assistant_text:
            if not said.text:
                return f"request.input[{at}].{type(said).__name__}.text: empty"
        elif why := _ill_named(item) or _out_of_turn(item, used, unanswered):
            return f"request.input[{at}].{why}"
    if unanswered:
        return f"request.input: the call {min(unanswered)!r} is unanswered"
    return None


def _ill_named(item: InputItem) -> str | None:
    chosen = item.chosen
    for member in ("call_id", "name", "provider", "model"):
        text = getattr(chosen, member, None)
        if text is not None and not is_id(text):
            return _no_id(member)
    return None


def _out_of_turn(item: InputItem, used: set[str], unanswered: set[str]) -> str | None:
    if call := item.tool_call:
        if call.call_id in used:
            return "ToolCall.call_id: used by an earlier call"
        used.add(call.call_id)
        unanswered.add(call.call_id)
    elif result := item.tool_result:
        if result.call_id not in unanswered:
            return "ToolResult.call_id: answers no earlier call that is unanswered"
        unanswered.remove(result.call_id)
    return None
