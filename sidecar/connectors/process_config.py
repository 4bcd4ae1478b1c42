"""What a configuration says of a process connector, and the connector that is made of it.

A child gets `PATH` and `LANG` of the daemon, what the table `environment` says,
and the connector's credential, if it has one, as `SIDECAR_CREDENTIAL`; nothing
else of the daemon's environment, where secrets of others may stand.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sidecar.config import instead
from sidecar.config.keys import Complaint, ConfigFaults, Key, KindKeys, Wrong, list_of, path_from, shaped
from sidecar.config.values import Connector as ConnectorConfig
from sidecar.connectors.child import Plan
from sidecar.connectors.kind import Kind
from sidecar.connectors.process import Process
from sidecar.ops.credentials import Secret

CREDENTIAL: Final = "SIDECAR_CREDENTIAL"
_TAKEN_OVER: Final = ("PATH", "LANG")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _keys(folder: Path) -> tuple[Key, ...]:
    return (
        Key("argv", _argv, example='argv = ["python3", "connector.py"]'),
        Key("environment", _environment, {}),
        Key("cwd", path_from(folder), folder),
    )


def _build(config: ConnectorConfig, secret: Secret | None) -> Process:
    """Raises ConfigFaults where the program can't be found, or not be run."""
    settings = config.settings
    environment = _whole_environment(settings["environment"], secret)
    plan = Plan(argv=settings["argv"], environment=environment, cwd=settings["cwd"])
    _check(plan)
    return _built(config, plan, secret)


def _build_unasked(config: ConnectorConfig) -> Process:
    """Its program is never run, so it need not be there."""
    return _built(config, Plan(argv=config.settings["argv"], environment={}, cwd=config.settings["cwd"]), None)


def _built(config: ConnectorConfig, plan: Plan, secret: Secret | None) -> Process:
    return Process(
        plan,
        name=config.name,
        secret=secret.reveal() if secret else None,
        children_max=config.concurrent_requests_max,
        time_limit_seconds=config.time_limit_seconds,
        response_bytes_max=config.response_bytes_max,
        body_bytes_max=config.body_bytes_max,
    )


@shaped(type="array", items={"type": "string"}, minItems=1)
def _argv(value: object) -> tuple[str, ...]:
    words = list_of(_word)(value)
    if not words or not words[0]:
        hint = 'write: argv = ["python3", "connector.py"]'
        raise Wrong('must name a program first, such as ["python3", "connector.py"]', hint)
    return words


def _word(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise Wrong("must be a text without NUL characters", instead.for_text(value))
    return value


@shaped(type="object", additionalProperties={"type": "string"})
def _environment(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise Wrong('must be a table of texts, such as {MODEL_FILE = "goblin.gguf"}', "write it in braces: {...}")
    for name, said in value.items():
        if not _VARIABLE.fullmatch(name):
            raise Wrong("is no name of an environment variable", "write it with letters, digits and _ only", f".{name}")
        if name == CREDENTIAL:
            hint = "leave it out here, and name the credential by: credential = ..."
            raise Wrong("is set by the connector's credential", hint, f".{name}")
        try:
            _word(said)
        except ValueError as wrong:
            raise Wrong(str(wrong), 'write a text in quotes: {NAME = "..."}', f".{name}") from None
    return value


def _whole_environment(said: Mapping[str, str], secret: Secret | None) -> dict[str, str]:
    taken_over = {name: os.environ[name] for name in _TAKEN_OVER if name in os.environ}
    credential = {CREDENTIAL: secret.reveal()} if secret else {}
    return {**taken_over, **said, **credential}


def _check(plan: Plan) -> None:
    if not plan.cwd.is_dir():
        raise ConfigFaults(
            [Complaint("cwd", f"{plan.cwd} is no directory", hint="write the directory in which it runs")]
        )
    program = plan.argv[0]
    if "/" not in program:
        if shutil.which(program, path=plan.environment.get("PATH", os.defpath)) is None:
            what = f"there is no program {program!r} on the child's PATH"
            raise ConfigFaults([Complaint("argv", what, hint="install it, or write its whole path")])
        return
    path = plan.cwd / program
    if not path.is_file():
        hint = "write a program of PATH without a slash, or a path from cwd"
        raise ConfigFaults([Complaint("argv", f"{path} is no file", hint=hint)])
    if not os.access(path, os.X_OK):
        raise ConfigFaults([Complaint("argv", f"{path} may not be run by this user", hint=f"chmod +x {path}")])


KIND: Final = Kind(KindKeys(_keys), _build, build_unasked=_build_unasked)
