"""Record against a provider, then replay without one: two runs of the real daemon on one directory of recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import pytest
from kit.daemon_process import Process, invocation, running_daemon, spawn, write_config
from kit.road import receipt, said
from kit.stub_http import chunked, stub_on_a_thread

SECRET = "sk-canary-Zq8xW3vNpL5tRy2KmB7d"


def sse(chunk: object) -> bytes:
    return f"data: {json.dumps(chunk)}\n\n".encode()


def delta(**members: object) -> bytes:
    return sse({"choices": [{"index": 0, "delta": members, "finish_reason": None}]})


CALL = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": '{"at":"door"}'}}
END = sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
USAGE = sse({"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 3}})
SPOKEN = (delta(content="Your key is "), delta(content=f"{SECRET}. Hm."))
REPLY = chunked(*SPOKEN, delta(tool_calls=[CALL]), END, USAGE, b"data: [DONE]\n\n")


def connectors(url: str, mode: str) -> str:
    """The lines of the kit's own connector, and the table of the one behind it."""
    return f"""kind = "recorded"
records = "live"
directory = "recordings"
mode = "{mode}"

[[connector]]
name = "live"
kind = "openai_chat"
base_url = "{url}"
credential = {{env = "SIDECAR_TEST_KEY"}}"""


def answered(daemon: Process, request_id: str, **changes: Any) -> bytes:
    with daemon.connect() as client:
        return client.ask(invocation(request_id, **changes))


def events(frame: bytes) -> list[Any]:
    return [event["payload"] for event in msgpack.unpackb(frame)["disposition"]["Transported"]["events"]]


def folder(tmp_path: Path, name: str, url: str, mode: str) -> Path:
    """A daemon's own folder and ledger; the recordings are one for all of them."""
    here = tmp_path / name
    here.mkdir()
    (tmp_path / "recordings").mkdir(exist_ok=True)
    write_config(here, connector=connectors(url, mode).replace('"recordings"', '"../recordings"'))
    return here


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[bytes, str]:
    """What a recording daemon has answered, and where the provider was that is no longer there."""
    with (
        stub_on_a_thread(REPLY) as stub,
        running_daemon(folder(tmp_path, "r", stub.url, "record"), environ={"SIDECAR_TEST_KEY": SECRET}) as daemon,
    ):
        frame = answered(daemon, "recorded-1")
        assert [one.headers["authorization"] for one in stub.requests] == [f"Bearer {SECRET}"]
        assert daemon.stop() == 0
        assert "info recorded connector=provider" in daemon.log()
    return frame, stub.url


def test_what_was_recorded_is_replayed_with_neither_provider_nor_credential(
    tmp_path: Path, recorded: tuple[bytes, str]
) -> None:
    live, url = recorded
    [file] = (tmp_path / "recordings").iterdir()
    assert file.name == f"{bytes(receipt(live)['provider_request_sha256']).hex()}.json"
    assert SECRET not in file.read_text()
    with running_daemon(folder(tmp_path, "p", url, "replay")) as daemon:
        assert answered(daemon, "recorded-1") == live, "byte for byte, charge and receipt included"
        fresh = answered(daemon, "fresh-1", conversation_id="fresh")
        assert daemon.stop() == 0
    assert events(fresh) == events(live)
    assert events(live)[0] == {"TextDelta": {"text": "Your key is <credential>. Hm."}}
    assert receipt(fresh)["cost_micro_usd"] == receipt(live)["cost_micro_usd"] > 0
    assert receipt(fresh)["provider"] == receipt(live)["provider"] == "provider"


def test_an_unknown_request_is_refused_before_it_is_paid_and_the_log_says_how_to_record_it(
    tmp_path: Path, recorded: tuple[bytes, str]
) -> None:
    _, url = recorded
    with running_daemon(folder(tmp_path, "p", url, "replay")) as daemon:
        frame = answered(daemon, "other-1", words="something else")
        log = daemon.log()
        assert daemon.stop() == 0
    assert said(frame) == "ProviderRejected"
    [line] = [line for line in log.splitlines() if " refused " in line]
    assert 'mode = \\"record\\" or \\"both\\"' in line
    assert "no recording " in line
    assert "info recorded_opened connector=provider mode=replay recordings=1" in log


def test_prices_in_replay_are_those_of_today(tmp_path: Path, recorded: tuple[bytes, str]) -> None:
    live, url = recorded
    here = folder(tmp_path, "p", url, "replay")
    config = here / "sidecar.toml"
    config.write_text(config.read_text().replace("output = 11_000_027", "output = 511_000_027"))
    with running_daemon(here) as daemon:
        assert receipt(answered(daemon, "x"))["cost_micro_usd"] == receipt(live)["cost_micro_usd"] + 1500


def test_a_daemon_does_not_start_on_a_file_that_is_no_recording(tmp_path: Path, recorded: tuple[bytes, str]) -> None:
    (tmp_path / "recordings/odd.json").write_text("{}")
    daemon = spawn(folder(tmp_path, "p", recorded[1], "replay"))
    assert daemon.process.wait(timeout=30) == 78
    assert 'connector "provider".directory: odd.json: is no recording' in daemon.log()
