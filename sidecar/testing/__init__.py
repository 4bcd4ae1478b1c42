"""For a game's own tests: the real daemon in a process of its own, and what it says scripted by the test.

With pytest, `sidecar_daemon` is a fixture once the package is installed (`sidecar.testing.plugin`):

    def test_the_guard_knows_of_the_dragon(sidecar_daemon):
        sidecar_daemon.on(text="dragon").says("It ", "sleeps.")
        ...
        assert [request.model for request in sidecar_daemon.asked] == ["npc-fast"]

Without it, `sidecar.testing.spawned` is the same as a context manager.
What is asked of a provider is asked of nobody here; everything else is what
the game meets when it is played: the socket, the rules, the ledger.

Nothing here asks for an event loop, so a test may be plain, or run under Trio
or asyncio; and a game in any language finds the socket in `SIDECAR_SOCKET`.

What tests import must not move when rooms are redrawn, so it has its names
here. They are read when they are asked for: every run of pytest reads this
module with the plugin, also those that test no game.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sidecar.testing.answers import Call
    from sidecar.testing.daemon import Daemon, spawned
    from sidecar.testing.faults import KitFault, NotAsked

__all__ = ["Call", "Daemon", "KitFault", "NotAsked", "spawned"]

_HOMES: Final = {"Call": "answers", "Daemon": "daemon", "KitFault": "faults", "NotAsked": "faults", "spawned": "daemon"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
