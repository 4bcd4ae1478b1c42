"""What a test says of answers, as the script that comes of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.connectors.script import Rule, ScriptedCall, ScriptedFailure, read_script
from sidecar.contract.values import Usage
from sidecar.testing.answers import Call, How, HowEnded, On, Script, in_order
from sidecar.testing.faults import WrongRule


def said(tmp_path: Path, say: Callable[[On], None], **case: Any) -> Rule:
    """The one rule that comes of it, without its name."""
    path = tmp_path / "script.toml"
    say(On(Script(path), case))
    (rule,) = read_script(path)
    return Rule(**{name: getattr(rule, name) for name in Rule.__struct_fields__ if name != "name"})


def test_every_way_to_answer_is_a_rule(tmp_path: Path) -> None:
    fail = ScriptedFailure("rate_limited", "slow down")
    for say, rule in (
        (lambda on: on.says("It ", "sleeps."), Rule(deltas=("It ", "sleeps."))),
        (lambda on: on.says(""), Rule(deltas=("",))),
        (lambda on: on.says(reasoning=["hm"]), Rule(deltas=(), reasoning=("hm",))),
        (lambda on: on.says("x", repeat=3), Rule(deltas=("x",), repeat=3)),
        (lambda on: on.echoes(delay_ms=5), Rule(delay_ms=5)),
        (lambda on: on.calls("look", {"at": "tür"}), Rule(calls=(ScriptedCall("look", '{"at": "tür"}', None),))),
        (lambda on: on.calls("look", '{"at":1}', id="c1"), Rule(calls=(ScriptedCall("look", '{"at":1}', "c1"),))),
        (
            lambda on: on.says("Let me see.", calls=[Call("look"), Call("go", {"to": ["n"]}, "c2")]),
            Rule(
                deltas=("Let me see.",),
                calls=(ScriptedCall("look", "{}", None), ScriptedCall("go", '{"to": ["n"]}', "c2")),
            ),
        ),
        (lambda on: on.fails("rate_limited", "slow down"), Rule(fail=fail)),
        (
            lambda on: on.fails("rate_limited", "slow down", after=["part"], usage={"input": 7}),
            Rule(
                fail=fail,
                deltas=("part",),
                usage=Usage(input_tokens=7, cache_read_tokens=0, cache_write_tokens=0, output_tokens=0),
            ),
        ),
        (lambda on: on.fails("rate_limited", "slow down", nothing_sent=True), Rule(fail=fail, nothing_sent=True)),
        (lambda on: on.hangs("It "), Rule(deltas=("It ",), hang=True)),
        (lambda on: on.rejects("too odd"), Rule(reject="too odd")),
    ):
        assert said(tmp_path, say) == rule


def test_how_it_is_answered_is_said_in_the_words_of_the_script(tmp_path: Path) -> None:
    rule = said(
        tmp_path,
        lambda on: on.says("x", delay_ms=1, delta_delay_ms=2, reasoning=["hm"], usage="absent", stop="refusal"),
    )
    assert rule == Rule(deltas=("x",), delay_ms=1, delta_delay_ms=2, reasoning=("hm",), usage="absent", stop="refusal")


def test_a_case_is_what_its_rule_looks_at(tmp_path: Path) -> None:
    rule = said(tmp_path, lambda on: on.echoes(), model="npc", text="dragon", tool="look", times=2)
    assert rule == Rule(model="npc", text="dragon", tool="look", times=2)


def test_every_member_of_a_rule_can_be_said() -> None:
    named = {"name", "model", "text", "text_matches", "tool", "times"}  # the kit's own, and what a case has
    words = {"deltas", "repeat", "calls", "fail", "nothing_sent", "reject", "hang"}  # ways to answer, shown above
    assert named | words | set(HowEnded.__annotations__) | set(How.__annotations__) == set(Rule.__struct_fields__)


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (lambda on: on.fails("rate_limitd"), "fail.kind: must be one of .*did you mean rate_limited"),
        (lambda on: on.says("x", stop="end_trun"), "^stop: must be one of"),
        (lambda on: on.says("x", usage={"inputs": 1}), "^usage.inputs: unknown key"),
        (lambda on: on.says(7), "^deltas.0.: must be a text"),
        (lambda on: on.says("x", repeat=0), "^repeat: must be from 1"),
        (lambda on: on.says("x", delay_ms=-1), "^delay_ms"),
        (lambda on: on.says(None), "None is a NoneType, which can't be written"),
        (lambda on: on.calls("look", "[1]"), "^calls.0..arguments: .*JSON object"),
        (lambda on: on.hangs(stop="end_turn"), "can't stand together"),
    ],
)
def test_a_wrong_word_raises_the_script_s_own_complaint_and_changes_nothing(
    tmp_path: Path, say: Callable[[On], None], why: str
) -> None:
    script = Script(tmp_path / "script.toml")
    with pytest.raises(WrongRule, match=why):
        say(On(script, {}))
    assert read_script(tmp_path / "script.toml") == ()


@pytest.mark.parametrize(
    ("case", "why"),
    [({"text": ""}, "^text: "), ({"text_matches": "("}, "^text_matches: .*regular"), ({"times": 0}, "^times: ")],
)
def test_a_wrong_case_is_told_too(tmp_path: Path, case: dict[str, Any], why: str) -> None:
    with pytest.raises(WrongRule, match=why):
        On(Script(tmp_path / "script.toml"), case).says("x")


def test_a_rejection_is_not_counted(tmp_path: Path) -> None:
    with pytest.raises(WrongRule, match=r"^times: a rejection is not counted"):
        On(Script(tmp_path / "script.toml"), {"times": 1}).rejects("x")


CASES = st.fixed_dictionaries({}, optional={"text": st.just("dragon"), "times": st.just(1), "model": st.just("npc")})


@given(st.lists(CASES, max_size=8))
def test_counted_rules_go_first_as_said_then_cases_and_then_the_rest_the_newest_first(cases: list[Any]) -> None:
    rules = [{"at": at, **case} for at, case in enumerate(cases)]
    ordered = in_order(rules)
    kinds = [0 if "times" in rule else 1 if len(rule) > 1 else 2 for rule in ordered]
    assert kinds == sorted(kinds)
    for kind, is_newest_first in ((0, False), (1, True), (2, True)):
        places = [rule["at"] for rule, one in zip(ordered, kinds, strict=True) if one == kind]
        assert places == sorted(places, reverse=is_newest_first)
    assert sorted(rule["at"] for rule in ordered) == list(range(len(rules)))


def test_each_writing_is_seen_by_whoever_looks_at_the_file_and_none_is_half_of_one(tmp_path: Path) -> None:
    path = tmp_path / "script.toml"
    script = Script(path)
    seen = set()
    for _ in range(50):
        script.add({"deltas": ["x"]})
        script.forget()
        seen.add((os.stat(path).st_mtime_ns, os.stat(path).st_ino))
    assert len({instant for instant, _ in seen}) == 50
    assert [each.name for each in tmp_path.iterdir()] == ["script.toml"]


def test_alike_rules_have_names_of_their_own_so_that_they_are_counted_apart(tmp_path: Path) -> None:
    script = Script(tmp_path / "script.toml")
    on = On(script, {"times": 1})
    on.says("x")
    (first,) = read_script(tmp_path / "script.toml")
    script.forget()
    on.says("x")
    (second,) = read_script(tmp_path / "script.toml")
    assert first != second


@pytest.mark.parametrize("how", [{}, {"usage": {"output": 3}}, {"stop": "refusal"}])
def test_who_says_nothing_is_told_what_would_say_it(tmp_path: Path, how: dict[str, Any]) -> None:
    with pytest.raises(WrongRule, match=r'an answer without text is says\(""\), and echoes\(\) is an echo'):
        On(Script(tmp_path / "script.toml"), {}).says(**how)


def test_each_verb_takes_what_the_readme_says_it_takes(tmp_path: Path) -> None:
    on = On(Script(tmp_path / "script.toml"), {})
    for say in (partial(on.fails, "provider"), on.hangs):
        say(delay_ms=1, delta_delay_ms=1, reasoning=["hm"], usage={"output": 3})
        with pytest.raises(WrongRule, match="can't stand together"):
            say(stop="end_turn")  # type: ignore[call-arg]  # what must be refused
    for ends_well in (partial(on.says, "x"), partial(on.calls, "look"), on.echoes):
        ends_well(delay_ms=1, delta_delay_ms=1, reasoning=["hm"], usage="absent", stop="end_turn")
    with pytest.raises(TypeError):
        on.rejects("too odd", usage="absent")  # type: ignore[call-arg]  # the same
