"""The command line: one subcommand a file, exit codes after sysexits."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from sidecar.cli.call import add_arguments as add_call_arguments
from sidecar.cli.call import asked_by, call
from sidecar.cli.check import check
from sidecar.cli.demo import demo
from sidecar.cli.output import StdoutLost, say, write_out
from sidecar.cli.serve import serve
from sidecar.cli.stops import Stopped

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class _Parser(argparse.ArgumentParser):
    """argparse, but a wrong command line exits with 64 (EX_USAGE), and a help that can't be written is no success."""

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        if file is None:
            write_out(self.format_help())
        else:
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(os.EX_USAGE, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="sidecar", description="The local daemon through which games talk to language models.")
    parser.suggest_on_error = True  # type: ignore[attr-defined]  # Python 3.14 and later look at it
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    serving = commands.add_parser("serve", help="run the daemon in the foreground")
    serving.add_argument("--config", type=Path, required=True, metavar="FILE")
    serving.add_argument("--log-format", choices=("text", "journal", "json"), help="by default what fits stderr")

    checking = commands.add_parser("check", help="say everything that is wrong with a configuration")
    checking.add_argument("--config", type=Path, required=True, metavar="FILE")
    checking.add_argument("--json", action="store_true", help="one JSON object instead of lines")

    calling = commands.add_parser("call", help="ask once: the answer's text to stdout, its receipt to stderr")
    add_call_arguments(calling)

    commands.add_parser("demo", help="a conversation, a replay, a refusal and the ledger, in a temporary directory")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; says what any of them can meet, a stop or a stdout that is lost."""
    try:
        return _run(arguments)
    except Stopped as stopped:
        return stopped.exit_code
    except StdoutLost as lost:
        if not lost.nobody_reads:
            say(f"sidecar: {lost}")
        return os.EX_IOERR


def _run(arguments: Sequence[str] | None) -> int:
    asked = _parser().parse_args(arguments)
    if asked.command == "serve":
        return serve(asked.config, asked.log_format)
    if asked.command == "check":
        return check(asked.config, as_json=asked.json)
    if asked.command == "call":
        return call(asked_by(asked))
    return demo()
