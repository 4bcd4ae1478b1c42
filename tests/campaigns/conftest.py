"""Campaigns start daemons by the hundred: from a process that has read the modules already."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit import daemon_process
from kit.preloaded import preloaded


@pytest.fixture(autouse=True, scope="module")
def _preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with preloaded(tmp_path_factory.mktemp("preloaded")) as made:
        daemon_process.preloaded.append(made)
        yield
        daemon_process.preloaded.remove(made)
