"""A small client of its own, and its driver; with FAULT in the environment it does one thing wrong.

Blocking sockets, the msgpack library and nothing of the package: a driver for
the conformance runner as a stranger would write one. `FAULTS` says what each
fault is; a runner that lets one pass proves nothing.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
from base64 import b64decode, b64encode
from contextlib import suppress
from hashlib import sha256
from typing import Any

import msgpack

FAULTS = {
    "none": "it is right",
    "nil members": "optional members that are nil are written",
    "signed integers": "integers are written as signed ones",
    "floats": "integers of 2^32 and more are written as doubles",
    "unsorted": "the keys stand as they come",
    "long headers": "every string has a header of five bytes",
    "digest as bin": "digests are bin",
    "lossy integers": "integers go through a double",
    "normalises": "the first letter of a text is changed",
    "other bytes again": "a new expiry for each connection",
    "never again": "it claims to resend, and does not",
    "no hello again": "only the first connection says hello",
    "first come": "an answer is for whoever asked first",
    "one read": "what one read brings is a frame",
    "late events": "events are told with the result",
    "tells twice": "events are told live, and again from the result",
    "tells no rest": "what did not come live is never told",
    "tells again what is void": "where a stream is refused, its live events are told once more",
    "wants all in the result": "a result with fewer events than came live is no answer",
    "text only": "events other than text are not told",
    "refused is completed": "a refusal is told as an answer",
    "makes up an answer": "a lost connection is an empty answer",
    "hangs": "it never answers where the connection is lost",
    "dies": "it ends in the middle of a vector",
    "speaks French": "it writes what is no JSON",
    "no opening": "it says nothing first",
    "cancels another": "cancel names another request",
    "quotes another": "the quote's budget is another",
}
FAULT = os.environ.get("FAULT", "none")
ALL = ["encode", "concurrent", "resend", "stream", "quote", "status", "cancel", "welcome"]
CLAIMS = os.environ.get("CLAIMS", ",".join(ALL)).split(",")
GIVE_UP_SECONDS = 2.0
NAMES = "gamecult.model.transport_"

_lines = threading.Lock()


def say(value: Any) -> None:
    with _lines:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()


# --- encoding ---------------------------------------------------------------------------------------------------


def value_of(spelt: Any, member: str = "") -> Any:
    if isinstance(spelt, dict):
        if "$int" in spelt:
            return int(float(spelt["$int"])) if FAULT == "lossy integers" else int(spelt["$int"])
        return {key: value_of(inner, key) for key, inner in spelt.items()}
    if isinstance(spelt, list):
        return [value_of(inner) for inner in spelt]
    return b64decode(spelt) if member == "state" and isinstance(spelt, str) else spelt


def spelt_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: spelt_of(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [spelt_of(inner) for inner in value]
    return b64encode(value).decode() if isinstance(value, bytes) else value


def encoded(value: Any) -> bytes:
    if isinstance(value, dict):
        pairs = [(key, inner) for key, inner in value.items() if inner is not None or FAULT == "nil members"]
        if FAULT != "unsorted":
            pairs.sort()
        head = bytes(msgpack.Packer().pack_map_header(len(pairs)))
        return head + b"".join(encoded(key) + encoded(inner) for key, inner in pairs)
    if isinstance(value, list):
        if FAULT == "digest as bin" and len(value) == 32 and all(isinstance(one, int) for one in value):
            return bytes(msgpack.packb(bytes(value)))
        return bytes(msgpack.Packer().pack_array_header(len(value))) + b"".join(map(encoded, value))
    if FAULT == "signed integers" and type(value) is int and 2**7 <= value < 2**15:
        return b"\xd1" + struct.pack(">h", value)
    if FAULT == "floats" and type(value) is int and value >= 2**32:
        return b"\xcb" + struct.pack(">d", float(value))
    if FAULT == "long headers" and isinstance(value, str):
        text = value.encode()
        return b"\xdb" + struct.pack(">I", len(text)) + text
    return bytes(msgpack.packb(value))


def invocation(caller: str, said: dict[str, Any]) -> dict[str, Any]:
    request = value_of(said["request"])
    if FAULT == "normalises":
        request["instructions"] = request["instructions"].swapcase()
    digest = [*sha256(encoded(request)).digest()]
    return {
        "caller_runtime_id": caller,
        "expires_at_unix_ms": value_of(said["expires_at_unix_ms"]),
        "max_cost_micro_usd": value_of(said["max_cost_micro_usd"]),
        "native_request_sha256": said["native_request_sha256"] or digest,
        "provider_request_sha256": digest,
        "request": request,
        "schema_id": NAMES + "invocation.v1",
    }


# --- a client ---------------------------------------------------------------------------------------------------


class Lost(Exception):
    pass


class NotADaemon(Exception):
    pass


class Wait:
    """What one action waits for."""

    def __init__(self, frame: Any, key: Any) -> None:
        self.frame = frame
        self.key = key
        self.ready = threading.Event()
        self.answer: Any = None
        self.on_event: Any = None
        self.tries = 0

    def settle(self, answer: Any) -> None:
        self.answer = answer
        self.ready.set()


class Client:
    """One connection at a time, one thread that reads it, any number of actions that wait."""

    def __init__(self, path: str, caller: str | None) -> None:
        self.path = path
        self.caller = caller
        self.waits: list[Wait] = []
        self.lock = threading.Lock()
        self.socket: socket.socket | None = None
        self.connections = 0
        self.closed = False
        self.welcomed: Any = None

    def do(self, wait: Wait, give_up_at: float, *, answered: bool = True) -> Any:
        with self.lock:
            self.waits.append(wait)
        while not wait.ready.is_set():
            try:
                self.connected()
                self.send(wait)
                if not answered:
                    return None
                while not wait.ready.wait(0.01) and self.socket is not None:
                    if time.time() > give_up_at:
                        raise Lost("no answer in time")
                if not wait.ready.is_set():
                    raise Lost("the connection was lost")
            except (Lost, OSError) as lost:
                with self.lock:
                    wait.tries += 1
                if FAULT == "hangs":
                    time.sleep(3600)
                again = "resend" in CLAIMS and FAULT != "never again"
                if time.time() > give_up_at or not again:
                    raise Lost(str(lost)) from None
                time.sleep(0.02)
        if isinstance(wait.answer, Exception):
            raise wait.answer
        return wait.answer

    def connected(self) -> None:
        with self.lock:
            if self.socket is not None:
                return
            fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                fresh.connect(self.path)
            except OSError:
                fresh.close()
                raise
            self.socket = fresh
            self.connections += 1
            if FAULT != "no hello again" or self.connections == 1:
                self.write(
                    {"client": "small", "join": True, "protocol": 1, "schema_id": NAMES + "hello.v1",
                     "stream_events": "stream" in CLAIMS}
                )  # fmt: skip
            threading.Thread(target=self.read, args=(fresh,), daemon=True).start()

    def write(self, value: Any) -> None:
        assert self.socket is not None
        frame = encoded(value)
        with suppress(BrokenPipeError):  # what the daemon has said before it left is still read
            self.socket.sendall(len(frame).to_bytes(4, "big") + frame)

    def send(self, wait: Wait) -> None:
        with self.lock:
            if self.socket is None:
                raise Lost("the connection was lost")
            frame = wait.frame
            if FAULT == "other bytes again" and wait.tries and "expires_at_unix_ms" in frame:
                frame = {**frame, "expires_at_unix_ms": frame["expires_at_unix_ms"] + wait.tries}
            self.write(frame)

    def read(self, stream: socket.socket) -> None:
        received = b""
        try:
            while piece := stream.recv(65536):
                received += piece
                if FAULT == "one read":
                    self.take(unpacked(received[4:]))
                    received = b""
                while len(received) >= 4:
                    length = int.from_bytes(received[:4], "big")
                    if not 0 < length < 2**24:
                        raise NotADaemon("a length that no frame has")
                    if len(received) < 4 + length:
                        break
                    self.take(unpacked(received[4 : 4 + length]))
                    received = received[4 + length :]
        except NotADaemon as fault:
            self.fail_all(fault)
        except OSError:
            pass
        with self.lock:
            if self.socket is stream:
                self.socket = None
        stream.close()

    def fail_all(self, fault: Exception) -> None:
        for wait in list(self.waits):
            wait.settle(fault)

    def take(self, value: dict[str, Any]) -> None:
        schema = value["schema_id"].removeprefix(NAMES)
        if schema == "welcome.v1":
            self.welcomed = value
        kinds = {"result.v1": "invoke", "event.v1": "invoke", "quoted.v1": "quote", "status_report.v1": "status"}
        key = (kinds.get(schema), value.get("caller_runtime_id"), value.get("request_id"))
        for wait in list(self.waits):
            if wait.ready.is_set():
                continue
            mine = wait.key == key or (FAULT == "first come" and schema == "result.v1")
            if schema == "welcome.v1" and wait.key[0] == "welcome":
                wait.settle(value)
            elif schema == "event.v1" and mine and wait.on_event:
                wait.on_event(value["event"], self.connections)
            elif schema == "error.v1" and (value.get("request_id") in (None, wait.key[2])):
                wait.settle(value)
            elif mine and schema not in ("event.v1", "error.v1"):
                wait.settle(value)
                return

    def close(self) -> None:
        with self.lock:
            if self.socket is not None:
                with suppress(OSError):
                    self.socket.shutdown(socket.SHUT_RDWR)


def unpacked(frame: bytes) -> dict[str, Any]:
    try:
        value = msgpack.unpackb(frame)
    except Exception as error:
        raise NotADaemon(str(error)) from None
    if not isinstance(value, dict) or not isinstance(value.get("schema_id"), str):
        raise NotADaemon("no map with a schema_id")
    return value


# --- its driver -------------------------------------------------------------------------------------------------


def outcome_of(value: dict[str, Any]) -> dict[str, Any]:
    if "code" in value:
        return {"transport_error": value["code"]}
    if "disposition" not in value:
        return {"fault": str(value)}
    disposition = value["disposition"]
    if "Refused" not in disposition:
        return {"transported": spelt_of(disposition["Transported"])}
    if FAULT == "refused is completed":
        return {"transported": {"events": [], "receipt": {}}}
    return {"refused": disposition["Refused"]}


def done(client: Client, vector: str, at: int, said: dict[str, Any]) -> dict[str, Any]:
    try:
        return _done(client, vector, at, said)
    except (Lost, NotADaemon, OSError) as lost:
        empty = {"transported": {"events": [], "receipt": {}}}
        return empty if FAULT == "makes up an answer" else {"no_answer": str(lost)}
    except Exception as error:
        return {"fault": repr(error)}


def _done(client: Client, vector: str, at: int, said: dict[str, Any]) -> dict[str, Any]:
    give_up_at = time.time() + GIVE_UP_SECONDS
    if said["do"] == "encode":
        return {"bytes": b64encode(encoded(invocation(str(client.caller), said))).decode()}
    caller = client.caller or the_only_caller(client, give_up_at)
    if said["do"] == "status":
        answer = client.do(Wait({"schema_id": NAMES + "status.v1"}, ("status", None, None)), give_up_at)
        return {"status": spelt_of(answer)} if "code" not in answer else outcome_of(answer)
    if said["do"] == "cancel":
        if "once_told" in said:
            has_told(said["once_told"]).wait(GIVE_UP_SECONDS)
        request_id = said["request_id"] + ("x" if FAULT == "cancels another" else "")
        frame = {"caller_runtime_id": caller, "request_id": request_id, "schema_id": NAMES + "cancel.v1"}
        client.do(Wait(frame, ("cancel", caller, request_id)), give_up_at, answered=False)
        return {"cancelled": True}
    asked = invocation(caller, said)
    request_id = asked["request"]["request_id"]
    if said["do"] == "quote":
        if FAULT == "quotes another":
            asked["max_cost_micro_usd"] += 1
        frame = {"invocation": asked, "schema_id": NAMES + "quote.v1"}
        answer = client.do(Wait(frame, ("quote", caller, request_id)), give_up_at)
        if "code" in answer:
            return outcome_of(answer)
        return {"quoted": {name: answer.get(name) for name in ("worst_case_micro_usd", "refusal")}}
    wait = Wait(asked, ("invoke", caller, request_id))
    if said["do"] == "invoke":
        return outcome_of(client.do(wait, give_up_at))
    told = Told(vector, at)
    wait.on_event = told.live
    outcome = outcome_of(client.do(wait, give_up_at))
    told.rest(outcome)
    return outcome


_told: dict[int, threading.Event] = {}


def has_told(at: int) -> threading.Event:
    """Set once an event of this action has been told."""
    return _told.setdefault(at, threading.Event())


class Told:
    """What a stream has told: live as long as it is one run on the first connection, the rest from the result."""

    def __init__(self, vector: str, at: int) -> None:
        self.vector = vector
        self.at = at
        self.events: list[Any] = []
        self.over = False

    def live(self, event: dict[str, Any], connection: int) -> None:
        sequence = event["sequence"]
        last = self.events[-1]["sequence"] if self.events else -1
        self.over |= connection > 1 or sequence not in (last, last + 1)
        if FAULT == "late events" or (self.over and FAULT != "tells twice"):
            return
        self.tell(event)

    def tell(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if FAULT != "text only" or "TextDelta" in event["payload"]:
            say({"vector": self.vector, "action": self.at, "event": spelt_of(event)})
            has_told(self.at).set()

    def rest(self, outcome: dict[str, Any]) -> None:
        if FAULT == "tells again what is void" and "refused" in outcome:
            for event in self.events[:]:
                self.tell(event)
        if FAULT == "wants all in the result" and len(outcome.get("transported", outcome).get("events", ())) == 0:
            raise NotADaemon("the result has not the events that came live")
        if "transported" not in outcome or FAULT == "tells no rest":
            return
        for event in outcome["transported"]["events"]:
            so_far = [one for one in self.events if one["sequence"] == event["sequence"]]
            if "TextDelta" in event["payload"]:
                told = "" if FAULT == "tells twice" else "".join(one["payload"]["TextDelta"]["text"] for one in so_far)
                left = event["payload"]["TextDelta"]["text"][len(told) :]
                if left:
                    self.tell({"sequence": event["sequence"], "payload": {"TextDelta": {"text": left}}})
            elif not so_far:
                self.tell(event)


def the_only_caller(client: Client, give_up_at: float) -> str:
    client.connected()
    while client.welcomed is None and time.time() < give_up_at:
        time.sleep(0.005)
    callers = client.welcomed["callers"] if client.welcomed else []
    if len(callers) != 1:
        raise Lost(f"there are several callers: {callers}")
    return str(callers[0])


def main() -> None:
    if FAULT != "no opening":
        say({"driver": 1, "client": "small 1", "claims": [claim for claim in CLAIMS if claim]})
    for line in sys.stdin:
        told = json.loads(line)
        if FAULT == "dies":
            sys.exit("it dies here")
        if FAULT == "speaks French":
            print("Bonjour", flush=True)
        _told.clear()
        client = Client(told["socket"], told["caller"])
        outcomes: list[Any] = [None] * len(told["actions"])

        def act(at: int, client: Client = client, told: Any = told, outcomes: list[Any] = outcomes) -> None:
            outcomes[at] = done(client, told["vector"], at, told["actions"][at])

        threads = [threading.Thread(target=act, args=(at,)) for at in range(len(outcomes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.close()
        say({"vector": told["vector"], "outcomes": outcomes})


if __name__ == "__main__":
    main()
