"""How a daemon opens its ledger: what it hears of it meanwhile and later becomes lines of the log, and is counted."""

from __future__ import annotations

from sidecar.cli.ledger_reading import instant
from sidecar.config.values import Config
from sidecar.ledger.checkpoint import Dropped
from sidecar.ledger.counted_files import CountedFiles
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.opening import Listeners
from sidecar.ledger.seal_format import End
from sidecar.ops.clock import unix_ms
from sidecar.ops.log import Log
from sidecar.rules.windows import Account
from sidecar.service.accounts import windows_of
from sidecar.service.metrics import Meter, now_seconds
from sidecar.service.supervision import Supervision


def open_ledger(
    config: Config, accounts: dict[str, Account], listeners: Listeners, meter: Meter, supervision: Supervision, log: Log
) -> Ledger:
    """Raises what `Ledger.open` does. `listeners` hear of what is on record; windows are those of the accounts."""

    def pressed(why: str | None) -> None:
        if why is None:
            log.notice("ledger_pressure_over", now="requests are admitted again")
        else:
            meter.pressures += 1
            log.warning("ledger_pressure", why=why, now="no request is admitted; replays and what runs go on")

    def dropped(end: End, what: Dropped) -> None:
        log.info(
            "segments_dropped",
            until_segment=end.segment,
            requests=what.begins,
            charged_micro_usd=what.charged_micro_usd,
            low_water_unix_ms=end.low_water_unix_ms,
        )

    def failed(why: str) -> None:
        meter.upkeep_failures += 1
        log.warning("ledger_upkeep_failed", why=why, now="tried again later")

    files = CountedFiles()
    began_at = now_seconds()
    with supervision.opening(log, lambda: files.calls):
        ledger = Ledger.open(
            config.ledger.directory,
            segment_bytes=config.ledger.segment_bytes,
            frame_bytes_max=config.daemon.frame_bytes_max,
            requests_in_flight_max=config.daemon.requests_in_flight_max,
            files=files,
            listeners=listeners,
            window_of=windows_of(accounts),
            retention_days=config.ledger.retention_days,
            on_pressure=pressed,
            on_dropped=dropped,
            on_trouble=failed,
            watch=meter.watch,
        )
    took_seconds = now_seconds() - began_at
    meter.recovered(ledger.recovery, took_seconds)
    _log_recovery(ledger, log, took_seconds)
    return ledger


def _log_recovery(ledger: Ledger, log: Log, took_seconds: float) -> None:
    found = ledger.recovery
    log.info(
        "ledger_opened",
        segments=found.segments,
        records=found.records,
        read=found.records_read,
        clean=found.clean,
        took_ms=int(took_seconds * 1000),
    )
    if found.set_aside is not None:
        log.warning("tail_set_aside", bytes=found.set_aside_bytes, kept=found.set_aside)
    if ledger.low_water_unix_ms > unix_ms():  # a repair's, since nothing is dropped before it has expired
        until = f"{instant(ledger.low_water_unix_ms)} UTC"
        log.warning("low_water_ahead", until=until, now="what expires by then is refused as Expired")
    for begin in found.indeterminate:
        log.warning(
            "indeterminate",
            caller=begin.caller_runtime_id,
            request=begin.request_id,
            held_micro_usd=begin.reservation_micro_usd,
        )
