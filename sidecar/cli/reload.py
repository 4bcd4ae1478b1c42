"""`sidecar reload`: the running daemon reads its configuration again, and says what changed, or what is wrong."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import Final

from sidecar.cli import operator_call, typed
from sidecar.cli.output import line_out, say
from sidecar.contract.operator_frames import OPERATOR_RELOAD, OperatorReload, OperatorReloaded

EXIT_CODES: Final[Mapping[int, str]] = {
    os.EX_OK: "all of it is in force",
    **operator_call.EXIT_CODES,
    os.EX_CONFIG: "something in it is wrong, or can't change while the daemon runs: all is as before",
}
_WHAT_IT_DOES: Final = """\
For operators. The daemon reads the file that it was started with, and credentials, scripts and recordings; if all of
it is right, all of it is in force, at once. Requests that run keep the terms that they were admitted on."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sidecar reload` takes; the exit codes stand below it."""
    add = parser.add_argument
    add("--socket", type=typed.a_socket, required=True, metavar="PATH", help="where the daemon listens; always wanted")
    add("--json", action="store_true", help="one JSON object instead of lines; default: off")
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser.epilog = f"{_WHAT_IT_DOES}\n\nexit codes:\n{codes}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def run(arguments: argparse.Namespace) -> int:
    """Waits for as long as the reload takes: it may have to add up a ledger."""
    asked = OperatorReload(schema_id=OPERATOR_RELOAD)

    def tell(told: OperatorReloaded) -> int:
        exit_code = os.EX_OK if told.reloaded else os.EX_CONFIG
        if arguments.json:
            document = {
                "ok": told.reloaded,
                "exit_code": exit_code,
                "changes": list(told.changes),
                "complaints": list(told.complaints),
                "warnings": list(told.warnings),
            }
            line_out(json.dumps(document, indent=2))
        else:
            _show(told)
        return exit_code

    return operator_call.asked(
        "reload", arguments.socket, asked, OperatorReloaded, tell, seconds_max=None, as_json=arguments.json
    )


def _show(told: OperatorReloaded) -> None:
    for warning in told.warnings:
        say(f"warning: {warning}")
    for complaint in told.complaints:
        say(complaint)
    if not told.reloaded:
        say("sidecar reload: refused, the configuration is as before")
        return
    for change in told.changes:
        line_out(change)
    line_out("reloaded" if told.changes else "reloaded; nothing is different")
