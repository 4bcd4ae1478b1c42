"""The embedded default: a connector that needs no provider, no network and no money, and is deterministic.

Without a script it answers with the last UserText, or with the tool result that
ends the input, word by word, one token a word; where a tool call is required it
calls the first tool. Its usage depends on the request alone and stays within
the bounds of section 5, so budgets and receipts behave as with a paid provider.
With a script, rules decide; see `sidecar.connectors.script`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import count
from typing import Any, Final

import trio
from msgspec import Struct, structs

from sidecar.connectors.messages import clean_message
from sidecar.connectors.promise import Answer, Lowered, Rejected
from sidecar.connectors.script import ABSENT, Rule
from sidecar.contract import canonical
from sidecar.contract.values import InputItem, ProviderRequest, StopReason, Usage

_STATE_KIND: Final = "scripted"
_WORD: Final = re.compile(r"\S+\s*|\s+")
_BYTES_PER_TOKEN: Final = 4
_DELTAS_PER_CHECKPOINT: Final = 256
_PLAIN_VALUES: Final[dict[str, Any]] = {
    "string": "",
    "integer": 0,
    "number": 0,
    "boolean": False,
    "array": [],
    "object": {},
    "null": None,
}


_ECHO: Final = Rule()


class _Asked(Struct, frozen=True):
    """What the rules look at, and what an echo is made of."""

    model: str
    last_text: str
    last_tool: str | None
    input_tokens: int


class Scripted:
    """Answers by the first rule that matches; an echo where none does."""

    def __init__(self, rules: tuple[Rule, ...] = ()) -> None:
        self._rules = rules
        self._words = tuple(map(_words_of, rules))
        self._answered: Counter[int] = Counter()

    def lower(self, request: ProviderRequest, upstream: str) -> Lowered:
        kept = tuple([item for item in request.input if not item.reasoning_state or _is_usable(item, upstream)])
        if not kept:
            raise Rejected("nothing is left of the input without reasoning states that this model can't use")
        dropped = len(request.input) - len(kept)
        usable = structs.replace(request, input=kept) if dropped else request
        asked = _asked(usable)
        self._reject(asked)
        return Lowered(
            request=usable,
            upstream=upstream,
            body=asked,
            states_dropped=dropped,
            call_ids=frozenset([item.tool_call.call_id for item in kept if item.tool_call]),
        )

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        rule, said = self._rule_for(lowered.body)
        answer.sent = not rule.nothing_sent
        if rule.delay_ms:
            await trio.sleep(rule.delay_ms / 1000)
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        for thought in rule.reasoning:
            answer.reasoning_state(_state(lowered.upstream, thought))
        cut = False
        if rule.deltas is None and not rule.calls and not rule.fail and not rule.hang:
            said, cut = _echo(lowered, answer)
        else:
            await self._speak(rule, answer)
        for call in rule.calls:
            answer.tool_call(call.id or _fresh_call_id(lowered, answer), call.name, call.arguments)
        if rule.hang:
            await trio.sleep_forever()
        self._end(rule, lowered, answer, said=said, cut=cut)

    async def aclose(self) -> None:
        """Nothing is kept open."""

    def _reject(self, asked: _Asked) -> None:
        """By rules alone and not by how often they have answered, for this must be pure."""
        for rule in self._rules:
            if rule.matches(asked.model, asked.last_text, asked.last_tool):
                if rule.reject is not None:
                    raise Rejected(rule.reject)
                if rule.times is None:
                    return

    def _rule_for(self, asked: _Asked) -> tuple[Rule, int]:
        """The rule, and how many words it says."""
        for at, rule in enumerate(self._rules):
            if rule.reject is None and rule.matches(asked.model, asked.last_text, asked.last_tool):
                if rule.times is not None and self._answered[at] >= rule.times:
                    continue
                self._answered[at] += 1
                return rule, self._words[at]
        return _ECHO, 0

    async def _speak(self, rule: Rule, answer: Answer) -> None:
        spoken = 0
        for _ in range(rule.repeat):
            for delta in rule.deltas or ():
                await self._pause(rule.delta_delay_ms, spoken)
                answer.text(delta)
                spoken += 1

    async def _pause(self, delay_ms: int, spoken: int) -> None:
        """The rule's delay; without one a checkpoint now and then, so that a long answer lets others run."""
        if delay_ms:
            await trio.sleep(delay_ms / 1000)
        elif spoken % _DELTAS_PER_CHECKPOINT == _DELTAS_PER_CHECKPOINT - 1:
            await trio.lowlevel.checkpoint()

    def _end(self, rule: Rule, lowered: Lowered, answer: Answer, *, said: int, cut: bool) -> None:
        usage = _usage(rule, lowered, answer, said)
        if rule.fail is not None:
            answer.fail(
                rule.fail.kind, clean_message(rule.fail.message), usage if isinstance(rule.usage, Usage) else None
            )
            return
        natural: StopReason = "tool_use" if answer.tool_calls else "max_output_tokens" if cut else "end_turn"
        answer.complete(rule.stop or natural, usage, f"scripted-{lowered.request.request_id}")


def _asked(request: ProviderRequest) -> _Asked:
    last_text, last_tool = "nothing was said", None
    names: dict[str, str] = {}
    for item in request.input:
        if item.user_text:
            last_text = item.user_text.text
        elif item.tool_call:
            names[item.tool_call.call_id] = item.tool_call.name
    if result := request.input[-1].tool_result:
        last_tool = names.get(result.call_id)
    input_tokens = 1 + len(canonical.encode(request)) // _BYTES_PER_TOKEN
    return _Asked(request.model, last_text, last_tool, input_tokens)


def _echo(lowered: Lowered, answer: Answer) -> tuple[int, bool]:
    """The answer without a script: how many words it says, and whether the request's own output bound cut it."""
    request, asked = lowered.request, lowered.body
    if request.tool_choice == "required":
        tool = request.tools[0]
        answer.tool_call(_fresh_call_id(lowered, answer), tool.name, _plain_arguments(tool.parameters_json))
        return 0, False
    words = _WORD.findall(asked.last_text)
    said = words[: request.max_output_tokens]
    answer.texts(said)
    return len(said), len(said) < len(words)


def _words_of(rule: Rule) -> int:
    """How many words a rule's deltas are, joined and repeated, as an echo would say them."""
    once = "".join(rule.deltas or ())
    return _words_in(once) + (rule.repeat - 1) * (_words_in(once + once) - _words_in(once))


def _words_in(text: str) -> int:
    return len(text.split()) + text[:1].isspace()


def _fresh_call_id(lowered: Lowered, answer: Answer) -> str:
    """`call_1` and so on: the same for the same request, and none that stands in it or in the answer."""
    used = set(lowered.call_ids) | {event.tool_call.call_id for event in answer.events() if event.tool_call}
    return next(call_id for at in count(1) if (call_id := f"call_{at}") not in used)


def _plain_arguments(parameters_json: str) -> str:
    """A value for each required property that the schema types simply; the first of an enum where there is one."""
    schema = json.loads(parameters_json, parse_int=_short_integer)
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return "{}"
    wanted = [name for name in required if isinstance(name, str)]
    return json.dumps({name: _plain_value(properties.get(name)) for name in wanted}, ensure_ascii=False)


def _short_integer(digits: str) -> int:
    """Python turns no text of more than 4,300 digits into an integer; JSON has no such bound."""
    return int(digits) if len(digits) <= 400 else 0


def _plain_value(schema: object) -> Any:
    if not isinstance(schema, dict):
        return ""
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    kind = schema.get("type")
    return _PLAIN_VALUES.get(kind, "") if isinstance(kind, str) else ""


def _usage(rule: Rule, lowered: Lowered, answer: Answer, said: int) -> Usage | None:
    if rule.usage == ABSENT:
        return None
    if isinstance(rule.usage, Usage):
        return rule.usage
    request = lowered.request
    return Usage(
        input_tokens=lowered.body.input_tokens,
        cache_read_tokens=0,
        cache_write_tokens=0,
        output_tokens=min(request.max_output_tokens, max(1, said + answer.tool_calls)),
    )


def _state(upstream: str, thought: str) -> bytes:
    return json.dumps({"k": _STATE_KIND, "m": upstream, "t": thought, "v": 1}, sort_keys=True).encode()


def _is_usable(item: InputItem, upstream: str) -> bool:
    """Everything but a reasoning state that this connector, for this model, did not emit."""
    if not item.reasoning_state:
        return True
    try:
        state = json.loads(item.reasoning_state.state)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(state, dict)
        and set(state) == {"k", "m", "t", "v"}
        and (state["k"], state["m"], state["v"]) == (_STATE_KIND, upstream, 1)
        and isinstance(state["t"], str)
    )
