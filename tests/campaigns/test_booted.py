"""sidecar on a host: installed by the README's commands in a Debian that is booted with its own systemd.

    SIDECAR_BOOTED_TREES=/var/tmp/trees python -m pytest -m campaign tests/campaigns/test_booted.py -s

Needs root, systemd-nspawn (package systemd-container), debootstrap or mmdebstrap; the first run a Debian mirror too.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit.booted_host import (
    ANSWER,
    DROP_INS,
    KEY,
    PROMPT,
    SOCKET,
    UNITS,
    Host,
    commands,
    configuration,
    elsewhere,
    program,
    readable,
    tree_names,
    with_models,
)
from kit.booted_tree import base_tree, booted, kept_trees, wheels_for, why_no_tree

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1200)]
NOTIFY_RELOAD_SINCE = 253  # of systemd
DROP_IN_NAMES = sorted(path.name for path in (UNITS / "drop-ins").glob("*.conf"))


class Made:
    """What every boot begins with."""

    def __init__(self, trees: Path) -> None:
        self.trees = trees
        self.base = base_tree(trees)
        self.wheels = wheels_for(self.base, trees)


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    if why := why_no_tree():
        pytest.skip(why)
    with kept_trees() as trees:
        yield Made(trees)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of its own, mounted here: it can be frozen."""
    image, mounted = folder / "disk.img", folder / "disk"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(512 * 1024 * 1024)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mounted], check=True)
    try:
        yield mounted
    finally:
        subprocess.run(["fsfreeze", "-u", mounted], check=False, capture_output=True)
        subprocess.run(["umount", mounted], check=True)


@pytest.fixture(scope="module")
def disk(made: Made) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sidecar-disk-") as folder, small_disk(Path(folder)) as mounted:
        yield mounted


@pytest.fixture(scope="module")
def host(made: Made, disk: Path) -> Iterator[Host]:
    with booted(made.trees, made.base, made.wheels, binds=[f"{disk}:/srv/disk"]) as tree:
        installed = Host(tree)
        installed.install()
        installed.start_provider()
        yield installed


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest) -> None:
    """Each test begins with the README's configuration, without drop-ins, and a daemon that has just started."""
    if "host" in request.fixturenames:
        host: Host = request.getfixturevalue("host")
        host.configure(configuration())
        host.tree.run(f"rm -rf {DROP_INS} /root/load-over; systemctl start sidecar.socket")
        host.restart()


def test_the_readme_alone_installs_calls_shows_and_removes(made: Made) -> None:
    with booted(made.trees, made.base, made.wheels) as tree:
        before = tree_names(tree)
        host = Host(tree)
        host.install()
        host.start_provider()
        assert tree.out(commands("Who goes there?")) == ANSWER
        shown = ""
        for line in commands("journalctl").splitlines():
            shown += (told := f"$ {line}\n{tree.out(line)}\n")
            print(told)
        assert "dungeon" in shown
        for line in commands("sidecar reload").splitlines():
            tree.run(line)
        tree.run(commands("drop-ins/local-models-only.conf"))
        tree.run(commands("systemctl reset-failed"))
        assert tree.out(commands("Who goes there?")) == ANSWER
        tree.run(commands("userdel"))
        assert tree_names(tree) == before


def test_the_first_connection_starts_it(host: Host) -> None:
    host.tree.run("systemctl stop sidecar.service")
    assert host.shown("ActiveState") == "inactive"
    since = host.cursor()
    assert host.asks() == ANSWER
    assert host.shown("ActiveState") == "active"
    print(host.journal(since))


def test_a_start_is_over_when_it_is_ready_and_the_status_line_says_how_it_does(host: Host) -> None:
    host.tree.run("systemctl stop sidecar.service")
    since = host.cursor()
    host.tree.run("systemctl start sidecar.service")
    logged = host.tree.out(f"journalctl -u sidecar.service --after-cursor '{since}' -o json").splitlines()
    [opened] = [line for line in map(json.loads, logged) if line["MESSAGE"].startswith("ledger_opened")]
    assert int(opened["__MONOTONIC_TIMESTAMP"]) <= int(host.shown("ActiveEnterTimestampMonotonic"))
    assert host.asks() == ANSWER
    status = host.tree.wait_until("systemctl status sidecar.service | grep -E 'Status: .*in flight'")
    print(status)


def test_a_start_with_a_broken_configuration_fails_with_its_reason_and_is_not_tried_again_by_itself(host: Host) -> None:
    host.tree.run("systemctl stop sidecar.service")
    since = host.cursor()
    host.configure(configuration().replace("spend_window_seconds", "spend_windw_seconds"))
    assert host.tree.run("systemctl start sidecar.service", check=False).returncode != 0
    assert host.shown("ExecMainStatus") == "78"
    assert "spend_windw_seconds" in host.journal(since)
    assert host.shown("NRestarts") == "0"


def test_the_credential_reaches_the_provider_and_a_new_one_does_after_a_restart(host: Host) -> None:
    host.tree.run("rm -f /root/asked")
    assert host.asks() == ANSWER
    [line] = host.tree.out("cat /root/asked").splitlines()
    assert line.startswith("asked ")
    credentials = "/etc/sidecar/credentials"
    host.tree.run(f"echo sk-another > {credentials}/openai-key && systemctl restart sidecar.service")
    refused = host.tree.run(host.call(), check=False)
    assert refused.returncode == 77  # the provider refuses the credential
    host.tree.run(f"echo '{KEY}' > {credentials}/openai-key && systemctl restart sidecar.service")
    assert host.asks() == ANSWER


def with_ceiling(micro_usd: int) -> str:
    return configuration().replace("spend_ceiling_micro_usd = 5_000_000", f"spend_ceiling_micro_usd = {micro_usd}")


def test_a_reload_changes_what_it_may_and_a_broken_file_changes_nothing(host: Host) -> None:
    pid = host.shown("MainPID")
    since = host.cursor()
    host.configure(with_ceiling(4_000_000))
    host.tree.run("systemctl reload sidecar.service")
    host.wait_for_line("reloaded", since)
    assert host.ceiling() == 4_000_000
    host.configure(with_ceiling(3_000_000))
    told = host.tree.out(f"sidecar reload --socket {SOCKET}")
    assert host.ceiling() == 3_000_000
    host.configure(with_ceiling(2_000_000).replace("[[operator]]", "[[operater]]"))
    refused = host.tree.run(f"sidecar reload --socket {SOCKET}", check=False)
    assert refused.returncode == 78
    assert "operater" in refused.stdout + refused.stderr
    host.tree.run("systemctl reload sidecar.service")
    host.wait_for_line('reload_refused by="a signal"', since)
    assert host.ceiling() == 3_000_000
    assert (host.shown("MainPID"), host.shown("ActiveState")) == (pid, "active")
    print(told, refused.stderr, host.journal(since), sep="\n")


def test_with_the_drop_in_a_reload_is_over_when_it_is_in_force_or_refused(host: Host) -> None:
    if host.tree.systemd_version() < NOTIFY_RELOAD_SINCE:
        pytest.skip(f"needs a tree with systemd {NOTIFY_RELOAD_SINCE} or later")
    with host.with_drop_in("notify-reload.conf"):
        pid = host.shown("MainPID")
        for ceiling in (4_000_000, 3_000_000, 2_000_000):
            host.configure(with_ceiling(ceiling))
            host.tree.run("systemctl reload sidecar.service")
            assert host.ceiling() == ceiling
        host.configure(with_ceiling(1_000_000).replace("[[operator]]", "[[operater]]"))
        host.tree.run("systemctl reload sidecar.service")
        status = host.tree.out("systemctl status sidecar.service")
        assert "refused" in status
        assert host.ceiling() == 2_000_000
        assert (host.shown("MainPID"), host.shown("ActiveState")) == (pid, "active")
        print(status)


def test_a_ledger_that_hangs_ends_in_a_restart_by_the_watchdog(host: Host, disk: Path) -> None:
    host.tree.run("mkdir -p /srv/disk/ledger && chown sidecar:sidecar /srv/disk/ledger && chmod 700 /srv/disk/ledger")
    host.configure(configuration().replace("/var/lib/sidecar/ledger", "/srv/disk/ledger"))
    with host.with_drop_in(
        "slow-disk.conf", "[Service]\nReadWritePaths=/srv/disk\nWatchdogSec=4s\nTimeoutAbortSec=3s\n"
    ):
        assert host.asks() == ANSWER
        pid, since = host.shown("MainPID"), host.cursor()
        subprocess.run(["fsfreeze", "-f", disk], check=True, timeout=30)
        try:
            waiting = host.tree.begun(host.call("Who hangs there?"))
            host.wait_for_line("Watchdog timeout", since)
            # No signal ends a thread that waits for a disk: the one that can't be refused is sent, and waits too.
            host.wait_for_line("with signal SIGKILL", since)
        finally:
            subprocess.run(["fsfreeze", "-u", disk], check=True, timeout=30)
        waiting.communicate(timeout=90)
        host.tree.wait_until("test $(systemctl show -P NRestarts sidecar.service) -ge 1")
        host.tree.wait_until("systemctl is-active sidecar.service")
        assert host.shown("MainPID") != pid
        assert host.asks("Who goes there now?") == ANSWER
        print(host.journal(since))
        host.tree.run("systemctl stop sidecar.service")
        print(host.tree.out("sidecar ledger verify /srv/disk/ledger"))


def test_restarts_under_load_refuse_no_connection_and_lose_no_answer(host: Host) -> None:
    config = configuration().replace("[[operator]]", "concurrent_requests_max = 64\n\n[[operator]]")
    host.configure(config.replace("spend_ceiling_micro_usd = 5_000_000", "spend_ceiling_micro_usd = 50_000_000_000"))
    host.restart()
    host.tree.run("chmod 755 /root")
    load = host.tree.begun("runuser -u game -- /opt/sidecar/bin/python /root/inside/load.py dungeon npc-fast 16")
    try:
        for _ in range(5):
            host.tree.run("sleep 1; systemctl restart sidecar.service", seconds_max=120)
    finally:
        host.tree.run("touch /root/load-over")
        told = load.communicate(timeout=200)[0]
    met = json.loads(told)
    print(met)
    assert met["refused_connections"] == {}
    assert met["answered"] == met["requests"]
    assert set(met["outcomes"]) == {"Completed"}
    host.tree.run("systemctl stop sidecar.service")
    assert "sound" in host.tree.out("sidecar ledger verify /var/lib/sidecar/ledger")


def test_a_stop_lets_what_runs_finish_and_leaves_a_sound_ledger(host: Host) -> None:
    host.tree.run("rm -f /root/asked")
    since = host.cursor()
    running = host.tree.begun(host.call("Who goes there so slowly?"))
    host.tree.wait_until("grep -q slowly /root/asked")
    host.tree.run("systemctl stop sidecar.service sidecar.socket")
    told = running.communicate(timeout=60)[0]
    assert running.returncode == 0
    assert ANSWER in told
    assert (host.shown("Result"), host.shown("ExecMainStatus")) == ("success", "0")
    print(host.journal(since), host.tree.out("sidecar ledger verify /var/lib/sidecar/ledger"), sep="\n")


def test_canaries_are_found_nowhere(host: Host) -> None:
    host.tree.run("journalctl --rotate -q; journalctl --vacuum-time=1s -q; rm -f /root/asked")
    host.restart()
    assert host.asks() == ANSWER
    host.tree.run("echo sk-another-canary > /etc/sidecar/credentials/openai-key; systemctl restart sidecar.service")
    host.tree.run(host.call(), check=False)  # the provider says no
    host.tree.run(f"echo '{KEY}' > /etc/sidecar/credentials/openai-key; systemctl restart sidecar.service")
    host.tree.run(host.call(model="npc-unknown"), check=False)
    assert host.asks() == ANSWER
    pid = host.shown("MainPID")
    places = {
        "journal": host.tree.out("journalctl --no-pager -o verbose -u sidecar.service -u sidecar.socket"),
        "environ": host.tree.out(f"tr '\\0' '\\n' < /proc/{pid}/environ"),
        "cmdline": host.tree.out(f"tr '\\0' ' ' < /proc/{pid}/cmdline"),
        "unit": host.tree.out("systemctl show sidecar.service; systemctl status sidecar.service"),
        "status": host.tree.out(f"sidecar status --json --socket {SOCKET}"),
        "metrics": host.tree.out(f"sidecar metrics --socket {SOCKET}"),
    }
    for place, held in places.items():
        assert held, place
        for canary in (KEY, "sk-another-canary", PROMPT, ANSWER, "lantern 80634", "halberd 55271"):
            assert canary not in held, (place, canary)
    assert PROMPT in readable(host.tree.path("/root/asked"))  # the canaries did go the whole way


def test_a_caller_is_told_by_its_unit_from_another_one_of_the_same_user(host: Host) -> None:
    host.configure(configuration().replace('user = "game"', 'user = "game"\nunit = "dungeon.service"'))
    host.restart()
    asked = f"sidecar call --socket {SOCKET} --caller dungeon --model npc-fast 'Who goes there?'"
    as_unit = "systemd-run -q --wait --pipe -p User=game -p SupplementaryGroups=sidecar-callers --unit"
    since = host.cursor()
    assert host.tree.out(f"{as_unit} dungeon.service {asked}") == ANSWER
    for other in ("tavern.service", "dungeon-2.service"):
        refused = host.tree.run(f"{as_unit} {other} {asked}", check=False)
        assert refused.returncode == 77
        assert ANSWER not in refused.stdout
        print(refused.stderr)
    assert host.tree.run(host.call(), check=False).returncode == 77  # the same user in no unit
    print(host.journal(since))


def test_what_is_installed_is_verified_silently_and_scores_two_at_most(host: Host) -> None:
    is_older = host.tree.systemd_version() < NOTIFY_RELOAD_SINCE
    for drop_in in (None, *DROP_IN_NAMES):
        if drop_in == "notify-reload.conf" and is_older:
            continue
        if drop_in:
            host.tree.write(f"{DROP_INS}/{drop_in}", (UNITS / "drop-ins" / drop_in).read_text())
        host.tree.run("systemctl daemon-reload")
        verified = host.tree.run("systemd-analyze verify sidecar.service sidecar.socket")
        assert verified.stdout + verified.stderr == ""
        told = host.tree.out("systemd-analyze security --offline=true --no-pager sidecar.service")
        [score] = re.findall(r"Overall exposure level for sidecar\.service: ([\d.]+)", told)
        print(drop_in or "no drop-in", score)
        assert float(score) <= 2.0
        host.tree.run(f"rm -rf {DROP_INS}")


def test_with_a_dynamic_user_it_serves_and_keeps_its_ledger_there_and_back(host: Host) -> None:
    assert host.asks() == ANSWER
    with host.with_drop_in("dynamic-user.conf"):
        assert host.asks("Who goes there, dynamic?") == ANSWER
        pid = host.shown("MainPID")
        assert int(host.tree.out(f"stat -c %u /proc/{pid}")) >= 61184  # systemd's range for them
        assert host.tree.out("readlink /var/lib/sidecar") == "private/sidecar"
        print(host.tree.out("sidecar ledger spend /var/lib/sidecar/ledger"))
    assert host.asks("Who goes there, static?") == ANSWER
    assert host.tree.out("stat -c %U /var/lib/sidecar/ledger") == "sidecar"


def test_with_local_models_only_loopback_is_reached_and_nothing_else(host: Host) -> None:
    host.configure(with_models(configuration(), "npc-fast", "npc-far") + "\n" + elsewhere())
    host.restart()
    assert host.asks(model="npc-far") == ANSWER
    with host.with_drop_in("local-models-only.conf"):
        assert host.asks() == ANSWER
        far = host.tree.run(host.call("Who goes far?", model="npc-far", more="--timeout 5"), check=False)
        assert far.returncode in (69, 75)
        assert ANSWER not in far.stdout
        print(far.stderr)


def test_a_daemon_that_cannot_start_while_callers_wait_shuts_its_socket_in_the_end_and_the_readme_opens_it(
    host: Host,
) -> None:
    host.tree.run("systemctl stop sidecar.service")
    since = host.cursor()
    host.configure(configuration().replace("spend_window_seconds", "spend_windw_seconds"))
    waiting = host.tree.begun(host.call(more="--timeout 20"))
    host.tree.wait_until("systemctl is-failed sidecar.socket", seconds_max=90)
    waiting.communicate(timeout=60)
    assert waiting.returncode != 0
    print(host.shown("Result"), host.journal(since)[-1500:])
    host.configure(configuration())
    host.tree.run(commands("systemctl reset-failed"))
    assert host.asks() == ANSWER


def test_a_program_of_a_connector_finishes_within_the_drain_and_compiles_only_with_the_drop_in(host: Host) -> None:
    host.tree.run("install -m 644 /root/inside/child.py /srv/child.py")
    serving = with_models(configuration(), "npc-fast", "npc-program") + "\n" + program()
    host.configure(serving)
    host.restart()
    since = host.cursor()
    running = host.tree.begun(host.call(model="npc-program"))
    host.tree.wait_until("pgrep -f child.py || grep -lz child.py /proc/[0-9]*/cmdline | grep -qv self")
    host.tree.run("sleep 0.5; systemctl stop sidecar.service")
    told = running.communicate(timeout=30)[0]
    assert running.returncode == 0, told + host.journal(since)
    assert "it may not compile" in told
    with host.with_drop_in("compiling-connectors.conf"):
        host.configure(serving)
        host.restart()
        assert host.asks(model="npc-program") == "it may compile"


def test_with_the_drop_in_the_metrics_file_is_there_for_others_and_gone_at_a_stop(host: Host) -> None:
    file = "/run/sidecar-metrics/sidecar.prom"
    with host.with_drop_in("metrics-file.conf"):
        host.configure(f'{configuration()}\n[metrics]\nfile = "{file}"\ninterval_seconds = 1\n')
        host.restart()
        host.tree.wait_until(f"runuser -u nobody -- grep -q ^sidecar_build_info {file}")
        host.tree.run(f"systemctl stop sidecar.service; test ! -e {file}; test -S {SOCKET}")
