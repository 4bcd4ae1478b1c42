"""The TypeScript client: compiled strictly, held to the goldens, and played against a fake daemon and the real one."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Self

import msgpack
import pytest
from kit.daemon_process import request, running_daemon, spawn, wait_ready, write_config

CLIENT = Path(__file__).resolve().parent / "typescript"
GOLDENS = Path(__file__).resolve().parents[2] / "goldens"
INSTALL_SECONDS_MAX = 120
RUN_SECONDS_MAX = 60
STRICT = ("strict", "noUncheckedIndexedAccess", "exactOptionalPropertyTypes")


def need(tool: str) -> str:
    found = shutil.which(tool)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{tool} is needed, and CI may not do without it")
        pytest.skip(f"{tool} is not on this machine")
    return found


def run(folder: Path, *command: str, seconds_max: int = RUN_SECONDS_MAX) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds_max)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client with its packages, in a folder of its own."""
    npm, _ = need("npm"), need("node")
    folder = tmp_path_factory.mktemp("typescript") / "client"
    shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns("node_modules", "build"))
    done = run(folder, npm, "ci", seconds_max=INSTALL_SECONDS_MAX)
    if done.returncode != 0:
        why = f"npm can't install the client's packages here: {done.stderr.strip()[-500:]}"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)
    return folder


@pytest.fixture(scope="module")
def compiled(installed: Path) -> Path:
    """The same, with `build/`."""
    done = run(installed, need("npm"), "run", "--silent", "build")
    assert done.returncode == 0, done.stdout
    return installed


class Driver:
    """The client behind its driver: it is told what to do, and says what came of it."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [need("node"), "build/driver.js", "30"],
            cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
        )  # fmt: skip
        self.opening = self.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._pipe(self._process.stdin).close()
            self._process.wait(timeout=RUN_SECONDS_MAX)

    def start(self, socket_path: Path, *actions: dict[str, Any], caller: str | None = "dungeon") -> None:
        line = {"vector": "here", "socket": str(socket_path), "caller": caller, "actions": actions}
        self._pipe(self._process.stdin).write(json.dumps(line) + "\n")
        self._pipe(self._process.stdin).flush()

    def read(self) -> dict[str, Any]:
        line: dict[str, Any] = json.loads(self._pipe(self._process.stdout).readline())
        return line

    def outcomes(self) -> list[dict[str, Any]]:
        """What came of the actions; lines of live events before it are skipped."""
        while "outcomes" not in (line := self.read()):
            pass
        found: list[dict[str, Any]] = line["outcomes"]
        return found

    def play(self, socket_path: Path, *actions: dict[str, Any], caller: str | None = "dungeon") -> list[dict[str, Any]]:
        self.start(socket_path, *actions, caller=caller)
        return self.outcomes()

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


@pytest.fixture
def driver(compiled: Path) -> Iterator[Driver]:
    with Driver(compiled) as running:
        yield running


def asked(do: str, request_id: str, words: str = "hello there", *, cost: int = 10**9, **changes: Any) -> dict[str, Any]:
    return {
        "do": do,
        "request": request(request_id, words, **changes),
        "expires_at_unix_ms": int((time.time() + 60) * 1000),
        "max_cost_micro_usd": cost,
        "native_request_sha256": None,
    }


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["payload"].get("TextDelta", {"text": ""})["text"] for event in events)


# --- by itself --------------------------------------------------------------------------------------------------


def test_the_lock_pins_everything_and_names_no_registry() -> None:
    lock = json.loads((CLIENT / "package-lock.json").read_text())
    assert "resolved" not in (CLIENT / "package-lock.json").read_text()
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert all("integrity" in package for package in packages.values())
    assert [name for name, package in packages.items() if not package.get("dev")] == ["node_modules/@msgpack/msgpack"]


def test_it_is_compiled_by_the_strictest_rules_and_shows_no_any(compiled: Path) -> None:
    options = json.loads((CLIENT / "tsconfig.json").read_text())["compilerOptions"]
    assert all(options[name] is True for name in STRICT)
    declared = (compiled / "build/sidecar.d.ts").read_text()
    assert not re.search(r"\bany\b", re.sub(r"/\*.*?\*/|//[^\n]*", "", declared, flags=re.DOTALL))


def test_it_computes_every_golden_digest_from_the_json_values(compiled: Path) -> None:
    done = run(compiled, need("node"), "build/check-goldens.js", str(GOLDENS))
    assert (done.returncode, done.stderr) == (0, "")
    vectors = [
        vector
        for path in [*(GOLDENS / "values").glob("*.json"), GOLDENS / "frames/variants.json"]
        for vector in json.loads(path.read_text())["vectors"]
    ]
    assert int(done.stdout.split()[0]) >= len(vectors) > 200


def test_its_check_notices_a_wrong_golden(compiled: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "goldens"
    shutil.copytree(GOLDENS, spoilt)
    path = spoilt / "values/provider_request.v1.json"
    document = json.loads(path.read_text())
    document["vectors"][3]["sha256"] = "00" * 32
    path.write_text(json.dumps(document))
    done = run(compiled, need("node"), "build/check-goldens.js", str(spoilt))
    assert done.returncode == 1
    assert document["vectors"][3]["name"] in done.stderr


def test_it_holds_against_a_fake_daemon(compiled: Path) -> None:
    done = run(compiled, need("node"), "--test", "build/sidecar.test.js")
    assert done.returncode == 0, done.stdout


# --- against the real daemon ------------------------------------------------------------------------------------


def test_it_completes_an_exchange_as_the_caller_that_the_welcome_names(driver: Driver, tmp_path: Path) -> None:
    write_config(tmp_path)
    question = "Who goes there? \U0001f409 Ça va?"
    with running_daemon(tmp_path) as daemon:
        [outcome] = driver.play(daemon.socket_path, asked("invoke", "r1", question), caller=None)
    assert text_of(outcome["transported"]["events"]) == question
    receipt = outcome["transported"]["receipt"]
    assert receipt["schema_id"] == "gamecult.model.transport_receipt.v1"
    assert receipt["caller_runtime_id"] == "dungeon"
    assert receipt["outcome"]["Completed"]["stop_reason"] == "end_turn"
    assert receipt["cost_micro_usd"] > 0
    assert len(receipt["provider_request_sha256"]) == 32


def test_it_says_why_it_was_refused(driver: Driver, tmp_path: Path) -> None:
    write_config(tmp_path)
    with running_daemon(tmp_path) as daemon:
        unknown = driver.play(daemon.socket_path, asked("invoke", "r1", model="unknown"))
        stranger = driver.play(daemon.socket_path, asked("invoke", "r1"), caller="stranger")
        no_id = driver.play(daemon.socket_path, asked("invoke", "r1"), caller="not an id")
    assert unknown == [{"refused": "ModelNotAllowed"}]
    assert stranger == [{"refused": "IdentitySubstitution"}]
    assert "caller must be 1 to 256 printable ASCII characters" in no_id[0]["fault"]


def test_many_requests_share_one_connection(driver: Driver, tmp_path: Path) -> None:
    write_config(tmp_path)
    with running_daemon(tmp_path) as daemon:
        outcomes = driver.play(daemon.socket_path, *(asked("invoke", f"r{at}", f"word {at}") for at in range(20)))
    assert [text_of(outcome["transported"]["events"]) for outcome in outcomes] == [f"word {at}" for at in range(20)]


def test_the_same_request_again_is_replayed_byte_for_byte(driver: Driver, tmp_path: Path) -> None:
    write_config(tmp_path)
    invocation = asked("invoke", "r1")
    with running_daemon(tmp_path) as daemon:
        [first] = driver.play(daemon.socket_path, invocation)
        [second] = driver.play(daemon.socket_path, invocation)
        [encoded] = driver.play(daemon.socket_path, {**invocation, "do": "encode"})
        [conflict] = driver.play(daemon.socket_path, {**invocation, "max_cost_micro_usd": 10**9 + 1})
        with daemon.connect() as raw:
            recorded = msgpack.unpackb(raw.ask(base64.b64decode(encoded["bytes"])))
    assert first == second == {"transported": recorded["disposition"]["Transported"]}
    assert conflict == {"refused": "ReplayConflict"}


def test_a_stream_hands_pieces_over_before_the_result_and_they_add_up(driver: Driver, tmp_path: Path) -> None:
    script = '[[rule]]\ndeltas = ["A ", "stair", "."]\ndelta_delay_ms = 20'
    write_config(tmp_path, script=script)
    with running_daemon(tmp_path) as daemon:
        driver.start(daemon.socket_path, asked("stream", "r1"))
        told = []
        while "event" in (line := driver.read()):
            told.append(line["event"])
    [outcome] = line["outcomes"]
    assert [event["sequence"] for event in told] == [0] * len(told)
    assert len(told) > 1
    assert text_of(told) == text_of(outcome["transported"]["events"]) == "A stair."


def test_a_quote_says_what_the_invocation_is_answered(driver: Driver, tmp_path: Path) -> None:
    write_config(tmp_path)
    with running_daemon(tmp_path) as daemon:
        cheap = {**asked("quote", "r1"), "max_cost_micro_usd": 1}
        [quote, refused] = driver.play(daemon.socket_path, asked("quote", "r2"), cheap)
        [invoked] = driver.play(daemon.socket_path, {**cheap, "do": "invoke"})
        worst = quote["quoted"]["worst_case_micro_usd"]
        [exactly] = driver.play(daemon.socket_path, asked("invoke", "r3", cost=worst))
    assert quote["quoted"]["refusal"] is None
    assert refused == {"quoted": {"refusal": "CostBound", "worst_case_micro_usd": worst}}
    assert invoked == {"refused": "CostBound"}
    assert exactly["transported"]["receipt"]["cost_micro_usd"] <= worst


def test_the_status_says_what_was_spent(driver: Driver, tmp_path: Path) -> None:
    write_config(tmp_path)
    with running_daemon(tmp_path) as daemon:
        [answered] = driver.play(daemon.socket_path, asked("invoke", "r1"))
        [status] = driver.play(daemon.socket_path, {"do": "status"})
    [caller] = status["status"]["callers"]
    assert caller["caller_runtime_id"] == "dungeon"
    assert caller["spent_micro_usd"] == answered["transported"]["receipt"]["cost_micro_usd"]
    assert [model["name"] for model in status["status"]["models"]] == ["npc"]


def test_a_cancelled_request_ends_now_and_says_what_it_cost(compiled: Path, driver: Driver, tmp_path: Path) -> None:
    write_config(tmp_path, script='[[rule]]\ndeltas = ["so far"]\nhang = true')
    with running_daemon(tmp_path) as daemon, Driver(compiled) as other:
        driver.start(daemon.socket_path, asked("stream", "r1"))
        assert text_of([driver.read()["event"]]) == "so far"
        assert other.play(daemon.socket_path, {"do": "cancel", "request_id": "r1"}) == [{"cancelled": True}]
        [ended] = driver.outcomes()
    receipt = ended["transported"]["receipt"]
    assert receipt["outcome"]["Failed"]["kind"] == "timeout"
    assert receipt["cost_micro_usd"] > 0
    assert text_of(ended["transported"]["events"]) == "so far"


def test_a_request_is_cancelled_on_the_connection_that_asked(driver: Driver, tmp_path: Path) -> None:
    write_config(tmp_path, script="[[rule]]\nhang = true")
    with running_daemon(tmp_path) as daemon:
        cancel = {"do": "cancel", "request_id": "r1"}
        [ended, cancelled] = driver.play(daemon.socket_path, asked("invoke", "r1"), cancel)
    assert ended["transported"]["receipt"]["outcome"]["Failed"]["kind"] == "timeout"
    assert cancelled == {"cancelled": True}


def test_a_request_that_runs_is_joined_by_the_same_bytes(compiled: Path, driver: Driver, tmp_path: Path) -> None:
    write_config(tmp_path, script='[[rule]]\ndeltas = ["so far"]\nhang = true')
    stream = asked("stream", "r1")
    with running_daemon(tmp_path) as daemon, Driver(compiled) as other:
        driver.start(daemon.socket_path, stream)
        assert text_of([driver.read()["event"]]) == "so far"
        [conflict] = other.play(daemon.socket_path, {**stream, "do": "invoke", "max_cost_micro_usd": 10**9 + 1})
        assert conflict == {"refused": "ReplayConflict"}
        [both, cancelled] = other.play(
            daemon.socket_path, {**stream, "do": "invoke"}, {"do": "cancel", "request_id": "r1"}
        )
        assert cancelled == {"cancelled": True}
        assert driver.outcomes() == [both]
    assert both["transported"]["receipt"]["outcome"]["Failed"]["kind"] == "timeout"


def test_a_daemon_that_comes_late_is_found(driver: Driver, tmp_path: Path) -> None:
    write_config(tmp_path)
    driver.start(tmp_path / "s.sock", asked("invoke", "r1", "late"))
    with running_daemon(tmp_path):
        [outcome] = driver.outcomes()
    assert text_of(outcome["transported"]["events"]) == "late"


def test_a_daemon_killed_in_mid_request_is_found_again_and_says_indeterminate(driver: Driver, tmp_path: Path) -> None:
    write_config(tmp_path, script='[[rule]]\ntext = "hang"\ndeltas = ["so far"]\nhang = true')
    with running_daemon(tmp_path) as daemon:
        driver.start(daemon.socket_path, asked("stream", "r1", "hang"))
        assert text_of([driver.read()["event"]]) == "so far"
        daemon.kill()
        again = spawn(tmp_path)
        try:
            wait_ready(again)
            assert driver.outcomes() == [{"refused": "Indeterminate"}]
        finally:
            again.kill()


# --- against the runner -----------------------------------------------------------------------------------------


def test_conformance_passes_with_every_claim(compiled: Path) -> None:
    done = run(
        compiled, sys.executable, "-m", "sidecar", "conformance", "--client", f"{need('node')} build/driver.js",
        seconds_max=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
