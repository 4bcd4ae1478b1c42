"""One wait for all connections that are idle.

A task that waits for one socket costs a system call to arm the wait and a
switch to the task, for each frame of each connection. Here all idle sockets
stay registered with one epoll, and one task waits for that.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import NoReturn, Self

import trio


class Arrivals:
    """While `serve` runs, calls what a descriptor is watched with whenever something can be read there."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}

    def watch(self, descriptor: int, readable: Callable[[], None]) -> None:
        """Until `leave`; the descriptor must not be closed before that."""
        assert descriptor not in self._watched, "two wait for one descriptor"
        self._epoll.register(descriptor, select.EPOLLIN)
        self._watched[descriptor] = readable

    def watch_hang_up(self, descriptor: int, gone: Callable[[], None]) -> None:
        """As `watch`, but `gone` is called only when the other end is closed for good, in both directions."""
        assert descriptor not in self._watched, "two wait for one descriptor"
        self._epoll.register(descriptor, 0)  # EPOLLHUP is told in any case
        self._watched[descriptor] = gone

    def leave(self, descriptor: int) -> None:
        del self._watched[descriptor]
        self._epoll.unregister(descriptor)

    async def serve(self) -> NoReturn:
        while True:
            await trio.lowlevel.wait_readable(self._epoll)
            for descriptor, _ in self._epoll.poll(0):
                readable = self._watched.get(descriptor)
                if readable is not None:  # one that was called before it may have left it
                    readable()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._epoll.close()
