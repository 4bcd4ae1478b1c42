"""Every metric of the daemon: name, kind, labels, and what it says. The table that the README's is printed from.

Names and units by Prometheus' conventions: base units, `_total` for what only
grows. Labels are words of a closed set, or names that the configuration gives
(callers, connectors, models); never an id, a pid, or anything of a request.
Those of the process have our prefix too: in the node exporter's text-file
collector they would else stand beside the exporter's own of the same name.
"""

from __future__ import annotations

from typing import Final

from sidecar.ops.metrics import Family, Kind, Labels

_ROUTE: Final = ("caller", "connector", "model")
_MICRO: Final = 6
_MILLI: Final = 3

# Doubling, as OpenTelemetry's gen_ai.client.operation.duration, and twice more: a connector may be given minutes.
ANSWER_SECONDS: Final = tuple([0.01 * 2**step for step in range(16)])
DISK_SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
SIZE_BYTES: Final = tuple([256 * 4**step for step in range(9)])
BATCH_RECORDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


_named: list[Family] = []


def _family(name: str, kind: Kind, what: str, labels: Labels = (), decimals: int = 0) -> Family:
    family = Family(name=f"sidecar_{name}", kind=kind, what=what, labels=labels, decimals=decimals)
    _named.append(family)
    return family


# --- requests: what ran, and what it cost -----------------------------------------------------------------------
REQUESTS: Final = _family(
    "requests_total",
    "counter",
    "Requests that ended on record, by their stop reason or the kind of their failure; resolved: an operator did.",
    (*_ROUTE, "outcome"),
)
SPEND: Final = _family("spend_usd_total", "counter", "What requests that ended were charged.", _ROUTE, _MICRO)
TOKENS: Final = _family(
    "tokens_total",
    "counter",
    "Tokens by the providers' counts: input (plain), cache_read, cache_write, output, reasoning (within output).",
    (*_ROUTE, "direction"),
)
OVER_RUNS: Final = _family("over_runs_total", "counter", "Charges above their reservation.", _ROUTE)
NOTES: Final = _family("notes_total", "counter", "Notes on records of requests that ended.", (*_ROUTE, "note"))
REQUEST_SECONDS: Final = _family(
    "request_duration_seconds", "histogram", "From admission to the answer.", ("caller", "connector")
)
EXCHANGE_SECONDS: Final = _family(
    "exchange_duration_seconds", "histogram", "From a begin on disk to the provider's end.", ("connector", "model")
)
FIRST_EVENT_SECONDS: Final = _family(
    "first_event_seconds", "histogram", "From admission to the provider's first event.", ("connector", "model")
)
BEGIN_SECONDS: Final = _family("begin_wait_seconds", "histogram", "From admission to a begin on disk.")
COMPLETE_SECONDS: Final = _family("complete_wait_seconds", "histogram", "From the provider's end to a record on disk.")
REQUEST_BYTES: Final = _family("request_bytes", "histogram", "Frames of requests that ended.", ("connector",))
RESPONSE_BYTES: Final = _family("response_bytes", "histogram", "Frames of their answers.", ("connector",))
UNRECORDED: Final = _family(
    "unrecorded_total",
    "counter",
    "Records that the ledger did not take: begin (nothing was sent), completed (its reservation is held).",
    ("caller", "record"),
)

# --- decisions --------------------------------------------------------------------------------------------------
REFUSALS: Final = _family("refusals_total", "counter", "Refused requests.", ("caller", "refusal"))
QUOTED_REFUSALS: Final = _family(
    "quoted_refusals_total", "counter", "Refusals that only a quote was told.", ("caller", "refusal")
)
QUOTES: Final = _family("quotes_total", "counter", "Quotes answered.")
REPLAYS: Final = _family("replays_total", "counter", "Answers read back from the record.", ("caller",))
JOINS: Final = _family("joins_total", "counter", "Requests that joined a running one.", ("caller",))
CANCELS: Final = _family("cancels_total", "counter", "Running requests that their caller cancelled.", ("caller",))
TRANSPORT_ERRORS: Final = _family("transport_errors_total", "counter", "Transport errors told.", ("code",))

# --- money held -------------------------------------------------------------------------------------------------
IN_FLIGHT: Final = _family("in_flight_requests", "gauge", "Requests that run.", ("caller", "connector"))
RESERVED: Final = _family(
    "reserved_usd", "gauge", "Reserved in all windows, for what runs and what is indeterminate.", ("caller",), _MICRO
)
OPEN_RESERVATIONS: Final = _family("open_reservations", "gauge", "Reservations that are held.", ("caller",))
INDETERMINATE: Final = _family(
    "indeterminate_requests", "gauge", "Requests that a person must decide (sidecar ledger resolve).", ("caller",)
)
WINDOW_SPENT: Final = _family("window_spent_usd", "gauge", "Charged in the window of now.", ("caller",), _MICRO)
WINDOW_RESERVED: Final = _family("window_reserved_usd", "gauge", "Reserved in the window of now.", ("caller",), _MICRO)
WINDOW_CEILING: Final = _family("window_ceiling_usd", "gauge", "The caller's ceiling.", ("caller",), _MICRO)
WINDOW_END: Final = _family(
    "window_end_timestamp_seconds", "gauge", "When the window of now ends.", ("caller",), _MILLI
)
CALLERS_LEFT_OUT: Final = _family(
    "callers_left_out", "gauge", "Callers above the bound of label sets: their gauges are not told."
)

# --- connections ------------------------------------------------------------------------------------------------
CONNECTIONS: Final = _family("connections", "gauge", "Connections that are open.")
CONNECTIONS_MAX: Final = _family("connections_max", "gauge", "How many may be.")
ACCEPTED: Final = _family("connections_accepted_total", "counter", "Connections that were let in.")
TURNED_AWAY: Final = _family("connections_turned_away_total", "counter", "Connections that were not.", ("code",))
SLOW_READERS: Final = _family("slow_readers_cut_total", "counter", "Connections cut: their peer did not read.")
EVENTS_DROPPED: Final = _family(
    "live_events_dropped_total", "counter", "Live events not sent to a peer that reads slowly; its result has them."
)
HELD_BYTES: Final = _family("frames_held_bytes", "gauge", "Bytes of requests held in memory.")
UNSENT_BYTES: Final = _family("unsent_bytes", "gauge", "Bytes of answers that peers have not taken yet.")

# --- the ledger -------------------------------------------------------------------------------------------------
QUEUE_SECONDS: Final = _family("ledger_queue_wait_seconds", "histogram", "How long a batch's first record waited.")
WRITE_SECONDS: Final = _family("ledger_write_seconds", "histogram", "Writing one batch.")
SYNC_SECONDS: Final = _family("ledger_sync_seconds", "histogram", "Syncing one batch to disk.")
BATCH_RECORDS_SPREAD: Final = _family("ledger_batch_records", "histogram", "Records of one batch.")
BATCH_BYTES_SPREAD: Final = _family("ledger_batch_bytes", "histogram", "Bytes of one batch.")
SPARE_SECONDS: Final = _family("ledger_spare_seconds", "histogram", "Preparing one spare segment.")
UPKEEP_SECONDS: Final = _family("ledger_upkeep_seconds", "histogram", "One job of upkeep.", ("job",))
UPKEEP_FAILURES: Final = _family("ledger_upkeep_failures_total", "counter", "Upkeep that failed; it is tried again.")
PRESSURE: Final = _family("ledger_pressure", "gauge", "1 while no spare segment can be made: begins are refused.")
PRESSURES: Final = _family("ledger_pressures_total", "counter", "How often that has begun.")
POISONED: Final = _family("ledger_poisoned", "gauge", "1 once the disk has failed: the daemon is about to exit.")
QUEUED: Final = _family("ledger_queued_records", "gauge", "Records that wait for the batch under way.")
SETTLEMENTS: Final = _family("ledger_settlements_left", "gauge", "How many more requests there is room to settle.")
SPARES: Final = _family("ledger_spares_ready", "gauge", "Spare segments that are ready.")
LOW_WATER: Final = _family(
    "ledger_low_water_timestamp_seconds", "gauge", "What expires at or before it is refused as Expired.", (), _MILLI
)
SEGMENTS: Final = _family("ledger_segments", "gauge", "Segments in the directory.")
DIRECTORY_BYTES: Final = _family("ledger_directory_bytes", "gauge", "What the directory takes on disk.")
FREE_BYTES: Final = _family("ledger_free_bytes", "gauge", "What is free on its file system.")
CHECKPOINT: Final = _family(
    "ledger_checkpoint_timestamp_seconds", "gauge", "When the last checkpoint was written.", (), _MILLI
)
DIRECTORY_READ: Final = _family("ledger_directory_read", "gauge", "1 where the directory could be looked at in time.")

# --- the last start, and since ----------------------------------------------------------------------------------
RECOVERY_SECONDS: Final = _family("recovery_seconds", "gauge", "How long opening the ledger took.")
RECOVERY_RECORDS: Final = _family("recovery_records", "gauge", "Records that were found.")
RECOVERY_READ: Final = _family("recovery_records_read", "gauge", "Records that were read for it.")
RECOVERY_SEGMENTS: Final = _family("recovery_segments", "gauge", "Segments that were found.")
RECOVERY_SET_ASIDE: Final = _family("recovery_set_aside_bytes", "gauge", "Bytes of a torn tail that was set aside.")
RECOVERY_CLEAN: Final = _family("recovery_clean", "gauge", "1 where the run before had closed the ledger.")
RELOADS: Final = _family("reloads_total", "counter", "Reloads of the configuration: ok, or refused.", ("result",))
RELOADED: Final = _family("config_timestamp_seconds", "gauge", "Since when the configuration in force is.", (), _MILLI)
LINES_LOST: Final = _family("log_lines_lost_total", "counter", "Lines that the log's reader did not take.")
BUILD: Final = _family("build_info", "gauge", "1; the version is its label.", ("version",))
STARTED: Final = _family("start_time_seconds", "gauge", "When this daemon started.", (), _MILLI)
DRAINING: Final = _family("draining", "gauge", "1 while it stops: nothing is admitted.")
RESIDENT: Final = _family("process_resident_memory_bytes", "gauge", "Memory of the process.")
CPU: Final = _family("process_cpu_seconds_total", "counter", "Processor time of the process.")
DESCRIPTORS: Final = _family("process_open_fds", "gauge", "Descriptors that are open.")

FAMILIES: Final = tuple(_named)
