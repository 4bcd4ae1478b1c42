"""A program of a process connector that says, after two seconds, whether it may execute code that it has written."""

import mmap
import sys
import time

import msgspec

STDIN, STDOUT = sys.stdin.buffer, sys.stdout.buffer


def write_frame(kind, exchange, **members):
    frame = msgspec.msgpack.encode(
        {"schema_id": f"gamecult.model.connector_{kind}.v1", "exchange": exchange, **members}
    )
    STDOUT.write(len(frame).to_bytes(4, "big") + frame)
    STDOUT.flush()


def compiles():
    try:
        mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()
    except OSError:
        return "it may not compile"
    return "it may compile"


while len(prefix := STDIN.read(4)) == 4:
    asked = msgspec.msgpack.decode(STDIN.read(int.from_bytes(prefix, "big")))
    write_frame("event", asked["exchange"], payload={"TextDelta": {"text": compiles()}})
    time.sleep(2)
    usage = {"input_tokens": 1, "cache_read_tokens": 0, "cache_write_tokens": 0, "output_tokens": 4}
    write_frame("outcome", asked["exchange"], outcome={"Completed": {"stop_reason": "end_turn", "usage": usage}})
