"""The command line: one subcommand a file, exit codes after sysexits."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from sidecar.cli.asking import asked_by
from sidecar.cli.call import add_arguments as add_call_arguments
from sidecar.cli.call import call
from sidecar.cli.cancel import add_arguments as add_cancel_arguments
from sidecar.cli.cancel import cancel
from sidecar.cli.check import check
from sidecar.cli.conformance import add_arguments as add_conformance_arguments
from sidecar.cli.conformance import asked_by as conformance_asked_by
from sidecar.cli.conformance import conformance
from sidecar.cli.demo import demo
from sidecar.cli.ledger import add_arguments as add_ledger_arguments
from sidecar.cli.ledger import run as run_ledger_tool
from sidecar.cli.output import StdoutLost, say, write_out
from sidecar.cli.quote import add_arguments as add_quote_arguments
from sidecar.cli.quote import quote
from sidecar.cli.serve import serve
from sidecar.cli.status import add_arguments as add_status_arguments
from sidecar.cli.status import status
from sidecar.cli.stops import Stopped
from sidecar.ops.version import version_of_sidecar

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_CONFIG_HELP: Final = "the configuration, TOML; always wanted"


class _Parser(argparse.ArgumentParser):
    """argparse, but a wrong command line exits with 64 (EX_USAGE), and a help that can't be written is no success."""

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        if file is None:
            write_out(self.format_help())
        else:
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(os.EX_USAGE, f"{self.prog}: {message}{_hint(self.prog, message)}\n")


def _hint(prog: str, message: str) -> str:
    """What most likely went wrong with a text."""
    if not prog.endswith((" call", " quote")):
        return ""
    if message.endswith(" TEXT"):
        return "; a text that begins with a dash is written after --"
    if message.startswith("unrecognized arguments: "):
        return "; a text of several words is quoted, and one that begins with a dash is written after --"
    return ""


class _Version(argparse.Action):
    """Looked up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        write_out(f"sidecar {version_of_sidecar()}\n")
        parser.exit()


def _parser() -> tuple[_Parser, Mapping[str, argparse.ArgumentParser]]:
    """The parser of the command line, and those of its commands."""
    parser = _Parser(prog="sidecar", description="The local daemon through which games talk to language models.")
    parser.suggest_on_error = True  # type: ignore[attr-defined]  # Python 3.14 and later look at it
    parser.add_argument("--version", action=_Version, nargs=0, help="say which version this is, and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    serving = commands.add_parser("serve", help="run the daemon in the foreground")
    serving.add_argument("--config", type=Path, required=True, metavar="FILE", help=_CONFIG_HELP)
    serving.add_argument("--log-format", choices=("text", "journal", "json"), help="default: what fits stderr")

    checking = commands.add_parser("check", help="say everything that is wrong with a configuration")
    checking.add_argument("--config", type=Path, required=True, metavar="FILE", help=_CONFIG_HELP)
    checking.add_argument("--json", action="store_true", help="one JSON object instead of lines; default: off")

    calling = commands.add_parser("call", help="ask once: the answer's text to stdout, its receipt to stderr")
    add_call_arguments(calling)
    add_quote_arguments(commands.add_parser("quote", help="what a call would be answered now, and cost at worst"))
    add_cancel_arguments(commands.add_parser("cancel", help="end a request that is running: its deadline is now"))
    add_status_arguments(
        commands.add_parser("status", help="what the daemon holds: callers and their money, models, connectors")
    )

    add_ledger_arguments(
        commands.add_parser("ledger", help="an operator's tools: verify, show, spend, export, resolve, check, repair")
    )

    add_conformance_arguments(
        commands.add_parser("conformance", help="prove a daemon, or a client in any language, against the goldens")
    )
    commands.add_parser("demo", help="a conversation, a replay, a refusal and the ledger, in a temporary directory")
    return parser, commands.choices


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says; what is wrong with it is said by the command that it is for."""
    parser, commands = _parser()
    asked, left = parser.parse_known_args(arguments)
    if left:
        at = getattr(asked, "parser", commands[asked.command])  # a tool within a command has its own
        at.error(f"unrecognized arguments: {' '.join(left)}")
    return asked


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
    asked = _parsed(arguments)
    if asked.command == "serve":
        return serve(asked.config, asked.log_format)
    if asked.command == "check":
        return check(asked.config, as_json=asked.json)
    if asked.command == "call":
        return call(asked_by(asked))
    if asked.command == "quote":
        return quote(asked_by(asked))
    if asked.command == "cancel":
        return cancel(asked)
    if asked.command == "status":
        return status(asked)
    if asked.command == "conformance":
        return conformance(conformance_asked_by(asked))
    if asked.command == "ledger":
        return run_ledger_tool(asked)
    return demo()
