"""Values as TOML: whatever is written is read back the same."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.testing import toml_text

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
TABLES = st.dictionaries(TEXTS, VALUES, max_size=4)


@given(st.dictionaries(TEXTS, TABLES | st.lists(TABLES, min_size=1, max_size=3), max_size=3))
def test_every_document_reads_back_as_it_was(tables: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text.document(tables)) == tables


def test_paths_and_tuples_are_taken_as_texts_and_arrays() -> None:
    assert tomllib.loads(toml_text.document({"a": {"b": (Path("/x"), "y")}})) == {"a": {"b": ["/x", "y"]}}


@pytest.mark.parametrize("odd", [None, object(), b"bytes", {1, 2}, "\ud800"])
def test_what_is_no_value_is_told_and_not_written(odd: object) -> None:
    with pytest.raises(TypeError, match=r"can't be written as TOML|half of a character"):
        toml_text.document({"a": {"b": [odd]}})
