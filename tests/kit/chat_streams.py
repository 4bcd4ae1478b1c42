"""Streams of Chat Completions with what a right connector lifts from each: those recorded elsewhere, and ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
RECORDED = _ROOT / "../shared/providers/streams"  # beside the project; tests of these skip where it is absent
MADE = _ROOT / "tests/connectors/streams"


def expected() -> dict[str, dict[str, Any]]:
    """By path. A stream's events follow the plain dialect, which keeps no reasoning."""
    made = json.loads((MADE / "EXPECTED.json").read_text())
    streams = {MADE / name: wanted for name, wanted in made.items() if "provider" not in wanted}
    if RECORDED.is_dir():
        recorded = json.loads((RECORDED / "EXPECTED.json").read_text())
        streams |= {RECORDED / name: wanted for name, wanted in recorded.items() if wanted["provider"] == "openai_chat"}
    return {str(path): wanted for path, wanted in streams.items()}
