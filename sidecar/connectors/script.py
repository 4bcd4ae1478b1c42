"""The script of the scripted connector: TOML rules, read and checked like the configuration.

    [[rule]]
    model = "npc-fast"          # what must match; what is not given matches all
    text = "hello"              # the last UserText contains this
    text_matches = "^hel+o$"    # ... or matches this regular expression
    tool = "look"               # the input ends with a result of this tool
    times = 1                   # the rule answers this often, then the next one that matches does
    name = "the first"          # has no meaning here: rules that are alike but for their names are counted apart

    delay_ms = 0                # before the answer begins
    delta_delay_ms = 0          # before each delta
    deltas = ["Hel", "lo"]      # without it: the last UserText, word by word
    repeat = 1                  # the deltas, this many times over
    reasoning = ["thought"]     # one reasoning state each, before the text
    calls = [{name = "look", arguments = '{"at": "door"}', id = "call_1"}]
    usage = {input = 10, cache_read = 0, cache_write = 0, output = 5, reasoning = 0}   # or "absent"
    stop = "end_turn"           # any stop reason; by default the one that fits the answer
    fail = {kind = "rate_limited", message = "slow down"}   # after the deltas; any failure kind
    nothing_sent = true         # the failure came before a byte left, so it costs nothing
    reject = "too odd"          # refused before sending, where no earlier rule without `times` matches; never counted
    hang = true                 # never ends; only the deadline helps

The first rule that matches answers; a request that no rule matches is echoed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct, structs

from sidecar.config.instead import for_text
from sidecar.config.keys import (
    Complaint,
    Complaints,
    ConfigFaults,
    Key,
    Wrong,
    Wrongs,
    an_id,
    choice,
    flag,
    list_of,
    read_table,
    text,
    whole,
)
from sidecar.config.parsing import parsed
from sidecar.config.positions import Places, positions_of
from sidecar.contract.json_text import NotJsonObject, check_object
from sidecar.contract.values import U64_MAX, FailureKind, StopReason, Usage

ABSENT = "absent"
_HOUR_MS = 3_600_000


class ScriptedCall(Struct, frozen=True):
    name: str
    arguments: str
    id: str | None


class ScriptedFailure(Struct, frozen=True):
    kind: FailureKind
    message: str


class Rule(Struct, frozen=True, kw_only=True):
    """One rule; the module's docstring says what each member means. `usage` None: derived from the request."""

    name: str | None = None
    model: str | None = None
    text: str | None = None
    text_matches: re.Pattern[str] | None = None
    tool: str | None = None
    times: int | None = None
    delay_ms: int = 0
    delta_delay_ms: int = 0
    deltas: tuple[str, ...] | None = None
    repeat: int = 1
    reasoning: tuple[str, ...] = ()
    calls: tuple[ScriptedCall, ...] = ()
    usage: Usage | str | None = None
    stop: StopReason | None = None
    fail: ScriptedFailure | None = None
    nothing_sent: bool = False
    reject: str | None = None
    hang: bool = False

    def matches(self, model: str, last_text: str, last_tool: str | None) -> bool:
        return (
            (self.model is None or self.model == model)
            and (self.text is None or self.text in last_text)
            and (self.text_matches is None or self.text_matches.search(last_text) is not None)
            and (self.tool is None or self.tool == last_tool)
        )


def read_script(path: Path) -> tuple[Rule, ...]:
    """The rules of a script file. Raises ConfigFaults with every complaint."""
    try:
        source = path.read_text(encoding="utf-8")
    except OSError as error:
        hint = "write the path of a script, from the folder of the configuration"
        raise ConfigFaults([Complaint(str(path), error.strerror or str(error), hint=hint)]) from None
    except UnicodeDecodeError as error:
        raise ConfigFaults([Complaint(str(path), f"is no TOML: {error}", hint="save the file as UTF-8")]) from None
    return rules_of(source, str(path))


def rules_of(source: str, place: str) -> tuple[Rule, ...]:
    """The rules of a script's text, which stands in `place`. Raises ConfigFaults with every complaint."""
    toml = parsed(source)
    document = toml.document
    if document is None or toml.mistakes:
        nameless = [structs.replace(one, path=place) if one.path == "the file" else one for one in toml.mistakes]
        raise ConfigFaults(nameless)
    complaints = Complaints(Places(positions_of(source, document)))
    read_table(document, (Key("rule", _tables, []),), "", complaints)
    tables = document.get("rule", [])
    rules = [_rule(table, f"rule[{at}]", complaints) for at, table in enumerate(tables if _is_list(tables) else [])]
    if complaints.all:
        raise ConfigFaults(complaints.all)
    return tuple(rule for rule in rules if rule is not None)


def _rule(table: Any, path: str, complaints: Complaints) -> Rule | None:
    values = read_table(table, _RULE_KEYS, path, complaints)
    if values is None:
        return None
    ends = [name for name in ("stop", "fail", "hang", "reject") if values[name]]
    if len(ends) > 1:
        complaints.add(path, f"{' and '.join(ends)} can't stand together: an answer ends in one way")
    if values["repeat"] > 1 and not values["deltas"]:
        complaints.add(path, "repeat is for a rule with deltas")
    if values["nothing_sent"] and not values["fail"]:
        complaints.add(path, "nothing_sent is for a rule with fail")
    if values["times"] is not None and values["reject"]:
        complaints.add(f"{path}.times", "a rejection is not counted, it holds for every such request: leave times out")
    return Rule(**values)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _tables(value: Any) -> Any:
    if not _is_list(value):
        raise Wrong("must be an array of tables: write it as [[rule]]", "write: [[rule]]")
    return value


def _any_text(value: Any) -> str:
    if not isinstance(value, str):
        raise Wrong("must be a text", for_text(value))
    return value


def _regular_expression(value: Any) -> re.Pattern[str]:
    try:
        return re.compile(text(value))
    except re.error as error:
        raise Wrong(f"must be a regular expression ({error})", "write a plain text as text = ...") from None


def _inner(value: Any, keys: tuple[Key, ...]) -> dict[str, Any]:
    complaints = Complaints()
    values = read_table(value, keys, "", complaints)
    if values is None:
        raise Wrongs(Wrong(one.what, one.hint, f".{one.path}" if one.path else "") for one in complaints.all)
    return values


def _usage(value: Any) -> Usage | str:
    if value == ABSENT:
        return ABSENT
    count = whole(0, U64_MAX)
    keys = (
        Key("input", count, 0),
        Key("cache_read", count, 0),
        Key("cache_write", count, 0),
        Key("output", count, 0),
        Key("reasoning", count, None),
    )
    said = _inner(value, keys)
    return Usage(
        input_tokens=said["input"],
        cache_read_tokens=said["cache_read"],
        cache_write_tokens=said["cache_write"],
        output_tokens=said["output"],
        reasoning_tokens=said["reasoning"],
    )


def _arguments(value: Any) -> str:
    try:
        check_object(text(value))
    except NotJsonObject as wrong:
        raise Wrong(f"must be the text of a JSON object ({wrong})", "write: arguments = '{}'") from None
    return text(value)


def _call(value: Any) -> ScriptedCall:
    keys = (Key("name", an_id), Key("arguments", _arguments, "{}"), Key("id", _any_text, None))
    return ScriptedCall(**_inner(value, keys))


def _failure(value: Any) -> ScriptedFailure:
    keys = (Key("kind", choice(*get_args(FailureKind))), Key("message", text, "the script says so"))
    return ScriptedFailure(**_inner(value, keys))


_RULE_KEYS = (
    Key("name", text, None),
    Key("model", an_id, None),
    Key("text", text, None),
    Key("text_matches", _regular_expression, None),
    Key("tool", an_id, None),
    Key("times", whole(1, 1_000_000_000), None),
    Key("delay_ms", whole(0, _HOUR_MS), 0),
    Key("delta_delay_ms", whole(0, _HOUR_MS), 0),
    Key("deltas", list_of(_any_text), None),
    Key("repeat", whole(1, 100_000_000), 1),
    Key("reasoning", list_of(text), ()),
    Key("calls", list_of(_call), ()),
    Key("usage", _usage, None),
    Key("stop", choice(*get_args(StopReason)), None),
    Key("fail", _failure, None),
    Key("nothing_sent", flag, default=False),
    Key("reject", text, None),
    Key("hang", flag, default=False),
)
