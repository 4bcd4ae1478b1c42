"""The embedded default: a connector that needs no provider, no network and no money, and is deterministic.

Without a script it answers with the last UserText, or with the tool result that
ends the input, word by word, one token a word; where a tool call is required it
calls the first tool. Its usage depends on the request alone and stays within
the bounds of section 5, so budgets and receipts behave as with a paid provider.
With a script, rules decide; see `sidecar.connectors.script`.

For tests, a script can be looked at again whenever a request is lowered (then
lowering is not pure), and what is asked be kept in a file. A request is
answered by the rules that stood when it was lowered. A rule that stands in the
script as it did before keeps its count.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from itertools import count
from typing import Any, Final

import trio
from msgspec import Struct, structs

from sidecar.connectors.asked_file import AskedFile
from sidecar.connectors.messages import clean_message
from sidecar.connectors.promise import NO_SETTINGS, Answer, Lowered, Rejected
from sidecar.connectors.script import ABSENT, Rule
from sidecar.connectors.script_file import ScriptFile
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


class _Prepared(Struct, frozen=True):
    """A rule, and what can be told before it is asked; `nth` tells it from rules of one script that are equal to it."""

    rule: Rule
    nth: int
    words: int
    echoes: bool
    waits: bool


class _Asked(Struct, frozen=True):
    """The rules that are to answer, what they look at, and what an echo is made of."""

    rules: tuple[_Prepared, ...]
    model: str
    last_text: str
    last_tool: str | None
    input_tokens: int


class Scripted:
    """Answers by the first rule that matches; an echo where none does.

    `script`, where it is given, says the rules from its first look on.
    """

    def __init__(
        self, rules: tuple[Rule, ...] = (), *, script: ScriptFile | None = None, asked_file: AskedFile | None = None
    ) -> None:
        self._rules = rules
        self._prepared = _prepared(rules)
        self._answered: Counter[_Prepared] = Counter()  # of rules with `times`
        self._script = script
        self._asked_file = asked_file

    def lower(self, request: ProviderRequest, upstream: str, settings: Mapping[str, Any] = NO_SETTINGS) -> Lowered:
        kept = tuple([item for item in request.input if not item.reasoning_state or _is_usable(item, upstream)])
        if not kept:
            raise Rejected("nothing is left of the input without reasoning states that this model can't use")
        dropped = len(request.input) - len(kept)
        usable = structs.replace(request, input=kept) if dropped else request
        asked = _asked(usable, self._standing())
        _reject(asked)
        return Lowered(
            request=usable,
            upstream=upstream,
            body=asked,
            states_dropped=dropped,
            call_ids=frozenset([item.tool_call.call_id for item in kept if item.tool_call]),
        )

    def at_once(self, lowered: Lowered, answer: Answer) -> bool:
        chosen = self._chosen_for(lowered.body)
        if chosen.waits:
            return False
        if not self._is_kept(lowered, answer):
            return True
        rule = self._take(chosen, answer)
        said, cut = self._say_first(chosen, lowered, answer)
        for _ in range(rule.repeat):
            for delta in rule.deltas or ():
                answer.text(delta)
        self._say_last(rule, lowered, answer)
        self._end(rule, lowered, answer, said=said, cut=cut)
        return True

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.at_once(lowered, answer):
            return
        if not self._is_kept(lowered, answer):
            return
        chosen = self._chosen_for(lowered.body)
        rule = self._take(chosen, answer)
        await trio.sleep(rule.delay_ms / 1000)
        said, cut = self._say_first(chosen, lowered, answer)
        await self._speak(rule, answer)
        self._say_last(rule, lowered, answer)
        if rule.hang:
            await trio.sleep_forever()
        self._end(rule, lowered, answer, said=said, cut=cut)

    def says_the_same(self, other: Scripted) -> bool:
        """Whether both answer by the same rules; one that looks at its script again does anyway."""
        return self._script is not None or self._rules == other._rules

    async def aclose(self) -> None:
        """Nothing is kept open."""

    def _standing(self) -> tuple[_Prepared, ...]:
        """The rules of now. Raises Rejected where the script can't be read any more."""
        if self._script is not None and (rules := self._script.rules()) is not self._rules:
            self._rules, self._prepared = rules, _prepared(rules)
            for gone in self._answered.keys() - set(self._prepared):
                del self._answered[gone]
        return self._prepared

    def _is_kept(self, lowered: Lowered, answer: Answer) -> bool:
        """Whether the file of what is asked has this request; if it can't be written, the answer has failed."""
        if self._asked_file is None:
            return True
        try:
            self._asked_file.add(lowered.request)
        except OSError as error:
            answer.fail("unavailable", clean_message(f"asked_file can't be written: {error.strerror or error}"))
            return False
        return True

    def _chosen_for(self, asked: _Asked) -> _Prepared:
        for prepared in asked.rules:
            rule = prepared.rule
            used_up = rule.times is not None and self._answered[prepared] >= rule.times
            if rule.reject is None and not used_up and rule.matches(asked.model, asked.last_text, asked.last_tool):
                return prepared
        return _ECHO

    def _take(self, chosen: _Prepared, answer: Answer) -> Rule:
        if chosen.rule.times is not None:
            self._answered[chosen] += 1
        answer.sent = not chosen.rule.nothing_sent
        return chosen.rule

    def _say_first(self, chosen: _Prepared, lowered: Lowered, answer: Answer) -> tuple[int, bool]:
        """How many words are said in all, and whether the request's own output bound cut them."""
        for thought in chosen.rule.reasoning:
            answer.reasoning_state(_state(lowered.upstream, thought))
        return _echo(lowered, answer) if chosen.echoes else (chosen.words, False)

    def _say_last(self, rule: Rule, lowered: Lowered, answer: Answer) -> None:
        for call in rule.calls:
            answer.tool_call(call.id or _fresh_call_id(lowered, answer), call.name, call.arguments)

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


def _prepared(rules: tuple[Rule, ...]) -> tuple[_Prepared, ...]:
    alike: Counter[Rule] = Counter()
    prepared = []
    for rule in rules:
        prepared.append(_prepare(rule, alike[rule]))
        alike[rule] += 1
    return tuple(prepared)


def _prepare(rule: Rule, nth: int) -> _Prepared:
    echoes = rule.deltas is None and not rule.calls and not rule.fail and not rule.hang
    many = rule.repeat * len(rule.deltas or ()) >= _DELTAS_PER_CHECKPOINT
    waits = bool(rule.delay_ms or rule.delta_delay_ms or rule.hang or many)
    return _Prepared(rule, nth, _words_of(rule), echoes, waits)


def _reject(asked: _Asked) -> None:
    """By rules alone and not by how often they have answered, for this must be pure."""
    for prepared in asked.rules:
        rule = prepared.rule
        if rule.matches(asked.model, asked.last_text, asked.last_tool):
            if rule.reject is not None:
                raise Rejected(rule.reject)
            if rule.times is None:
                return


def _asked(request: ProviderRequest, rules: tuple[_Prepared, ...]) -> _Asked:
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
    return _Asked(rules, request.model, last_text, last_tool, input_tokens)


def _echo(lowered: Lowered, answer: Answer) -> tuple[int, bool]:
    """What is said without a script: how many words it says, and whether the request's own output bound cut it."""
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


_ECHO: Final = _prepare(Rule(), 0)
