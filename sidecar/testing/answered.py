"""Whether a daemon answers."""

from __future__ import annotations

from pathlib import Path
from socket import AF_UNIX, socket
from typing import Final

from sidecar.contract import canonical
from sidecar.contract.client_frames import TRANSPORT_STATUS, TransportStatus
from sidecar.rules.framing import framed

_SECONDS_MAX: Final = 20.0
_STATUS: Final = framed(canonical.encode(TransportStatus(schema_id=TRANSPORT_STATUS)))


def is_answered(path: Path) -> bool:
    """Whether whoever listens on this socket says anything, or hangs up; False where nobody listens.

    Raises TimeoutError where somebody does, and says nothing.
    """
    with socket(AF_UNIX) as connection:
        connection.settimeout(_SECONDS_MAX)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        try:
            connection.sendall(_STATUS)
            connection.recv(1)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it went meanwhile: all that it had to say, it has said
        return True
