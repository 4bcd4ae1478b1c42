"""The yardstick of first tokens: a bare Trio relay. `python bare_relay.py SOCKET PORT`.

Each connection to the Unix socket is taken on to the port on loopback, and bytes are copied both ways, as they come,
with `receive_some` and `send_all`. It looks at none of them.
"""

from __future__ import annotations

import socket
import sys

import trio

_RECEIVE_BYTES = 65_536


async def copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
    while received := await source.receive_some(_RECEIVE_BYTES):
        await target.send_all(received)
    await target.send_eof()


async def main(path: str, port: int) -> None:
    async def relay(client: trio.SocketStream) -> None:
        provider = await trio.open_tcp_stream("127.0.0.1", port)
        async with client, provider, trio.open_nursery() as nursery:
            nursery.start_soon(copy, client, provider)
            nursery.start_soon(copy, provider, client)

    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(path)
    listening.listen(128)
    print("ready", flush=True)
    await trio.serve_listeners(relay, [trio.SocketListener(trio.socket.from_stdlib_socket(listening))])


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]))
