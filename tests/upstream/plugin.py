"""Fixtures with real model servers; a test folder that wants them imports them in its conftest.

Where a server can't be had the test is skipped, saying why; under CI that is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from upstream.llama import Llama, start_llama
from upstream.served import ServerUnavailable, cache_directory
from upstream.tiny_model import Model

API_KEY = "sk-canary-local-Zq8xW3vNpL5t"


@contextmanager
def needed() -> Iterator[None]:
    """The test's end where a server that is started inside can't be had."""
    try:
        yield
    except ServerUnavailable as why:
        if os.environ.get("CI"):
            pytest.fail(str(why))
        pytest.skip(str(why))


@contextmanager
def needed_llama(tools: bool = False, api_key: str | None = None, model: Model | None = None) -> Iterator[Llama]:
    """`start_llama`, or the test's end where there is none."""
    with needed(), start_llama(cache_directory(), tools=tools, api_key=api_key, model=model) as llama:
        yield llama


@pytest.fixture(scope="session")
def llama_server() -> Iterator[Llama]:
    """A model that talks."""
    with needed_llama() as llama:
        yield llama


@pytest.fixture(scope="session")
def llama_server_with_tools() -> Iterator[Llama]:
    """A model that calls a tool whenever it is given one; the server wants `API_KEY`."""
    with needed_llama(tools=True, api_key=API_KEY) as llama:
        yield llama
