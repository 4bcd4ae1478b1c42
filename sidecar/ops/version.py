"""Which version of the distribution this is."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

_DISTRIBUTION: Final = "model-sidecar"


@cache
def version_of_sidecar() -> str:
    """As installed; `unknown` where the package runs without being installed."""
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
