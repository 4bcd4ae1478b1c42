"""What the daemon's provider has been asked, in order."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Final

import msgspec

from sidecar.contract.values import ProviderRequest

_requests: Final = msgspec.json.Decoder(ProviderRequest)


class AskedRequests:
    """Those in this file from now on; each is there before it is answered."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._requests: list[ProviderRequest] = []
        self._read_bytes = path.stat().st_size if path.exists() else 0

    def all(self) -> list[ProviderRequest]:
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    file.seek(self._read_bytes)
                    new = file.read()
            except FileNotFoundError:
                return []
            whole = new[: new.rfind(b"\n") + 1]
            self._requests += _requests.decode_lines(whole)
            self._read_bytes += len(whole)
            return self._requests.copy()
