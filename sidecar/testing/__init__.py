"""For a game's own tests: the real daemon in a process of its own, and what it says scripted by the test.

With pytest, `sidecar_daemon` is a fixture once the package is installed (`sidecar.testing.plugin`):

    def test_the_guard_knows_of_the_dragon(sidecar_daemon):
        sidecar_daemon.on(text="dragon").says("It ", "sleeps.")
        ...
        assert [request.model for request in sidecar_daemon.asked] == ["npc-fast"]

Without it, `sidecar.testing.daemon.spawned` is the same as a context manager.
What is asked of a provider is asked of nobody here; everything else is what
the game meets when it is played: the socket, the rules, the ledger.

Nothing here asks for an event loop, so a test may be plain, or run under Trio
or asyncio; and a game in any language finds the socket in `SIDECAR_SOCKET`.
"""
