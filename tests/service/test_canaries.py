"""Keys, prompts and answers are found in no log, no error, no command's output and nothing that /proc shows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
from kit import build
from kit.canaries import ANSWER, KEY, PROMPT, found_in, seen_of
from kit.daemon_process import invocation, packed, running_daemon, wait_until, write_config
from kit.road import Road, said
from kit.stub_http import Reply, StubProvider, chunked, head, stub_on_a_thread, whole

from sidecar.cli.main import main
from sidecar.connectors.promise import Answer, Lowered
from sidecar.ops.tracebacks import in_a_word, in_lines

OPERATOR = "\n[[operator]]\n"
USED = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}


def chunk(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"id": f"c-{ANSWER}", "choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


SAID = chunk(delta={"role": "assistant", "content": f"so {ANSWER} "})
FUNCTION = {"name": "look", "arguments": json.dumps({"at": ANSWER})}
CALLED = chunk(delta={"tool_calls": [{"index": 0, "id": "c1", "function": FUNCTION}]})
COUNTED = b"data: " + json.dumps({"choices": [], "usage": USED}).encode() + b"\n\ndata: [DONE]\n\n"
END = chunk(delta={}, finish_reason="tool_calls") + COUNTED
ERROR = b"data: " + json.dumps({"error": {"message": f"{KEY} {PROMPT} {ANSWER}"}}).encode() + b"\n\n"


def refusing(status: int) -> Reply:
    message = f"the key {KEY} may not ask {PROMPT}, nor be told {ANSWER}"
    return whole(json.dumps({"error": {"message": message, "type": ANSWER, "code": PROMPT}}), status)


REPLIES: dict[str, Reply] = {
    "answered": chunked(SAID, CALLED, END),
    "quotes the key": chunked(chunk(delta={"content": f"{KEY} {ANSWER}"}), END),
    "401": refusing(401),
    "400": refusing(400),
    "429": refusing(429),
    "500": refusing(500),
    "error in the stream": chunked(SAID, ERROR),
    "breaks off": chunked(SAID, ends=False, then="reset"),
    "no JSON": chunked(f"data: {{{ANSWER} {PROMPT} {KEY}\n\n".encode()),
    "broken arguments": chunked(CALLED.replace(b'\\"at\\"', b"at"), END),
    "an unknown stop reason": chunked(SAID, chunk(delta={}, finish_reason=ANSWER)),
    "a count of words": chunked(SAID, END.replace(b'"prompt_tokens": 11', f'"prompt_tokens": "{PROMPT}"'.encode())),
    "no HTTP": Reply((f"{ANSWER} {PROMPT} {KEY}\r\n\r\n".encode(),), "close"),
    "a header of words": Reply((head(200, f"x-{ANSWER.encode().hex()}: {KEY}", "content-length: nine"),), "close"),
    "a page": whole(f"<html>{ANSWER} {KEY} {PROMPT}</html>", 502, content_type="text/html"),
    "too large": chunked(*[SAID] * 3000),
    "a redirect": whole("", 302, f"location: https://example.invalid/{ANSWER.encode().hex()}?{KEY.encode().hex()}"),
}  # fmt: skip


def asked(request_id: str) -> bytes:
    """Every member of a request that holds content."""
    return invocation(
        request_id,
        PROMPT,
        instructions=PROMPT,
        input=[
            {"UserText": {"text": PROMPT}},
            {"AssistantText": {"text": PROMPT}},
            {"ToolCall": {"call_id": "t1", "name": "look", "arguments": json.dumps({"at": PROMPT})}},
            {"ToolResult": {"call_id": "t1", "output": PROMPT}},
            {"UserText": {"text": PROMPT}},
        ],
        tools=[
            {
                "name": "look",
                "description": PROMPT,
                "parameters_json": json.dumps({"type": "object", "title": PROMPT}),
            }
        ],
        output_schema_json=None,
    )  # fmt: skip


@pytest.fixture
def provider() -> Iterator[StubProvider]:
    with stub_on_a_thread(lambda number: list(REPLIES.values())[(number - 1) % len(REPLIES)]) as stub:
        yield stub


def credential(kind: str, folder: Path) -> tuple[str, dict[str, str]]:
    """The line of the configuration, and what the daemon's environment needs."""
    path = folder / "credentials" / "provider-key"
    path.parent.mkdir()
    path.write_text(KEY + "\n")
    path.chmod(0o600)
    return {
        "systemd": ('credential = "provider-key"', {"CREDENTIALS_DIRECTORY": str(path.parent)}),
        "file": ('credential = {file = "credentials/provider-key"}', {}),
        "env": ('credential = {env = "PROVIDER_KEY"}', {"PROVIDER_KEY": KEY}),
    }[kind]


def said_by(words: list[str], capfd: pytest.CaptureFixture[str]) -> bytes:
    capfd.readouterr()
    main(words)
    out, err = capfd.readouterr()
    return (out + err).encode()


@pytest.mark.parametrize("form", ["text", "journal", "json"])
@pytest.mark.parametrize("kind", ["systemd", "file", "env"])
def test_whatever_a_provider_does_nothing_of_key_prompt_or_answer_is_logged_or_shown(
    tmp_path: Path, provider: StubProvider, capfd: pytest.CaptureFixture[str], kind: str, form: str
) -> None:
    line, environ = credential(kind, tmp_path)
    connector = f'kind = "openai_chat"\nbase_url = "{provider.url}/v1"\nresponse_bytes_max = 50_000\n{line}'
    write_config(tmp_path, connector=connector, callers=OPERATOR)
    wrapper = ["sh", "-c", f'exec "$@" --log-format {form}', "sh"]
    with running_daemon(tmp_path, wrapper=wrapper, environ=environ) as daemon:
        words = []
        with daemon.connect() as client:
            for number in range(len(REPLIES)):
                answer = client.ask(asked(f"r{number}"))
                words.append(said(answer))
                assert found_in(answer, KEY) == [], list(REPLIES)[number]
                if "failed" in answer.decode(errors="replace").lower():
                    message = msgpack.unpackb(answer)["disposition"]["Transported"]["receipt"]["outcome"].get(
                        "Failed", {}
                    )
                    assert found_in(json.dumps(message).encode(), KEY) == []
            assert words[0] == "tool_use"
            assert {"authentication", "rate_limited", "unavailable", "provider"} <= set(words)
            assert len(provider.requests) == len(REPLIES)
            assert all(heard.headers["authorization"] == f"Bearer {KEY}" for heard in provider.requests)
            assert all(PROMPT in json.dumps(json.loads(heard.body), ensure_ascii=False) for heard in provider.requests)
        socket, ledger = str(daemon.socket_path), str(tmp_path / "ledger")
        shown = b"".join(
            said_by(command, capfd)
            for command in (
                ["status", "--socket", socket],
                ["reload", "--socket", socket],
                ["check", "--config", str(tmp_path / "sidecar.toml")],
                ["ledger", "check", "--socket", socket],
                ["ledger", "verify", ledger],
                ["ledger", "spend", ledger],
                ["ledger", "show", ledger],
            )
        )
        looked_at = seen_of(daemon.pid)
        os.kill(daemon.pid, signal.SIGHUP)
        wait_until(lambda: daemon.log().count("reload") >= 2)
        assert daemon.stop() == 0
    log = daemon.log().encode()
    assert found_in(log, KEY, PROMPT, ANSWER) == []
    assert found_in(shown, KEY, PROMPT, ANSWER) == []
    assert found_in(looked_at, KEY, PROMPT, ANSWER) == ([KEY] if kind == "env" else [])


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from leaves(inner, (*path, key))


def put(value: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    change(inner, path[-1])
    return copy


def as_text(inner: Any, key: Any) -> None:
    inner[key] = PROMPT


def as_key(inner: Any, key: Any) -> None:
    inner[key] = {PROMPT: PROMPT}


def as_list(inner: Any, key: Any) -> None:
    inner[key] = [PROMPT, {PROMPT: 1}]


def beside(inner: Any, key: Any) -> None:
    if isinstance(inner, dict):
        inner[PROMPT] = PROMPT


IDS = {"request_id", "conversation_id", "caller_runtime_id", "model"}  # ids are no content: logs name requests by them


def test_no_frame_however_broken_puts_its_content_into_the_log_or_into_another_ones_error(tmp_path: Path) -> None:
    sound = msgpack.unpackb(asked("r1"))
    with running_daemon(tmp_path, callers=OPERATOR) as daemon, daemon.connect() as client:
        for path in list(leaves(sound))[1:]:
            if path[-1] in IDS and path[-1] != "model":
                continue
            for change in (as_text, as_key, as_list, beside):
                client.ask(packed(put(sound, path, change)))
        for text_of_json in (json.dumps({PROMPT: 1})[:-1] + f', "{PROMPT}": 2}}', f'{{"{PROMPT}": nonsense}}', PROMPT):
            tool = sound["request"]["tools"][0]
            client.ask(
                packed({**sound, "request": {**sound["request"], "tools": [{**tool, "parameters_json": text_of_json}]}})
            )
            client.ask(packed({**sound, "request": {**sound["request"], "output_schema_json": text_of_json}}))
        whole_frame = packed(sound)
        text = PROMPT.encode()
        for broken in (
            whole_frame[:-1],
            whole_frame + text,
            whole_frame.replace(text, text[:-1] + b"\xff"),
            msgpack.packb(PROMPT),
            msgpack.packb({PROMPT: PROMPT}),
            msgpack.packb({"schema_id": PROMPT}),
            msgpack.packb({"schema_id": "gamecult.model.transport_hello.v1", "client": PROMPT, "protocol": PROMPT}),
            msgpack.packb({"schema_id": "gamecult.model.operator_resolve.v1", "why": PROMPT, "charge": PROMPT}),
        ):
            client.ask(broken)
        assert said(client.ask(invocation("last"))) == "end_turn"
        assert daemon.stop() == 0
    assert found_in(daemon.log().encode(), PROMPT) == []


class Breaking:
    """A connector with a bug, in whose message is whatever it had at hand."""

    def __init__(self, at: str, fault: Callable[[], BaseException]) -> None:
        self._at = at
        self._fault = fault

    def lower(self, request: Any, upstream: str, settings: Any = None) -> Lowered:
        if self._at == "lower":
            raise self._fault()
        return Lowered(request=request, upstream=upstream, body=None, states_dropped=0, call_ids=frozenset())

    def at_once(self, lowered: Lowered, answer: Answer) -> bool:
        if self._at == "at_once":
            raise self._fault()
        return False

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        answer.sent = True
        await trio.lowlevel.checkpoint()
        raise self._fault()

    async def aclose(self) -> None:
        pass


def caused() -> BaseException:
    try:
        try:
            raise KeyError(PROMPT)
        except KeyError as fault:
            raise ValueError(f"{KEY} {ANSWER}") from fault
    except ValueError as fault:
        fault.add_note(f"while asking {PROMPT}")
        return fault


FAULTS: list[Callable[[], BaseException]] = [
    lambda: ValueError(f"{KEY} {PROMPT} {ANSWER}"),
    lambda: KeyError(PROMPT),
    lambda: OSError(5, f"{PROMPT}", f"/{ANSWER}"),
    lambda: UnicodeDecodeError("utf-8", f"{PROMPT}{KEY}".encode(), 0, 1, ANSWER),
    caused,
    lambda: ExceptionGroup(PROMPT, [ValueError(ANSWER), caused()]),
]


@pytest.mark.parametrize("fault", FAULTS, ids=range(len(FAULTS)))
@pytest.mark.parametrize("at", ["lower", "at_once", "exchange"])
async def test_a_bug_is_told_by_its_type_and_place_and_not_by_what_it_says(
    at: str, fault: Callable[[], BaseException]
) -> None:
    road = Road(connector=Breaking(at, fault))
    answer = await road.answer(build.frame(build.request(request_id="r1")))
    log = road.log.getvalue()
    assert type(fault()).__name__ in log
    assert found_in(log.encode() + answer, KEY, PROMPT, ANSWER) == []


@pytest.mark.parametrize("fault", FAULTS, ids=range(len(FAULTS)))
def test_a_traceback_has_types_and_our_own_lines_and_no_messages(fault: Callable[[], BaseException]) -> None:
    def deep() -> None:
        secret = KEY
        raise fault() from RuntimeError(secret)

    with pytest.raises(BaseException) as raised:  # noqa: PT011  whatever it is
        deep()
    lines = in_lines(raised.value)
    told = "\n".join([*lines, in_a_word(raised.value)]).encode()
    assert found_in(told, KEY, PROMPT, ANSWER) == []
    assert any("in deep" in line for line in lines)
    assert any("RuntimeError (" in line for line in lines)


STRAY = """
import sys, threading, warnings, logging
from sidecar.ops.log import Log
from sidecar.ops.stray import take_strays
canary = sys.stdin.read()
take_strays(Log(form="{form}"))
class Falls:
    def __del__(self):
        raise ValueError(canary)
def fails():
    raise ValueError(canary)
Falls()
thread = threading.Thread(target=fails)
thread.start()
thread.join()
warnings.warn(canary, UserWarning)
logging.getLogger("httpx2").warning("%s", canary)
logging.getLogger("httpx2").error(canary)
fails()
"""


@pytest.mark.parametrize("form", ["text", "journal", "json"])
def test_what_would_reach_stderr_beside_the_log_becomes_facts_without_their_texts(form: str) -> None:
    command = [sys.executable, "-W", "always", "-c", STRAY.format(form=form)]
    ran = subprocess.run(command, input=PROMPT.encode(), capture_output=True, check=False)
    assert ran.returncode == 1
    assert found_in(ran.stderr, PROMPT) == []
    for fact in ("unraisable", "internal", "traceback", "python_warning", "library_said"):
        assert fact.encode() in ran.stderr, fact
    if form == "json":
        assert all(json.loads(line)["fact"] for line in ran.stderr.splitlines())


ROOT_CALLER = """
[[caller]]
id = "root"
user = "root"
models = ["npc"]
spend_ceiling_micro_usd = 1_000_000_000
spend_window_seconds = 60
"""


def test_the_daemon_leaves_no_core_and_its_memory_is_nobodys_of_its_own_user(tmp_path: Path) -> None:
    """What /proc shows of a process that is not dumpable belongs to root."""
    if os.getuid() != 0:
        with running_daemon(tmp_path) as daemon:
            assert os.stat(f"/proc/{daemon.pid}/environ").st_uid == 0
        return
    os.chmod(tmp_path, 0o777)
    for parent in tmp_path.parents:
        if parent != Path("/tmp") and parent.is_relative_to("/tmp"):
            os.chmod(parent, 0o755)
    write_config(tmp_path, callers=ROOT_CALLER)
    wrapper = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    with running_daemon(tmp_path, wrapper=wrapper) as daemon:
        status = Path(f"/proc/{daemon.pid}/status").read_text()
        assert "Uid:\t12345\t12345" in status
        assert os.stat(f"/proc/{daemon.pid}/environ").st_uid == 0
        limits = Path(f"/proc/{daemon.pid}/limits").read_text()
        assert "Max core file size        0                    0" in limits
        with daemon.connect() as client:
            assert said(client.ask(invocation("r1", caller_runtime_id="root"))) == "end_turn"
        assert daemon.stop() == 0


def test_a_daemon_that_is_aborted_says_nothing_of_what_it_held(tmp_path: Path) -> None:
    with running_daemon(tmp_path, script="[[rule]]\nhang = true\n") as daemon, daemon.connect() as client:
        client.send(asked("r1"))
        wait_until(lambda: bool(list((tmp_path / "ledger").glob("*.segment"))))
        os.kill(daemon.pid, signal.SIGABRT)
        assert daemon.process.wait(timeout=20) == -signal.SIGABRT
        assert found_in(daemon.log().encode(), PROMPT) == []
        assert list(tmp_path.glob("core*")) == []
