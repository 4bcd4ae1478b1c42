"""Which table a key belongs to that stands in another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import structs

from sidecar.config import tables
from sidecar.config.keys import Complaint

_TABLES: Final = {
    "[daemon]": tables.daemon_keys(Path()),
    "[ledger]": tables.ledger_keys(Path()),
    "[metrics]": tables.metrics_keys(Path()),
    "[[caller]]": tables.caller_keys(),
    "[[connector]]": tables.connector_keys(Path()),
    "[[model]]": tables.model_keys(),
    "[[model.price]]": tables.price_keys(),
}
_OFTEN: Final = Counter(key.name for keys in _TABLES.values() for key in keys)
# Keys that one table alone has.
_HOMES: Final[Mapping[str, str]] = {
    key.name: header for header, keys in _TABLES.items() for key in keys if _OFTEN[key.name] == 1
}


def with_home(complaint: Complaint) -> Complaint:
    """The same; of an unknown key that another table has, and that is hardly a slip of one of its own, says which."""
    name = complaint.path.rpartition(".")[2]
    is_slip = "_" not in name and (complaint.hint or "").startswith("did you mean")
    if complaint.what != "unknown key" or is_slip:
        return complaint
    if complaint.path == "price":
        return structs.replace(complaint, hint="write [[model.price]], below its [[model]]")
    home = _HOMES.get(name)
    return structs.replace(complaint, hint=f"write it under {home}, whose key it is") if home else complaint
