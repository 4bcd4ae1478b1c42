"""Which name of an answering model is of the family that was asked for."""

from __future__ import annotations

import pytest

from sidecar.connectors.model_names import is_same_family


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("claude-haiku-4-5", "claude-haiku-4-5-20251001"),
        ("claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("gpt-4o", "gpt-4o-2024-08-06"),
        ("gpt-4", "gpt-4-0613"),
        ("mistral-large-latest", "mistral-large-2411"),
        ("anthropic/claude-sonnet-4.5", "claude-sonnet-4.5"),
        ("claude-sonnet-4@20250514", "claude-sonnet-4"),
        ("llama3", "llama3:latest"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("tiny", "/models/tiny.gguf"),
        ("tiny", "C:\\models\\tiny.gguf"),
        ("gemini-2.5-flash-preview", "gemini-2.5-flash-preview-05-20"),
        ("x/y:free", "y"),
        ("anything", ""),
    ],
)
def test_an_alias_its_snapshot_and_a_resellers_name_are_one_family(asked: str, said: str) -> None:
    assert is_same_family(asked, said)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("gpt-5", "gpt-5-mini"),
        ("gpt-5.4", "gpt-5.5"),
        ("claude-haiku-4", "claude-haiku-4-5"),
        ("claude-haiku-4-5", "claude-sonnet-4-5-20250929"),
        ("llama3:8b", "llama3:70b"),
        ("default", "tiny"),
    ],
)
def test_a_neighbour_is_another_family(asked: str, said: str) -> None:
    assert not is_same_family(asked, said)
