"""How servers that speak Chat Completions differ, as data: it can't be found out by asking them.

Each name below is what a configuration writes as `dialect`; each member but
`efforts` can be overridden there by a key of the same name (the efforts are
those of a model). Source: WIRE sections 3 and 5.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from msgspec import Struct, structs

EffortField = Literal["omit", "reasoning_effort", "reasoning"]
ReasoningReplay = Literal["none", "reasoning_content", "reasoning_details"]


class Dialect(Struct, frozen=True, kw_only=True):
    """One server's ways. The defaults are those of a server of which nothing is known.

    `effort_field`: where the effort goes; `reasoning` is OpenRouter's object.
    `efforts`: the words that its models take, where a model's own table names none.
    `reasoning_replay`: which of its fields must come back on the assistant's message.
    `cache_key`: whether it takes a cache key and options. `empty_content`: what a turn of calls alone has for text.
    `done_is_an_end`: whether `[DONE]` without a finish reason ends a whole answer.
    `auth`: the header of the credential. `api_version`: a query parameter that Azure's older routes want.
    `service_tier`: what is asked for where an account's own default may be a dearer one.
    """

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    send_stream_options: bool = True
    send_obfuscation: bool = False
    send_tool_choice: bool = True
    send_parallel_tool_calls: bool = True
    send_strict: bool = True
    system_role: Literal["system", "developer"] = "system"
    effort_field: EffortField = "omit"
    efforts: tuple[str, ...] = ("low", "medium", "high")
    reasoning_replay: ReasoningReplay = "none"
    cache_key: bool = False
    empty_content: Literal["null", "empty"] = "null"
    done_is_an_end: bool = False
    auth: Literal["bearer", "api-key"] = "bearer"
    api_version: str | None = None
    service_tier: Literal["default"] | None = None


DIALECTS: Final[Mapping[str, Dialect]] = {
    "compatible": Dialect(),
    "openai": Dialect(
        max_tokens_field="max_completion_tokens",
        send_obfuscation=True,
        effort_field="reasoning_effort",
        cache_key=True,
        service_tier="default",
    ),
    "azure": Dialect(
        max_tokens_field="max_completion_tokens",
        effort_field="reasoning_effort",
        auth="api-key",
    ),
    "vllm": Dialect(effort_field="reasoning_effort", efforts=("low", "medium", "high", "xhigh", "max")),
    "llama_cpp": Dialect(),
    "ollama": Dialect(
        send_tool_choice=False,
        send_parallel_tool_calls=False,
        effort_field="reasoning_effort",
        efforts=("low", "medium", "high", "max"),
    ),
    "openrouter": Dialect(
        effort_field="reasoning",
        efforts=("low", "medium", "high", "xhigh"),
        reasoning_replay="reasoning_details",
    ),
    "llama_stack": Dialect(effort_field="reasoning_effort", efforts=()),
    "llama_stack_2025_07": Dialect(empty_content="empty", effort_field="omit"),  # its schema lists what it takes
    "deepseek": Dialect(
        send_parallel_tool_calls=False,
        send_strict=False,
        reasoning_replay="reasoning_content",
    ),
}


def dialect(name: str, changes: Mapping[str, Any]) -> Dialect:
    """The named dialect with the members that are not None changed."""
    return structs.replace(DIALECTS[name], **{key: value for key, value in changes.items() if value is not None})


def choices_of(member: str) -> tuple[str, ...]:
    """The words that a member of a closed set may be."""
    words: tuple[str, ...] = get_args(next(one.type for one in structs.fields(Dialect) if one.name == member))
    return words
