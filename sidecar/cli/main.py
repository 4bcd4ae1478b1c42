"""The command line: one subcommand a file, exit codes after sysexits.

A command's modules are loaded when it is named: each loads a part of the
daemon of its own, and a daemon that starts would wait for all of them and
carry them as long as it runs (the late import saves start-up time; it hides no
cycle). So each has the same two functions, which are found by name:
`add_arguments(parser)`, and `run(arguments)`, which returns the exit code.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sidecar.cli.output import StdoutLost, say, write_out
from sidecar.cli.stops import Stopped
from sidecar.ops.version import version_of_sidecar

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

# In the order of the help; each stands in a module of its name.
COMMANDS: Final[Mapping[str, str]] = {
    "serve": "run the daemon in the foreground",
    "check": "say everything that is wrong with a configuration",
    "config": "a configuration to begin with, what one amounts to, its schema",
    "call": "ask once: the answer's text to stdout, its receipt to stderr",
    "quote": "what a call would be answered now, and cost at worst",
    "cancel": "end a request that is running: its deadline is now",
    "status": "what the daemon holds: callers and their money, models, connectors",
    "reload": "have the daemon read its configuration again: all of it in force, or none",
    "metrics": "for operators: what the daemon counts, as Prometheus text, or in a file",
    "ledger": "an operator's tools: verify, show, spend, export, resolve, check, repair",
    "conformance": "prove a daemon, or a client in any language, against the goldens",
    "demo": "a conversation, a replay, a refusal and the ledger, in a temporary directory",
}


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


def _parser(named: Collection[str]) -> tuple[_Parser, Mapping[str, argparse.ArgumentParser]]:
    """The parser of the command line, and those of its commands; only the named ones know their arguments."""
    parser = _Parser(prog="sidecar", description="The local daemon through which games talk to language models.")
    parser.suggest_on_error = True  # type: ignore[attr-defined]  # Python 3.14 and later look at it
    parser.add_argument("--version", action=_Version, nargs=0, help="say which version this is, and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, what in COMMANDS.items():
        command = commands.add_parser(name, help=what)
        if name in named:
            _module(name).add_arguments(command)
    return parser, commands.choices


def _module(command: str) -> Any:
    return import_module(f"sidecar.cli.{command}")


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says; what is wrong with it is said by the command that it is for."""
    words = sys.argv[1:] if arguments is None else arguments
    parser, commands = _parser(COMMANDS.keys() & set(words))  # the command is one of the words, wherever it stands
    asked, left = parser.parse_known_args(words)
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
    exit_code: int = _module(asked.command).run(asked)
    return exit_code
