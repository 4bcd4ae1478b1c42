"""The local daemon through which games talk to language models.

The map: every package, a line each, in import order. A module imports only
what stands above it, or beside it in its own package; `tests/test_house.py`
reads these lines and fails on anything else.

    contract    what crosses the wire or lands on disk: frozen values, the strict MessagePack profile, canonical bytes
    rules       what is allowed: framing, admission, pricing, spend windows; pure, `now` is an argument
    client      for callers: async (anyio: Trio and asyncio) and blocking, over one pure session; needs no daemon's room
    ops         log lines, metrics as text, credentials, the clock, a service manager's notices and sockets, stray bugs
    config      TOML text to a checked Config, or every complaint at once; warnings, its schema, and TOML again
    ledger      segment format, the file calls, the one writer with group commit, recovery, seals, retention
    audit       a second reading of a ledger, which shares no code with the writer; sums made again
    repair      what can still be read of a damaged ledger, as a new one and a report
    connectors  what a connector promises; one file per provider API; the shared HTTP exchange and event-stream parser
    service     who is calling, the listener, one connection, one exchange, reload, the task tree
    testing     for a game's own tests: the daemon in a process of its own, its script said by the test, a pytest plugin
    conformance  proofs from outside: a daemon played against the goldens, a client in any language on a scripted daemon
    cli         serve, check, config, call, quote, cancel, status, reload, metrics, ledger, conformance, demo

`contract` and `rules` are deaf: no async, no sockets, no clock, no randomness, no logging.
"""
