"""What a configuration says of a recorded connector, and the connector that is made of it.

Its own table says what bounds a request (time, sizes, slots, `usage`), as every
connector's does; the one that it names by `records` says whom to ask and how.
That one is made again for this one alone, under this one's name and bounds, so
what its kind finds wrong is asked with the values that count.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import structs

from sidecar.config.keys import Complaint, ConfigFaults, Fault, Key, KindKeys, an_id, choice, path_from
from sidecar.config.tables import connector_keys
from sidecar.config.values import Connector as ConnectorConfig
from sidecar.connectors.kind import Kind
from sidecar.connectors.promise import Connector
from sidecar.connectors.recorded import Recorded
from sidecar.connectors.recorded_directory import Recordings
from sidecar.ops.credentials import Secret

_BOUNDS: Final = (
    "time_limit_seconds",
    "concurrent_requests_max",
    "response_bytes_max",
    "body_bytes_max",
    "usage",
)


def _keys(folder: Path) -> tuple[Key, ...]:
    return (
        Key("records", an_id, example='records = "local"'),
        Key("directory", path_from(folder), example='directory = "recordings"'),
        Key("mode", choice("replay", "record", "both"), "replay"),
    )


def kind(kinds: Mapping[str, Kind]) -> Kind:
    """The kind `recorded`, over connectors of these kinds."""
    return Kind(
        KindKeys(_keys, wraps="records"),
        lambda config, secret: _build(config, secret, kinds),
        lambda config: _warnings(config, kinds),
        credential_of=_credential_of,
        stays=lambda built, config: False,  # recordings may have come, and it is quickly made
    )


def wrapped_as_it_counts(config: ConnectorConfig) -> ConnectorConfig:
    """The table of the connector that is recorded, with this one's name and bounds."""
    assert config.wrapped is not None, "a checked configuration knows whom this one records"
    return structs.replace(config.wrapped, name=config.name, **{name: getattr(config, name) for name in _BOUNDS})


def _credential_of(config: ConnectorConfig) -> ConnectorConfig | None:
    return None if config.settings["mode"] == "replay" else config.wrapped


def _build(config: ConnectorConfig, secret: Secret | None, kinds: Mapping[str, Kind]) -> Recorded:
    """Raises ConfigFaults for whatever is wrong with the recorded connector, the directory or a file in it."""
    wanted, mode = wrapped_as_it_counts(config), config.settings["mode"]
    recordings = Recordings(config.settings["directory"], wanted.kind)
    complaints = _complaints(recordings, mode)
    wrapped: Connector | None = None
    try:
        wrapped = _wrapped(wanted, secret, kinds[wanted.kind], is_asked=mode != "replay")
    except ConfigFaults as faults:
        complaints += [Complaint("records", f"{one.path}: {one.what}", hint=one.hint) for one in faults.complaints]
    if complaints or wrapped is None:
        raise ConfigFaults(complaints)
    return Recorded(
        wrapped,
        recordings,
        name=config.name,
        kind=wanted.kind,
        mode=mode,
        secret=secret.reveal() if secret else None,
    )


def _wrapped(wanted: ConnectorConfig, secret: Secret | None, kind: Kind, *, is_asked: bool) -> Connector:
    if is_asked:
        return kind.build(wanted, secret)
    build: Callable[[ConnectorConfig], Connector] = kind.build_unasked or (lambda config: kind.build(config, None))
    return build(wanted)


def _complaints(recordings: Recordings, mode: str) -> list[Complaint]:
    """Of the directory. Only to record it need not be there, and what is in it is not read."""
    directory = recordings.directory
    if mode == "replay" and not directory.is_dir():
        return [
            Complaint(
                "directory", f"{directory} is no directory", hint='mode = "record" makes it, with recordings in it'
            )
        ]
    complaints = [] if mode == "replay" else list(_unwritable(directory))
    if mode != "record" and directory.is_dir():
        complaints += recordings.index()
    return complaints


def _unwritable(directory: Path) -> Iterator[Complaint]:
    there = directory
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not there.is_dir():
        yield Complaint("directory", f"{there} is no directory", hint="write a directory, or one that can be made")
    elif not os.access(there, os.W_OK | os.X_OK):
        hint = f"let uid {os.geteuid()} own it, or write another directory"
        yield Complaint("directory", f"this user may not write in {there}", hint=hint)


def _warnings(config: ConnectorConfig, kinds: Mapping[str, Kind]) -> Iterator[Fault]:
    wanted = wrapped_as_it_counts(config)
    yield from kinds[wanted.kind].warnings(wanted)
    assert config.wrapped is not None
    defaults = {key.name: key.default for key in connector_keys(Path())}
    for name in _BOUNDS:
        said = getattr(config.wrapped, name)
        if said not in (defaults[name], getattr(config, name)):
            yield name, f"counts as it stands here, and not as {said} in the table of {config.wrapped.name}"
