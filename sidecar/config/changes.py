"""What differs between two configurations, in words: what a reload tells that it has changed.

A table that stands in both is compared key by key; a secret is only ever named,
since a configuration holds nothing but its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs

from sidecar.config.values import Caller, Config, Connector, Model
from sidecar.rules.pricing import DatedPrice

_VALUE_CHARACTERS_MAX: Final = 100
# What was made of these when the daemon started can't be made again beside it: path, and why.
_FIXED: Final = (
    ("daemon.socket", "the socket is bound when the daemon starts"),
    ("daemon.socket_mode", "the socket is bound when the daemon starts"),
    ("ledger.directory", "the daemon holds this one for as long as it runs"),
    ("ledger.segment_bytes", "segments are written out ahead"),
)


def fixed_ones(old: Config, new: Config) -> tuple[tuple[str, str], ...]:
    """What can't change while the daemon runs and would: each key's path, and why not, with what stands there now."""
    return tuple(
        (path, f"can't change while the daemon runs ({why}): it is {_shown(_at(old, path))}")
        for path, why in _FIXED
        if _at(old, path) != _at(new, path)
    )


def changes(old: Config, new: Config) -> tuple[str, ...]:
    """Every difference, a line each, in the order of the file's tables."""
    return (
        *_differences("daemon", old.daemon, new.daemon),
        *_differences("ledger", old.ledger, new.ledger),
        *(("metrics: another file or interval",) if old.metrics != new.metrics else ()),
        *_of_tables("caller", old.callers, new.callers),
        *(("operator: others than before",) if old.operators != new.operators else ()),
        *_of_tables("connector", old.connectors, new.connectors),
        *_of_tables("model", old.models, new.models),
    )


def _at(config: Config, path: str) -> Any:
    table, key = path.split(".")
    return getattr(getattr(config, table), key)


def _of_tables(
    kind: str, old: Mapping[str, Caller | Connector | Model], new: Mapping[str, Caller | Connector | Model]
) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        whose = f'{kind} "{name}"'
        if name not in new:
            yield f"{whose}: removed"
        elif name not in old:
            yield f"{whose}: added"
        else:
            yield from _differences(whose, old[name], new[name])


def _differences(whose: str, old: Struct, new: Struct) -> Iterator[str]:
    for key in old.__struct_fields__:
        before, after = getattr(old, key), getattr(new, key)
        if before == after:
            continue
        if key == "prices":
            yield from _price_differences(whose, before, after)
        elif key == "settings" and before.keys() == after.keys():
            yield from (
                f"{whose}.{one}: {_shown(before[one])} -> {_shown(after[one])}"
                for one in before
                if before[one] != after[one]
            )
        else:
            yield f"{whose}.{key}: {_shown(before)} -> {_shown(after)}"


def _price_differences(whose: str, old: tuple[DatedPrice, ...], new: tuple[DatedPrice, ...]) -> Iterator[str]:
    """Row by row; a row is known by where it begins to count."""
    before, after = ({_row_name(dated): dated.row for dated in rows} for rows in (old, new))
    for name in {**before, **after}:
        if name not in after:
            yield f"{whose}.{name}: removed"
        elif name not in before:
            yield f"{whose}.{name}: added"
        else:
            yield from _differences(f"{whose}.{name}", before[name], after[name])


def _row_name(dated: DatedPrice) -> str:
    above = f" above {dated.row.above_input_tokens} input tokens" if dated.row.above_input_tokens is not None else ""
    begins = f" from {dated.from_unix_ms} ms" if dated.from_unix_ms else ""
    return f"price{above}{begins}"


def _shown(value: Any) -> str:
    """As a person would write it, cut where it is long."""
    if isinstance(value, frozenset):
        value = sorted(value)
    if isinstance(value, Mapping):
        value = sorted(value)  # what stands in an environment may be for nobody's eyes
    if isinstance(value, Struct):
        value = {key: said for key, said in structs.asdict(value).items() if said is not None}
    text = str(value) if isinstance(value, Path | str) else repr(value)
    return text if len(text) <= _VALUE_CHARACTERS_MAX else text[:_VALUE_CHARACTERS_MAX] + "..."
