"""What a frame can be decided to be: answered, on record, running already, or admitted."""

from __future__ import annotations

from msgspec import Struct

from sidecar.config.values import Connector as ConnectorTerms
from sidecar.connectors.promise import Connector, Lowered
from sidecar.contract.values import BeginRecord
from sidecar.ledger.face import Recorded
from sidecar.rules.reservations import Live


class Answered(Struct, frozen=True):
    """Decided: this frame is the whole answer (a refusal, or a transport error)."""

    frame: bytes


class Replay(Struct, frozen=True):
    """Decided: the answer is on record."""

    caller: str
    request_id: str
    recorded: Recorded

    @property
    def length_bytes(self) -> int:
        """About how much memory the answer will take."""
        return self.recorded.completed.length if self.recorded.completed else 0


class Joined(Struct, frozen=True):
    """Decided: this very request is running, and its answer will be this one's too."""

    caller: str
    request_id: str


class Admitted(Struct, frozen=True, kw_only=True):
    """Decided: this request holds its slot and its worst case, and is to be carried on the terms of this moment."""

    live: Live
    begin: BeginRecord
    lowered: Lowered
    connector: Connector
    connector_terms: ConnectorTerms
    frame_bytes_max: int
    deadline: float  # on Trio's clock, seconds
    frame_bytes: int = 0
    connection: int = 0  # the number of the one it came over, for the log


Decision = Answered | Replay | Joined | Admitted
