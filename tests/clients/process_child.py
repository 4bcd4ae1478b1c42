"""A connector in any language, in Python: a parrot that the daemon runs as its child. Only msgpack is needed.

    [[connector]]
    name = "parrot"
    kind = "process"
    argv = ["python3", "process_child.py"]

A frame is a 4-byte big-endian length and one MessagePack map. One request comes at a time; events and exactly one
outcome go back, each with the request's `exchange`. It may be killed at any moment: so a deadline looks, and an exit.
"""

import sys
from typing import Any

import msgpack

STDIN, STDOUT = sys.stdin.buffer, sys.stdout.buffer
sys.stdout = sys.stderr  # stdout is for frames alone: what is printed goes to the daemon's log


def read_frame() -> dict[str, Any] | None:
    """The next request; None where the daemon has gone or lets this process go."""
    prefix = STDIN.read(4)
    return msgpack.unpackb(STDIN.read(int.from_bytes(prefix, "big"))) if len(prefix) == 4 else None


def write_frame(kind: str, exchange: int, **members: Any) -> None:
    frame = msgpack.packb({"schema_id": f"gamecult.model.connector_{kind}.v1", "exchange": exchange, **members})
    STDOUT.write(len(frame).to_bytes(4, "big") + frame)
    STDOUT.flush()


def answer(exchange: int, request: dict[str, Any]) -> None:
    """What a real connector does here: ask the provider once, and tell what comes as it comes."""
    last = request["input"][-1]
    if "UserText" not in last:
        failed = {"kind": "invalid_request", "message": "a parrot only hears what users say", "usage": usage(0, 0)}
        write_frame("outcome", exchange, outcome={"Failed": failed})  # zeros: nothing was billed
        return
    heard = last["UserText"]["text"].split(" ")
    words = heard[: request["max_output_tokens"]]
    for at, word in enumerate(words):
        write_frame("event", exchange, payload={"TextDelta": {"text": word if at == 0 else " " + word}})
    stop = "end_turn" if len(words) == len(heard) else "max_output_tokens"
    completed = {"stop_reason": stop, "usage": usage(len(heard), len(words))}
    write_frame("outcome", exchange, outcome={"Completed": completed})


def usage(heard: int, said: int) -> dict[str, int]:
    """What the provider counted: never what it costs, for that is the daemon's to say."""
    return {"input_tokens": heard, "cache_read_tokens": 0, "cache_write_tokens": 0, "output_tokens": said}


def main() -> None:
    while (asked := read_frame()) is not None:
        answer(asked["exchange"], asked["request"])


if __name__ == "__main__":
    main()
