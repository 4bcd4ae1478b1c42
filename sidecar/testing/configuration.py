"""The configuration that a daemon under test gets: one that serves, with what a test wants otherwise laid over it.

No window ends while tests run, no answer is forgotten, and nothing costs real
money; the ceiling is one that only a test which sets its own will meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from sidecar.config.values import smallest_segment_bytes
from sidecar.testing import toml_text

SOCKET: Final = "s.sock"
LEDGER: Final = "ledger"
SCRIPT: Final = "script.toml"
ASKED: Final = "asked.jsonl"

Settings = Mapping[str, Any]
NOTHING: Final[Settings] = MappingProxyType({})
Named = Sequence[str] | Mapping[str, Settings]  # names, or names with what each wants otherwise

_FRAME_BYTES_MAX: Final = 1_048_576
_DRAIN_SECONDS_MAX: Final = 2  # beside what hangs a test waits for all of it
_RETENTION_DAYS: Final = 36_500  # a hundred years: the window of now ends in 2069
_WINDOW_SECONDS: Final = _RETENTION_DAYS * 86_400
_CEILING_MICRO_USD: Final = 1_000_000_000
SCRIPTED: Final = "scripted"
_REQUESTS_MAX: Final = 256  # at once, and so many of one caller, too: a test that means to be refused says so itself
_OWN: Final[Mapping[str, frozenset[str]]] = {
    "daemon": frozenset({"socket"}),
    "ledger": frozenset({"directory"}),
    "connector": frozenset({"name", "kind", "script", "script_reread", "asked_file"}),
}
_PRICE: Final[Settings] = {
    "input": 1_000_000,
    "cache_read": 100_000,
    "cache_write_short": 1_250_000,
    "cache_write_long": 2_000_000,
    "output": 5_000_000,
}


def config_text(
    *, callers: Named, models: Named, daemon: Settings, ledger: Settings, connector: Settings, extra_toml: str
) -> str:
    """TOML. `daemon`, `ledger` and `connector` are laid over those tables; `extra_toml` stands at the end as it is.

    Raises TypeError for what the kit must decide itself, and for what is no TOML value.
    """
    for table, settings in (("daemon", daemon), ("ledger", ledger), ("connector", connector)):
        if own := _OWN[table] & settings.keys():
            raise TypeError(f"{', '.join(sorted(own))} of {table} can't be set: the kit counts on its own")
    of_models = {name: _model(name, settings) for name, settings in _named(models).items()}
    of_callers = [_caller(name, list(of_models), settings) for name, settings in _named(callers).items()]
    of_daemon = {
        "socket": SOCKET,
        "frame_bytes_max": _FRAME_BYTES_MAX,
        "drain_seconds_max": _DRAIN_SECONDS_MAX,
        "requests_in_flight_max": _REQUESTS_MAX,
        **daemon,
    }
    of_ledger = {
        "directory": LEDGER,
        "segment_bytes": _segment_bytes(of_daemon["frame_bytes_max"]),
        "retention_days": _RETENTION_DAYS,
        **ledger,
    }
    of_connector = {
        "name": SCRIPTED,
        "kind": "scripted",
        "script": SCRIPT,
        "script_reread": True,
        "asked_file": ASKED,
        "concurrent_requests_max": _REQUESTS_MAX,
        **connector,
    }
    text = toml_text.document(
        {
            "daemon": of_daemon,
            "ledger": of_ledger,
            "operator": [{}],  # whoever runs the tests may resolve, too
            "caller": of_callers,
            "connector": [of_connector],
            "model": list(of_models.values()),
        }
    )
    return f"{text}\n{extra_toml}\n" if extra_toml else text


def names_of(named: Named) -> tuple[str, ...]:
    return tuple(_named(named))


def _named(named: Named) -> Mapping[str, Settings]:
    if isinstance(named, str):
        raise TypeError(f"a list of names is wanted, not {named!r}")
    return named if isinstance(named, Mapping) else {name: {} for name in named}


def _segment_bytes(frame_bytes_max: Any) -> Any:
    """The least that the daemon takes, since it writes spare ones out; a wrong bound is left for it to complain of."""
    if not isinstance(frame_bytes_max, int):
        return frame_bytes_max
    return -(-smallest_segment_bytes(frame_bytes_max) // 4096) * 4096


def _caller(name: str, models: Sequence[str], settings: Settings) -> Settings:
    return {
        "id": name,
        "models": models,
        "concurrent_requests_max": _REQUESTS_MAX,
        "spend_ceiling_micro_usd": _CEILING_MICRO_USD,
        "spend_window_seconds": _WINDOW_SECONDS,
        **settings,
    }


def _model(name: str, settings: Settings) -> Settings:
    """A price may be one row alone, which need not say what it leaves as it is."""
    price = settings.get("price", {})
    rows = [{**_PRICE, **price}] if isinstance(price, Mapping) else price
    return {"name": name, "connector": SCRIPTED, "upstream": name, **settings, "price": rows}
