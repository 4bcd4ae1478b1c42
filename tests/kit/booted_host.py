"""A booted tree in which sidecar is installed by the README's own commands, with a provider that wants a key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kit.booted_tree import NOT_LOOPBACK, ROOT, Booted

HEADING = "## On a host, as a service"
SOCKET = "/run/sidecar/requests.sock"
PORT = 8001
KEY = "sk-canary-9c1f04d2b7"
ANSWER = "the canary in the answer: halberd 55271"
PROMPT = "the canary in the prompt: lantern 80634"
DROP_INS = "/etc/systemd/system/sidecar.service.d"
UNITS = ROOT / "systemd"


def section() -> str:
    found = re.search(rf"^{HEADING}\n(.*?)(?=^## |\Z)", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert found, f"README.md has no section {HEADING!r}"
    return found[1]


def commands(holding: str) -> str:
    """The only block of commands in the README's section that holds this text."""
    [block] = [block for block in re.findall(r"```sh\n(.*?)```", section(), re.DOTALL) if holding in block]
    return str(block)


def configuration() -> str:
    """The README's, but for the provider's address."""
    [toml] = re.findall(r"```toml\n(.*?)```", section(), re.DOTALL)
    return str(toml).replace("https://api.openai.com/v1", f"http://127.0.0.1:{PORT}/v1")


class Host:
    """An installed sidecar: what is done to it and asked of it."""

    def __init__(self, tree: Booted) -> None:
        self.tree = tree

    def install(self) -> None:
        """All that the README says, up to the socket that listens."""
        self.tree.run(commands("pip install"), seconds_max=120)
        self.tree.run(commands("useradd"))
        self.tree.write("/etc/sidecar/config.toml", configuration())
        self.tree.run(commands("install -m 600 /dev/stdin"), given=f"{KEY}\n")
        assert self.tree.run(commands("sidecar check")).stdout == "/etc/sidecar/config.toml: good\n"
        self.tree.wait_until(f"systemctl is-active sidecar.socket && test -S {SOCKET}")

    def start_provider(self) -> None:
        self.tree.run(f"systemd-run -q --unit provider python3 /root/inside/provider.py {PORT} '{KEY}' '{ANSWER}'")
        self.tree.wait_until(f"python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {PORT}))'")

    def configure(self, text: str) -> None:
        self.tree.write("/etc/sidecar/config.toml", text)

    def call(self, text: str = PROMPT, *, caller: str = "dungeon", model: str = "npc-fast", more: str = "") -> str:
        """The command by which the game's user asks."""
        asked = f"sidecar call --socket {SOCKET} --caller {caller} --model {model} {more}"
        return f"runuser -u game -- {asked} '{text}'"

    def asks(self, text: str = PROMPT, **how: str) -> str:
        return self.tree.out(self.call(text, **how))

    def restart(self) -> None:
        """In a state that no test before can have left behind."""
        self.tree.run("systemctl reset-failed sidecar.service sidecar.socket; systemctl daemon-reload")
        self.tree.run("systemctl restart sidecar.socket sidecar.service")

    @contextmanager
    def with_drop_in(self, name: str, text: str | None = None) -> Iterator[None]:
        """One of the project's drop-ins, or this one, until the end."""
        self.tree.write(f"{DROP_INS}/{name}", text if text is not None else (UNITS / "drop-ins" / name).read_text())
        self.restart()
        try:
            yield
        finally:
            self.tree.run(f"rm {DROP_INS}/{name}")
            self.configure(configuration())  # another may serve only with the drop-in
            self.restart()

    def status(self) -> Mapping[str, Any]:
        told: Mapping[str, Any] = json.loads(self.tree.out(f"sidecar status --json --socket {SOCKET}"))
        return told

    def ceiling(self, caller: str = "dungeon") -> int:
        [found] = [
            one["ceiling_micro_usd"] for one in self.status()["report"]["callers"] if one["caller_runtime_id"] == caller
        ]
        return int(found)

    def shown(self, member: str) -> str:
        return self.tree.shown("sidecar.service", member)

    def journal(self, since: str = "") -> str:
        """What the journal holds of the daemon, and of systemd about it; `since` a cursor."""
        after = f"--after-cursor '{since}'" if since else ""
        return self.tree.out(f"journalctl --no-pager -u sidecar.service -u sidecar.socket {after}")

    def cursor(self) -> str:
        return self.tree.out("journalctl -n 1 --show-cursor --no-pager -q | sed -n 's/^-- cursor: //p'")

    def wait_for_line(self, text: str, since: str, *, seconds_max: float = 60) -> None:
        journal = f"journalctl --no-pager -u sidecar.service --after-cursor '{since}'"
        self.tree.wait_until(f"{journal} | grep -F -- '{text}'", seconds_max=seconds_max)


def elsewhere() -> str:
    """A second model, whose provider is reached by an address that is not of loopback."""
    connector, model = _provider_tables()
    there = connector.replace('"openai"', '"elsewhere"').replace("127.0.0.1", NOT_LOOPBACK)
    there += "allow_plain_http = true\n\n"
    asked = model.replace('"npc-fast"', '"npc-far"').replace('"openai"', '"elsewhere"')
    return there + asked


def program() -> str:
    """A third model, whose connector is a program in the tree."""
    _, model = _provider_tables()
    words = '["/opt/sidecar/bin/python", "/srv/child.py"]'
    connector = f'[[connector]]\nname = "program"\nkind = "process"\nargv = {words}\n\n'
    asked = model.replace('"npc-fast"', '"npc-program"').replace('"openai"', '"program"')
    return connector + asked.replace('efforts = ["none", "low", "medium", "high", "xhigh", "max"]\n', "")


def _provider_tables() -> tuple[str, str]:
    """The README's connector, and the model that it serves with its price."""
    head, connector, rest = configuration().partition("[[connector]]\n")
    inside, model, prices = rest.partition("[[model]]\n")
    assert head
    assert prices
    return connector + inside, model + prices


def with_models(config: str, *models: str) -> str:
    named = ", ".join(f'"{model}"' for model in models)
    return config.replace('models = ["npc-fast"]', f"models = [{named}]")


def tree_names(tree: Booted) -> set[str]:
    """Every file, user and group that has to do with sidecar, but for what the tests brought."""
    pruned = " -o ".join([f"-path {path}" for path in ("/root", "/proc", "/sys", "/var/log")])
    found = tree.out(
        f"find / -xdev \\( {pruned} \\) -prune -o -iname '*sidecar*' -print;"
        " find /run /tmp /var/tmp -iname '*sidecar*';"
        " grep -l sidecar /etc/passwd /etc/group /etc/shadow /etc/gshadow || true;"
        " systemctl list-units --all --no-legend '*sidecar*';"
        " systemctl list-unit-files --no-legend '*sidecar*' || true"
    )
    return set(found.splitlines())


def readable(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
