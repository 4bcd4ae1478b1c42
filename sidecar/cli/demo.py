"""`sidecar demo`: the real daemon in a temporary directory, talked to over its socket.

A short conversation with a tool call, its receipt, a replay that is
byte-identical, a refusal by the spend ceiling, and what the ledger holds at
the end. The answers are scripted: no network, no key, no money.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sidecar.cli.dial import Dialed, read_answer
from sidecar.cli.output import line_out, say
from sidecar.cli.stops import Stops
from sidecar.client.asking import Terms, invocation_of, new_request
from sidecar.contract import canonical
from sidecar.contract.values import (
    AssistantText,
    BeginRecord,
    InputItem,
    RecordBody,
    ToolCall,
    ToolDefinition,
    ToolResult,
    TransportEvent,
    TransportResult,
    UserText,
)
from sidecar.ledger import recovery
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.landing import Place

_START_SECONDS_MAX = 30.0
_STOP_SECONDS_MAX = 20.0
_MODEL = "npc-fast"

_CONFIG = """
[daemon]
socket = "requests.sock"
frame_bytes_max = 196608

[ledger]
directory = "ledger"
segment_bytes = 1048576

[[caller]]
id = "dungeon"
models = ["npc-fast"]
spend_ceiling_micro_usd = 5_000_000
spend_window_seconds = 86_400

[[caller]]
id = "miser"
models = ["npc-fast"]
spend_ceiling_micro_usd = 1_600
spend_window_seconds = 86_400

[[connector]]
name = "rehearsal"
kind = "scripted"
script = "script.toml"

[[model]]
name = "npc-fast"
connector = "rehearsal"
upstream = "rehearsal-1"

[[model.price]]
input = 1_000_000
cache_read = 100_000
cache_write_short = 1_250_000
cache_write_long = 2_000_000
output = 5_000_000
"""

_SCRIPT = """
[[rule]]
tool = "look"
deltas = ["A staircase leads down. ", "It smells of ", "dragon."]

[[rule]]
text = "behind the door"
calls = [{name = "look", arguments = '{"at": "door"}', id = "call_1"}]
"""

_LOOK = ToolDefinition(
    name="look",
    description="Looks at something in the room.",
    parameters_json='{"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}',
)


def add_arguments(_: argparse.ArgumentParser) -> None:
    """It takes none."""


def run(_: argparse.Namespace) -> int:
    return demo()


def demo() -> int:
    """Also where it is stopped or its reader leaves, the daemon is ended and the folder removed."""
    with Stops() as stops, tempfile.TemporaryDirectory(prefix="sidecar-") as name:
        folder = Path(name)
        (folder / "sidecar.toml").write_text(_CONFIG)
        (folder / "script.toml").write_text(_SCRIPT)
        with _daemon(folder) as process, stops.raising():
            line_out(f"$ sidecar serve --config {folder / 'sidecar.toml'}\n")
            if not _is_up(process, folder / "requests.sock"):
                for line in (folder / "log").read_text().splitlines():
                    say(line)
                return os.EX_UNAVAILABLE
            with Dialed(folder / "requests.sock") as dialed:
                as_promised = _converse(dialed)
        with stops.raising():
            _list_ledger(folder / "ledger")
    return os.EX_OK if as_promised else os.EX_SOFTWARE


@contextmanager
def _daemon(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The daemon as its own process, which has ended when this is left: cleanly, or killed if it takes too long."""
    command = [sys.executable, "-m", "sidecar", "serve", "--config", str(folder / "sidecar.toml")]
    with (folder / "log").open("w") as sink, subprocess.Popen(command, stderr=sink) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()


def _is_up(process: subprocess.Popen[bytes], socket: Path) -> bool:
    give_up_at = time.monotonic() + _START_SECONDS_MAX
    while time.monotonic() < give_up_at and process.poll() is None:
        try:
            with Dialed(socket):
                return True
        except OSError:
            time.sleep(0.02)
    return False


def _converse(dialed: Dialed) -> bool:
    """Whether the replay was byte-identical and the ceiling held."""
    question = InputItem(user_text=UserText(text="What is behind the door?"))
    first = _ask(dialed, "dungeon", "turn-1", (question,))
    call = next(event.payload.tool_call for event in _events(first) if event.payload.tool_call)
    seen = ToolResult(call_id=call.call_id, output="a staircase, dark, warm air")
    history = (question, InputItem(tool_call=call), InputItem(tool_result=seen))
    second, frame, answer = _asked(dialed, "dungeon", "turn-2", history)
    said = "".join(event.payload.text_delta.text for event in _events(second) if event.payload.text_delta)
    line_out("\nThe same bytes again:")
    again = dialed.ask(frame)
    same = "identical to the first answer; nothing was asked" if again == answer else "DIFFERENT"
    line_out(f"  {len(again)} bytes, {same}")
    goodbye = (*history, InputItem(assistant_text=AssistantText(text=said)), _user("Thank you, goodbye."))
    _ask(dialed, "dungeon", "turn-3", goodbye)
    line_out("\nA caller whose ceiling is 1600 micro-USD, below one worst case:")
    refused = _ask(dialed, "miser", "turn-1", (question,)).disposition.refused
    return again == answer and refused == "SpendCeiling"


def _user(text: str) -> InputItem:
    return InputItem(user_text=UserText(text=text))


def _ask(dialed: Dialed, caller: str, request_id: str, items: tuple[InputItem, ...]) -> TransportResult:
    return _asked(dialed, caller, request_id, items)[0]


def _asked(
    dialed: Dialed, caller: str, request_id: str, items: tuple[InputItem, ...]
) -> tuple[TransportResult, bytes, bytes]:
    """The result, and the two frames that went over the socket for it."""
    request = new_request(
        _MODEL,
        input=items,
        request_id=request_id,
        conversation_id="demo",
        instructions="You are the narrator of a dungeon.",
        tools=(_LOOK,),
        max_output_tokens=64,
    )
    asked = invocation_of(request, caller, Terms())
    frame = canonical.encode(asked)
    answer = dialed.ask(frame)
    result = read_answer(answer)
    assert isinstance(result, TransportResult), result
    _show(caller, request_id, items, result)
    return result, frame, answer


def _events(result: TransportResult) -> tuple[TransportEvent, ...]:
    return result.disposition.transported.events if result.disposition.transported else ()


def _show(caller: str, request_id: str, items: tuple[InputItem, ...], result: TransportResult) -> None:
    last: UserText | ToolResult = items[-1].chosen
    line_out(f"{caller} {request_id} > {last.text if isinstance(last, UserText) else 'tool result: ' + last.output}")
    if result.disposition.refused:
        line_out(f"  refused: {result.disposition.refused}")
        return
    transported = result.disposition.transported
    assert transported, "a result is refused or transported"
    for event in transported.events:
        if event.payload.text_delta:
            line_out(f"  {_MODEL} < {event.payload.text_delta.text}")
        elif event.payload.tool_call:
            call: ToolCall = event.payload.tool_call
            line_out(f"  {_MODEL} < calls {call.name} {call.arguments}")
    receipt, ended = transported.receipt, transported.receipt.outcome.completed
    if ended:
        usage = ended.usage
        line_out(
            f"  receipt: {ended.stop_reason}, {usage.input_tokens} tokens in, {usage.output_tokens} out,"
            f" {receipt.cost_micro_usd} micro-USD, provider {receipt.provider}"
        )


def _list_ledger(directory: Path) -> None:
    line_out("\nThe ledger:")
    begun: dict[tuple[int, int], BeginRecord] = {}

    def show(body: RecordBody, place: Place) -> None:
        where = f"  {place.segment}:{place.offset:<7}"
        if body.begin:
            begun[place.segment, place.offset] = body.begin
            begin = body.begin
            who = f"{begin.caller_runtime_id} {begin.request_id}"
            line_out(f"{where} begin      {who}  reserved {begin.reservation_micro_usd}")
        elif body.completed:
            completed = body.completed
            begin = begun[completed.begin_segment, completed.begin_offset]
            line_out(
                f"{where} completed  {begin.caller_runtime_id} {begin.request_id}  charged {completed.charge_micro_usd}"
                f", {completed.outcome}, answer of {len(completed.response) - 1} bytes"
            )
        elif body.opened:
            line_out(f"{where} opened     incarnation {body.opened.incarnation}")
        elif body.closed:
            line_out(f"{where} closed")

    found = recovery.read(DiskFiles(), directory, show, cold=False)
    line_out(f"  chain head {found.end.head.hex()}")
