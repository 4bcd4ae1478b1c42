"""A daemon under test: started, told what to answer, asked what it was asked, killed.

    with spawned() as daemon:
        daemon.on(text="dragon").says("It ", "sleeps.")
        with daemon.client() as client:
            ...

It is the real daemon, as `python -m sidecar serve` runs it, in a temporary
folder; only its provider is a script. It ends with the process of the test,
however that ends; a test that is killed leaves its temporary folder behind.

Everything here blocks, so in an async test the loop stands still meanwhile.
What is said, asked and killed takes moments. These take longer:

    spawned, restart, begin_anew where the daemon has ended    about half a second, until it takes connections
    stop, and restart of a daemon that runs                    until what runs has ended: `drain_seconds_max`, 2 s here
    wait_asked                                                 until it is asked, `seconds_max` at most

An async test whose own client has to go on for these to end calls them in a
thread: `await trio.to_thread.run_sync(daemon.wait_asked)`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from sidecar.contract.values import ProviderRequest
from sidecar.rules.framing import SOCKET_PATH_BYTES_MAX
from sidecar.testing.answered import is_answered
from sidecar.testing.answers import Answers, On, Script
from sidecar.testing.asked import AskedRequests
from sidecar.testing.configuration import ASKED, LEDGER, NOTHING, SCRIPT, SOCKET, Named, Settings, config_text, names_of
from sidecar.testing.faults import FolderInUse, NotAnswering, NotAsked, SocketPathTooLong
from sidecar.testing.log_lines import LogLine, LogLines
from sidecar.testing.process import Process, shown
from sidecar.testing.recorded import RecordedRequest, requests_in
from sidecar.testing.refusals import RefusedRequest, is_flooded, refusals_in
from sidecar.testing.served import Served, served_by

if TYPE_CHECKING:
    from sidecar.client import AsyncClient, Client

_CONFIG: Final = "sidecar.toml"
_LOOK_SECONDS: Final = 0.005  # between two looks at what was asked
_CONNECT_SECONDS_MAX: Final = 2.0  # the daemon is there, or a test has ended it, and then nobody starts it meanwhile
_SHORT: Final = Path("/tmp")  # where the usual folder for temporary files is too long for a socket
_ROOM_BYTES: Final = len("/sidecar-12345678/") + len(SOCKET)


class Daemon(Answers):
    """A daemon that runs on the configuration in `folder`; see `spawned`.

    Said of the daemon itself (`daemon.says("...")`), an answer is one to every request; `on` says to which.
    """

    def __init__(self, folder: Path, *, callers: tuple[str, ...], models: tuple[str, ...]) -> None:
        self.folder = folder
        self.callers = callers
        self.models = models
        self._script = Script(folder / SCRIPT)
        self._asked = AskedRequests(folder / ASKED)
        self._lines = LogLines()
        self._marks = _Marks()
        self._start()

    # --- reaching it ------------------------------------------------------------------------------------------

    @property
    def socket(self) -> Path:
        """Where it listens, for a client in any language."""
        return self.folder / SOCKET

    @property
    def env(self) -> dict[str, str]:
        """This process's environment with `SIDECAR_SOCKET`, for a program that is tested as its own process."""
        return {**os.environ, "SIDECAR_SOCKET": str(self.socket)}

    def client(self, caller: str | None = None, **settings: Any) -> Client:
        """A blocking client, not yet entered; `settings` are those of `sidecar.client.Client`.

        `caller` has to be said where there are several. A daemon that is not there is waited for for 2 s, unless
        `connect_seconds_max` says otherwise.
        """
        from sidecar.client import Client  # only where it is used: a game in another language brings its own

        return Client(self.socket, caller=caller, **{"connect_seconds_max": _CONNECT_SECONDS_MAX, **settings})

    def async_client(self, caller: str | None = None, **settings: Any) -> AsyncClient:
        """The client for Trio and asyncio, not yet entered; `settings` are those of `sidecar.client.AsyncClient`.

        `caller` and `connect_seconds_max` as for `client`.
        """
        from sidecar.client import AsyncClient  # as above

        return AsyncClient(self.socket, caller=caller, **{"connect_seconds_max": _CONNECT_SECONDS_MAX, **settings})

    # --- what it answers --------------------------------------------------------------------------------------

    def on(
        self,
        *,
        model: str | None = None,
        text: str | None = None,
        text_matches: str | None = None,
        tool: str | None = None,
        times: int | None = None,
    ) -> On:
        """Requests for this model, whose last user text contains this or matches this expression, or that end with a
        result of this tool; all that is given must hold. `times`: so often and then no more.

        Raises WrongRule for a model that is not served, or not by what tests say.
        """
        self._served.check_sayable(model)
        case = {"model": model, "text": text, "text_matches": text_matches, "tool": tool, "times": times}
        return On(self._script, {name: value for name, value in case.items() if value is not None})

    def forget(self) -> None:
        """All that was said is gone: it echoes again."""
        self._script.forget()

    def _say(self, rule: dict[str, Any]) -> None:
        self._served.check_sayable(None)
        self._script.add(rule)

    # --- what happened ----------------------------------------------------------------------------------------

    @property
    def asked(self) -> list[ProviderRequest]:
        """What its provider, the script, was asked, in order; a request is here before anybody has its answer.

        What other connectors of `extra_toml` were asked is in `requests`. Raises NotScripted where all models are
        theirs.
        """
        self._served.check_scripted("asked can't tell: look at requests, and at the lines of log")
        return self._asked.all()[self._marks.asked :]

    def wait_asked(self, count: int = 1, *, seconds_max: float = 5.0) -> list[ProviderRequest]:
        """Blocks until its provider has been asked so often, all in all; returns what it was asked.

        By then a request is open in the ledger and not yet answered, so it can be cancelled, or the daemon killed, in
        the middle of it. Raises NotAsked where the daemon ends before, or the time does.
        """
        give_up_at = time.monotonic() + seconds_max
        while True:
            ended, late = self.exit_code is not None, time.monotonic() >= give_up_at  # looked at before the file is
            asked = self.asked
            if len(asked) >= count:
                return asked
            if ended or late:
                why = "and the daemon has ended" if ended else f"within {seconds_max:g} s"
                told = f"the provider was asked {len(asked)} times, not {count}, {why}"
                raise NotAsked(f"{told}\n{self.log_tail()}")
            time.sleep(_LOOK_SECONDS)

    @property
    def refused(self) -> list[RefusedRequest]:
        """What it has refused, in order. Raises LogIncomplete where that were not all."""
        self._take_log()
        return refusals_in(self._lines.all(), self._marks.lines)

    @property
    def requests(self) -> list[RecordedRequest]:
        """What is in its ledger, in the order of admission: also what runs, and what a crash left open."""
        return [one for one in self._recorded() if one.begin not in self._marks.requests]

    @property
    def charged_micro_usd(self) -> int:
        """What all requests that have ended came to."""
        return sum(one.charge_micro_usd or 0 for one in self.requests)

    @property
    def log(self) -> list[LogLine]:
        """All that it has written so far, over all its starts."""
        self._take_log()
        return self._lines.all(self._marks.lines)

    def log_tail(self, lines: int = 30) -> str:
        """The last lines of `log` as text, with a heading. Asks the daemon nothing."""
        self._process.take_log()
        return shown(self._lines.all(self._marks.lines), lines).lstrip("\n; ")

    def begin_anew(self) -> None:
        """What was said is forgotten, and what happened so far is no longer told of; what is spent stays spent.

        A daemon that ends is started again. So is one that has been flooded with what it refused: for the rest of that
        second it would write no line of what it refuses next.
        """
        self.forget()
        self._take_log()
        if self.exit_code is not None or is_flooded(self._lines.all(), self._marks.lines):
            self.kill()
            self.restart()
        begun = frozenset(one.begin for one in self._recorded())
        self._marks = _Marks(asked=len(self._asked.all()), lines=len(self._lines), requests=begun)

    # --- its process ------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.exit_code

    def kill(self) -> None:
        """As a crash, or the power, would: what runs is left open in the ledger."""
        self._process.kill()

    def stop(self) -> int:
        """As `systemctl stop` would: what runs may finish, for `drain_seconds_max`. Returns the exit code.

        Beside a request that hangs it takes all of that time: 2 s, unless `spawned(daemon=...)` was told otherwise.
        """
        return self._process.stop()

    def restart(self) -> None:
        """Starts it again, on the same ledger and with what was said; where it runs, it is stopped before.

        How often a rule with `times` has answered is not kept.
        """
        if self.exit_code is None:
            self.stop()
        self._start()

    # --- inside -----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._process = Process(self.folder / _CONFIG, self._lines)
        self._served: Served = served_by(self.folder / _CONFIG)

    def _recorded(self) -> list[RecordedRequest]:
        return requests_in(self.folder / LEDGER)

    def _take_log(self) -> None:
        """All lines that were written about answers which somebody holds by now.

        A line goes out in the same turn of the daemon's loop as the answer that it is about, perhaps behind it; an
        answer to something asked later comes in a later turn.
        """
        if self.exit_code is None:
            try:
                is_answered(self.socket)
            except TimeoutError:
                raise NotAnswering(f"the daemon runs, and doesn't answer{shown(self._lines.all())}") from None
        self._process.take_log()


@contextmanager
def spawned(
    *,
    callers: Named = ("dungeon",),
    models: Named = ("npc-fast",),
    daemon: Settings = NOTHING,
    ledger: Settings = NOTHING,
    connector: Settings = NOTHING,
    extra_toml: str = "",
    folder: Path | None = None,
) -> Iterator[Daemon]:
    """A daemon that takes connections when this is entered, and is killed when it is left.

    `callers` and `models` are names, or names with what each wants otherwise than the kit has it, by the keys of the
    configuration: `callers={"miser": {"spend_ceiling_micro_usd": 1_000}}`, `models={"npc": {"price": {"output": 0}}}`.
    `daemon`, `ledger` and `connector` are the same for those tables; `extra_toml` is put behind it all, with tables of
    its own. Everything is in a temporary folder that goes with it; one that is given stays, and what is in its ledger
    is served.

    Raises NoSidecar, NotReady (with the daemon's own words, so also for settings that it doesn't take), FolderInUse,
    SocketPathTooLong.
    """
    text = config_text(
        callers=callers, models=models, daemon=daemon, ledger=ledger, connector=connector, extra_toml=extra_toml
    )
    with ExitStack() as stack:
        if folder is None:
            made = tempfile.TemporaryDirectory(prefix="sidecar-", dir=_place_for_folders())
            folder = Path(stack.enter_context(made))
        folder = folder.absolute()
        _check_socket(folder / SOCKET)
        (folder / _CONFIG).write_text(text, encoding="utf-8")
        started = Daemon(folder, callers=names_of(callers), models=names_of(models))
        stack.callback(started.kill)
        yield started


class _Marks(Struct, frozen=True, kw_only=True):
    """From where on it is told what happened."""

    asked: int = 0
    lines: int = 0
    requests: frozenset[tuple[int, int]] = frozenset()


def _place_for_folders() -> Path | None:
    """None is the usual one."""
    is_too_long = len(os.fsencode(tempfile.gettempdir())) + _ROOM_BYTES > SOCKET_PATH_BYTES_MAX
    return _SHORT if is_too_long and os.access(_SHORT, os.W_OK) else None


def _check_socket(path: Path) -> None:
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_BYTES_MAX:
        raise SocketPathTooLong(
            f"{path} has {length} bytes, and the kernel takes {SOCKET_PATH_BYTES_MAX} for a socket: a shorter folder is"
            " needed, or none, and then a shorter TMPDIR"
        )
    try:
        is_in_use = is_answered(path)
    except TimeoutError:
        is_in_use = True
    if is_in_use:
        raise FolderInUse(f"another daemon runs in {path.parent}: give each a folder of its own, or end the other")
