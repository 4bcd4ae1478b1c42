"""Runs a Llama Stack server by its own `main` until standard input ends, on a port of the kernel's.

usage: serve_llama_stack.py CONFIG.yaml   by the Python that has the package; prints `LISTENING http://127.0.0.1:PORT`
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from typing import Any

import uvicorn
from llama_stack.distribution.server import server as llama_stack

SAYS = os.fdopen(os.dup(1), "w")  # the server prints telemetry on its standard output, which nobody reads
os.dup2(2, 1)


class Telling(uvicorn.Server):
    """Says where it listens once it does."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets is not None
        host, port = sockets[0].getsockname()
        print(f"LISTENING http://{host}:{port}", file=SAYS, flush=True)


def run(app: Any, **settings: Any) -> None:
    """In place of `uvicorn.run`: the server names a port that it wants, and can't be told to let the kernel choose."""
    listener = socket.create_server(("127.0.0.1", 0))
    Telling(uvicorn.Config(app, lifespan=settings["lifespan"], log_level="info")).run(sockets=[listener])


def end_with_standard_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)  # what it has stored goes with the folder


uvicorn.run = run
threading.Thread(target=end_with_standard_input, daemon=True).start()
sys.argv[1:] = ["--config", sys.argv[1]]
llama_stack.main()
