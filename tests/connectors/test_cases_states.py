"""Conversations with reasoning states, over every kind of connector: ten turns keep their bytes, and a state that one
connector emitted never reaches another, though its provider's name is the right one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from kit import build
from kit.one_connector import config_of

from sidecar.connectors import gemini_signatures, openai_responses_states, process_lower, states
from sidecar.connectors.anthropic_messages_blocks import state_of
from sidecar.connectors.gemini_signatures import Signature
from sidecar.connectors.kinds import KINDS
from sidecar.connectors.promise import Connector, Rejected
from sidecar.contract import values as v

MARK: Final = "Y2FuYXJ5"  # stands in every state and nowhere else; base64 of "canary", for signatures must be that
MODEL: Final = "tiny"
TOOL: Final = v.ToolDefinition(name="look", description="Look.", parameters_json='{"type":"object"}')


def _reasoning() -> bytes:
    state = openai_responses_states.state_of_reasoning(
        {"type": "reasoning", "summary": [], "encrypted_content": MARK}, MODEL
    )
    assert state is not None
    return state


STATES: Final[Mapping[str, bytes]] = {
    "openai_responses": _reasoning(),
    "openai_chat, reasoning_content": states.encode("chat.reasoning_content", MODEL, {"text": MARK}),
    "openai_chat, reasoning_details": states.encode(
        "chat.reasoning_details", MODEL, {"details": [{"type": "reasoning.text", "text": MARK, "index": 0}]}
    ),
    "anthropic_messages": state_of({"type": "thinking", "thinking": "hm", "signature": MARK}, MODEL),
    "anthropic_messages, redacted": state_of({"type": "redacted_thinking", "data": MARK}, MODEL),
    "gemini": gemini_signatures.encode(Signature("call", MARK), MODEL),
    "process": process_lower.wrapped(MARK.encode(), MODEL),
}
# connector, its settings in the configuration, those of its model, which states are its own, where its turns stand
CONNECTORS: Final[Mapping[str, tuple[str, str, str, tuple[str, ...], str | None]]] = {
    "openai_responses": ("openai_responses", "", 'efforts = ["low"]', ("openai_responses",), "input"),
    "openai_chat": ("openai_chat", "", "", (), "messages"),
    "openai_chat, deepseek": (
        "openai_chat", 'dialect = "deepseek"', "", ("openai_chat, reasoning_content",), "messages",
    ),
    "openai_chat, openrouter": (
        "openai_chat", 'dialect = "openrouter"', "", ("openai_chat, reasoning_details",), "messages",
    ),
    "anthropic_messages": (
        "anthropic_messages", "", 'thinking = "always"',
        ("anthropic_messages", "anthropic_messages, redacted"), "messages",
    ),
    "gemini": ("gemini", "", "", ("gemini",), "contents"),
    "llama_stack": ("llama_stack", "", "", (), "messages"),
    "llama_stack, openai": ("llama_stack", 'route = "openai"', "", (), "messages"),
    "process": ("process", 'argv = ["true"]', "", ("process",), None),
    "scripted": ("scripted", "", "", (), None),
}  # fmt: skip


def made(name: str) -> tuple[Connector, Mapping[str, Any]]:
    """A connector as a configuration makes it, and the settings of its model."""
    kind, settings, model, _, _ = CONNECTORS[name]
    if kind not in ("process", "scripted"):
        settings = f'base_url = "https://h.test/v1"\n{settings}'
    config = config_of(f'kind = "{kind}"\n{settings}', model, name="echo", upstream=MODEL, folder=Path("/tmp"))
    return KINDS[kind].build(config.connectors["echo"], None), config.models["npc"].settings


def turn(at: int, state: bytes | None) -> tuple[v.InputItem, ...]:
    """What the player says, what the model says, thinks and calls, and what comes of the call."""
    thought = () if state is None else (build.state("echo", "npc", state),)
    called = build.call(f"c{at}", arguments='{"at": "北 🙂", "n": 1.50}')
    return (build.text(f"{at} 北京?"), build.said(f"Turn {at}."), *thought, called, build.result(f"c{at}", "a door"))


def bodies(name: str) -> list[bytes]:
    """The turns of each request of a conversation of ten, as the bytes of their array without its end."""
    connector, settings = made(name)
    _, _, _, own, member = CONNECTORS[name]
    assert member is not None
    items: tuple[v.InputItem, ...] = ()
    found = []
    for at in range(10):
        asked, *rest = turn(at, STATES[own[at % len(own)]] if own else None)
        for more in ((asked,), tuple(rest)):  # the player has spoken; and the call has been answered
            items = (*items, *more)
            lowered = connector.lower(build.request(*items, tools=(TOOL,), max_output_tokens=64), MODEL, settings)
            assert lowered.states_dropped == 0
            array = bytes(msgspec.json.decode(lowered.body, type=dict[str, msgspec.Raw])[member])
            found.append(array.removesuffix(b"]"))
        items = (*items, build.said("So it is."))
    return found


@pytest.mark.parametrize("name", [name for name, row in CONNECTORS.items() if row[4] is not None])
def test_over_ten_turns_what_was_sent_before_is_sent_again_byte_for_byte(name: str) -> None:
    sent = bodies(name)
    assert len(sent) == 20
    for before, after in pairwise(sent):
        assert after.startswith(before)
        assert len(after) > len(before)
    assert (MARK.encode() in sent[-1]) == bool(CONNECTORS[name][3])


@pytest.mark.parametrize("emitted", STATES)
@pytest.mark.parametrize("name", CONNECTORS)
def test_h5_a_state_that_another_connector_emitted_is_left_out_and_counted(name: str, emitted: str) -> None:
    connector, settings = made(name)
    request = build.request(*turn(0, STATES[emitted]), tools=(TOOL,), max_output_tokens=64)
    lowered = connector.lower(request, MODEL, settings)
    is_own = emitted in CONNECTORS[name][3]
    assert lowered.states_dropped == (0 if is_own else 1)
    assert (MARK in _shown(lowered.body)) == is_own


@pytest.mark.parametrize("name", [name for name, row in CONNECTORS.items() if row[3]])
def test_h5_a_state_of_another_model_is_left_out_and_counted_and_alone_it_leaves_nothing(name: str) -> None:
    connector, settings = made(name)
    state = STATES[CONNECTORS[name][3][0]]
    request = build.request(*turn(0, state), tools=(TOOL,), max_output_tokens=64)
    lowered = connector.lower(request, "other", settings)
    assert lowered.states_dropped == 1
    assert MARK not in _shown(lowered.body)
    with pytest.raises(Rejected, match="nothing is left"):
        connector.lower(build.request(build.state("echo", "npc", state), max_output_tokens=64), "other", settings)


def _shown(body: object) -> str:
    if isinstance(body, bytes):
        return body.decode("utf-8", "replace")
    return repr(body) + json.dumps(str(body))
