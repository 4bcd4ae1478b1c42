"""The driver of this project's own clients for `sidecar conformance --client`; see goldens/DRIVERS.md.

    python python_driver.py [blocking | trio | asyncio]

The blocking client runs its actions in threads, the other in tasks; all else is the same.
"""

from __future__ import annotations

import json
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import anyio
import msgspec

from sidecar.client import (
    AsyncClient,
    Client,
    DaemonError,
    Disconnected,
    NotADaemon,
    Refused,
    RequestFailed,
    WhichCaller,
)
from sidecar.contract import canonical
from sidecar.contract.values import ProviderRequest

CLAIMS = ["encode", "concurrent", "resend", "stream", "quote", "status", "cancel", "welcome"]
PATIENCE: dict[str, Any] = {"connect_seconds_max": 1.5, "grace_seconds": 0.5, "wait_for_restart": False}

_writing = threading.Lock()


def say(value: Any) -> None:
    with _writing:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()


def heard() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line, object_hook=lambda read: int(read["$int"]) if read.keys() == {"$int"} else read)


def asked_of(said: dict[str, Any]) -> tuple[ProviderRequest, dict[str, Any]]:
    """The request, and the keywords that every call takes."""
    native = said["native_request_sha256"]
    terms = {
        "expires_at_unix_ms": said["expires_at_unix_ms"],
        "max_cost_micro_usd": said["max_cost_micro_usd"],
        "native_request_sha256": None if native is None else bytes(native),
    }
    return msgspec.convert(said["request"], ProviderRequest), terms


def transported(events: Any, receipt: Any) -> dict[str, Any]:
    return {"transported": msgspec.to_builtins({"events": events, "receipt": receipt})}


@contextmanager
def ended(outcome: dict[str, Any]) -> Iterator[None]:
    """Puts what was raised into the outcome."""
    try:
        yield
    except Refused as refused:
        outcome["refused"] = refused.refusal
    except RequestFailed as failed:
        outcome |= transported(failed.events, failed.receipt)
    except DaemonError as error:
        outcome["transport_error"] = error.code
    except (Disconnected, NotADaemon, WhichCaller) as trouble:
        outcome["no_answer"] = str(trouble)
    except Exception as fault:
        outcome.clear()
        outcome["fault"] = repr(fault)


class Vector:
    """A vector under way; `has_told` of an action is set once an event of it was told."""

    def __init__(self, line: dict[str, Any], new_event: Callable[[], Any]) -> None:
        self.name: str = line["vector"]
        self.actions: list[dict[str, Any]] = line["actions"]
        self.where = (line["socket"], line["caller"])
        self.outcomes: list[Any] = [None] * len(self.actions)
        self.has_told = [new_event() for _ in self.actions]

    def tell(self, at: int, event: Any) -> None:
        say({"vector": self.name, "action": at, "event": msgspec.to_builtins(event)})
        self.has_told[at].set()

    def end(self) -> None:
        say({"vector": self.name, "outcomes": self.outcomes})


# --- blocking ---------------------------------------------------------------------------------------------------


def act(client: Client, vector: Vector, at: int) -> None:
    said, outcome = vector.actions[at], {}
    vector.outcomes[at] = outcome
    with ended(outcome):
        if said["do"] == "status":
            outcome["status"] = msgspec.to_builtins(client.status())
        elif said["do"] == "cancel":
            if "once_told" in said:
                vector.has_told[said["once_told"]].wait()
            client.cancel(said["request_id"])
            outcome["cancelled"] = True
        else:
            outcome |= _asked(client, vector, at)


def _asked(client: Client, vector: Vector, at: int) -> dict[str, Any]:
    said = vector.actions[at]
    request, terms = asked_of(said)
    if said["do"] == "encode":
        return {"bytes": b64encode(canonical.encode(client.prepare(request, **terms))).decode()}
    if said["do"] == "quote":
        quote = client.quote(request, **terms)
        return {"quoted": {"worst_case_micro_usd": quote.worst_case_micro_usd, "refusal": quote.refusal}}
    if said["do"] == "invoke":
        result = client.invoke(request, **terms)
        return transported(result.events, result.receipt)
    with client.stream(request, **terms) as stream:
        for event in stream:
            vector.tell(at, event)
        return transported(stream.result.events, stream.result.receipt)


def blocking() -> None:
    say({"driver": 1, "client": "sidecar.client.Client", "claims": CLAIMS})
    for line in heard():
        vector = Vector(line, threading.Event)
        socket, caller = vector.where
        with Client(socket, caller=caller, **PATIENCE) as client, ThreadPoolExecutor() as threads:
            for one in [threads.submit(act, client, vector, at) for at in range(len(vector.actions))]:
                one.result()
        vector.end()


# --- async ------------------------------------------------------------------------------------------------------


async def act_async(client: AsyncClient, vector: Vector, at: int) -> None:
    said, outcome = vector.actions[at], {}
    vector.outcomes[at] = outcome
    with ended(outcome):
        if said["do"] == "status":
            outcome["status"] = msgspec.to_builtins(await client.status())
        elif said["do"] == "cancel":
            if "once_told" in said:
                await vector.has_told[said["once_told"]].wait()
            await client.cancel(said["request_id"])
            outcome["cancelled"] = True
        else:
            outcome |= await _asked_async(client, vector, at)


async def _asked_async(client: AsyncClient, vector: Vector, at: int) -> dict[str, Any]:
    said = vector.actions[at]
    request, terms = asked_of(said)
    if said["do"] == "encode":
        return {"bytes": b64encode(canonical.encode(client.prepare(request, **terms))).decode()}
    if said["do"] == "quote":
        quote = await client.quote(request, **terms)
        return {"quoted": {"worst_case_micro_usd": quote.worst_case_micro_usd, "refusal": quote.refusal}}
    if said["do"] == "invoke":
        result = await client.invoke(request, **terms)
        return transported(result.events, result.receipt)
    async with client.stream(request, **terms) as stream:
        async for event in stream:
            vector.tell(at, event)
        return transported(stream.result.events, stream.result.receipt)


async def asynchronous() -> None:
    say({"driver": 1, "client": "sidecar.client.AsyncClient", "claims": CLAIMS})
    for line in heard():  # blocks the loop between two vectors, when nothing runs on it
        vector = Vector(line, anyio.Event)
        socket, caller = vector.where
        async with AsyncClient(socket, caller=caller, **PATIENCE) as client, anyio.create_task_group() as actions:
            for at in range(len(vector.actions)):
                actions.start_soon(act_async, client, vector, at)
        vector.end()


if __name__ == "__main__":
    kind = (sys.argv[1:] or ["blocking"])[0]
    if len(sys.argv) > 2 or kind not in ("blocking", "trio", "asyncio"):
        sys.exit(f"usage: python {sys.argv[0]} [blocking | trio | asyncio]")
    blocking() if kind == "blocking" else anyio.run(asynchronous, backend=kind)
