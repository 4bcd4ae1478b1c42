"""A child that does what its first argument says: what every connector is held to, and all that a child may not do."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients"))

from process_child import STDIN, STDOUT, read_frame, usage, write_frame

USED = usage(11, 3)
COMPLETED = {"Completed": {"stop_reason": "end_turn", "usage": USED}}


def speak(exchange):
    for text in ("Hello", " there"):
        write_frame("event", exchange, payload={"TextDelta": {"text": text}})


def call(exchange, arguments='{"at":"door"}', name="look"):
    called = {"call_id": "c1", "name": name, "arguments": arguments}
    write_frame("event", exchange, payload={"ToolCall": called})


def end(exchange, outcome=COMPLETED, **members):
    write_frame("outcome", exchange, outcome=outcome, **members)


def hang():
    print("it hangs")  # in the daemon's log
    STDIN.read()  # until the daemon has gone


def text(exchange, _):
    speak(exchange)
    end(exchange)


def calls(exchange, _):
    speak(exchange)
    call(exchange)
    end(exchange, {"Completed": {"stop_reason": "tool_use", "usage": USED}})


def fails(exchange, _):
    speak(exchange)
    end(exchange, {"Failed": {"kind": "rate_limited", "message": "slow down"}})


def hangs(exchange, _):
    speak(exchange)
    hang()


def huge(exchange, _):
    while True:
        write_frame("event", exchange, payload={"TextDelta": {"text": "y" * 1000}})


def claims(exchange, asked):
    """The last word of what the user said is the cost."""
    speak(exchange)
    end(exchange, cost_micro_usd=int(asked["request"]["input"][-1]["UserText"]["text"].split()[-1]))


def twice(exchange, _):
    speak(exchange)
    end(exchange)
    end(exchange)


def garbage(exchange, _):
    speak(exchange)
    STDOUT.write(b"Traceback (most recent call last):\n")
    STDOUT.flush()
    hang()


def dies(exchange, _):
    speak(exchange)
    print("the last words of a \x1b[31mparrot", file=sys.stderr)
    os._exit(3)


def family(exchange, asked):
    """Has a child of its own that holds its pipes, and names it."""
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    write_frame("event", exchange, payload={"TextDelta": {"text": str(child)}})
    hang()


def environment(exchange, asked):
    """Says what it was given: environment, working directory, descriptors, session, and the request's own terms."""
    said = [f"{name}={value}" for name, value in sorted(os.environ.items())]
    descriptors = sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]  # the last one is of the listing
    said += [f"cwd {os.getcwd()}", f"fds {descriptors}", f"leader {os.getsid(0) == os.getpid()}"]
    said += [f"deadline {0 < asked['deadline_ms'] <= 60_000}", f"upstream {asked['upstream']}"]
    write_frame("event", exchange, payload={"TextDelta": {"text": "\n".join(said)}})
    end(exchange)


def state(exchange, asked):
    """Says which states came back, and emits one."""
    states = [item["ReasoningState"]["state"] for item in asked["request"]["input"] if "ReasoningState" in item]
    write_frame("event", exchange, payload={"ReasoningState": {"state": b"\x00thought\xff"}})
    write_frame("event", exchange, payload={"TextDelta": {"text": repr(states)}})
    end(exchange)


if __name__ == "__main__":
    behave = globals()[sys.argv[1]]
    while (asked := read_frame()) is not None:
        behave(asked["exchange"], asked)
