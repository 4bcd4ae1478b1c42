"""Server-sent events: bytes in, events out; no I/O, and any split of the bytes gives the same events.

Lines end with LF, CRLF or CR and nothing else. A line that begins with a colon
is a comment. An event ends with a blank line; what stands behind the last one
is given at the end of the stream if it is whole JSON, because several servers
leave out the last blank line. Bytes that are not UTF-8, and lines or events
above their bound, are a fault and never become other text: it stands behind
the events that came before it, and nothing follows it.
Source: the HTML standard's event stream section; WIRE section 1.1.
"""

from __future__ import annotations

import json
import re
from typing import Final

from msgspec import Struct

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_ONE_EVENT: Final = re.compile(rb"(?:event: ?([^\r\n]*)\n)?data: ?([^\r\n]*)\n\n")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class Event(Struct, frozen=True):
    """One event: its `data` lines joined by LF; `name` is what its `event:` line said, or empty."""

    data: str
    name: str = ""


class StreamFault(Struct, frozen=True):
    """From here on these bytes are no event stream that can be read; `why` is for a person."""

    why: str
    is_too_large: bool = False


class EventStream:
    """Feed it what arrived; it returns the events that have become whole, and a fault as the last thing ever."""

    def __init__(self, *, line_bytes_max: int, event_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._event_bytes_max = event_bytes_max
        self._buffer = bytearray()  # the line that is not whole yet
        self._searched = 0  # how much of it is known to hold no line end
        self._skip_line_feed = False
        self._first_line = True
        self._data = bytearray()  # the open event's data lines, each behind an LF
        self._name = b""
        self._broken = False

    def feed(self, received: bytes) -> list[Event | StreamFault]:
        if not received:
            return []
        if (event := self._only_event(received)) is not None:
            return [event]
        if self._skip_line_feed:
            received = received.removeprefix(b"\n")  # the second half of a CRLF that was split
        self._buffer += received
        out: list[Event | StreamFault] = []
        begin = 0
        for line_end in _LINE_END.finditer(self._buffer, self._searched):
            self._line(self._buffer[begin : line_end.start()], out)
            begin = line_end.end()
        self._skip_line_feed = begin > 0 and begin == len(self._buffer) and self._buffer.endswith(b"\r")
        del self._buffer[:begin]
        self._searched = len(self._buffer)
        if len(self._buffer) > self._line_bytes_max:
            self._line(self._buffer, out)
        return out

    def _only_event(self, received: bytes) -> Event | None:
        """The event that these bytes are, from its first to its last: as most servers send it, and read in one go."""
        if self._buffer or self._data or self._name or self._skip_line_feed or self._broken:
            return None
        if len(received) > min(self._line_bytes_max, self._event_bytes_max):
            return None
        whole = _ONE_EVENT.fullmatch(received)
        if whole is None:
            return None
        try:
            event = Event(whole[2].decode("utf-8"), (whole[1] or b"").decode("utf-8"))
        except UnicodeDecodeError:
            return None
        self._first_line = False
        return event

    def close(self) -> list[Event | StreamFault]:
        """The end of the stream: a last event without its blank line, if it is whole JSON."""
        out: list[Event | StreamFault] = []
        if self._buffer:
            self._line(self._buffer, out)
        if self._data and not self._broken:
            last: list[Event | StreamFault] = []
            self._line(bytearray(), last)
            out += [event for event in last if isinstance(event, Event) and _is_json(event.data)]
        self._broken = True
        return out

    def _line(self, line: bytearray, out: list[Event | StreamFault]) -> None:
        if self._broken:
            return
        if len(line) > self._line_bytes_max:
            self._break(StreamFault(f"a line of more than {self._line_bytes_max} bytes", is_too_large=True), out)
        elif line and not (self._first_line and line == _BYTE_ORDER_MARK):
            self._field(line.removeprefix(_BYTE_ORDER_MARK) if self._first_line else line, out)
        elif self._data:
            self._event(out)
        else:
            self._name = b""
        self._first_line = False

    def _field(self, line: bytearray, out: list[Event | StreamFault]) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data += b"\n"
            self._data += value
            if len(self._data) - 1 > self._event_bytes_max:
                self._break(StreamFault(f"an event of more than {self._event_bytes_max} bytes", is_too_large=True), out)
        elif name == b"event":
            self._name = bytes(value)

    def _event(self, out: list[Event | StreamFault]) -> None:
        try:
            out.append(Event(self._data[1:].decode("utf-8"), self._name.decode("utf-8")))
        except UnicodeDecodeError as error:
            self._break(StreamFault(f"bytes that are not UTF-8 ({error.reason})"), out)
        self._data.clear()
        self._name = b""

    def _break(self, fault: StreamFault, out: list[Event | StreamFault]) -> None:
        self._broken = True
        self._buffer = bytearray()
        out.append(fault)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
