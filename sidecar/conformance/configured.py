"""Whether a running daemon is on the configuration that the goldens were made on, by what its status says.

On another one most transcripts would fail, page after page, and what they ask
might cost somebody money.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from sidecar.conformance.daemon_play import NoDaemon, first_answer
from sidecar.conformance.fresh import canonical
from sidecar.conformance.goldens import Goldens
from sidecar.contract.client_frames import TRANSPORT_STATUS, TransportStatusReport
from sidecar.contract.values import PriceRow

_STATUS: Final = canonical({"schema_id": TRANSPORT_STATUS})
_reports: Final = msgspec.msgpack.Decoder(TransportStatusReport)


async def check_configured(socket: Path, goldens: Goldens, *, timeout_seconds: float) -> None:
    """Raises NoDaemon for a daemon on another configuration; one that tells no status is taken to be on this one."""
    answer = await first_answer(socket, _STATUS, timeout_seconds=timeout_seconds)
    try:
        report = _reports.decode(answer or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return  # a vector will say what is wrong with it
    other = next(_differences(tomllib.loads(goldens.text("daemon/config.toml")), report), None)
    if other is not None:
        raise NoDaemon(
            f"the daemon on {socket} is not on the goldens' configuration ({other}): start one on what"
            " sidecar conformance --write-config DIR writes"
        )


def _differences(config: Mapping[str, Any], report: TransportStatusReport) -> Iterator[str]:
    callers = {caller.caller_runtime_id: caller for caller in report.callers}
    models = {model.name: model for model in report.models}
    for caller in config["caller"]:
        there = callers.get(caller["id"])
        if there is None:
            yield f"this user can't call as {caller['id']}"
        elif (there.ceiling_micro_usd, there.window_seconds) != (
            caller["spend_ceiling_micro_usd"],
            caller["spend_window_seconds"],
        ):
            yield f"caller {caller['id']} has another ceiling or window"
    asked_for = {name for caller in config["caller"] for name in caller["models"]}
    for model in config["model"]:
        served = models.get(model["name"])
        if served is None and model["name"] in asked_for:
            yield f"it serves this user no model {model['name']}"
        elif served is not None and served.upstream != model["upstream"]:
            yield f"its model {model['name']} is {served.upstream}, not {model['upstream']}"
        elif served is not None and served.prices != msgspec.convert(model["price"], tuple[PriceRow, ...]):
            yield f"its model {model['name']} has other prices"
