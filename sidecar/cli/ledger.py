"""`sidecar ledger`: what an operator does with a ledger. One tool a file; here is what each takes.

All but `resolve`, `check` and `repair` only read the directory, take no lock,
and work beside a live daemon. The first two can ask the daemon that holds the
ledger, as an operator.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypeAlias, get_args

from sidecar.audit.requests import STATES
from sidecar.cli import ledger_check, ledger_reading, ledger_repair, ledger_resolve, ledger_spend
from sidecar.cli.ledger_check import check
from sidecar.cli.ledger_export import export
from sidecar.cli.ledger_repair import repair
from sidecar.cli.ledger_resolve import resolve, resolve_through
from sidecar.cli.ledger_show import Wanted, show
from sidecar.cli.ledger_spend import WINDOW_SECONDS_DEFAULT, spend
from sidecar.cli.ledger_verify import verify
from sidecar.contract.ids import is_id
from sidecar.contract.operator_frames import (
    OPERATOR_RESOLVE,
    WHO_CHARACTERS_MAX,
    WHY_CHARACTERS_MAX,
    OperatorResolve,
    ResolutionCharge,
    are_words,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INSTANT: Final = "an instant: Unix milliseconds, or as 2026-01-31T18:00 (UTC unless it says more)"
_WINDOW_SECONDS_MAX: Final = 100 * 365 * 86_400
_SOCKET: Final = "where the daemon listens"
_JSON_LINES: Final = "JSON Lines instead of a table; default: off"


_Tools: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The tools, each a command of its own."""
    tools = parser.add_subparsers(dest="tool", required=True, metavar="TOOL", parser_class=type(parser))

    verifying = _tool(tools, "verify", "whether it is what a daemon wrote; says the chain's head")
    verifying.add_argument("--json", action="store_true", help="one JSON object instead of lines; default: off")

    showing = _tool(tools, "show", "its requests, one a line")
    showing.description = (
        "The requests of the ledger in DIRECTORY, one a line: in the order in which they ended, and then those that"
        " have not, in the order in which they began. What an operator settled is told with who did."
    )
    showing.add_argument("--caller", metavar="ID", help="only of this caller; default: all")
    showing.add_argument("--model", metavar="NAME", help="only for this model; default: all")
    showing.add_argument("--state", choices=STATES, help="only in this state; default: all")
    showing.add_argument("--since", type=_instant, metavar="TIME", help=f"only admitted from here on, {_INSTANT}; "
                         "default: all")  # fmt: skip
    showing.add_argument("--until", type=_instant, metavar="TIME", help="only admitted before; default: all")
    showing.add_argument("--json", action="store_true", help=_JSON_LINES)

    what = "what each caller's requests came to, by model and window"
    spending = _tool(tools, "spend", what, ledger_spend.EXIT_CODES)
    spending.add_argument("--window-seconds", type=_window, default=WINDOW_SECONDS_DEFAULT, metavar="N",
                          help="length of a window; default: %(default)s")  # fmt: skip
    spending.add_argument("--config", type=Path, metavar="FILE",
                          help="the callers in it have their own spend_window_seconds; default: none")  # fmt: skip
    spending.add_argument("--json", action="store_true", help=_JSON_LINES)

    exporting = _tool(tools, "export", "all of it as JSON Lines, the same bytes for the same ledger")
    exporting.add_argument("--csv", action="store_true", help="one row for each request instead; default: off")

    _add_resolve(tools)
    _add_check(tools)
    _add_repair(tools)


def _add_resolve(tools: _Tools) -> None:
    resolving = _named(tools, "resolve", "settle an Indeterminate request", ledger_resolve.EXIT_CODES)
    resolving.description = "An Indeterminate request is settled: by the daemon on a socket, or in a ledger at rest."
    resolving.add_argument("directory", type=Path, nargs="?", metavar="DIRECTORY",
                           help="a ledger that no daemon holds; this or --socket")  # fmt: skip
    resolving.add_argument("--socket", type=_path, metavar="PATH", help=f"{_SOCKET}; this or DIRECTORY, default: none")
    always = resolving.add_argument
    always("--caller", required=True, type=_id, metavar="ID", help="whose request; always wanted")
    always("--request", required=True, type=_id, metavar="ID", help="which request; always wanted")
    always(
        "--charge",
        required=True,
        choices=get_args(ResolutionCharge),
        help="what its caller is charged; always wanted",
    )
    always("--who", required=True, type=_words(WHO_CHARACTERS_MAX), metavar="NAME", help="who decides; always wanted")
    always(
        "--why", required=True, type=_words(WHY_CHARACTERS_MAX), metavar="TEXT", help="for the record; always wanted"
    )


def _add_check(tools: _Tools) -> None:
    checking = _named(
        tools, "check", "whether a daemon's accounts are what its records add up to", ledger_check.EXIT_CODES
    )
    checking.description = (
        "The daemon reads its ledger again, beside its work, and compares each caller's windows with its accounts."
        " Where they differ, it stops."
    )
    checking.add_argument("--socket", type=_path, required=True, metavar="PATH", help=f"{_SOCKET}; always wanted")
    checking.add_argument("--json", action="store_true", help="one JSON object instead of lines; default: off")


def _add_repair(tools: _Tools) -> None:
    what = "what can still be read of a damaged one, as a new ledger and a report"
    repairing = _tool(tools, "repair", what, ledger_repair.EXIT_CODES)
    repairing.add_argument("new_directory", type=Path, metavar="NEW_DIRECTORY", help="must not be there, or be empty")
    repairing.add_argument("--config", type=Path, metavar="FILE", help="a lost request may have been given its "
                           "expiry_skew_seconds_max; default: 300 s, or the longest on record")  # fmt: skip
    repairing.add_argument("--json", action="store_true", help="the report instead of lines; default: off")


def run(asked: argparse.Namespace) -> int:
    """The tool that the command line names. Returns its exit code."""
    if asked.tool == "check":
        return check(asked.socket, as_json=asked.json)
    if asked.tool == "resolve":
        return _run_resolve(asked)
    directory: Path = asked.directory
    if asked.tool == "verify":
        return verify(directory, as_json=asked.json)
    if asked.tool == "show":
        wanted = Wanted(
            caller=asked.caller,
            model=asked.model,
            state=asked.state,
            since_unix_ms=asked.since,
            until_unix_ms=asked.until,
        )
        return show(directory, wanted, as_json=asked.json)
    if asked.tool == "spend":
        return spend(directory, window_seconds=asked.window_seconds, config=asked.config, as_json=asked.json)
    if asked.tool == "repair":
        return repair(directory, asked.new_directory, config=asked.config, as_json=asked.json)
    return export(directory, as_csv=asked.csv)


def _run_resolve(asked: argparse.Namespace) -> int:
    if asked.directory is None and asked.socket is None:
        asked.parser.error("one of DIRECTORY and --socket is wanted")
    if asked.directory is not None and asked.socket is not None:
        asked.parser.error("DIRECTORY or --socket, not both: a ledger at rest, or the daemon that holds one")
    verdict = OperatorResolve(
        schema_id=OPERATOR_RESOLVE,
        caller_runtime_id=asked.caller,
        request_id=asked.request,
        charge=asked.charge,
        who=asked.who,
        why=asked.why,
    )
    return resolve(asked.directory, verdict) if asked.socket is None else resolve_through(asked.socket, verdict)


def _tool(
    tools: _Tools, name: str, what: str, codes: Mapping[int, str] = ledger_reading.EXIT_CODES
) -> argparse.ArgumentParser:
    """One that takes a directory."""
    parser = _named(tools, name, what, codes)
    parser.description = f"The ledger in DIRECTORY: {what}."
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="ledger.directory of the configuration")
    return parser


def _named(tools: _Tools, name: str, what: str, exit_codes: Mapping[int, str]) -> argparse.ArgumentParser:
    parser = tools.add_parser(name, help=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.epilog = _told(exit_codes)
    parser.set_defaults(parser=parser)
    return parser


def _told(codes: Mapping[int, str]) -> str:
    return "exit codes:\n" + "\n".join(f"  {code:>3}  {meaning}" for code, meaning in codes.items())


# --- what the command line may hold -----------------------------------------------------------------------------


def _path(said: str) -> Path:
    if not said:
        raise argparse.ArgumentTypeError("it is empty; a path is wanted")
    return Path(said)


def _id(said: str) -> str:
    if not is_id(said):
        raise argparse.ArgumentTypeError("an id is 1 to 256 characters of printable ASCII, without spaces")
    return said


def _instant(said: str) -> int:
    """Unix milliseconds."""
    if said.isascii() and said.isdecimal() and len(said) <= 20:
        return int(said)
    try:
        read = datetime.fromisoformat(said)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{_INSTANT} is wanted") from None
    return ((read if read.tzinfo else read.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


def _window(said: str) -> int:
    plain = said.replace("_", "")
    if not (plain.isascii() and plain.isdecimal() and len(plain) <= 12 and 1 <= int(plain) <= _WINDOW_SECONDS_MAX):
        raise argparse.ArgumentTypeError(f"a whole number from 1 to {_WINDOW_SECONDS_MAX} is wanted")
    return int(plain)


def _words(characters_max: int) -> Callable[[str], str]:
    def words(said: str) -> str:
        if not are_words(said, characters_max):
            raise argparse.ArgumentTypeError(f"1 to {characters_max} printable characters on one line are wanted")
        return said

    return words
