"""The units that are shipped: sound as systemd reads them, hardened, in step with the code and the configuration."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from sidecar.ops import activation
from sidecar.service import daemon, supervision

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "systemd"
DROP_INS = sorted((UNITS / "drop-ins").glob("*.conf"))
EXPOSURE_MAX = 2.0
NOTIFY_RELOAD_SINCE = 253


def systemd_version() -> int:
    """0 where there is no systemd-analyze."""
    if shutil.which("systemd-analyze") is None:
        return 0
    told = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=True).stdout
    return int(re.findall(r"\d+", told)[0])


VERSION = systemd_version()
with_systemd = pytest.mark.skipif(VERSION < 250, reason="needs systemd-analyze of systemd 250 or later")
chosen = pytest.mark.parametrize("drop_in", [None, *DROP_INS], ids=lambda path: path.stem if path else "none")


def settings(path: Path) -> dict[str, list[str]]:
    """Every value of every setting, in its order; an empty one forgets those before it, as systemd has it."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        name, is_one, value = line.partition("=")
        if not is_one or line.startswith("#"):
            continue
        found.setdefault(name, []).append(value)
    return found


SERVICE = settings(UNITS / "sidecar.service")
SOCKET = settings(UNITS / "sidecar.socket")


def one(name: str, of: dict[str, list[str]] = SERVICE) -> str:
    [value] = of[name]
    return value


def seconds(name: str) -> int:
    return int(one(name).removesuffix("s"))


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


def copied(folder: Path, drop_in: Path | None) -> Sequence[Path]:
    """Both units as an operator installs them, with a command that is there; and a drop-in, where one is chosen."""
    socket = folder / "sidecar.socket"
    socket.write_text((UNITS / "sidecar.socket").read_text())
    service = folder / "sidecar.service"
    service.write_text((UNITS / "sidecar.service").read_text().replace("ExecStart=sidecar ", "ExecStart=/bin/sh "))
    if drop_in is not None:
        (folder / "sidecar.service.d").mkdir()
        shutil.copy(drop_in, folder / "sidecar.service.d")
    return service, socket


def refuse_older(drop_in: Path | None) -> None:
    if drop_in is not None and drop_in.stem == "notify-reload" and VERSION < NOTIFY_RELOAD_SINCE:
        pytest.skip(f"this drop-in is for systemd {NOTIFY_RELOAD_SINCE} and later; here is {VERSION}")


@with_systemd
@chosen
def test_systemd_has_nothing_to_say_about_the_units(tmp_path: Path, drop_in: Path | None) -> None:
    refuse_older(drop_in)
    verified = run("systemd-analyze", "verify", "--man=no", *copied(tmp_path, drop_in))
    assert verified.stdout + verified.stderr == ""
    assert verified.returncode == 0


@with_systemd
def test_it_would_say_so_of_a_setting_that_it_does_not_know(tmp_path: Path) -> None:
    service, _ = copied(tmp_path, None)
    service.write_text(service.read_text().replace("NoNewPrivileges=", "NoNewPrivilegs="))
    assert "NoNewPrivilegs" in run("systemd-analyze", "verify", "--man=no", service).stderr


@with_systemd
@chosen
def test_the_service_is_exposed_by_two_of_ten_at_most(tmp_path: Path, drop_in: Path | None) -> None:
    refuse_older(drop_in)
    service, _ = copied(tmp_path, drop_in)
    told = run(
        "systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX * 10:.0f}", service
    )
    [score] = re.findall(r"Overall exposure level for sidecar\.service: ([\d.]+)", told.stdout)
    assert float(score) <= EXPOSURE_MAX
    assert told.returncode == 0


@with_systemd
def test_no_setting_is_left_open_but_those_that_a_comment_names_or_the_work_needs(tmp_path: Path) -> None:
    """So that a new check of a newer systemd, or a setting lost by a slip, is seen."""
    told = run("systemd-analyze", "security", "--offline=true", "--json=short", copied(tmp_path, None)[0])
    left_open = {check["name"] for check in json.loads(told.stdout) if not check["set"] and check["exposure"]}
    assert left_open <= {
        "PrivateUsers=",  # peers' uids
        "ProtectProc=",  # peers' units
        "ProcSubset=",
        "PrivateNetwork=",  # providers
        "IPAddressDeny=",
        "RestrictAddressFamilies=~AF_UNIX",
        "RestrictAddressFamilies=~AF_(INET|INET6)",
        "RootDirectory=/RootImage=",
        "DeviceAllow=",  # ProtectClock= lets the clock be read
    }


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="needs systemd-sysusers")
def test_the_user_and_the_group_are_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    conf = UNITS / "sidecar.sysusers.conf"
    told = run("systemd-sysusers", "--dry-run", f"--root={tmp_path}", conf)
    assert told.returncode == 0
    said = told.stdout + told.stderr
    for made in ("group 'sidecar'", "group 'sidecar-callers'", "user 'sidecar'"):
        assert made in said or made.replace("'", "") in said, said


@pytest.mark.skipif(
    shutil.which("systemd-tmpfiles") is None or os.getuid() != 0,
    reason="needs systemd-tmpfiles, and root, who owns them",
)
def test_the_folders_are_made_and_credentials_are_closed(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (tmp_path / "etc/group").write_text("root:x:0:\n")
    conf = tmp_path / "etc/sidecar.conf"
    shutil.copy(UNITS / "sidecar.tmpfiles.conf", conf)
    told = run("systemd-tmpfiles", "--create", f"--root={tmp_path}", conf)
    assert told.stdout + told.stderr == ""
    assert (tmp_path / "etc/sidecar").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "etc/sidecar/credentials").stat().st_mode & 0o777 == 0o700


# --- in step with the code ------------------------------------------------------------------------------------------


def test_the_socket_has_the_name_that_the_daemon_looks_for_and_is_closed_to_strangers() -> None:
    assert one("FileDescriptorName", SOCKET) == activation.NAME
    assert one("SocketGroup", SOCKET) == "sidecar-callers"
    assert one("SocketMode", SOCKET) == "0660"
    assert "Accept" not in SOCKET
    assert "FlushPending" not in SOCKET


def test_no_stop_of_the_service_removes_the_socket() -> None:
    socket = Path(one("ListenStream", SOCKET))
    for path in (UNITS / "sidecar.service", *DROP_INS):
        removed = [
            Path("/run") / name for value in settings(path).get("RuntimeDirectory", []) for name in value.split()
        ]
        assert not [folder for folder in removed if socket.is_relative_to(folder)]


def test_a_stop_has_the_time_for_a_drain_by_default_and_for_what_the_ledger_takes_behind_it() -> None:
    default = tomllib.loads((ROOT / "config.example.toml").read_text())["daemon"]["drain_seconds_max"]
    behind = daemon._LEDGER_SECONDS_MAX + daemon._FLUSH_SECONDS_MAX
    assert seconds("TimeoutStopSec") > default + behind
    assert one("KillMode") == "mixed", "children of connectors would be ended at once"


def test_the_watchdog_waits_longer_than_a_disk_may_be_silent() -> None:
    assert seconds("WatchdogSec") > supervision.OPENING_SILENCE_SECONDS_MAX
    assert seconds("TimeoutStartSec") > supervision.OPENING_SILENCE_SECONDS_MAX


def test_a_core_is_never_written_and_what_a_restart_cannot_mend_is_not_restarted() -> None:
    assert one("LimitCORE") == "0"
    assert one("Restart") == "on-failure"
    assert one("RestartPreventExitStatus").split() == ["64", "65", "70", "77", "78"]


def test_restarts_apart_by_their_pause_never_reach_the_limit_of_starts() -> None:
    pause = seconds("RestartSec")
    assert seconds("StartLimitIntervalSec") / pause <= int(one("StartLimitBurst"))


@pytest.mark.parametrize("path", [UNITS / "sidecar.service", *DROP_INS], ids=lambda path: path.name)
def test_nothing_hides_who_is_calling(path: Path) -> None:
    found = settings(path)
    for name in ("PrivateUsers", "ProtectProc", "PrivatePIDs", "RootDirectory", "RootImage"):
        assert name not in found, name


def test_why_they_are_off_is_said() -> None:
    said = " ".join(re.findall(r"^# ?(.*)$", (UNITS / "sidecar.service").read_text(), re.MULTILINE))
    assert "PrivateUsers= and ProtectProc= are off on purpose" in said
    assert "65534" in said


def test_paths_are_those_of_the_readme_and_the_ledger_is_closed_to_all_others() -> None:
    assert one("ExecStart").endswith(" serve --config /etc/sidecar/config.toml")
    assert one("StateDirectory") == "sidecar"
    assert one("StateDirectoryMode") == "0700"
    assert "/var/lib/sidecar/ledger" in (UNITS / "sidecar.service").read_text()
    assert one("LoadCredential") == "sidecar:/etc/sidecar/credentials"


def test_the_wheel_carries_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert shared == {"systemd": "share/sidecar/systemd"}
