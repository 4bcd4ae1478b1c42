"""The scripted connector: what it says without a script, and what each member of a rule does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from kit import build

from sidecar.config.keys import ConfigFaults
from sidecar.connectors.promise import Answer, Ended, Rejected
from sidecar.connectors.script import Rule, ScriptedFailure, read_script
from sidecar.connectors.scripted import Scripted
from sidecar.contract import canonical
from sidecar.contract import values as v


async def asked(connector: Scripted, request: v.ProviderRequest | None = None, upstream: str = "echo-1") -> Answer:
    lowered = connector.lower(request or build.request(), upstream)
    answer = Answer(lowered.call_ids, 10_000_000)
    await connector.exchange(lowered, answer)
    return answer


def end(answer: Answer) -> Ended:
    assert answer.ended is not None
    return answer.ended


def text_of(answer: Answer) -> str:
    return "".join(event.text_delta.text for event in answer.events() if event.text_delta)


def calls_of(answer: Answer) -> list[tuple[str, str, str]]:
    calls = [event.tool_call for event in answer.events() if event.tool_call]
    return [(call.call_id, call.name, call.arguments) for call in calls]


def rule(**members: Any) -> Scripted:
    return Scripted((Rule(**members),))


def script(tmp_path: Path, text: str) -> Scripted:
    path = tmp_path / "script.toml"
    path.write_text(text, encoding="utf-8")
    return Scripted(read_script(path))


# --- without a script ---------------------------------------------------------------------------------------


async def test_it_says_the_last_user_text_word_by_word() -> None:
    heard: list[str] = []
    lowered = Scripted().lower(build.request(build.text("no"), build.text("well  met,\nfriend ")), "echo-1")
    answer = Answer(frozenset(), 1000, on_event=lambda _, event: heard.append(event.text_delta.text))
    await Scripted().exchange(lowered, answer)
    assert heard == ["well  ", "met,\n", "friend "]
    assert end(answer).stop_reason == "end_turn"
    assert end(answer).provider_response_id == "scripted-request-1"


async def test_it_says_the_last_user_text_also_behind_a_tool_result() -> None:
    history = (build.text("go"), build.call("c1", "look"), build.result("c1", "a red door"))
    assert text_of(await asked(Scripted(), build.request(*history))) == "go"
    assert text_of(await asked(Scripted(), build.request(*history, build.text("and now?")))) == "and now?"


async def test_more_words_than_output_tokens_are_cut_at_the_bound() -> None:
    answer = await asked(Scripted(), build.request(build.text("one two three"), max_output_tokens=2))
    assert (text_of(answer), end(answer).stop_reason) == ("one two ", "max_output_tokens")


async def test_a_required_call_is_made_with_plain_values_for_what_the_schema_requires() -> None:
    schema = {
        "type": "object",
        "properties": {"at": {"type": "string"}, "n": {"type": "integer"}, "how": {"enum": ["up", "down"]}, "not": {}},
        "required": ["at", "n", "how", "odd"],
    }
    tool = v.ToolDefinition(name="look", description="", parameters_json=json.dumps(schema))
    request = build.request(build.call("call_1"), build.result("call_1"), tools=(tool,), tool_choice="required")
    answer = await asked(Scripted(), request)
    assert calls_of(answer) == [("call_2", "look", '{"at": "", "n": 0, "how": "up", "odd": ""}')]
    assert answer.notes == []
    assert end(answer).stop_reason == "tool_use"


@given(st.text(min_size=1, max_size=400), st.integers(1, 50))
async def test_usage_depends_on_the_request_alone_and_stays_within_its_bounds(
    text: str, max_output_tokens: int
) -> None:
    request = build.request(build.text(text), max_output_tokens=max_output_tokens)
    usage = end(await asked(Scripted(), request)).usage
    assert usage == end(await asked(Scripted(), request)).usage
    assert usage is not None
    assert 0 < usage.input_tokens <= len(canonical.encode(request))
    assert 0 < usage.output_tokens <= max_output_tokens


# --- what a rule looks at -----------------------------------------------------------------------------------


async def test_the_first_rule_that_matches_answers_and_none_is_an_echo(tmp_path: Path) -> None:
    connector = script(
        tmp_path,
        """
        [[rule]]
        model = "other"
        deltas = ["by model"]
        [[rule]]
        text = "door"
        deltas = ["by text"]
        [[rule]]
        text_matches = "^d.*r$"
        deltas = ["by expression"]
        [[rule]]
        tool = "look"
        deltas = ["by tool"]
        """,
    )
    looked = (build.text("x"), build.call("c1", "look"), build.result("c1"))
    for request, said in (
        (build.request(build.text("a door"), model="other"), "by model"),
        (build.request(build.text("a door")), "by text"),
        (build.request(build.text("door")), "by text"),
        (build.request(build.text("dear")), "by expression"),
        (build.request(*looked), "by tool"),
        (build.request(*looked, build.text("y")), "y"),
        (build.request(build.text("nothing of it")), "nothing of it"),
    ):
        assert text_of(await asked(connector, request)) == said


async def test_a_rule_with_times_gives_way_when_it_has_answered_so_often(tmp_path: Path) -> None:
    connector = script(tmp_path, '[[rule]]\ntimes = 2\ndeltas = ["a"]\n[[rule]]\ntimes = 1\ndeltas = ["b"]\n')
    assert [text_of(await asked(connector)) for _ in range(4)] == ["a", "a", "b", "hello there"]


# --- what a rule does ---------------------------------------------------------------------------------------


async def test_deltas_reasoning_calls_and_usage_come_as_written(tmp_path: Path) -> None:
    connector = script(
        tmp_path,
        """
        [[rule]]
        reasoning = ["hm"]
        deltas = ["Hel", "lo "]
        repeat = 2
        calls = [{name = "look", arguments = '{"at": 1}', id = "c9"}, {name = "go"}]
        usage = {input = 10, cache_read = 4, cache_write = 3, output = 5, reasoning = 2}
        """,
    )
    answer = await asked(connector)
    assert [bool(event.reasoning_state) for event in answer.events()][:2] == [True, False]
    assert text_of(answer) == "Hello Hello "
    assert calls_of(answer) == [("c9", "look", '{"at": 1}'), ("call_1", "go", "{}")]
    assert end(answer) == Ended(
        stop_reason="tool_use",
        usage=v.Usage(input_tokens=10, cache_read_tokens=4, cache_write_tokens=3, output_tokens=5, reasoning_tokens=2),
        provider_response_id="scripted-request-1",
    )


async def test_a_reasoning_state_is_usable_by_the_same_upstream_model_alone() -> None:
    answer = await asked(rule(reasoning=("hm",), deltas=("x",)), upstream="echo-1")
    (emitted,) = [event.reasoning_state for event in answer.events() if event.reasoning_state]
    request = build.request(build.state(opaque=emitted.state), build.text())
    assert Scripted().lower(request, "echo-1").states_dropped == 0
    assert Scripted().lower(request, "echo-2").states_dropped == 1


async def test_usage_may_be_absent(tmp_path: Path) -> None:
    answer = await asked(script(tmp_path, '[[rule]]\nusage = "absent"\n'))
    assert (end(answer).stop_reason, end(answer).usage) == ("end_turn", None)


@pytest.mark.parametrize("stop", get_args(v.StopReason))
async def test_every_stop_reason_can_be_said(tmp_path: Path, stop: str) -> None:
    assert end(await asked(script(tmp_path, f'[[rule]]\nstop = "{stop}"\n'))).stop_reason == stop


@pytest.mark.parametrize("kind", get_args(v.FailureKind))
async def test_every_failure_kind_can_be_said_with_usage_without_and_with_nothing_sent(
    tmp_path: Path, kind: str
) -> None:
    fail = f'[[rule]]\ndeltas = ["part"]\nfail = {{kind = "{kind}", message = "so it is"}}\n'
    answer = await asked(script(tmp_path, fail))
    assert (text_of(answer), answer.sent) == ("part", True)
    assert end(answer) == Ended(kind=kind, message="so it is")
    billed = end(await asked(script(tmp_path, fail + "usage = {input = 7}\n"))).usage
    assert billed is not None
    assert billed.input_tokens == 7
    answer = await asked(script(tmp_path, fail + "nothing_sent = true\n"))
    assert (answer.sent, end(answer).usage) == (False, v.NOTHING_USED)


async def test_delays_are_kept_before_the_answer_and_before_each_delta(autojump_clock: trio.testing.MockClock) -> None:
    begun = trio.current_time()
    await asked(rule(delay_ms=500, delta_delay_ms=250, deltas=("a", "b")))
    assert trio.current_time() - begun == 1.0


async def test_hanging_ends_only_by_cancellation_and_keeps_what_was_said(
    autojump_clock: trio.testing.MockClock,
) -> None:
    connector = rule(deltas=("a",), hang=True)
    lowered = connector.lower(build.request(), "echo-1")
    answer = Answer(frozenset(), 1000)
    with trio.move_on_after(3600) as deadline:
        await connector.exchange(lowered, answer)
    assert deadline.cancelled_caught
    assert (text_of(answer), answer.sent, answer.ended) == ("a", True, None)


async def test_a_rejection_is_said_before_sending_unless_an_earlier_rule_always_answers() -> None:
    with pytest.raises(Rejected, match="too odd"):
        rule(reject="too odd").lower(build.request(), "echo-1")
    first = Rule(deltas=("x",))
    assert text_of(await asked(Scripted((first, Rule(reject="too odd"))))) == "x"
    sometimes = Rule(deltas=("x",), times=1)
    with pytest.raises(Rejected):
        Scripted((sometimes, Rule(reject="too odd"))).lower(build.request(), "echo-1")


async def test_a_long_answer_lets_others_run() -> None:
    ran = 0

    async def other() -> None:
        nonlocal ran
        while True:
            ran += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await asked(rule(deltas=("x",), repeat=100_000))
        nursery.cancel_scope.cancel()
    assert ran > 100


# --- mistakes -----------------------------------------------------------------------------------------------


def complaints(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigFaults) as faults:
        script(tmp_path, text)
    return str(faults.value)


def test_every_mistake_is_complained_about_at_once_with_the_nearest_name(tmp_path: Path) -> None:
    said = complaints(
        tmp_path,
        """
        [[rule]]
        delta = ["x"]
        stop = "end_trun"
        [[rule]]
        fail = {kind = "rate_limitd", message = "x"}
        usage = {input = -1}
        text_matches = "("
        calls = [{nam = "look"}]
        """,
    )
    for piece in ("rule[0].delta", "did you mean deltas?", "end_turn", "rule[1].fail", "rate_limited", "rule[1].usage"):
        assert piece in said
    for piece in ("regular expression", "rule[1].calls"):
        assert piece in said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[[rule]]\nstop = "end_turn"\nhang = true\n', "can't stand together"),
        ("[[rule]]\nnothing_sent = true\n", "nothing_sent is for a rule with fail"),
        ("[[rule]]\nrepeat = 5\n", "repeat is for a rule with deltas"),
        ("[[rule]]\ntimes = 0\n", "from 1 to"),
        ('[[rule]]\nreject = "no"\ntimes = 2\n', "3:1: rule[0].times: a rejection is not counted"),
        ("[rule]\nhang = true\n", "[[rule]]"),
        ("[[rul]]\nhang = true\n", "did you mean rule?"),
        ("rule = 7\n", "[[rule]]"),
        ("not toml", "no TOML"),
        ('[[rule]]\nusage = "absnt"\n', "rule[0].usage"),
        ('[[rule]]\ncalls = [{name = "look", arguments = "[1]"}]\n', "JSON"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, why: str) -> None:
    assert why in complaints(tmp_path, text)


def test_a_script_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigFaults, match=r"nothere\.toml"):
        read_script(tmp_path / "nothere.toml")


def test_a_failure_as_a_value_is_the_same_as_one_that_was_read(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('[[rule]]\nfail = {kind = "timeout", message = "late"}\n')
    assert read_script(path) == (Rule(fail=ScriptedFailure("timeout", "late")),)


@given(
    st.lists(st.text(st.sampled_from("ab \t\n\x1c\x85\u2003\u200b\U0001f409"), min_size=1, max_size=9), max_size=4),
    st.integers(1, 4),
)
async def test_a_rule_uses_as_many_tokens_as_an_echo_of_its_text_has_pieces(deltas: list[str], repeat: int) -> None:
    rule = Rule(deltas=tuple(deltas), repeat=repeat)
    usage = end(await asked(Scripted((rule,)), build.request(max_output_tokens=1000))).usage
    assert usage is not None
    assert usage.output_tokens == max(1, len(re.findall(r"\S+\s*|\s+", "".join(deltas) * repeat)))
