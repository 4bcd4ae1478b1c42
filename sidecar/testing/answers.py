"""What a test says that the daemon's provider answers, from one request to the next.

The rules that a test says become the script of the daemon's scripted
connector, which is looked at again before each request. They stand there in
the order that tests read best in, whatever the order in which they were said:

    those that answer so many times       as they were said, one after the other
    those for a case (`on`)               the newest first
    those for everything                  the newest first

So a later word takes the place of an earlier one, and a case goes before what
is said of everything. What no rule matches is echoed: the last user text,
word by word.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal, TypedDict, Unpack

from msgspec import Struct

from sidecar.config.keys import Complaint, ConfigFaults
from sidecar.connectors.script import rules_of
from sidecar.contract.values import FailureKind, StopReason
from sidecar.testing import toml_text
from sidecar.testing.faults import WrongRule

_CASE: Final = ("model", "text", "text_matches", "tool")
_ALONE: Final = "rule[0]"  # where the script's complaints find a rule that stands alone
_HEAD: Final = "# The test's own words; what it says next replaces this file.\n\n"

UsageSaid = Mapping[str, int] | Literal["absent"]


class Call(Struct, frozen=True):
    """A tool call for `says`. `arguments`: a JSON object, mapping or as text. Without an id it gets a fresh one."""

    name: str
    arguments: Mapping[str, Any] | str = "{}"
    id: str | None = None


class How(TypedDict, total=False):
    """How it is answered, whatever is answered; the words are those of a `[[rule]]`.

    `usage`: `input`, `cache_read`, `cache_write`, `output`, `reasoning`, or "absent"; derived from the request unless
    said.
    """

    delay_ms: int
    delta_delay_ms: int
    reasoning: Sequence[str]
    usage: UsageSaid


class HowEnded(How, total=False):
    """How what ends well is answered. `stop`: any stop reason, where the one that fits the answer is not meant."""

    stop: StopReason


class Answers(ABC):
    """The ways to answer. Each raises WrongRule, with the script's own complaint, for what no script can say."""

    @abstractmethod
    def _say(self, rule: dict[str, Any]) -> None: ...

    def says(self, *deltas: str, repeat: int = 1, calls: Sequence[Call] = (), **how: Unpack[HowEnded]) -> None:
        """This text, in these pieces (`repeat` times over), and then these tool calls."""
        if not deltas and not calls and not how.get("reasoning"):
            raise WrongRule('says is told nothing to say: an answer without text is says(""), and echoes() is an echo')
        rule: dict[str, Any] = {"deltas": list(deltas), **how}
        if repeat != 1:
            rule["repeat"] = repeat
        if calls:
            rule["calls"] = [_call(one) for one in calls]
        self._say(rule)

    def calls(
        self, name: str, arguments: Mapping[str, Any] | str = "{}", *, id: str | None = None, **how: Unpack[HowEnded]
    ) -> None:
        """One tool call and no text."""
        self._say({"calls": [_call(Call(name, arguments, id))], **how})

    def echoes(self, **how: Unpack[HowEnded]) -> None:
        """The last user text, word by word, as where nothing is said."""
        self._say({**how})

    def fails(
        self,
        kind: FailureKind,
        message: str = "the test says so",
        *,
        after: Sequence[str] = (),
        nothing_sent: bool = False,
        **how: Unpack[How],
    ) -> None:
        """A recorded failure, behind this text. It costs the whole reservation unless `usage` is said or nothing was
        sent."""
        rule: dict[str, Any] = {"fail": {"kind": kind, "message": message}, **how}
        if after:
            rule["deltas"] = list(after)
        if nothing_sent:
            rule["nothing_sent"] = True
        self._say(rule)

    def hangs(self, *deltas: str, **how: Unpack[How]) -> None:
        """This text and then nothing more, until the request's deadline or its cancellation."""
        self._say({"deltas": list(deltas), "hang": True, **how})

    def rejects(self, why: str) -> None:
        """Refused (`ProviderRejected`) before anything is sent; `why` is in `daemon.refused`. It is never counted."""
        self._say({"reject": why})


class On(Answers):
    """A case of requests; see `Daemon.on`."""

    def __init__(self, script: Script, case: Mapping[str, Any]) -> None:
        self._script = script
        self._case = case

    def _say(self, rule: dict[str, Any]) -> None:
        self._script.add({**self._case, **rule})


class Script:
    """The script in this file. Written whole under another name and renamed, so that no half of it is ever read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._rules: list[Mapping[str, Any]] = []
        self._count = 0
        self._written_ns = 0
        self._write()

    def add(self, rule: Mapping[str, Any]) -> None:
        """Raises WrongRule; then the script is as it was."""
        _check(rule)
        with self._lock:
            self._count += 1
            self._rules.append({"name": str(self._count), **rule})  # the name keeps its count from that of its like
            self._write()

    def forget(self) -> None:
        with self._lock:
            self._rules.clear()
            self._write()

    def _write(self) -> None:
        """Each time with a later instant of writing, whatever the file system's clock can tell apart."""
        new = self._path.with_suffix(".new")
        new.write_text(_HEAD + toml_text.document({"rule": in_order(self._rules)}), encoding="utf-8")
        self._written_ns = max(time.time_ns(), self._written_ns + 1_000)
        os.utime(new, ns=(self._written_ns, self._written_ns))
        new.replace(self._path)


def in_order(rules: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """As they have to stand in a script, where the first that matches answers; given in the order of saying."""
    counted = [rule for rule in rules if "times" in rule]
    lasting = [rule for rule in reversed(rules) if "times" not in rule]
    return [*counted, *filter(_is_of_a_case, lasting), *(rule for rule in lasting if not _is_of_a_case(rule))]


def _is_of_a_case(rule: Mapping[str, Any]) -> bool:
    return any(name in rule for name in _CASE)


def _call(call: Call) -> dict[str, Any]:
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)
    said = {"name": call.name, "arguments": arguments}
    return said if call.id is None else {**said, "id": call.id}


def _check(rule: Mapping[str, Any]) -> None:
    try:
        rules_of(toml_text.document({"rule": [rule]}), "the rule")
    except ConfigFaults as faults:
        raise WrongRule("; ".join(map(_without_place, faults.complaints))) from None
    except TypeError as wrong:
        raise WrongRule(str(wrong)) from None


def _without_place(complaint: Complaint) -> str:
    """The rule stands alone, so which one and in which line says nothing."""
    path = complaint.path.removeprefix(_ALONE).removeprefix(".")
    hint = f" — {complaint.hint}" if complaint.hint else ""
    return f"{path}: {complaint.what}{hint}" if path else complaint.what + hint
