"""Price rows."""

from __future__ import annotations

from msgspec import Struct

from sidecar.contract.values import PriceRow


class DatedPrice(Struct, frozen=True, kw_only=True):
    """A price row and the instant from which it is in force (0: always was)."""

    from_unix_ms: int
    row: PriceRow
