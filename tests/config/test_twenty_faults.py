"""Broken configurations, one fault each, and one with all of them: each fault has its path, its place, and what to do.

A fault replaces a text of the sound file below; its place is found in the file as it then stands.
"""

# ruff: noqa: E501  # a fault and what is said of it stand side by side
from __future__ import annotations

import json
import os
import pwd
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from kit.any_place import any_place

from sidecar.cli.check import check
from sidecar.cli.serve import serve
from sidecar.cli.setup import build, load, read
from sidecar.config.keys import ConfigFaults

SOUND = """\
# A host's own file.
[daemon]
socket = "run/requests.sock"
connections_max = 16
requests_in_flight_max = 16
frame_timeout_seconds = 10
drain_seconds_max = 300
frame_bytes_max = 4_194_304
frames_held_bytes_max = 8_388_608

[ledger]
directory = "ledger"
segment_bytes = 67_108_864
retention_days = 30

[[caller]]
id = "dungeon"
uid = 1001
models = [
  "npc",  # the cheap one
  "sage",
]
spend_ceiling_micro_usd = 5_000_000
spend_window_seconds = 86_400

[[caller]]
id = "arena"
uid = 1002
models = ["npc"]
spend_ceiling_micro_usd = 1_000_000
spend_window_seconds = 3600
foreign_reasoning = "drop"

[[caller]]
id = "tavern"
models = ["sage"]
spend_ceiling_micro_usd = 1_000_000
spend_window_seconds = 7200
concurrent_requests_max = 2

[[operator]]
uid = 0

[[operator]]
gid = 7

[[connector]]
name = "rehearsal"
kind = "scripted"
time_limit_seconds = 60

[[connector]]
name = "local"
kind = "openai_chat"
base_url = "http://127.0.0.1:8080/v1"
dialect = "compatible"

[[connector]]
name = "kept"
kind = "recorded"
records = "local"
directory = "."

[[connector]]
name = "cloud"
kind = "anthropic_messages"
base_url = "https://api.example.com"
credential = { file = "cloud.key" }

[[connector]]
name = "second"
kind = "gemini"
base_url = "https://second.example.com"
credential = { file = "cloud.key" }

[[model]]
name = "tape"
connector = "kept"
upstream = "tape-1"
efforts = [ ]
price = [{ input = 0, cache_read = 0, cache_write_short = 0, cache_write_long = 0, output = 0 }]

[[model]]
name = "npc"
connector = "rehearsal"
upstream = "npc-1"
price = [
  { input = 1, cache_read = 2, cache_write_short = 3, cache_write_long = 4, output = 5 },
]

[[model]]
name = "sage"
connector = "local"
upstream = "sage-1"
efforts = []
[[model.price]]
input = 10
cache_read = 20
cache_write_short = 30
cache_write_long = 40
output = 50
"""


class Fault(NamedTuple):
    """`at` is the text at whose first place the complaint points, in the broken file."""

    old: str
    new: str
    path: str
    at: str
    words: str


FAULTS = {
    "misspelt key": Fault("connections_max = 16", "conections_max = 16", "daemon.conections_max", "conections_max", "did you mean connections_max"),
    "text for a number": Fault("requests_in_flight_max = 16", 'requests_in_flight_max = "16"', "daemon.requests_in_flight_max", "requests_in", "write 16, without quotes"),
    "duration in words": Fault("frame_timeout_seconds = 10", 'frame_timeout_seconds = "2m"', "daemon.frame_timeout_seconds", "frame_timeout", "write 120, without quotes"),
    "out of bounds": Fault("drain_seconds_max = 300", "drain_seconds_max = 1e6", "daemon.drain_seconds_max", "drain_seconds_max", "write 86_400 or less"),
    "sizes that contradict": Fault("frames_held_bytes_max = 8_388_608", "frames_held_bytes_max = 65536", "daemon.frames_held_bytes_max", "frames_held_bytes_max", "write 4_194_304 or more"),
    "no multiple": Fault("segment_bytes = 67_108_864", "segment_bytes = 67_108_865", "ledger.segment_bytes", "segment_bytes", "write 67_112_960"),
    "missing key": Fault('directory = "ledger"\n', "", "ledger.directory", "[ledger]", 'write: directory = "'),
    "no such model": Fault('"sage",', '"sgae",', 'caller "dungeon".models[1]', '"sgae"', "did you mean sage"),
    "money as a float": Fault("= 5_000_000", "= 2.5", 'caller "dungeon".spend_ceiling_micro_usd', "spend_ceiling_micro_usd", "write 2_500_000 for 2.5 USD"),
    "window too long": Fault("86_400", "8_640_000", 'caller "dungeon".spend_window_seconds', "spend_window_seconds", "write 2_592_000 or less, or keep records for 100 days"),
    "user beside uid": Fault("uid = 1001", 'uid = 1001\nuser = "root"', 'caller "dungeon".user', 'user = "root"', "leave out the line of user"),
    "nobody's uid": Fault("uid = 1002", "uid = 65534", 'caller "arena".uid', "uid = 65534", "write the user"),
    "no such word": Fault('"drop"', '"dorp"', 'caller "arena".foreign_reasoning', "foreign_reasoning", "did you mean drop"),
    "negative money": Fault("= 1_000_000\nspend_window_seconds = 3600", "= -1\nspend_window_seconds = 3600", 'caller "arena".spend_ceiling_micro_usd', "spend_ceiling_micro_usd = -1", "5_000_000 is 5 USD"),
    "missing window": Fault("spend_window_seconds = 7200\n", "", 'caller "tavern".spend_window_seconds', '[[caller]]\nid = "tavern"', "write: spend_window_seconds = 86_400"),
    "number for an array": Fault('["sage"]', '"sage"', 'caller "tavern".models', 'models = "sage"', "write it in brackets"),
    "float for a number": Fault("concurrent_requests_max = 2", "concurrent_requests_max = 2.0", 'caller "tavern".concurrent_requests_max', "concurrent_requests_max", "write 2"),
    "no such user": Fault("uid = 0", f'user = "{pwd.getpwuid(0).pw_name}x"', "operator[0].user", "user = ", f"did you mean {pwd.getpwuid(0).pw_name}"),
    "key in quotes": Fault("gid = 7", '  "g\\u0069d" = "7"', "operator[1].gid", '"g\\u0069d"', "write 7, without quotes"),
    "script not there": Fault("time_limit_seconds = 60", 'script = "scripts/none.toml"', 'connector "rehearsal".script', "script = ", "write the path of a script"),
    "plain http away": Fault("http://127.0.0.1:8080/v1", "http://models.example/v1", 'connector "local".base_url', 'base_url = "http:', "https://, or allow_plain_http"),
    "slip behind a recorded one": Fault('dialect = "compatible"', 'dialect = "compatble"', 'connector "local".dialect', "dialect = ", "did you mean compatible"),
    "key of another kind": Fault('dialect = "compatible"', "script_reread = true", 'connector "local".script_reread', "script_reread", "leave it out, or write: kind = "),
    "kind not built": Fault('"anthropic_messages"', '"anthropic_mesages"', 'connector "cloud".kind', 'kind = "anthropic_mes', "did you mean anthropic_messages"),
    "a key pasted": Fault('com"\ncredential = { file = "cloud.key" }\n\n[[connector]]', 'com"\ncredential = "sk-ant-verysecret"\n\n[[connector]]', 'connector "cloud".credential', "credential = ", "never write a key here"),
    "credential not there": Fault('second.example.com"\ncredential = { file = "cloud.key" }', 'second.example.com"\ncredential = { file = "none.key" }', 'connector "second".credential', 'credential = { file = "none', "install -m 600"),
    "no base_url": Fault('base_url = "https://second.example.com"\n', "", 'connector "second".base_url', '[[connector]]\nname = "second"', "write: base_url = "),
    "no such connector": Fault('connector = "local"', 'connector = "lcoal"', 'model "sage".connector', 'connector = "lcoal"', "did you mean local"),
    "number for a text": Fault('upstream = "sage-1"', "upstream = 5", 'model "sage".upstream', "upstream = 5", 'write "5", in quotes'),
    "item of a wrong type": Fault("efforts = []", "efforts = [\n\t'low',\n\t7]", 'model "sage".efforts[1]', "7]", "such as"),
    "price in an inline table": Fault("cache_write_long = 4,", 'cache_write_long = "é", ', 'model "npc".price[0].cache_write_long', 'cache_write_long = "é"', "5_000_000 is 5 USD"),
    "price missing": Fault("cache_write_short = 30\n", "", 'model "sage".price[0].cache_write_short', "[[model.price]]", "write: cache_write_short = 0"),
    "price in dollars": Fault("output = 50", "output = 0.25", 'model "sage".price[0].output', "output = 0.25", "write 250_000 for 0.25 USD"),
    "unknown table": Fault("# A host's own file.", '"conector" = "é"', "conector", '"conector"', "did you mean connector"),
    "no TOML": Fault("input = 10", "input = 1,000", 'model "sage".price[0].input', "000", "without commas"),
}  # fmt: skip
MORE = {
    "key behind a port": Fault('base_url = "https://second.example.com', 'base_url = "https://second.example.com:verysecret/v1', 'connector "second".base_url', "base_url", "write: base_url"),
    "random key": Fault('second.example.com"\ncredential = { file = "cloud.key" }', 'second.example.com"\ncredential = "a8verysecret0f3b7c5d6"', 'connector "second".credential', "credential = ", "never write a key here"),
    "random key as a variable": Fault('second.example.com"\ncredential = { file = "cloud.key" }', 'second.example.com"\ncredential = {env = "a8verysecret0f3b7c5d6"}', 'connector "second".credential', "credential = ", "never write a key here"),
    "variable with a dollar": Fault('second.example.com"\ncredential = { file = "cloud.key" }', 'second.example.com"\ncredential = {env = "$KEY"}', 'connector "second".credential', "credential = ", "without the $"),
    "path for a name": Fault('second.example.com"\ncredential = { file = "cloud.key" }', 'second.example.com"\ncredential = "/etc/cloud.key"', 'connector "second".credential', "credential = ", "write a path as {file = "),
    "name for a uid": Fault("uid = 1001", 'uid = "game"', 'caller "dungeon".uid', "uid = ", 'write: user = "game"'),
    "name for a gid": Fault("gid = 7", 'gid = "games"', "operator[1].gid", "gid = ", 'write: group = "games"'),
    "unit of another type": Fault("uid = 1002", 'unit = "arena.socket"', 'caller "arena".unit', "unit = ", 'write "arena.service"'),
    "days in words": Fault("retention_days = 30", 'retention_days = "4 weeks"', "ledger.retention_days", "retention_days", "write 28, without quotes"),
    "cut price": Fault("cache_write_short = 30", "cache_write = 30", 'model "sage".price[0].cache_write', "cache_write = 30", "did you mean cache_write_short"),
    "longer price": Fault("output = 50", "output_tokens = 50", 'model "sage".price[0].output_tokens', "output_tokens = 50", "did you mean output"),
    "price in too few brackets": Fault("[[model.price]]\ninput = 10\n", "[model.price]\ninput = 10\n", 'model "sage".price', "[model.price]", "[[model.price]]"),
    "price in too few brackets once": Fault("[[model.price]]\ninput = 10\n", "[[model.price]]\ninput = 1\ncache_read = 2\ncache_write_short = 3\ncache_write_long = 4\noutput = 5\n[model.price]\nfrom = 2030-01-01\ninput = 10\n", 'model "sage".price', "[model.price]\nfrom", "write [[model.price]], as on line"),
    "price in quotes": Fault("output = 50", 'output = "15"', 'model "sage".price[0].output', "output = ", "write 15_000_000 for 15 USD"),
    "model's key of another kind": Fault('upstream = "sage-1"', 'upstream = "sage-1"\nthinking = "on"', 'model "sage".thinking', "thinking = ", "leave it out"),
    "text behind a header": Fault("[ledger]", "[ledger] directory", "ledger", "directory", "write one key and one value on a line"),
    "key of another table": Fault("retention_days = 30", "frame_timeout_seconds = 3", "ledger.frame_timeout_seconds", "frame_timeout_seconds = 3", "write it under [daemon]"),
    "key above all tables": Fault("# A host's own file.", "retention_days = 3", "retention_days", "retention_days", "write it under [ledger]"),
    "price in no model": Fault("[[operator]]\nuid = 0", "[[price]]\ninput = 1\n[[operator]]\nuid = 0", "price", "[[price]]", "write [[model.price]], below its [[model]]"),
    "name under another key": Fault('name = "second"', 'id = "second"', 'connector "second".id', 'id = "second"', "did you mean name"),
    "misspelt name": Fault('name = "rehearsal"', 'nmae = "rehearsal"', 'connector "rehearsal".nmae', "nmae = ", "did you mean name"),
    "one table in double brackets": Fault("[ledger]", "[[daemon]]\nsocket = 's'\n[ledger]", "daemon", "[[daemon]]", "leave one of the two out"),
    "curly quotes": Fault('"rehearsal"\nkind', "\u201crehearsal\u201d\nkind", "connector[0].name", "\u201crehearsal", "write straight quotes"),
    "socket where the ledger is": Fault('"run/requests.sock"', '"ledger"', "daemon.socket", "socket = ", "write two paths"),
    "ledger below the socket": Fault('directory = "ledger"', 'directory = "run/requests.sock/ledger"', "daemon.socket", "socket = ", "write two paths"),
    "metrics over the socket": Fault("[ledger]", "[metrics]\nfile = 'run/requests.sock'\n[ledger]", "metrics.file", "file = 'run", "write a file of its own"),
}  # fmt: skip
# One fault only to a place: these stand in the way of others.
APART = ("slip behind a recorded one", "key of another kind", "sizes that contradict")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    key = tmp_path / "cloud.key"
    key.write_text("sk-verysecret")
    key.chmod(0o600)
    return tmp_path


def written(folder: Path, *faults: Fault) -> Path:
    text = SOUND
    for fault in faults:
        assert text.count(fault.old) == 1, fault
        text = text.replace(fault.old, fault.new)
    path = folder / "sidecar.toml"
    path.write_text(text, encoding="utf-8")
    return path


def place(path: Path, fault: Fault) -> str:
    text = path.read_text(encoding="utf-8")
    if fault.at == "000":  # where the parser stops: at the comma
        offset = text.index(fault.new) + fault.new.index(",")
    else:
        near = text.find(fault.new) if fault.at in fault.new else 0
        offset = text.index(fault.at, max(near, 0))
    before = text[:offset]
    return f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def told(path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    code = check(path, as_json=False)
    lines = capsys.readouterr().err.splitlines()
    assert code == (os.EX_CONFIG if [one for one in lines if ": warning: " not in one] else os.EX_OK)
    return [one for one in lines if ": warning: " not in one]


def expected(path: Path, fault: Fault) -> re.Pattern[str]:
    begin = re.escape(f"{path}:{place(path, fault)}: {fault.path}: ")
    return re.compile(f"{begin}.+ — .*{re.escape(fault.words)}")


def test_the_sound_file_is_sound(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(written(folder), capsys) == []


@pytest.mark.parametrize("name", [*FAULTS, *MORE])
def test_each_fault_is_told_with_its_path_its_place_and_what_to_write(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = {**FAULTS, **MORE}[name]
    path = written(folder, fault)
    [line] = told(path, capsys)
    assert expected(path, fault).match(line), line
    assert "verysecret" not in line


def test_all_of_them_in_one_file_are_all_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = [fault for name, fault in FAULTS.items() if name not in APART]
    path = written(folder, *faults)
    lines = told(path, capsys)
    for fault in faults:
        assert [line for line in lines if expected(path, fault).match(line)], (fault, place(path, fault), lines)
    assert len(lines) == len(faults), lines
    assert len(faults) > 30
    places = [tuple(map(int, line.removeprefix(f"{path}:").split(":")[:2])) for line in lines]
    assert places == sorted(places)
    assert "verysecret" not in "".join(lines)


def test_serve_reload_and_json_tell_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(folder, *(fault for name, fault in FAULTS.items() if name not in APART))
    lines = told(path, capsys)
    assert serve(path, "text") == os.EX_CONFIG
    assert capsys.readouterr().err.splitlines() == lines
    with pytest.raises(ConfigFaults) as raised:
        load(path, {})
    assert [str(one) for one in raised.value.complaints] == lines
    assert check(path, as_json=True) == os.EX_CONFIG
    complaints: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["complaints"]
    assert [
        f"{path}:{one['line']}:{one['column']}: {one['path']}: {one['what']} — {one['hint']}" for one in complaints
    ] == lines


def test_a_byte_order_mark_hides_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(folder, Fault("# A host", "\ufeff# A host", "", "", ""), FAULTS["misspelt key"])
    assert [one.removeprefix(f"{path}:").partition(" — ")[0] for one in told(path, capsys)] == [
        "1:1: the file: is no TOML: it begins with a byte order mark",
        "4:1: daemon.conections_max: unknown key",
    ]


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("[[operator]]\nuid", "[operator]\nuid", ["operator: is one table here, and one of several elsewhere"]),
        ("[[operator]]\ngid", "[operator]\ngid", ["operator: is one table here, and one of several elsewhere"]),
        ('[[caller]]\nid = "arena"', '[[caller]\nid = "arena"', ["caller: is no TOML: Expected ']]' at the end of an array declaration"]),
        ('  "sage",\n]', '  "sage",\n', ['caller "dungeon".models: is no TOML: Unclosed array']),
        ('"npc",  #', '"npc"  #', ['caller "dungeon".models: is no TOML: Unclosed array']),
        ('"npc",  #', "npc,  #", ['caller "dungeon".models: is no TOML: Invalid value']),
        ('[[model]]\nname = "npc"', '[[models]]\nname = "npc"', ["models: unknown key"]),
        ("retention_days = 30", "retention_days = 30\n[daemon]\nsokcet = 1", ["daemon: stands twice; first on line 2"]),
        ('name = "npc"', "name = npc", ["model[1].name: is no TOML: Invalid value"]),
        ('kind = "scripted"', 'kind = "recorded"\nrecords = "rehearsal"\ndirectory = "kept"',
         ['connector "rehearsal".records: names this connector itself']),
    ],
)  # fmt: skip
def test_a_fault_of_the_text_itself_brings_no_others_with_it(
    old: str, new: str, lines: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(folder, Fault(old, new, "", "", ""), FAULTS["price in dollars"])
    *texts, last = told(path, capsys)
    assert [re.sub(r"^.*?:\d+:\d+: | — .*", "", one) for one in texts] == lines
    assert expected(path, FAULTS["price in dollars"]).match(last)


@pytest.mark.parametrize(
    ("old", "new", "paths"),
    [
        ("[daemon]", "[deamon]", ["deamon", "deamon.socket_mode"]),
        ("[ledger]", "[[ledger]]", ["ledger", "ledger[0].segment_bytes"]),
        ("[[caller]]", "[[callers]]", ["callers", "callers[0].uid", "callers[0].models[1]"]),
        ("[[operator]]", "[[operater]]", ["operater", "operater[0].uid"]),
        ("[[connector]]", "[[conector]]", ["conector", "conector[1].dialect"]),
        ("[[model]]", "[[models]]", ["models", "models[0].upstream"]),
    ],
)
def test_what_stands_below_a_header_that_is_wrong_is_told_too(
    old: str, new: str, paths: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {
        "socket_mode": ("drain_seconds_max = 300", "socket_mode = 660"),
        "segment_bytes": ("= 67_108_864", "= 1"),
        "uid": ("uid = 1001" if "caller" in old else "uid = 0", "uid = 65534"),
        "models[1]": ('"sage",', '"sgae",'),
        "dialect": ('"compatible"', '"compatble"'),
        "upstream": ('"tape-1"', "5"),
    }
    text = SOUND.replace("[[model.price]]", "[[models.price]]" if new == "[[models]]" else "[[model.price]]")
    text = text.replace(old, new)
    for key in {path.partition(".")[2] for path in paths} - {""}:
        text = text.replace(*wrong[key], 1)
    path = folder / "sidecar.toml"
    path.write_text(text, encoding="utf-8")
    assert [re.sub(r"^.*?:\d+:\d+: |: .*", "", line) for line in told(path, capsys)] == paths


def test_a_caller_s_only_table_in_single_brackets_is_read_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "sidecar.toml"
    before, _, rest = SOUND.partition('[[caller]]\nid = "arena"')
    text = before + rest[rest.index("[[operator]]") :]
    path.write_text(text.replace("[[caller]]", "[caller]").replace("uid = 1001", 'uid = "1001"'), encoding="utf-8")
    one, other = told(path, capsys)
    assert "caller: must be an array of tables" in one
    assert "caller.uid: must be a whole number — write 1_001, without quotes" in other


def test_a_connector_s_name_that_is_no_toml_hides_no_model_that_is_not_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(folder, Fault('name = "second"', 'name = "second', "", "", ""), FAULTS["no such model"])
    one, other = told(path, capsys)
    assert expected(path, FAULTS["no such model"]).match(one)
    assert "is no TOML" in other


@given(st.data())
def test_whatever_happens_to_a_file_is_told_within_it(
    tmp_path_factory: pytest.TempPathFactory, drawing: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp()
    at = drawing.draw(st.integers(0, len(SOUND)))
    until = drawing.draw(st.integers(at, min(len(SOUND), at + 40)))
    text = SOUND[:at] + drawing.draw(st.text("[]{}=.,\"'#\\\n a1", max_size=4)) + SOUND[until:]
    path = folder / "any.toml"
    path.write_text(text, encoding="utf-8")
    _, complaints = build(read(path), {})
    lines = text.split("\n")
    for one in complaints:
        assert one.hint
        assert one.line is None or 1 <= one.line <= len(lines)
        assert one.line is None or one.column is None or one.column <= len(lines[one.line - 1]) + 1
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assert complaints


@given(st.data())
def test_anything_in_any_place_is_told_and_breaks_nothing(
    tmp_path_factory: pytest.TempPathFactory, drawing: st.DataObject
) -> None:
    document = tomllib.loads(SOUND)
    place, key = any_place(document, drawing)
    words = st.sampled_from(["rehearsal", "local", "cloud", "npc", "recorded", "process", "sk-x", ""])
    place[key] = drawing.draw(words | st.integers() | st.floats() | st.lists(words, max_size=2) | st.booleans())
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(tomli_w.dumps(document), encoding="utf-8")
    reading = read(path)
    _, complaints = build(reading, {})
    assert all(one.line is not None and one.hint for one in complaints)
