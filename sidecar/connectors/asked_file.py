"""What a connector is asked, kept for a test to read: a file with a line of JSON for each request, in order.

A line is the published ProviderRequest, bytes in base64. It is written before
the request is answered, so whoever holds an answer can read what was asked.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

import msgspec

from sidecar.contract.values import ProviderRequest

_encode: Final = msgspec.json.Encoder().encode
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class AskedFile:
    """Appends to this file; it is made with the first request."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, request: ProviderRequest) -> None:
        """Raises OSError; then the line is not there, or not whole."""
        line = _encode(request) + b"\n"
        descriptor = os.open(self._path, _FLAGS, 0o600)
        try:
            if os.write(descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, "only a part of the line was written")
        finally:
            os.close(descriptor)
