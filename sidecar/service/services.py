"""What one daemon does for all of its connections, in one hand."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from sidecar.contract.operator_frames import OperatorFrame
from sidecar.ops.log import Log
from sidecar.service.backlogs import Backlogs
from sidecar.service.carrier import GiveAnswer
from sidecar.service.exchange import Exchange
from sidecar.service.few_lines import FewLines
from sidecar.service.held import HeldBytes
from sidecar.service.in_force import InForce
from sidecar.service.metrics import Meter
from sidecar.service.peer import Standing
from sidecar.service.tasks import Start
from sidecar.service.turn import Act

Operate = Callable[[Standing, OperatorFrame, Start, GiveAnswer], None]


class Services(Struct, frozen=True, kw_only=True):
    """`report` gives the frame that answers a status; `server` is what a welcome says of us."""

    in_force: InForce
    exchange: Exchange
    held: HeldBytes
    backlogs: Backlogs
    operate: Operate
    report: Callable[[Standing], bytes]
    log: Log
    meter: Meter
    connections: FewLines
    server: str
    start_request: Start
    start_replay: Start
    start_writer: Start
    at_end_of_turn: Callable[[Act], None]
