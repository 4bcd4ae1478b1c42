"""A recorded conversation, said anew: the same requests under fresh ids and an expiry of the own clock.

A ledger remembers every request, so a transcript can be played twice only
under other ids. Usage, cost and reservation follow the length of the request,
so nothing may change that: what a fresh `request_id` is longer, its
`conversation_id` is shorter, where it can be. Digests are computed again,
but for those that were wrong on purpose.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

import msgspec

from sidecar.conformance.differences import LEVELS_MAX
from sidecar.contract.client_frames import TRANSPORT_CANCEL, TRANSPORT_QUOTE
from sidecar.contract.values import TRANSPORT_INVOCATION
from sidecar.rules.framing import FRAME_BYTES_LIMIT, FrameSize, FrameSplitter, framed

_encode: Final = msgspec.msgpack.Encoder(order="sorted").encode
_DIGESTS: Final = ("provider_request_sha256", "native_request_sha256")


def canonical(value: Any) -> bytes:
    """The canonical bytes of a plain value; its nil members are left out."""
    return _encode(_without_nil(value))


def _without_nil(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nil(inner) for key, inner in value.items() if inner is not None}
    return [_without_nil(inner) for inner in value] if isinstance(value, list) else value


def decoded(frame: bytes) -> Any:
    """A frame as a plain value; None for what is no MessagePack, or none that a published value could be.

    So whatever reads the value may call itself for each level, and take every key for a string.
    """
    try:
        value = msgspec.msgpack.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return value if _is_plain(value, 1) else None


def _is_plain(value: Any, level: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    if level > LEVELS_MAX or (isinstance(value, dict) and not all(isinstance(key, str) for key in value)):
        return False
    return all(_is_plain(inner, level + 1) for inner in (value.values() if isinstance(value, dict) else value))


def frames_in(received: bytes) -> list[bytes] | None:
    """The frames that these bytes are; None if they are anything else than whole frames."""
    splitter = FrameSplitter(FRAME_BYTES_LIMIT)
    frames = []
    try:
        splitter.feed(received)
        while (frame := splitter.next_frame()) is not None:
            frames.append(frame)
    except FrameSize:
        return None
    return None if splitter.in_frame else frames


class Freshened:
    """One conversation's new words. `suffix` makes its ids unlike those of every other run."""

    def __init__(self, *, then_unix_ms: int, now_unix_ms: int, suffix: str) -> None:
        self._later_ms = now_unix_ms - then_unix_ms
        self._suffix = suffix
        self._ids: dict[str, str] = {}
        self._digests: dict[tuple[int, ...], list[int]] = {}

    def sent(self, received: bytes) -> bytes:
        """What a client says now in place of these bytes."""
        frames = frames_in(received)
        if frames is None:
            return received
        return b"".join(framed(self._frame(frame)) for frame in frames)

    def answered(self, value: Any, member: str = "") -> Any:
        """What the daemon answers to that in place of this value."""
        if isinstance(value, dict):
            return {key: self.answered(inner, key) for key, inner in value.items()}
        if isinstance(value, list):
            return self._digests.get(tuple(value), value) if member in _DIGESTS else [*map(self.answered, value)]
        if member == "request_id":
            return self._ids.get(value, value)
        if member == "provider_response_id":
            return next((value.replace(old, new) for old, new in self._ids.items() if value.endswith(old)), value)
        return value

    def _frame(self, frame: bytes) -> bytes:
        value = decoded(frame)
        schema_id = value.get("schema_id") if isinstance(value, dict) else None
        if schema_id == TRANSPORT_INVOCATION:
            return canonical(self._invocation(value))
        if schema_id == TRANSPORT_QUOTE and isinstance(value.get("invocation"), dict):
            return canonical({**value, "invocation": self._invocation(value["invocation"])})
        if schema_id == TRANSPORT_CANCEL and isinstance(value.get("request_id"), str):
            return canonical({**value, "request_id": self._id(value["request_id"])})
        return frame

    def _invocation(self, value: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(value.get("request"), dict):
            return value
        request = self._request(value["request"])
        old, new = ([*sha256(canonical(one)).digest()] for one in (value["request"], request))
        self._digests[tuple(old)] = new
        digests: dict[str, Any] = {
            name: new if value.get(name) == old else value[name] for name in _DIGESTS if name in value
        }
        expires = value.get("expires_at_unix_ms")
        fresh = {**value, "request": request, **digests}
        return {**fresh, "expires_at_unix_ms": expires + self._later_ms} if isinstance(expires, int) else fresh

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(request.get("request_id"), str):
            return request
        fresh = {**request, "request_id": self._id(request["request_id"])}
        conversation, longer = request.get("conversation_id"), len(fresh["request_id"]) - len(request["request_id"])
        if isinstance(conversation, str) and len(conversation) > longer:
            fresh["conversation_id"] = conversation[longer:]
        return fresh

    def _id(self, request_id: str) -> str:
        return self._ids.setdefault(request_id, f"{request_id}.{self._suffix}")
