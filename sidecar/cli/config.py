"""`sidecar config`: a configuration to begin with, what one amounts to, and its schema for editors."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from sidecar.cli.output import fault_out, say, write_out
from sidecar.cli.setup import add_config_argument, load_config
from sidecar.config.effective import as_toml, document
from sidecar.config.keys import ConfigFaults
from sidecar.config.reading import reading_of
from sidecar.config.schema import schema
from sidecar.config.starter import BASE_URLS, PRICES, Provider, starter
from sidecar.connectors.kinds import config_keys

_PACKAGE: Final = Path(__file__).resolve().parents[1]
# The published schema, which a wheel carries and a checkout has beside the package.
_SCHEMAS: Final = tuple(
    folder / "schemas" / "config.schema.json" for folder in (_PACKAGE / "conformance", _PACKAGE.parent)
)
_PRICE_OPTIONS: Final = tuple(f"price_{name}" for name in PRICES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sidecar config` takes."""
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART", parser_class=type(parser))
    showing = _part(parts, "show", "the configuration as it is understood; secrets are named, never shown")
    add_config_argument(showing)
    what = "every key, with the defaults; default: what differs from them"
    showing.add_argument("--effective", action="store_true", help=what)
    showing.add_argument("--json", action="store_true", help="as one JSON object; default: TOML")
    beginning = _part(parts, "init", "a configuration to begin with, which serves as it stands")
    _add_init(beginning)
    describing = _part(parts, "schema", "the JSON Schema of the configuration, for editors")
    describing.description = "For an editor that knows TOML: the file's first line names the schema, `#:schema PATH`."


def _part(parts: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str) -> argparse.ArgumentParser:
    return parts.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.", allow_abbrev=False)


def _add_init(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--output", type=Path, metavar="FILE", help="where to write it, if nothing is there; default: stdout")
    add("--system", action="store_true", help="for the service that systemd starts; default: for this user, here")
    add("--caller", default="dungeon", metavar="ID", help="who may call; default: %(default)s")
    add("--user", metavar="NAME", help="... as this user; default: the daemon's own")
    add("--group", metavar="NAME", help="... in this group; default: any")
    add("--unit", metavar="UNIT", help="... in this systemd service; default: any")
    kinds = ", ".join(BASE_URLS)
    add("--provider", choices=BASE_URLS, metavar="KIND", help=f"whose API: {kinds}; default: the scripted connector")
    add("--base-url", metavar="URL", help="where it is; default: the provider's own")
    what = "the name of its key, never the key; wanted with --provider, but for a server that is reached by http"
    add("--credential", metavar="NAME", help=what)
    add("--model", metavar="NAME", help="what callers ask for; wanted with --provider")
    add("--upstream", metavar="NAME", help="what the provider calls it; default: as --model")
    for name in PRICES:
        what = f"{name} tokens, in micro-USD per million; wanted with --provider"
        add(f"--price-{name.replace('_', '-')}", type=int, metavar="N", help=what)


def run(arguments: argparse.Namespace) -> int:
    """The part that the command line names. Returns its exit code."""
    if arguments.part == "schema":
        write_out(json.dumps(schema(config_keys()), indent=2) + "\n")
        return os.EX_OK
    return _show(arguments) if arguments.part == "show" else _init(arguments)


def _show(arguments: argparse.Namespace) -> int:
    try:
        config = load_config(arguments.config)
    except ConfigFaults as faults:
        for complaint in faults.complaints:
            say(str(complaint))
        return os.EX_CONFIG
    shown = document(config, config_keys(), with_defaults=arguments.effective)
    write_out(json.dumps(shown, indent=2, default=_plain) + "\n" if arguments.json else as_toml(shown))
    return os.EX_OK


def _plain(value: Any) -> str:
    assert isinstance(value, datetime), "nothing else of TOML is unknown to JSON"
    return value.isoformat()


def _init(arguments: argparse.Namespace) -> int:
    if (missing := _missing(arguments)) is not None:
        return fault_out("sidecar config init", os.EX_USAGE, missing, as_json=False)
    names = ("user", "group", "unit")
    text = starter(
        is_system=arguments.system,
        caller=arguments.caller,
        peer={name: said for name in names if (said := getattr(arguments, name)) is not None},
        provider=_provider(arguments) if arguments.provider else None,
        schema=next((path for path in _SCHEMAS if path.exists()), None),
    )
    reading = reading_of(text, (arguments.output or Path("config.toml")).parent, config_keys())
    if reading.complaints:
        for complaint in reading.complaints:
            say(f"sidecar config init: {complaint.path}: {complaint.what} — {complaint.hint}")
        return os.EX_USAGE
    if arguments.output is None:
        write_out(text)
        return os.EX_OK
    try:
        with open(arguments.output, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        why = f"{arguments.output} is there already: it is left as it is"
        return fault_out("sidecar config init", os.EX_CANTCREAT, why, as_json=False)
    except OSError as error:
        why = f"{arguments.output}: {error.strerror or error}"
        return fault_out("sidecar config init", os.EX_CANTCREAT, why, as_json=False)
    say(f"{arguments.output} is written; next: sidecar check --config {arguments.output}")
    return os.EX_OK


def _missing(arguments: argparse.Namespace) -> str | None:
    """What a provider needs and was not said, or what was said of one that was not named."""
    of_provider = ("base_url", "credential", "model", "upstream", *_PRICE_OPTIONS)
    if arguments.provider is None:
        said = [name for name in of_provider if getattr(arguments, name) is not None]
        return f"{_options(said)} stands without --provider" if said else None
    is_local = arguments.base_url is not None and arguments.base_url.startswith("http:")  # such a server has no key
    names = ("model", *_PRICE_OPTIONS) if is_local else ("credential", "model", *_PRICE_OPTIONS)
    wanted = [name for name in names if getattr(arguments, name) is None]
    return f"--provider wants {_options(wanted)} too; a price is never guessed" if wanted else None


def _options(names: Sequence[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _provider(arguments: argparse.Namespace) -> Provider:
    return Provider(
        kind=arguments.provider,
        base_url=arguments.base_url or BASE_URLS[arguments.provider],
        credential=arguments.credential,
        model=arguments.model,
        upstream=arguments.upstream or arguments.model,
        prices={name: getattr(arguments, f"price_{name}") for name in PRICES},
    )
