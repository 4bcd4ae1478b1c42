"""The model that the upstream tests make for themselves."""

from __future__ import annotations

import hashlib
from pathlib import Path

from upstream.tiny_model import CALLS_TOOLS, TALKS, Vocabulary, write


def test_the_same_model_has_the_same_bytes_and_is_small(tmp_path: Path) -> None:
    digests = set()
    for name in ("a.gguf", "b.gguf"):
        write(tmp_path / name, TALKS)
        contents = (tmp_path / name).read_bytes()
        assert contents.startswith(b"GGUF")
        assert len(contents) < 1_000_000
        digests.add(hashlib.sha256(contents).hexdigest())
    assert len(digests) == 1
    write(tmp_path / "c.gguf", CALLS_TOOLS)
    assert hashlib.sha256((tmp_path / "c.gguf").read_bytes()).hexdigest() not in digests
    assert [path.suffix for path in tmp_path.iterdir()] == [".gguf"] * 3


def test_every_byte_has_a_token_and_no_token_stands_twice() -> None:
    vocabulary = Vocabulary()
    assert len(set(vocabulary.texts)) == len(vocabulary.texts) == len(vocabulary.sorts) == len(vocabulary.kinds())
    assert all(len(text) == 1 for text in vocabulary.texts[:256])
