"""The yardstick: a bare Trio server that sends each length-prefixed frame back. `python echo_server.py SOCKET`."""

from __future__ import annotations

import socket
import sys

import trio

_PREFIX_BYTES = 4
_RECEIVE_BYTES = 65_536


async def echo(stream: trio.SocketStream) -> None:
    buffer = bytearray()
    async for received in stream:
        buffer += received
        while len(buffer) >= _PREFIX_BYTES:
            whole = _PREFIX_BYTES + int.from_bytes(buffer[:_PREFIX_BYTES], "big")
            if len(buffer) < whole:
                break
            frame = bytes(buffer[:whole])
            del buffer[:whole]
            await stream.send_all(frame)


async def main(path: str) -> None:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(path)
    listening.listen(128)
    print("ready", flush=True)
    await trio.serve_listeners(echo, [trio.SocketListener(trio.socket.from_stdlib_socket(listening))])


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
