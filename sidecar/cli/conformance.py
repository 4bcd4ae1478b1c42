"""`sidecar conformance`: proves a running daemon, or a client in any language, against the goldens.

What failed is told in a block each: what was expected, what came, and where
the two part. Exit codes after sysexits; nothing but a run in which no vector
failed is 0.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import trio
from msgspec import Struct, to_builtins

from sidecar.cli.exits import HUNG_UP, INTERRUPTED, TERMINATED
from sidecar.cli.output import fault_out, line_out, say
from sidecar.cli.stops import Stopped, Stops
from sidecar.conformance.client_play import NoDriver, proven
from sidecar.conformance.client_vectors import client_vectors
from sidecar.conformance.configured import check_configured
from sidecar.conformance.daemon_play import NoDaemon, played, terms_of
from sidecar.conformance.daemon_vectors import Conversation, conversations
from sidecar.conformance.goldens import Goldens, NoGoldens, found, installed_at
from sidecar.conformance.scenes import ClientVector
from sidecar.conformance.verdicts import State, Verdict, counted

_COMMAND: Final = "sidecar conformance"
_DAEMON_FILES: Final = ("config.toml", "script.toml")
_STATES: Final[Mapping[State, str]] = {
    "passed": "passed",
    "failed": "failed",
    "not_played": "not played",
    "not_claimed": "not claimed",
}
EXIT_CODES: Final[Mapping[int, str]] = {
    os.EX_OK: "no vector failed; those not played or not claimed are named",
    os.EX_USAGE: "wrong command line, or no vector of the asked names",
    os.EX_DATAERR: "a vector failed",
    os.EX_NOINPUT: "no goldens",
    os.EX_UNAVAILABLE: "no daemon on the socket that could be played against, or no driver that speaks",
    os.EX_CANTCREAT: "the daemon's files can't be written",
    HUNG_UP: "stopped by SIGHUP: the driver is ended with whatever it has started, and the rest not played",
    INTERRUPTED: "the same, stopped by hand",
    TERMINATED: "the same, stopped by SIGTERM",
}

Vector = TypeVar("Vector", Conversation, ClientVector)


class Asked(Struct, frozen=True, kw_only=True):
    """The command line; `socket` and `client` are given where their side is to be proven."""

    socket: Path | None
    client: str | None
    write_config: Path | None
    listing: bool
    goldens: Path | None
    only: tuple[str, ...]
    timeout_seconds: float
    as_json: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sidecar conformance` takes; the exit codes stand below it."""
    add = parser.add_argument
    add("--socket", type=Path, metavar="PATH", help="play the goldens against the daemon that listens there")
    add("--client", metavar="CMD", help="run this driver of a client against a scripted daemon; split as a shell does")
    add("--write-config", type=Path, metavar="DIR", help="write the config.toml and script.toml that --socket needs")
    add("--list", action="store_true", dest="listing", help="name the vectors, and play none")
    add("--only", action="append", default=[], metavar="GLOB", help="only vectors of such names; may be repeated")
    add("--goldens", type=Path, metavar="DIR", help="default: those that this installation carries")
    add("--timeout", type=_seconds, default=20.0, metavar="SECONDS", help="for each vector; default: %(default)g")
    add("--json", action="store_true", help="one JSON object with every vector's verdict; default: off")
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser.epilog = f"{_where()}\n\nexit codes:\n{codes}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def _where() -> str:
    """Where an installation has what whoever writes a client or a driver reads."""
    goldens = installed_at()
    if goldens is None:
        return "This installation has no goldens."
    told = (
        ("the goldens", goldens),
        ("their formats", goldens / "README.md"),
        ("what a driver does", goldens / "DRIVERS.md"),
        ("JSON Schemas of every frame", goldens.parent / "schemas"),
    )
    return "\n".join(f"{what + ':':<28} {path}" for what, path in told)


def asked_by(arguments: argparse.Namespace) -> Asked:
    return Asked(
        socket=arguments.socket,
        client=arguments.client,
        write_config=arguments.write_config,
        listing=arguments.listing,
        goldens=arguments.goldens,
        only=tuple(arguments.only),
        timeout_seconds=arguments.timeout,
        as_json=arguments.json,
    )


def run(arguments: argparse.Namespace) -> int:
    return conformance(asked_by(arguments))


def conformance(asked: Asked) -> int:
    """Does one thing and returns the exit code."""
    given = [asked.socket, asked.client, asked.write_config]
    wanted = sum(one is not None for one in given)
    if wanted > 1 or (wanted == 0 and not asked.listing) or (asked.write_config and asked.listing):
        return _fault(asked, os.EX_USAGE, "give one of --socket, --client and --write-config, or --list")
    try:
        goldens = found(asked.goldens)
        if asked.write_config is not None:
            return _written(asked, goldens, asked.write_config)
        return _listed(asked, goldens) if asked.listing else _proven(asked, goldens)
    except NoGoldens as missing:
        return _fault(asked, os.EX_NOINPUT, str(missing))
    except NoDaemon as none:
        return _fault(asked, os.EX_UNAVAILABLE, str(none))
    except NoDriver as none:
        return _no_driver(asked, str(none))
    except Stopped as stopped:
        return _fault(asked, stopped.exit_code, stopped.by)


def _no_driver(asked: Asked, why: str) -> int:
    """With what it has written to stderr as lines of their own."""
    if asked.as_json:
        return _fault(asked, os.EX_UNAVAILABLE, why)
    first, *block = why.split("\n")
    exit_code = _fault(asked, os.EX_UNAVAILABLE, first)
    for line in block:
        say(line)
    return exit_code


def _fault(asked: Asked, exit_code: int, why: str) -> int:
    return fault_out(_COMMAND, exit_code, why, as_json=asked.as_json)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most 3600")
    return seconds


def _chosen(vectors: Iterable[Vector], only: Sequence[str]) -> list[Vector]:
    """By their names; a name stands for all below it, too."""
    globs = [*only, *(f"{glob.rstrip('/')}/*" for glob in only)]
    return [vector for vector in vectors if not only or any(fnmatchcase(vector.name, glob) for glob in globs)]


# --- what the command can do ------------------------------------------------------------------------------------


def _written(asked: Asked, goldens: Goldens, directory: Path) -> int:
    texts = {name: goldens.text(f"daemon/{name}") for name in _DAEMON_FILES}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            with (directory / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except FileExistsError as error:
        return _fault(asked, os.EX_CANTCREAT, f"{error.filename} is there already, and is left alone")
    except OSError as error:
        return _fault(asked, os.EX_CANTCREAT, f"{error.filename} can't be written: {error.strerror}")
    config, socket = directory / "config.toml", directory / "s.sock"
    if asked.as_json:
        line_out(json.dumps({"ok": True, "config": str(config), "socket": str(socket)}))
    else:
        line_out(f"sidecar serve --config {shlex.quote(str(config))}")
        line_out(f"{_COMMAND} --socket {shlex.quote(str(socket))}")
    return os.EX_OK


def _listed(asked: Asked, goldens: Goldens) -> int:
    daemons = [] if asked.client is not None else _chosen(conversations(goldens), asked.only)
    clients = [] if asked.socket is not None else _chosen(client_vectors(goldens), asked.only)
    names = {"daemon": [one.name for one in daemons], "client": [one.name for one in clients]}
    if asked.as_json:
        line_out(json.dumps(names, indent=1))
        return os.EX_OK
    for side, of_side in names.items():
        for name in of_side:
            line_out(f"{side}  {name}")
    return os.EX_OK


def _proven(asked: Asked, goldens: Goldens) -> int:
    verdicts: list[Verdict] = []

    def tell(verdict: Verdict) -> None:
        verdicts.append(verdict)
        if not asked.as_json and verdict.state != "passed":
            _told(verdict)

    with Stops() as stops:  # which raises Stopped where it is left, once the run has ended what it has started
        if asked.socket is not None:
            playing = _chosen(conversations(goldens), asked.only)
            play = partial(_play, playing, goldens, asked.socket, asked.timeout_seconds, tell)
        else:
            assert asked.client is not None
            proving = _chosen(client_vectors(goldens), asked.only)
            play = partial(_prove, proving, asked.client, asked.timeout_seconds, tell)
        trio.run(_until_stopped, stops, play)
    if not verdicts:
        return _fault(asked, os.EX_USAGE, f"no vector is called {' or '.join(asked.only)}; --list names them all")
    return _summed_up(asked, verdicts)


async def _until_stopped(stops: Stops, play: Callable[[], Awaitable[None]]) -> None:
    """Cancels it at a stop signal; whoever is cancelled ends what runs, and leaves nothing behind."""
    token = trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope, stops.telling(partial(token.run_sync_soon, scope.cancel, idempotent=True)):
        await play()


async def _play(
    playing: list[Conversation],
    goldens: Goldens,
    socket: Path,
    timeout_seconds: float,
    tell: Callable[[Verdict], None],
) -> None:
    if not playing:
        return
    terms = await terms_of(socket, timeout_seconds=timeout_seconds)
    await check_configured(socket, goldens, timeout_seconds=timeout_seconds)
    await played(playing, socket, terms, timeout_seconds=timeout_seconds, tell=tell)


async def _prove(
    proving: list[ClientVector], command: str, timeout_seconds: float, tell: Callable[[Verdict], None]
) -> None:
    if not proving:
        return
    await proven(proving, _split(command), timeout_seconds=timeout_seconds, tell=tell)


def _split(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise NoDriver(f"--client {command!r} can't be split: {error}") from None
    if not words:
        raise NoDriver("--client is empty")
    return words


# --- telling ----------------------------------------------------------------------------------------------------


def _told(verdict: Verdict) -> None:
    if verdict.state == "failed":
        line_out(f"failed: {verdict.name}")
        for why in verdict.why:
            line_out(f"    {why}")
    else:
        line_out(f"{_STATES[verdict.state]}: {verdict.name}: {'; '.join(verdict.why)}")


def _summed_up(asked: Asked, verdicts: list[Verdict]) -> int:
    counts = counted(verdicts)
    exit_code = os.EX_DATAERR if counts["failed"] else os.EX_OK
    if asked.as_json:
        told = {
            "ok": exit_code == os.EX_OK,
            "exit_code": exit_code,
            "counts": {state: counts[state] for state in _STATES},
            "vectors": to_builtins(verdicts),
        }
        line_out(json.dumps(told, indent=1))
        return exit_code
    line_out(", ".join(f"{counts[state]} {word}" for state, word in _STATES.items() if counts[state]))
    if not counts["passed"] and not counts["failed"]:
        say(f"{_COMMAND}: nothing was proven")
    return exit_code
