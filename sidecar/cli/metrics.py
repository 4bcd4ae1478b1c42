"""`sidecar metrics`: what the daemon has counted and holds, as Prometheus text: to stdout, as JSON, or in a file."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from sidecar.cli import operator_call, typed
from sidecar.cli.output import fault_out, write_out
from sidecar.contract.operator_frames import OPERATOR_METRICS, OperatorMetered, OperatorMetrics
from sidecar.ops.metrics import read_samples
from sidecar.ops.text_file import write_whole

_SECONDS_MAX: Final = 10.0
EXIT_CODES: Final[Mapping[int, str]] = {
    os.EX_OK: "told, or written",
    **operator_call.EXIT_CODES,
    os.EX_CANTCREAT: "the file of --output can't be written",
}
_ABOUT: Final = """\
For an operator: a peer that an [[operator]] of the configuration means. Money is in dollars, exact to the micro-dollar.
Without a timer of yours, [metrics] in the configuration has the daemon write such a file by itself."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sidecar metrics` takes; the exit codes stand below it."""
    add = parser.add_argument
    add("--socket", type=typed.a_socket, required=True, metavar="PATH", help="where the daemon listens; always wanted")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="a JSON object a line, for each sample; default: off")
    what = "in this file, written whole and readable for all, for the node exporter's text-file collector"
    how.add_argument("--output", type=Path, metavar="FILE", help=f"{what}; default: to stdout")
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser.epilog = f"{_ABOUT}\n\nexit codes:\n{codes}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def run(arguments: argparse.Namespace) -> int:
    """Returns the exit code."""
    output: Path | None = arguments.output

    def tell(metered: OperatorMetered) -> int:
        if output is None:
            write_out("".join(_json_lines(metered.exposition)) if arguments.json else metered.exposition)
            return os.EX_OK
        try:
            write_whole(output, metered.exposition)
        except OSError as error:
            why = f"{output} can't be written: {error.strerror or error}"
            return fault_out("sidecar metrics", os.EX_CANTCREAT, why, as_json=False)
        return os.EX_OK

    asked = OperatorMetrics(schema_id=OPERATOR_METRICS)
    return operator_call.asked(
        "metrics", arguments.socket, asked, OperatorMetered, tell, seconds_max=_SECONDS_MAX, as_json=arguments.json
    )


def _json_lines(exposition: str) -> Iterator[str]:
    """Numbers as they stand: none goes through a float."""
    for name, labels, value in read_samples(exposition):
        number = value if value[-1].isdigit() else json.dumps(value)
        yield f'{{"name": {json.dumps(name)}, "labels": {json.dumps(labels)}, "value": {number}}}\n'
