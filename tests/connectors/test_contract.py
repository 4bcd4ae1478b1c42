"""The contract that every connector must pass, whatever it asks and however that answers."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import build
from kit.connector_cases import BEHAVIOURS, CALL, CONNECTORS, TEXT, USED, Made
from msgspec import structs

from sidecar.connectors.kinds import KINDS
from sidecar.connectors.promise import Answer, Connector, Ended, Rejected, ResponseTooLarge
from sidecar.connectors.script import Rule, ScriptedCall, ScriptedFailure
from sidecar.connectors.scripted import Scripted
from sidecar.contract import canonical
from sidecar.contract import values as v

RESPONSE_BYTES_MAX = 50_000

every_connector = pytest.mark.parametrize("made", CONNECTORS.values(), ids=CONNECTORS.keys())
# A recording has ended, so nothing can hang in it.
_HANGING = {name: made for name, made in CONNECTORS.items() if name != "recorded (replay)"}
every_connector_that_can_hang = pytest.mark.parametrize("made", _HANGING.values(), ids=_HANGING.keys())


def a_request(*items: v.InputItem) -> v.ProviderRequest:
    tool = v.ToolDefinition(name="look", description="Look.", parameters_json='{"type":"object"}')
    return build.request(*items, instructions="Be brief.", tools=(tool,))


async def asked(connector: Connector, request: v.ProviderRequest | None = None) -> Answer:
    lowered = connector.lower(request or a_request(), "tiny")
    answer = Answer(lowered.call_ids, RESPONSE_BYTES_MAX)
    await connector.exchange(lowered, answer)
    return answer


def asked_at_once(connector: Connector) -> Answer | None:
    """None where it would have to wait; the answer is untouched then."""
    lowered = connector.lower(a_request(), "tiny")
    answer = Answer(lowered.call_ids, RESPONSE_BYTES_MAX)
    if connector.at_once(lowered, answer):
        return answer
    assert (answer.ended, answer.sent, answer.events(), answer.notes) == (None, False, (), [])
    return None


def text_of(answer: Answer) -> str:
    return "".join(event.text_delta.text for event in answer.events() if event.text_delta)


def end(answer: Answer) -> Ended:
    assert answer.ended is not None
    return answer.ended


def test_every_kind_that_is_built_is_held_to_the_contract() -> None:
    assert {name.partition(" ")[0] for name in CONNECTORS} == set(KINDS)


@every_connector
async def test_lower_is_pure_and_the_same_for_the_same_request(made: Made) -> None:
    history = (build.text("go"), build.said("I go."), build.call("c1"), build.result("c1"), build.state(), build.text())
    request = a_request(*history)
    before = canonical.encode(request)
    async with made("text") as connector, made("text") as another:
        first = connector.lower(request, "tiny")
        await asked(connector)
        assert connector.lower(request, "tiny") == first == another.lower(request, "tiny")
    assert canonical.encode(request) == before


@every_connector
async def test_a_longer_conversation_keeps_what_was_lowered_before_it(made: Made) -> None:
    turns = (build.text("go"), build.call("c1"), build.result("c1"), build.said("Done."), build.text("again"))
    async with made("text") as connector:
        assert connector.lower(a_request(*turns), "tiny").call_ids == {"c1"}
        for length in (1, 3, 5):
            assert (await asked(connector, a_request(*turns[:length]))).ended is not None


@every_connector
async def test_a_good_answer_has_its_events_in_order_its_usage_and_one_end(made: Made) -> None:
    async with made("text") as connector:
        answer = await asked(connector)
    assert answer.sent
    assert (text_of(answer), len(answer.events())) == ("".join(TEXT), 1), "neighbouring deltas are one event"
    assert (end(answer).stop_reason, end(answer).usage) == ("end_turn", USED)
    answer.fail("timeout", "too late")
    assert end(answer).stop_reason == "end_turn", "the outcome stands"


@every_connector
async def test_events_are_heard_as_they_come(made: Made) -> None:
    heard: list[v.TransportEventPayload] = []
    async with made("calls") as connector:
        lowered = connector.lower(a_request(), "tiny")
        answer = Answer(lowered.call_ids, RESPONSE_BYTES_MAX, on_event=lambda _, event: heard.append(event))
        await connector.exchange(lowered, answer)
    assert [event.text_delta.text for event in heard if event.text_delta] == list(TEXT)
    assert [event.tool_call.name for event in heard if event.tool_call] == ["look"]


@every_connector
async def test_what_it_emits_is_valid_input_of_the_next_request(made: Made) -> None:
    turns = [build.text("go")]
    async with made("calls") as connector:
        for _ in range(3):
            answer = await asked(connector, a_request(*turns))
            assert end(answer).stop_reason == "tool_use"
            for event in answer.events():
                if event.text_delta:
                    turns.append(build.said(event.text_delta.text))
                if event.tool_call:
                    call = event.tool_call
                    turns += [build.call(call.call_id, call.name, call.arguments), build.result(call.call_id)]
    ids = [turn.tool_call.call_id for turn in turns if turn.tool_call]
    assert ids[0] == CALL[0]
    assert len(set(ids)) == 3, "an id that stands in the request already is replaced"


@every_connector
async def test_a_failure_after_text_keeps_the_text_and_costs_what_is_not_known(made: Made) -> None:
    async with made("fails") as connector:
        answer = await asked(connector)
    assert (end(answer).kind, end(answer).message, end(answer).usage) == ("rate_limited", "slow down", None)
    assert text_of(answer) == "".join(TEXT)


@every_connector
async def test_where_nothing_was_sent_nothing_is_paid(made: Made) -> None:
    async with made("unreachable") as connector:
        answer = await asked(connector)
    assert not answer.sent
    assert (end(answer).kind, end(answer).usage) == ("unavailable", v.NOTHING_USED)


@every_connector_that_can_hang
async def test_cancelled_it_lets_the_cancellation_pass_and_says_no_end_of_its_own(made: Made) -> None:
    async with made("hangs") as connector:
        lowered = connector.lower(a_request(), "tiny")
        spoken = trio.Event()
        answer = Answer(lowered.call_ids, RESPONSE_BYTES_MAX, on_event=lambda *_: spoken.set())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connector.exchange, lowered, answer)
            await spoken.wait()
            await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
        assert nursery.cancel_scope.cancelled_caught
    assert answer.sent
    assert answer.ended is None
    answer.fail("timeout", "the deadline passed")
    assert end(answer).usage is None


@every_connector
async def test_cancelled_before_it_begins_it_sends_nothing(made: Made) -> None:
    async with made("text") as connector:
        lowered = connector.lower(a_request(), "tiny")
        answer = Answer(lowered.call_ids, RESPONSE_BYTES_MAX)
        with trio.CancelScope() as scope:
            scope.cancel()
            await connector.exchange(lowered, answer)
    assert scope.cancelled_caught
    assert answer.ended is None


@every_connector
async def test_e12_an_answer_above_its_bound_fails_at_once(made: Made) -> None:
    async with made("huge") as connector:
        lowered = connector.lower(a_request(), "tiny")
        answer = Answer(lowered.call_ids, RESPONSE_BYTES_MAX)
        with trio.fail_after(30), pytest.raises(ResponseTooLarge):
            await connector.exchange(lowered, answer)
    assert (end(answer).kind, end(answer).usage) == ("result_size", None)


@every_connector
@pytest.mark.parametrize("behaviour", ["text", "calls", "fails", "unreachable"])
async def test_many_exchanges_at_once_do_not_mix(made: Made, behaviour: str) -> None:
    answers: list[Answer] = []

    async def ask(connector: Connector) -> None:
        answers.append(await asked(connector))

    async with made(behaviour) as connector, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask, connector)
    assert len(answers) == 20
    assert len({(text_of(answer), end(answer).stop_reason, end(answer).kind) for answer in answers}) == 1


@every_connector
@settings(deadline=None, max_examples=40)
@given(opaque=st.binary(max_size=80) | st.sampled_from([b"{}", b"[]", b'{"k":"scripted","m":"tiny","t":[],"v":1}']))
async def test_a_reasoning_state_that_it_did_not_emit_is_left_out_and_counted(made: Made, opaque: bytes) -> None:
    async with made("text") as connector:
        lowered = connector.lower(a_request(build.text(), build.state(opaque=opaque)), "tiny")
        assert lowered.states_dropped == 1
        with pytest.raises(Rejected):
            connector.lower(a_request(build.state(opaque=opaque)), "tiny")


@every_connector
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
async def test_it_can_be_closed_twice_whatever_happened(made: Made, behaviour: str) -> None:
    async with made(behaviour) as connector:
        await connector.aclose()
        await connector.aclose()


# --- at once ----------------------------------------------------------------------------------------------------


@every_connector
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
async def test_at_once_it_answers_as_exchange_does_or_does_nothing(made: Made, behaviour: str) -> None:
    async with made(behaviour) as connector, made(behaviour) as another:
        answer = asked_at_once(connector)
        if answer is None:
            return
        assert answer.ended is not None
        exchanged = await asked(another)
    assert (answer.ended, answer.events(), answer.sent) == (exchanged.ended, exchanged.events(), exchanged.sent)


@pytest.mark.parametrize(
    "rule",
    [
        Rule(deltas=TEXT, usage=USED),
        Rule(deltas=TEXT, repeat=3),
        Rule(reasoning=("hm",), deltas=TEXT, calls=(ScriptedCall("look", "{}", None), ScriptedCall("go", "{}", "c1"))),
        Rule(deltas=TEXT, fail=ScriptedFailure("rate_limited", "slow down")),
        Rule(fail=ScriptedFailure("unavailable", "nobody is there"), nothing_sent=True),
        Rule(),
    ],
    ids=["text", "repeat", "calls", "fails", "unreachable", "echo"],
)
async def test_a_scripted_rule_answers_at_once_what_it_answers_after_a_delay(
    rule: Rule, autojump_clock: trio.testing.MockClock
) -> None:
    answer = asked_at_once(Scripted((rule,)))
    assert answer is not None
    delayed = await asked(Scripted((structs.replace(rule, delay_ms=1),)))
    assert (answer.ended, answer.events(), answer.sent) == (delayed.ended, delayed.events(), delayed.sent)


async def test_the_echo_comes_at_once_and_is_that_of_an_exchange() -> None:
    answer = asked_at_once(Scripted())
    assert answer is not None
    exchanged = await asked(Scripted())
    assert text_of(answer) == "hello there"
    assert (answer.ended, answer.events()) == (exchanged.ended, exchanged.events())


@pytest.mark.parametrize(
    "rule",
    [
        Rule(deltas=TEXT, delay_ms=1),
        Rule(deltas=TEXT, delta_delay_ms=1),
        Rule(deltas=TEXT, hang=True),
        Rule(deltas=TEXT, repeat=1000),
    ],
    ids=["delay", "delta_delay", "hang", "many"],
)
def test_a_scripted_rule_that_waits_or_is_long_does_nothing_at_once(rule: Rule) -> None:
    assert asked_at_once(Scripted((rule,))) is None


def test_an_answer_at_once_uses_up_one_time_of_its_rule() -> None:
    connector = Scripted((Rule(deltas=("once",), times=1), Rule(deltas=("then",))))
    answers = [asked_at_once(connector) for _ in range(3)]
    assert [answer and text_of(answer) for answer in answers] == ["once", "then", "then"]


async def test_a_rule_that_must_be_waited_for_is_counted_where_it_answers_and_not_before(
    autojump_clock: trio.testing.MockClock,
) -> None:
    connector = Scripted((Rule(deltas=("once",), delay_ms=1, times=1), Rule(deltas=("then",))))
    assert [asked_at_once(connector) for _ in range(2)] == [None, None]
    assert [text_of(await asked(connector)) for _ in range(2)] == ["once", "then"]
