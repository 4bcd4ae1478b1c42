"""Somewhere in a document: what a property test puts something else in."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


def any_place(document: Any, drawing: st.DataObject) -> tuple[Any, Any]:
    """A table or an array of it, and a key or an index there."""
    place: Any = document
    while True:
        key = drawing.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or not place[key] or drawing.draw(st.booleans()):
            return place, key
        place = place[key]
