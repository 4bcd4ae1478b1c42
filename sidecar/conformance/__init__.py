"""Proofs from outside: a running daemon against the goldens, and a client in any language against a scripted daemon.

`daemon_vectors` and `daemon_play` are the first, `client_*`, `stage` and
`driver` the second. Both end in verdicts, one a vector; nothing here prints.
Formats: goldens/README.md and goldens/DRIVERS.md.
"""
