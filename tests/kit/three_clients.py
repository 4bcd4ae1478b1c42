"""One way to write a test for the async client under Trio and asyncio and for the blocking one.

A test's body is an async function that takes a `Surface`: under the first two
it is the AsyncClient itself, for the third each call of the blocking client
runs in a thread. `run` runs a body.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from sidecar.client import AsyncClient, BlockingStream, Client

WAYS = ("trio", "asyncio", "blocking")
# Small, so that nothing here takes long; the clients' own defaults are for people.
QUICK = {"backoff_seconds_first": 0.001, "backoff_seconds_max": 0.01}


class _Threaded:
    """The blocking client with the async client's surface."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.client, name)
        return call if name == "prepare" else partial(_in_thread, call)

    def stream(self, *args: Any, **keywords: Any) -> _ThreadedStream:
        return _ThreadedStream(self.client.stream(*args, **keywords))


class _ThreadedStream:
    def __init__(self, stream: BlockingStream) -> None:
        self._stream = stream

    @property
    def invocation(self) -> Any:
        return self._stream.invocation

    @property
    def is_whole(self) -> bool:
        return self._stream.is_whole

    @property
    def result(self) -> Any:
        return self._stream.result

    async def __aenter__(self) -> _ThreadedStream:
        await _in_thread(self._stream.__enter__)
        return self

    async def __aexit__(self, *_: object) -> None:
        await _in_thread(self._stream.__exit__)

    def __aiter__(self) -> _ThreadedStream:
        return self

    async def __anext__(self) -> Any:
        event = await _in_thread(lambda: next(self._stream, None))
        if event is None:
            raise StopAsyncIteration
        return event


_THREADS = 64


async def _in_thread(call: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    limiter = anyio.CapacityLimiter(_THREADS)
    return await to_thread.run_sync(partial(call, *args, **keywords), limiter=limiter)


class Way:
    """One of the three."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.backend = "asyncio" if name == "blocking" else name

    def run(self, body: Callable[[], Awaitable[Any]]) -> Any:
        return anyio.run(body, backend=self.backend)

    @asynccontextmanager
    async def client(self, path: Path, *, caller: str | None = "dungeon", **keywords: Any) -> AsyncIterator[Any]:
        settings = {**QUICK, **keywords}
        if self.name == "blocking":
            client = Client(path, caller=caller, **settings)
            try:
                yield _Threaded(client)
            finally:
                await _in_thread(client.close)
        else:
            async with AsyncClient(path, caller=caller, **settings) as opened:
                yield opened
