"""Plays vectors with a client: a driver, a socket of its own for each vector, and a verdict.

A vector ends with its driver's outcomes. Then the scene gets a moment for what
the client has sent and the runner has not read yet. A driver that is too late,
dies or writes what is no line is stopped; the next vector starts it again, and
after a few such ends the rest is not played.
"""

from __future__ import annotations

import os
import time
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import trio

from sidecar.conformance.differences import difference, shown, value_difference
from sidecar.conformance.driver import Driver, NoDriver
from sidecar.conformance.driver_lines import LINE_BYTES_MAX, BrokenLine, plain
from sidecar.conformance.scenes import Action, ClientVector, Plain, Scene, joined
from sidecar.conformance.stage import Stage
from sidecar.conformance.verdicts import Verdict
from sidecar.rules.framing import SOCKET_PATH_BYTES_MAX

__all__ = ["NoDriver", "proven"]

_SETTLE_SECONDS_MAX: Final = 2.0  # for what has been sent before the driver answered
_CLOSING_SECONDS_MAX: Final = 0.25  # for a client that is still closing; one that never does is not held up for long
_DEATHS_MAX: Final = 10
_FOLDER_BYTES_MAX: Final = SOCKET_PATH_BYTES_MAX - 12  # for its name here
_BACKLOG: Final = 16
_EVENTS_MAX: Final = 10_000  # of one vector; none has a text of so many characters
_EVENTS_BYTES_MAX: Final = LINE_BYTES_MAX


async def proven(
    vectors: Iterable[ClientVector], command: Sequence[str], *, timeout_seconds: float,
    tell: Callable[[Verdict], None],
) -> None:  # fmt: skip
    """Every vector, one after the other; each has `timeout_seconds`. Raises NoDriver."""
    with TemporaryDirectory(prefix="sidecar-") as folder:
        if len(os.fsencode(folder)) > _FOLDER_BYTES_MAX:
            raise NoDriver(f"no socket can be made in {folder}: set TMPDIR to a directory with a shorter name")
        fault: Exception | None = None
        async with trio.open_nursery() as nursery:
            driver = Driver(command, nursery, start_seconds_max=timeout_seconds)
            try:
                await _all_proven(vectors, driver, Path(folder), timeout_seconds, tell)
            except Exception as ended:
                fault = ended  # raised below as it is: a nursery would make a group of it
            finally:
                await driver.stop()
        if fault is not None:
            raise fault


async def _all_proven(
    vectors: Iterable[ClientVector], driver: Driver, folder: Path, timeout_seconds: float,
    tell: Callable[[Verdict], None],
) -> None:  # fmt: skip
    await driver.start()
    deaths = 0
    for number, vector in enumerate(vectors):
        if deaths >= _DEATHS_MAX:
            tell(Verdict(vector.name, "not_played", (f"the driver has ended {deaths} times",)))
            continue
        await driver.start()
        verdict, alive = await _proven(vector, driver, folder / f"{number}.s", timeout_seconds)
        deaths += not alive
        tell(verdict)
    await driver.end()


async def _proven(vector: ClientVector, driver: Driver, socket: Path, timeout_seconds: float) -> tuple[Verdict, bool]:
    """The verdict, and whether the driver can go on."""
    if lacking := vector.claims - driver.claims:
        return Verdict(vector.name, "not_claimed", (f"the client does not claim {', '.join(sorted(lacking))}",)), True
    scene = vector.scene(time.time_ns() // 1_000_000)
    stage = Stage(scene)
    why: list[str] = []
    outcomes: list[Any] | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run)
        if scene.listens_after_ms is not None:
            await nursery.start(_listen, stage, socket, scene.listens_after_ms)
        with trio.move_on_after(timeout_seconds) as patience:
            try:
                outcomes = await _conversed(vector.name, stage, driver, socket)
            except BrokenLine as broken:
                why.append(f"the driver wrote what is no line of its protocol: {broken}")
            else:
                if outcomes is None:
                    why.append("the driver has ended")
        if patience.cancelled_caught:
            waiting = f"; the daemon waited for {stage.waiting_for}" if stage.waiting_for else ""
            why.append(f"the driver has not answered within {timeout_seconds:g} s{waiting}")
        elif outcomes is not None:
            if not scene.endless:
                with trio.move_on_after(_SETTLE_SECONDS_MAX):
                    await stage.over.wait()
            with trio.move_on_after(_CLOSING_SECONDS_MAX):
                await stage.all_closed()
            if not stage.over.is_set() and not scene.endless and stage.waiting_for:
                why.append(f"the daemon still waited for {stage.waiting_for}")
        nursery.cancel_scope.cancel()
    why += stage.faults
    if outcomes is None:
        await driver.stop()
        why += driver.said()
    else:
        why += _wrong_outcomes(scene, stage, outcomes)
    return Verdict(vector.name, "failed" if why else "passed", tuple(why)), outcomes is not None


async def _listen(
    stage: Stage, path: Path, after_ms: int, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """A socket for the stage; a late one is not there before."""
    if after_ms:
        task_status.started()
        await trio.sleep(after_ms / 1000)
    with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM) as listening:
        await listening.bind(os.fspath(path))
        listening.listen(_BACKLOG)
        if not after_ms:
            task_status.started()
        async with trio.open_nursery() as nursery:
            while True:
                accepted, _ = await listening.accept()
                nursery.start_soon(stage.serve, trio.SocketStream(accepted))


async def _conversed(name: str, stage: Stage, driver: Driver, socket: Path) -> list[Any] | None:
    """The driver's outcomes; None where it has ended. Raises BrokenLine."""
    scene = stage.scene
    actions = [action.said for action in scene.actions]
    begun_bytes, events = driver.heard_bytes, 0
    await driver.say({"vector": name, "socket": str(socket), "caller": scene.caller, "actions": actions})
    while (said := await driver.hear()) is not None:
        if said.get("vector") != name:
            raise BrokenLine(f"it is about {said.get('vector')!r}, and this is {name!r}")
        if "event" in said:
            events += 1
            if events > _EVENTS_MAX or driver.heard_bytes - begun_bytes > _EVENTS_BYTES_MAX:
                raise BrokenLine(
                    f"more than {_EVENTS_MAX} events, or {_EVENTS_BYTES_MAX} bytes of them, belong to no vector"
                )
            stage.tell(*_event(said, len(actions)))
            continue
        outcomes = said.get("outcomes")
        if not isinstance(outcomes, list) or len(outcomes) != len(actions):
            raise BrokenLine(f"{shown(said)} has not one outcome for each of {len(actions)} actions")
        return outcomes
    return None


def _event(said: Plain, actions: int) -> tuple[int, Plain]:
    at, event = said.get("action"), said["event"]
    if not isinstance(at, int) or not 0 <= at < actions:
        raise BrokenLine(f"{shown(said)} belongs to no action")
    if not isinstance(event, dict) or not {"sequence", "payload"} <= event.keys():
        raise BrokenLine(f"{shown(event)} is no event: it has sequence and payload")
    return at, event


# --- outcomes ---------------------------------------------------------------------------------------------------


def _wrong_outcomes(scene: Scene, stage: Stage, outcomes: list[Any]) -> list[str]:
    why: list[str] = []
    for at, (action, outcome) in enumerate(zip(scene.actions, outcomes, strict=True)):
        told = f"action {at} ({action.do}):"
        if not isinstance(outcome, dict):
            why.append(f"{told} its outcome is {shown(outcome)}; an outcome is an object")
            continue
        parted = [_parted(end, outcome) for end in action.ends]
        if all(parted):
            if "bytes" not in outcome:
                why.append(f"{told} expected: {' or '.join(shown(plain(end)) for end in action.ends)}")
                why.append(f"{told} got:      {shown(outcome)}")
            why.append(f"{told} differs:  {parted[0]}")
        if action.do == "stream":
            why += _wrong_events(action, joined(stage.told[at]), told)
    return why


def _parted(end: Plain, outcome: Plain) -> str | None:
    if "no_answer" in end and "no_answer" in outcome:
        return None
    if "bytes" in end and isinstance(outcome.get("bytes"), str):
        try:
            return difference(end["bytes"], b64decode(outcome["bytes"], validate=True))
        except NotBase64:
            return "bytes is no base64"
    kinds = [" and ".join(one) or "nothing" for one in (end, outcome)]
    if kinds[0] != kinds[1]:
        return f"the outcome is {kinds[1]} in place of {kinds[0]}"
    return value_difference(end, outcome)


def _wrong_events(action: Action, told: list[Plain], where: str) -> list[str]:
    """The pieces, put together, must be what the result says, or what came live where that says less.

    A stream without either is not held to any.
    """
    of_results = [end["transported"]["events"] for end in action.ends if "transported" in end]
    if action.told is None and not of_results:
        return []
    wanted, whose = (of_results[0], "of the result") if action.told is None else (plain(action.told), "that came live")
    parted = value_difference(wanted, told, "event")
    return [f"{where} the events that it told, put together, are not those {whose}: {parted}"] if parted else []
