"""A hello, answered: what a client calls itself as a log line can hold it, and the welcome."""

from __future__ import annotations

from typing import Final

from sidecar.contract import canonical
from sidecar.contract.client_frames import PROTOCOL, TRANSPORT_WELCOME, TransportHello, TransportWelcome
from sidecar.service.peer import Standing

_NAME_CHARACTERS_MAX: Final = 80  # of what a client calls itself, for a log line


def welcome(hello: TransportHello, standing: Standing, *, server: str, frame_bytes_max: int) -> bytes:
    """The frame that answers this hello."""
    return canonical.encode(
        TransportWelcome(
            schema_id=TRANSPORT_WELCOME,
            protocol=PROTOCOL,
            server=server,
            callers=tuple(sorted(standing.callers)),
            frame_bytes_max=frame_bytes_max,
            stream_events=hello.stream_events,
            join=hello.join,
        )
    )


def shown_name(client: str) -> str:
    """What a client calls itself, as it may stand in a log line."""
    name = client[:_NAME_CHARACTERS_MAX]
    return "".join(character if character.isprintable() else " " for character in name).strip()
