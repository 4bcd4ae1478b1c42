"""Callers who connect anew for each request, until the file /root/load-over is there; then says what they met, as JSON.

    /opt/sidecar/bin/python load.py CALLER MODEL THREADS

A request whose connection ends before its answer is sent again on another, the same bytes. `refused_connections` counts
connections that could not be made, by their error; `resent` those that ended before the answer; `requests` and
`answered` must be the same in the end; `outcomes` is how they ended.
"""

import json
import os
import socket
import sys
import threading
import time
from collections import Counter

import msgspec

from sidecar.client import new_request
from sidecar.client.asking import invocation_of, sealed, terms_of

CALLER, MODEL, THREADS = sys.argv[1], sys.argv[2], int(sys.argv[3])
SOCKET, OVER = "/run/sidecar/requests.sock", "/root/load-over"
ANSWER_SECONDS_MAX = 120
met, refused, outcomes, lock = Counter(), Counter(), Counter(), threading.Lock()


def receive(connected, length):
    held = b""
    while len(held) < length:
        piece = connected.recv(length - len(held))
        if not piece:
            raise ConnectionError("closed")
        held += piece
    return held


def once(frame):
    """The outcome, or None where this connection has ended without one."""
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(ANSWER_SECONDS_MAX)
        try:
            connected.connect(SOCKET)
        except OSError as error:
            with lock:
                refused[error.strerror] += 1
            time.sleep(0.05)
            return None
        with lock:
            met["connections"] += 1
        try:
            connected.sendall(frame)
            told = msgspec.msgpack.decode(receive(connected, int.from_bytes(receive(connected, 4), "big")))
        except ConnectionError:
            return None
    if told["schema_id"].endswith("transport_error.v1"):
        return None if told["code"] in ("shutting_down", "ledger_unavailable") else told["code"]
    disposition = told["disposition"]
    if "Refused" in disposition:
        return None if disposition["Refused"] == "InFlight" else disposition["Refused"]
    outcome = disposition["Transported"]["receipt"]["outcome"]
    return outcome if isinstance(outcome, str) else next(iter(outcome))


def caller():
    while not os.path.exists(OVER):
        request = new_request(MODEL, "Who goes there?")
        sent = sealed(invocation_of(request, CALLER, terms_of(request, {})))
        frame = len(sent).to_bytes(4, "big") + sent
        with lock:
            met["requests"] += 1
        until = time.monotonic() + ANSWER_SECONDS_MAX
        while (outcome := once(frame)) is None and time.monotonic() < until:
            with lock:
                met["resent"] += 1
        with lock:
            met["answered"] += outcome is not None
            outcomes[str(outcome)] += 1


threads = [threading.Thread(target=caller) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({**met, "refused_connections": dict(refused), "outcomes": dict(outcomes)}))
