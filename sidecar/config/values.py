"""The checked configuration, as frozen values; every number's unit is the last word of its name.

Source: CONTRACT section 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from sidecar.rules.pricing import DatedPrice

RECORD_MARGIN_BYTES: Final = 65_536  # what a ledger record may hold besides a frame (LEDGER section 5a)


def smallest_segment_bytes(frame_bytes_max: int) -> int:
    """The least `segment_bytes` for this frame bound: four of the largest records."""
    return 4 * (frame_bytes_max + RECORD_MARGIN_BYTES)


class CredentialName(Struct, frozen=True):
    """Where a secret is, never the secret: exactly one of the three is set."""

    name: str | None = None
    file: Path | None = None
    env: str | None = None


class Daemon(Struct, frozen=True, kw_only=True):
    socket: Path
    socket_mode: int
    frame_bytes_max: int
    frames_held_bytes_max: int
    connections_max: int
    connections_per_user_max: int
    requests_in_flight_max: int
    expiry_skew_seconds_max: int
    frame_timeout_seconds: float
    drain_seconds_max: float


class LedgerPlace(Struct, frozen=True, kw_only=True):
    directory: Path
    segment_bytes: int
    retention_days: int


class MetricsFile(Struct, frozen=True, kw_only=True):
    """Where the daemon writes its metrics, and how often."""

    file: Path
    interval_seconds: float


class PeerRule(Struct, frozen=True, kw_only=True):
    """Which peers a rule means; all members that are set must match. None set: the daemon's own user."""

    uid: int | None = None
    gid: int | None = None
    unit: str | None = None


class Caller(Struct, frozen=True, kw_only=True):
    id: str
    peer: PeerRule
    models: frozenset[str]
    concurrent_requests_max: int
    payload_bytes_max: int
    output_tokens_max: int
    spend_ceiling_micro_usd: int
    spend_window_seconds: int
    foreign_reasoning: Literal["drop", "refuse"]


class Connector(Struct, frozen=True, kw_only=True):
    """`settings` holds what the kind's own key table asked for, already checked.

    `wrapped` is the connector that this one stands before, where its kind stands before one.
    """

    name: str
    kind: str
    base_url: str | None
    credential: CredentialName | None
    time_limit_seconds: float
    concurrent_requests_max: int
    response_bytes_max: int
    body_bytes_max: int
    usage: Literal["required", "bound", "estimate"]
    settings: Mapping[str, Any]
    wrapped: Connector | None = None


class Model(Struct, frozen=True, kw_only=True):
    """`settings` holds what the connector's kind asked of its models, already checked."""

    name: str
    connector: str
    upstream: str
    output_tokens_max: int
    input_overhead_tokens: int
    input_overhead_tokens_per_item: int
    tools_rendered_twice: bool
    prices: tuple[DatedPrice, ...]
    settings: Mapping[str, Any]


class Config(Struct, frozen=True, kw_only=True):
    daemon: Daemon
    ledger: LedgerPlace
    callers: Mapping[str, Caller]
    operators: tuple[PeerRule, ...]
    connectors: Mapping[str, Connector]
    models: Mapping[str, Model]
    metrics: MetricsFile | None = None

    @property
    def only_wrapped(self) -> frozenset[str]:
        """Connectors that no model uses and that another one stands before: they are there for that one alone."""
        wrapped = {connector.wrapped.name for connector in self.connectors.values() if connector.wrapped}
        return frozenset(wrapped - {model.connector for model in self.models.values()})
