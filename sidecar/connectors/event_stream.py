"""Server-sent events: bytes in, events out; no I/O, and any split of the bytes gives the same events.

Lines end with LF, CRLF or CR and nothing else. A line that begins with a colon
is a comment. An event ends with a blank line; what stands behind the last one
is given at the end of the stream if it is whole JSON, because several servers
leave out the last blank line. Bytes that are not UTF-8, and lines or events
above their bound, are faults and never become other text.
Source: the HTML standard's event stream section; WIRE section 1.1.
"""

from __future__ import annotations

import json
import re
from typing import Final

from msgspec import Struct

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class Event(Struct, frozen=True):
    """One event: its `data` lines joined by LF; `name` is what its `event:` line said, or empty."""

    data: str
    name: str = ""


class StreamFault(ValueError):
    """These bytes are no event stream that can be read; the message says why."""


class EventStream:
    """Feed it what arrived; it returns the events that have become whole."""

    def __init__(self, *, line_bytes_max: int, event_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._event_bytes_max = event_bytes_max
        self._buffer = bytearray()
        self._searched = 0
        self._skip_line_feed = False
        self._first_line = True
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._name = b""

    def feed(self, received: bytes) -> list[Event]:
        if self._skip_line_feed and received:
            received = received.removeprefix(b"\n")  # the second half of a CRLF that was split
            self._skip_line_feed = False
        self._buffer += received
        events: list[Event] = []
        begin = 0
        for line_end in _LINE_END.finditer(self._buffer, self._searched):
            self._line(bytes(self._buffer[begin : line_end.start()]), events)
            begin = line_end.end()
        if begin and begin == len(self._buffer):
            self._skip_line_feed = self._buffer.endswith(b"\r")
        del self._buffer[:begin]
        self._searched = len(self._buffer)
        if len(self._buffer) > self._line_bytes_max:
            raise StreamFault(f"a line of more than {self._line_bytes_max} bytes")
        return events

    def close(self) -> list[Event]:
        """The end of the stream: a last event without its blank line, if it is whole JSON."""
        events: list[Event] = []
        if self._buffer:
            self._line(bytes(self._buffer), events)
            self._buffer.clear()
        if self._data:
            event = self._event()
            if _is_json(event.data):
                events.append(event)
        return events

    def _line(self, line: bytes, events: list[Event]) -> None:
        if len(line) > self._line_bytes_max:
            raise StreamFault(f"a line of more than {self._line_bytes_max} bytes")
        if self._first_line:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            self._first_line = False
        if not line:
            if self._data:
                events.append(self._event())
            self._name = b""
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1
            if self._data_bytes > self._event_bytes_max:
                raise StreamFault(f"an event of more than {self._event_bytes_max} bytes")
        elif field == b"event":
            self._name = value

    def _event(self) -> Event:
        try:
            event = Event(b"\n".join(self._data).decode("utf-8"), self._name.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise StreamFault(f"bytes that are not UTF-8 ({error.reason})") from None
        self._data, self._data_bytes = [], 0
        return event


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
