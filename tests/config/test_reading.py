"""A configuration as text: every key with its printed default, and every complaint at once."""

# ruff: noqa: E501  # what is wrong and what is said of it stand side by side
from __future__ import annotations

import grp
import os
import pwd
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from kit.any_place import any_place
from msgspec import structs

from sidecar.config.keys import ConfigFaults, Key, KindKeys, flag, path_from
from sidecar.config.reading import read_config
from sidecar.config.values import Config, CredentialName, PeerRule

FOLDER = Path("/etc/game")
KINDS = {
    "echo": KindKeys(lambda folder: (Key("script", path_from(folder), None), Key("loud", flag, default=False))),
    "web": KindKeys(needs_base_url=True),
}
PRICE = """
[[model.price]]
input = 1
cache_read = 2
cache_write_short = 3
cache_write_long = 4
output = 5
"""
DAEMON = """
[daemon]
socket = "run/s.sock"
"""
LEDGER = """
[ledger]
directory = "run/ledger"
"""
CALLER = """
[[caller]]
id = "dungeon"
models = ["npc"]
spend_ceiling_micro_usd = 5_000_000
spend_window_seconds = 86_400
"""
CONNECTOR = """
[[connector]]
name = "rehearsal"
kind = "echo"
"""
MODEL = """
[[model]]
name = "npc"
connector = "rehearsal"
upstream = "echo-1"
"""
LEAST = DAEMON + LEDGER + CALLER + CONNECTOR + MODEL + PRICE


def read(source: str) -> Config:
    return read_config(source, FOLDER, KINDS)


def faults(source: str) -> list[str]:
    """What is said of a configuration, without the lines and without what to write instead, which is always said."""
    with pytest.raises(ConfigFaults) as raised:
        read(source)
    complaints = raised.value.complaints
    assert all(one.hint for one in complaints)
    return [str(structs.replace(one, line=None, column=None, hint=None)) for one in complaints]


def said(source: str) -> str:
    only = faults(source)
    assert len(only) == 1, only
    return only[0]


def with_line(line: str, after: str, source: str = LEAST) -> str:
    assert source.count(after) == 1
    return source.replace(after, f"{after}\n{line}")


# --- what is right ----------------------------------------------------------------------------------------------


def test_the_least_configuration_has_the_contract_s_defaults() -> None:
    config = read(LEAST)
    daemon, ledger = config.daemon, config.ledger
    assert daemon.socket == FOLDER / "run/s.sock"
    assert daemon.socket_mode == 0o660
    assert (daemon.frame_bytes_max, daemon.frames_held_bytes_max) == (4_194_304, 268_435_456)
    assert (daemon.connections_max, daemon.connections_per_user_max, daemon.requests_in_flight_max) == (256, 128, 256)
    assert (daemon.expiry_skew_seconds_max, daemon.frame_timeout_seconds, daemon.drain_seconds_max) == (300, 10, 300)
    assert (ledger.directory, ledger.segment_bytes, ledger.retention_days) == (FOLDER / "run/ledger", 67_108_864, 30)
    caller, connector, model = config.callers["dungeon"], config.connectors["rehearsal"], config.models["npc"]
    assert caller.peer == PeerRule()
    assert (caller.concurrent_requests_max, caller.payload_bytes_max, caller.output_tokens_max) == (8, 1_048_576, 4096)
    assert (caller.foreign_reasoning, caller.models) == ("drop", frozenset({"npc"}))
    assert (connector.time_limit_seconds, connector.concurrent_requests_max, connector.usage) == (240, 64, "required")
    assert (connector.response_bytes_max, connector.body_bytes_max) == (4_194_304, 67_108_864)
    assert (connector.base_url, connector.credential) == (None, None)
    assert dict(connector.settings) == {"script": None, "loud": False}
    assert (model.output_tokens_max, model.input_overhead_tokens, model.input_overhead_tokens_per_item) == (
        8192,
        1024,
        0,
    )
    assert not model.tools_rendered_twice
    assert config.operators == ()


def test_names_of_users_and_groups_become_numbers() -> None:
    user, group = pwd.getpwuid(0), grp.getgrgid(0)
    source = with_line(f'user = "{user.pw_name}"\ngid = 0\nunit = "dungeon.service"', 'id = "dungeon"')
    source += f'[[operator]]\ngroup = "{group.gr_name}"\n[[operator]]\nuid = 7\n'
    config = read(source)
    assert config.callers["dungeon"].peer == PeerRule(uid=0, gid=0, unit="dungeon.service")
    assert config.operators == (PeerRule(gid=0), PeerRule(uid=7))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('"openai-key"', CredentialName(name="openai-key")),
        ('{file = "key.txt"}', CredentialName(file=FOLDER / "key.txt")),
        ('{env = "API_KEY"}', CredentialName(env="API_KEY")),
    ],
)
def test_a_credential_is_named_in_three_ways(written: str, expected: CredentialName) -> None:
    source = with_line(f"credential = {written}", 'kind = "echo"')
    assert read(source).connectors["rehearsal"].credential == expected


def test_prices_have_tiers_and_dates_from_midnight_utc() -> None:
    rows = "".join(
        PRICE.replace("output = 5", f"output = {output}\n{more}")
        for output, more in (
            (6, "above_input_tokens = 272_000"),
            (7, "from = 2026-12-01"),
            (8, "above_input_tokens = 272_000\nfrom = 2026-12-01T01:00:00.5+01:00"),
            (9, "from = 2026-12-02T00:00:00"),
        )
    )
    prices = read(LEAST + rows).models["npc"].prices
    midnight = 1_796_083_200_000
    assert [(one.row.output, one.row.above_input_tokens, one.from_unix_ms) for one in prices] == [
        (5, None, 0),
        (6, 272_000, 0),
        (7, None, midnight),
        (8, 272_000, midnight + 500),
        (9, None, midnight + 86_400_000),
    ]


def test_a_date_means_the_same_instant_in_every_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    source = LEAST + PRICE + "from = 2026-12-01"
    before = read(source).models["npc"].prices
    monkeypatch.setitem(os.environ, "TZ", "Asia/Tokyo")
    assert read(source).models["npc"].prices == before


def test_a_price_of_zero_is_a_price() -> None:
    source = LEAST.replace(PRICE, PRICE.replace("1", "0").replace("2", "0").replace("5", "0"))
    assert read(source).models["npc"].prices[0].row.input == 0


# --- what is wrong, one thing at a time -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "line", "complaint"),
    [
        ("[daemon]", "sokcet_mode = 1", "daemon.sokcet_mode: unknown key"),
        ("[daemon]", "socket_mode = 660", 'daemon.socket_mode: must be permissions as an octal text, such as "0660"'),
        ("[daemon]", "frame_bytes_max = 16_777_216", "daemon.frame_bytes_max: must be from 1024 to 16777215, not 16777216"),
        ("[daemon]", "frame_bytes_max = 0", "daemon.frame_bytes_max: must be from 1024 to 16777215, not 0"),
        ("[daemon]", "frames_held_bytes_max = 4096",
         "daemon.frames_held_bytes_max: must be at least frame_bytes_max, 4194304"),
        ("[daemon]", "frame_timeout_seconds = 0", "daemon.frame_timeout_seconds: must be from 0.01 to 3600 seconds, not 0"),
        ("[ledger]", "segment_bytes = 16_777_216",
         "ledger.segment_bytes: must be at least 17039360: 4 x (frame_bytes_max + 65536)"),
        ("[ledger]", "segment_bytes = 67_108_865", "ledger.segment_bytes: must be a multiple of 4096, not 67108865"),
        ("[ledger]", "retention_days = 0", "ledger.retention_days: must be from 1 to 36500, not 0"),
        ('id = "dungeon"', 'user = "no-such-user"', "caller \"dungeon\".user: this host has no user 'no-such-user'"),
        ('id = "dungeon"', 'group = "no-such-group"', "caller \"dungeon\".group: this host has no group 'no-such-group'"),
        ('id = "dungeon"', 'user = "a\\u0000b"', "caller \"dungeon\".user: this host has no user 'a\\x00b'"),
        ('id = "dungeon"', 'user = "root"\nuid = 0', 'caller "dungeon".user: stands beside uid: give one of the two'),
        ('id = "dungeon"', "uid = 65534",
         'caller "dungeon".uid: uid 65534 is how the kernel shows users whom it can\'t name here; it is never admitted'),
        ('id = "dungeon"', 'unit = "dungeon"',
         'caller "dungeon".unit: must be the name of a system service, such as "dungeon.service", not \'dungeon\''),
        ('id = "dungeon"', "payload_bytes_max = 0", 'caller "dungeon".payload_bytes_max: must be from 1 to 16777215, not 0'),
        ('id = "dungeon"', 'foreign_reasoning = "dorp"',
         'caller "dungeon".foreign_reasoning: must be one of drop, refuse'),
        ('kind = "echo"', 'lodu = true', 'connector "rehearsal".lodu: unknown key'),
        ('kind = "echo"', 'base_url = "https://a.example"', 'connector "rehearsal".base_url: the kind echo has none'),
        ('kind = "echo"', 'usage = "maybe"', 'connector "rehearsal".usage: must be one of required, bound, estimate'),
        ('upstream = "echo-1"', "tools_rendered_twice = 1", 'model "npc".tools_rendered_twice: must be true or false'),
        ("input = 1", "below_input_tokens = 5",
         'model "npc".price[0].below_input_tokens: unknown key'),
    ],
)  # fmt: skip
def test_a10_one_wrong_line_is_one_complaint(after: str, line: str, complaint: str) -> None:
    assert said(with_line(line, after)) == complaint


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (LEDGER, "", "ledger: is missing"),
        (LEDGER, LEDGER + "[legder]", "legder: unknown key"),
        ('socket = "run/s.sock"', "", "daemon.socket: is missing"),
        ('directory = "run/ledger"', "directory = 5", "ledger.directory: must be a text that is not empty"),
        ('directory = "run/ledger"', 'directory = "a\\u0000"', "ledger.directory: must be a path, which holds no NUL character"),
        (CALLER, "", "caller: there is none, so the daemon would serve nobody"),
        ("[[caller]]", "[caller]", "caller: must be an array of tables: write it in double brackets"),
        ("spend_ceiling_micro_usd = 5_000_000", "", 'caller "dungeon".spend_ceiling_micro_usd: is missing'),
        ("spend_window_seconds = 86_400", "", 'caller "dungeon".spend_window_seconds: is missing'),
        ("5_000_000", "0", 'caller "dungeon".spend_ceiling_micro_usd: must be from 1 to 18446744073709551615, not 0'),
        ("5_000_000", "5e6", 'caller "dungeon".spend_ceiling_micro_usd: must be a whole number'),
        ("86_400", "2_592_001", 'caller "dungeon".spend_window_seconds: is longer than the 30 days of'
         " ledger.retention_days: spend would be forgotten in its window"),
        ('["npc"]', '["ncp"]', 'caller "dungeon".models[0]: no model is named ncp'),
        ('["npc"]', '["npc", ""]', 'caller "dungeon".models[1]: must be an id: 1 to 256 characters of printable'
         " ASCII without spaces"),
        ('"dungeon"', '"the dungeon"', 'caller[0].id: must be an id: 1 to 256 characters of printable ASCII'
         " without spaces"),
        ('kind = "echo"', 'kind = "ecko"\nscript = "s"', 'connector "rehearsal".kind: no kind ecko is built'),
        ('kind = "echo"', 'kind = "fax"', 'connector "rehearsal".kind: no kind fax is built'),
        ('kind = "echo"', 'kind = "web"', 'connector "rehearsal".base_url: is missing'),
        ('connector = "rehearsal"', 'connector = "rehearsel"',
         'model "npc".connector: no connector is named rehearsel'),
        ("output = 5", "output = 5.0", 'model "npc".price[0].output: must be a whole number'),
        ("output = 5", "output = true", 'model "npc".price[0].output: must be a whole number'),
        ("output = 5", "output = -1", 'model "npc".price[0].output: must be from 0 to 18446744073709551615, not -1'),
        ("output = 5", "output = 18_446_744_073_709_551_616",
         'model "npc".price[0].output: must be from 0 to 18446744073709551615, not 18446744073709551616'),
        ("output = 5", "", 'model "npc".price[0].output: is missing'),
        ("output = 5", "output = 5\nabove_input_tokens = 9", 'model "npc".price: a base price is missing: a row without'
         " above_input_tokens and without from"),
        ("output = 5", "output = 5\nfrom = 2026-12-01", 'model "npc".price: a base price is missing: a row without'
         " above_input_tokens and without from"),
        ("output = 5", 'output = 5\nfrom = "2026-12-01"', 'model "npc".price[0].from: must be a date or a date-time without'
         " quotes, such as 2026-12-01"),
        ("output = 5", "output = 5\nfrom = 1969-12-31", 'model "npc".price[0].from: must be after 1970'),
        ("output = 5", "output = 5\nfrom = 10:00:00", 'model "npc".price[0].from: must be a date or a date-time without'
         " quotes, such as 2026-12-01"),
        (PRICE, "", 'model "npc".price: is missing'),
        (PRICE, "price = []", 'model "npc".price: a base price is missing: a row without above_input_tokens and without from'),
        (PRICE, "[model.price]\ninput = 1", 'model "npc".price: must be an array of tables: write it in double brackets'),
        (PRICE, PRICE + PRICE, 'model "npc".price[1]: another row has the same above_input_tokens and from'),
    ],
)  # fmt: skip
def test_one_wrong_value_is_one_complaint(old: str, new: str, complaint: str) -> None:
    assert LEAST.count(old) == 1
    assert said(LEAST.replace(old, new)) == complaint


def test_the_same_threshold_from_another_day_is_another_row() -> None:
    tier = PRICE + "above_input_tokens = 9\n"
    read(LEAST + tier + tier + "from = 2026-12-01")
    assert said(LEAST + tier + tier) == 'model "npc".price[2]: another row has the same above_input_tokens and from'


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (CALLER, "caller[1].id: dungeon is the id of an earlier caller, on line 9"),
        (CONNECTOR, "connector[1].name: rehearsal is the name of an earlier connector, on line 15"),
        (MODEL + PRICE, "model[1].name: npc is the name of an earlier model, on line 19"),
    ],
)
def test_a_name_belongs_to_one_table(table: str, complaint: str) -> None:
    assert said(LEAST + table) == complaint


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("https://api.example/v1", None),
        ("http://127.0.0.1:8080/v1", None),
        ("http://[::1]:8080", None),
        ("http://localhost:8080", None),
        ("http://10.0.0.5", "plain http to another machine shows prompts and keys to the network"),
        ("http://localhost.example", "plain http to another machine shows prompts and keys to the network"),
        ("ftp://api.example", "must be an http or https URL with a host"),
        ("api.example", "must be an http or https URL with a host"),
        ("https://", "must be an http or https URL with a host"),
        ("https://api.example:99999", "must be a URL, whose host is a name"),
        ("https://me:secret@api.example", "must have neither a user, a password, a query nor a fragment"),
        ("https://api.example/?key=1", "must have neither a user, a password, a query nor a fragment"),
        ("https://api.example/a b", "must be a URL in printable ASCII without spaces"),
        ("https://api.example/\\n", "must be a URL in printable ASCII without spaces"),
    ],
)
def test_a_base_url_is_whole_and_encrypted_unless_it_stays_here(url: str, complaint: str | None) -> None:
    source = LEAST.replace('kind = "echo"', f'kind = "web"\nbase_url = "{url}"')
    if complaint is None:
        assert read(source).connectors["rehearsal"].base_url == url
    else:
        assert said(source).startswith(f'connector "rehearsal".base_url: {complaint}')


def test_plain_http_to_another_machine_is_allowed_by_saying_so() -> None:
    web = 'kind = "web"\nbase_url = "http://10.0.0.5"\nallow_plain_http = true'
    assert read(LEAST.replace('kind = "echo"', web)).connectors["rehearsal"].base_url == "http://10.0.0.5"


@pytest.mark.parametrize(
    "written",
    ['"../key"', '".."', '""', '"a b"', "5", "{}", '{file = "a", env = "b"}', '{fiel = "a"}', '{env = "A B"}'],
)
def test_a_credential_is_a_plain_name_or_one_place(written: str) -> None:
    complaint = said(with_line(f"credential = {written}", 'kind = "echo"'))
    assert complaint.startswith('connector "rehearsal".credential: must be ')


def test_a_socket_path_is_at_most_107_bytes_counted_from_the_folder() -> None:
    room = 107 - len(str(FOLDER)) - 1
    assert len(str(read(LEAST.replace("run/s.sock", "s" * room)).daemon.socket)) == 107
    complaint = said(LEAST.replace("run/s.sock", "s" * (room - 1) + "é"))
    assert complaint.startswith("daemon.socket: ")
    assert complaint.endswith("is 108 bytes long; the kernel takes 107 for a socket")


# --- many things at once ----------------------------------------------------------------------------------------


def test_all_is_said_at_once_also_across_tables_that_are_broken_themselves() -> None:
    source = """
[daemon]
sokcet = "x"
frame_bytes_max = 8_388_608
[ledger]
directory = "l"
segment_bytes = 4_194_304
retention_days = 1
[[caller]]
id = "dungeon"
user = "no-such-user"
models = ["npc-fats"]
spend_ceiling_micro_usd = 0
spend_window_seconds = 86_401
[[caller]]
id = "dungeon"
models = []
[[connector]]
name = "away"
kind = "web"
base_url = "http://10.0.0.5"
colour = "red"
[[model]]
name = "npc-fast"
connector = "awya"
upstream = ""
"""
    with pytest.raises(ConfigFaults) as raised:
        read(source)
    assert [str(one) for one in raised.value.complaints] == [
        "3:1: daemon.sokcet: unknown key — did you mean socket?",
        "7:1: ledger.segment_bytes: must be at least 33816576: 4 x (frame_bytes_max + 65536) — write 33_816_576 or more",
        "11:1: caller[0].user: this host has no user 'no-such-user'"
        " — make that user first, or write one that is there, or its uid",
        "12:11: caller[0].models[0]: no model is named npc-fats — did you mean npc-fast?",
        "13:1: caller[0].spend_ceiling_micro_usd: must be from 1 to 18446744073709551615, not 0"
        " — write 1 or more; money is whole micro-USD: 5_000_000 is 5 USD",
        "14:1: caller[0].spend_window_seconds: is longer than the 1 days of ledger.retention_days:"
        " spend would be forgotten in its window — write 86_400 or less, or keep records for 2 days",
        "15:1: caller[1].spend_ceiling_micro_usd: is missing"
        " — write: spend_ceiling_micro_usd = 5_000_000 (that is 5 USD)",
        "15:1: caller[1].spend_window_seconds: is missing — write: spend_window_seconds = 86_400 (that is a day)",
        "16:1: caller[1].id: dungeon is the id of an earlier caller, on line 10"
        " — write another id, or leave one of the two tables out",
        '21:1: connector "away".base_url: plain http to another machine shows prompts and keys to the network'
        " — write https://, or allow_plain_http = true",
        '22:1: connector "away".colour: unknown key — known: allow_plain_http, base_url, body_bytes_max,'
        " concurrent_requests_max, credential, kind, name, response_bytes_max, time_limit_seconds, usage",
        '23:1: model "npc-fast".price: is missing — write: [[model.price]] with input, cache_read, cache_write_short,'
        " cache_write_long and output, zeros too",
        '25:1: model "npc-fast".connector: no connector is named awya — did you mean away?',
        '26:1: model "npc-fast".upstream: must be an id: 1 to 256 characters of printable ASCII without spaces'
        " — write it between the quotes, or leave the line out where it has a default",
    ]


@pytest.mark.parametrize(
    ("after", "line", "complaint"),
    [
        ("[daemon]", "drain_seconds_max =", "3:20: daemon.drain_seconds_max: is no TOML: Invalid value — write a value behind the ="),
        ("[daemon]", "socket_mode = 0660", "3:16: daemon.socket_mode: is no TOML: Expected newline or end of document after a"
         ' statement — write it without zeros before it, or permissions as a text: "0660"'),
        ("[daemon]", "socket_mode = rw", '3:15: daemon.socket_mode: is no TOML: Invalid value — write a text in quotes: "...", a number in digits'),
        ("input = 1", "above_input_tokens = 1,000", '25:23: model "npc".price[0].above_input_tokens: is no TOML: Expected newline'
         " or end of document after a statement — write a number without commas: 1_000_000"),
        ('id = "dungeon"', 'user = "root', '10:13: caller "dungeon".user: is no TOML: Illegal character \'\\n\''
         " — close the text with a quote on the same line"),
        ('id = "dungeon"', 'id = "d"', '10:1: caller "dungeon".id: stands twice; first on line 9 — leave one of the two out'),
        ('id = "dungeon"', '"id" = [\n]', '10:1: caller "dungeon".id: stands twice; first on line 9 — leave one of the two out'),
        ('id = "dungeon"', 'unit', '10:5: caller "dungeon".unit: is no TOML: Expected \'=\' after a key in a key/value pair — write: key = value'),
        ("[daemon]", "[daemon]", "3:1: daemon: stands twice; first on line 2 — leave one of the two out"),
        ("[ledger]", "[ledger]", "6:1: ledger: stands twice; first on line 5 — leave one of the two out"),
        ("output = 5", "[[operator]\nuid = 0", "29:11: operator: is no TOML: Expected ']]' at the end of an array declaration"
         " — write a header as [table], or [[table]] for one of several"),
        ("[daemon]", "connections_max = [1,\n2", "3:19: daemon.connections_max: is no TOML: Unclosed array"
         " — close it with ], with commas between its items"),
        ("[daemon]", 'socket_mode = """', '3:1: daemon.socket_mode: is no TOML: Unterminated string'
         " — close the text with the quotes that it begins with"),
    ],
)  # fmt: skip
def test_text_that_is_no_toml_is_told_with_its_place(after: str, line: str, complaint: str) -> None:
    source = with_line(line, after)
    with pytest.raises(ConfigFaults) as raised:
        read(source)
    assert [str(one) for one in raised.value.complaints] == [complaint]


def test_a_line_that_is_no_toml_hides_nothing_and_is_not_missed() -> None:
    source = LEAST.replace('"rehearsal"\nkind', 'rehearsal"\nkind').replace("output = 5", "output = 5,5\ninptu = 1")
    source = source.replace(
        "spend_window_seconds = 86_400", "spend_window_seconds = one day\nconcurrent_requests_max = 0"
    )
    assert [one.partition(": ")[0] for one in faults(source)] == [
        'caller "dungeon".spend_window_seconds',
        'caller "dungeon".concurrent_requests_max',
        "connector[0].name",
        'model "npc".price[0].output',
        'model "npc".price[0].inptu',
    ]


def test_a_text_nested_too_deeply_is_one_complaint() -> None:
    assert said("a = " + "[" * 100_000) == "the file: is nested too deeply"


def test_a_number_of_thousands_of_digits_is_a_complaint_and_no_crash() -> None:
    assert said("a = " + "9" * 5000).startswith("the file: is no TOML: Exceeds the limit")
    complaint = said(with_line("connections_max = 0x" + "f" * 5000, "[daemon]"))
    assert complaint == "daemon.connections_max: must be from 1 to 1000000, not a number of 20000 bits"
    assert "not a number of 20000 bits" in said(LEAST.replace("86_400", "0x" + "f" * 5000))


def test_a_complaint_stays_one_line_whatever_the_text_holds() -> None:
    source = with_line('"a\\nb\\u001b[1m" = 1', "[daemon]")
    assert said(source).startswith("daemon.a\\nb\\x1b[1m: unknown key")
    assert said(LEAST.replace('kind = "echo"', 'kind = "e\\nx"')).startswith(
        'connector "rehearsal".kind: no kind e\\nx is built'
    )


WRONG_SHAPES: list[Any] = ["5", '"text"', "[]", "[5]", "[[]]", "true", "2026-12-01", "{}", "[{}]", '[{id = 5, name = []}]']  # fmt: skip


@pytest.mark.parametrize("shape", WRONG_SHAPES)
@pytest.mark.parametrize("name", ["daemon", "ledger", "caller", "operator", "connector", "model"])
def test_a_table_of_any_other_shape_is_a_complaint_and_no_crash(name: str, shape: str) -> None:
    tables = {"daemon": DAEMON, "ledger": LEDGER, "caller": CALLER, "connector": CONNECTOR, "model": MODEL + PRICE}
    rest = "".join(text for key, text in tables.items() if key != name)
    if name == "operator" and shape in ("[]", "[{}]"):
        assert len(read(f"operator = {shape}\n{rest}").operators) == (shape != "[]")
    else:
        assert faults(f"{name} = {shape}\n{rest}")


FULL = LEAST + PRICE + 'from = 2026-12-01\nabove_input_tokens = 9\n[[operator]]\nuid = 0\ngid = 0\nunit = "a.service"\n'
LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.dates() | st.datetimes() | st.times()
)
WORDS = st.text(st.characters(codec="utf-8"), max_size=8)
ANYTHING = st.recursive(
    (LEAVES | WORDS).filter(lambda value: value is not None),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_anything_in_any_place_is_read_or_complained_of(drawing: st.DataObject) -> None:
    document = tomllib.loads(FULL)
    place, key = any_place(document, drawing)
    place[key] = drawing.draw(ANYTHING)
    complaints = faults_or_none(tomli_w.dumps(document))
    assert complaints is None or complaints
    assert all("\n" not in one for one in complaints or ())


def faults_or_none(source: str) -> list[str] | None:
    try:
        read(source)
    except ConfigFaults as raised:
        return [str(one) for one in raised.complaints]
    return None


WHOLE = DAEMON + LEDGER + CALLER + CONNECTOR + MODEL + PRICE


def test_metrics_are_written_nowhere_unless_a_file_is_named() -> None:
    assert read_config(WHOLE, FOLDER, KINDS).metrics is None
    written = read_config(WHOLE + '\n[metrics]\nfile = "m.prom"\n', FOLDER, KINDS).metrics
    assert written is not None
    assert (written.file, written.interval_seconds) == (FOLDER / "m.prom", 15)


def test_what_is_wrong_with_the_metrics_table_is_said() -> None:
    with pytest.raises(ConfigFaults) as caught:
        read_config(WHOLE + "\n[metrics]\ninterval_seconds = 0.5\nfiel = 3\n", FOLDER, KINDS)
    told = "\n".join(map(str, caught.value.complaints))
    for part in ("metrics.interval_seconds", "metrics.fiel: unknown key — did you mean file?"):
        assert part in told
