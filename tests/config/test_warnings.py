"""What is sound and hardly meant is warned of with its numbers; what no request can ever fit under is a mistake."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
import tomli_w

from sidecar.cli.main import main
from sidecar.cli.setup import load
from sidecar.config.ceilings import _SMALLEST_REQUEST_BYTES
from sidecar.config.keys import Complaint
from sidecar.config.reading import read_config, reading_of
from sidecar.config.values import Config
from sidecar.config.warnings import config_warnings
from sidecar.connectors.kinds import config_keys
from sidecar.contract import canonical
from sidecar.contract.values import InputItem, ProviderRequest, UserText

CONFIG = """
[daemon]
socket = "s"
[ledger]
directory = "l"
[[caller]]
id = "dungeon"
models = ["npc"]
spend_ceiling_micro_usd = {ceiling}
spend_window_seconds = 60
payload_bytes_max = 10_000
output_tokens_max = 100
{caller}
[[operator]]
[[connector]]
name = "it"
kind = "openai_chat"
base_url = "{url}"
credential = "key"
[[model]]
name = "npc"
connector = "it"
upstream = "tiny"
input_overhead_tokens = 1000
{price}
{more}
"""
MONEY = ("spend_ceiling_micro_usd", "spend_window_seconds", "payload_bytes_max", "output_tokens_max")
PRICE = """[[model.price]]
input = {input}
cache_read = {cache_read}
cache_write_short = {write}
cache_write_long = {write}
output = {output}
"""


def price(more: str = "", **changes: int) -> str:
    usual = {"input": 1_000_000, "cache_read": 100_000, "write": 1_250_000, "output": 5_000_000}
    return PRICE.format(**{**usual, **changes}) + more


def model(name: str, **changes: int) -> str:
    return f'[[model]]\nname = "{name}"\nconnector = "it"\nupstream = "{name}"\n{price(**changes)}'


def text(**changes: object) -> str:
    parts = {"ceiling": 10**9, "caller": "", "url": "https://h.test/v1", "price": price(), "more": "", **changes}
    return CONFIG.format(**parts)


def config(**changes: object) -> Config:
    return read_config(text(**changes), Path("/nowhere"), config_keys())


def warned(**changes: object) -> list[Complaint]:
    unused = "no caller may use it"
    return [one for one in config_warnings(config(**changes)) if one.what != unused]


def useless(**changes: object) -> list[Complaint]:
    reading = reading_of(text(**changes), Path("/nowhere"), config_keys())
    assert reading.config is not None
    return list(reading.useless)


def test_a_plain_configuration_has_no_warnings() -> None:
    assert warned() == []


def test_the_smallest_request_is_as_small_as_one_can_be() -> None:
    smallest = ProviderRequest(
        schema_id="gamecult.model.provider_request.v1", request_id="r", conversation_id="c", model="m",
        instructions="", input=(InputItem(user_text=UserText(text="x")),), tools=(), tool_choice="auto",
        parallel_tool_calls=True, max_output_tokens=1,
    )  # fmt: skip
    assert len(canonical.encode(smallest)) == _SMALLEST_REQUEST_BYTES


def test_a_ceiling_that_holds_no_request_at_all_is_a_mistake_that_says_what_to_write() -> None:
    least = -(-((1000 + _SMALLEST_REQUEST_BYTES) * 1_250_000 + 5_000_000) // 1_000_000)
    [complaint] = useless(ceiling=least - 1)
    assert complaint.path == 'caller "dungeon".spend_ceiling_micro_usd'
    assert complaint.line == 9
    assert f"the smallest that there can be reserves {least}" in complaint.what
    assert "write 15_000" in str(complaint.hint)
    assert useless(ceiling=least) == []


def test_a_ceiling_that_the_cheapest_instant_allows_is_no_mistake() -> None:
    later = price("from = 2030-01-01\n", input=1, cache_read=1, write=1, output=1)
    assert useless(ceiling=10, price=price() + later) == []


def test_a_ceiling_below_the_largest_request_is_warned_of_with_the_numbers() -> None:
    greatest = -(-(11_000 * 1_250_000 + 100 * 5_000_000) // 1_000_000)
    assert warned(ceiling=greatest) == []
    [warning] = warned(ceiling=greatest - 1)
    assert f"10000 bytes and 100 output tokens reserve {greatest}" in warning.what
    assert "15_000" in str(warning.hint)


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"input": 3, "output": 15}, "input", "look like dollars"),
        ({"output": 500_000}, "output", "below the 1000000 of input"),
        ({"cache_read": 2_000_000}, "cache_read", "above the 1000000 of input"),
        ({"write": 12_500_000}, "cache_write_short", "an order of magnitude away"),
    ],
)
def test_a_price_that_is_hardly_meant_is_warned_of(changes: dict[str, int], path: str, words: str) -> None:
    warning = warned(price=price(**changes))[0]
    assert warning.path == f'model "npc".price[0].{path}'
    assert words in warning.what
    assert warning.hint


def test_a_free_model_has_no_odd_prices() -> None:
    free = dict.fromkeys(("input", "cache_read", "write", "output"), 0)
    assert warned(price=price(**free), url="http://127.0.0.1:8080/v1") == []
    [warning] = warned(price=price(**free))
    assert "rarely free" in warning.what


def test_a_row_for_large_requests_that_is_cheaper_is_warned_of() -> None:
    above = price("above_input_tokens = 1000\n", input=900_000)
    [warning] = warned(price=price() + above)
    assert warning.path == 'model "npc".price[1].input'
    assert "below that of the base row" in warning.what


def test_a_price_that_changes_by_an_order_of_magnitude_is_warned_of() -> None:
    later = price("from = 2030-01-01\n", input=11_000_000, output=60_000_000, cache_read=1_100_000, write=13_000_000)
    [warning] = warned(price=price() + later)
    assert warning.path == 'model "npc".price[1].input'
    assert "order of magnitude away from the 1000000 of before" in warning.what


def priced(name: str, dollars: int) -> str:
    amount = dollars * 1_000_000
    return model(name, input=amount, output=5 * amount, cache_read=0, write=amount)


def test_a_model_an_order_of_magnitude_away_from_whichever_other_is_nearest_is_warned_of() -> None:
    assert warned(more=priced("dear", 9)) == []
    assert warned(more=priced("dear", 9) + priced("dearer", 75)) == []
    for others in ("", priced("middling", 3), priced("other", 4) + priced("free", 0)):
        far = [one for one in warned(more=others + priced("far", 40)) if "magnitude" in one.what]
        assert [one.path for one in far] == ['model "far".price[0].input', 'model "far".price[0].output']
    assert (
        "40000000 is an order of magnitude away from the nearest of other models, the 4000000 of other" in far[0].what
    )


def test_the_example_s_own_prices_are_not_warned_of() -> None:
    example = Path(__file__).resolve().parents[2] / "config.example.toml"
    document = tomllib.loads(re.sub(r"^#(?=[a-z\[])", "", example.read_text(encoding="utf-8"), flags=re.MULTILINE))
    document["caller"] = [{key: document["caller"][0][key] for key in ("id", "models", *MONEY)}]
    document["operator"] = []
    shown = read_config(tomli_w.dumps(document), example.parent, config_keys())
    assert {one.what for one in config_warnings(shown)} == {"no caller may use it"}


@pytest.mark.parametrize(
    ("key", "wrong", "words"),
    [
        ("output", 50_000_000, "50000000 is an order of magnitude away from the 1000000 of input"),
        ("cache_read", 10_000, "less than a 25th of the 1000000 of input"),
        ("write", 125_000, "125000 is below the 1000000 of input"),
    ],
)
def test_a_zero_too_many_or_too_few_is_warned_of_in_a_row_that_stands_alone(key: str, wrong: int, words: str) -> None:
    assert words in warned(price=price(**{key: wrong}))[0].what


def test_a_row_for_large_requests_with_a_zero_too_many_is_warned_of() -> None:
    above = price(
        "above_input_tokens = 1000\n", input=10_000_000, cache_read=1_000_000, write=10_000_000, output=50_000_000
    )
    [warning] = [one for one in warned(price=price() + above) if "price[1]" in one.path]
    assert "10000000 is an order of magnitude away from the 1000000 of the base row" in warning.what


def test_what_is_kept_for_long_and_costs_less_than_for_short_is_warned_of() -> None:
    [warning] = warned(price=price().replace("cache_write_long = 1250000", "cache_write_long = 1100000"))
    assert warning.path == 'model "npc".price[0].cache_write_long'


def test_a_known_provider_s_host_with_another_path_is_warned_of_with_its_own() -> None:
    [warning] = warned(url="https://api.openai.com")
    assert warning.path == 'connector "it".base_url'
    assert warning.hint == 'write "https://api.openai.com/v1"'
    assert warned(url="https://api.openai.com/v1/") == []


@pytest.mark.parametrize(
    ("old", "new", "path", "words"),
    [
        ('"l"', '"~/l"', "ledger.directory", "write the whole path"),
        ('"s"', '"$XDG_RUNTIME_DIR/s"', "daemon.socket", "write the whole path"),
        ('"s"', '"l/s"', "daemon.socket", "beside that directory"),
        ('"s"', '"s"\nsocket_mode = "0644"', "daemon.socket_mode", 'write "0660"'),
        (
            '"s"',
            '"s"\nconnections_max = 5\nconnections_per_user_max = 6',
            "daemon.connections_per_user_max",
            "write 5 or",
        ),
        ("= 60\n", "= 60\nconcurrent_requests_max = 300\n", 'caller "dungeon".concurrent_requests_max', "write 256 or"),
        (
            '"key"',
            '"key"\nresponse_bytes_max = 9\nbody_bytes_max = 8',
            'connector "it".response_bytes_max',
            "write 8 or",
        ),
        ("[ledger]", '[metrics]\nfile = "here.txt"\n[ledger]', "metrics.file", 'write "here.prom"'),
    ],
)
def test_a_key_that_is_hardly_meant_is_warned_of(old: str, new: str, path: str, words: str) -> None:
    odd = read_config(text().replace(old, new, 1), Path("/nowhere"), config_keys())
    [warning] = [one for one in config_warnings(odd) if one.what != "no caller may use it"]
    assert warning.path == path
    assert words in str(warning.hint)


def test_a_ceiling_written_in_dollars_is_told_in_micro_usd() -> None:
    [complaint] = useless(ceiling=5)
    assert "5 USD would be 5_000_000" in str(complaint.hint)
    assert [one for one in warned(ceiling=5) if "largest" in one.what] == []


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/chat/completions/", "/v1/messages", "/v1/responses"])
def test_a_base_url_with_what_the_connector_adds_itself_is_warned_of(path: str) -> None:
    [warning] = warned(url=f"https://h.test{path}")
    assert warning.path == 'connector "it".base_url'
    assert "adds itself" in warning.what


def test_a_payload_bound_above_the_frames_is_warned_of() -> None:
    large = read_config(text(ceiling=10**12).replace("10_000", "16_000_000"), Path("/nowhere"), config_keys())
    [warning] = [one for one in config_warnings(large) if "payload" in one.path]
    assert "16000000 is above daemon.frame_bytes_max, 4194304" in warning.what


def test_a_ceiling_that_holds_nothing_is_wrong_to_check_and_a_start_only_warns_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text(ceiling=1).replace('credential = "key"\n', ""))
    assert main(["check", "--config", str(path)]) == os.EX_CONFIG
    assert "1 can't hold one request to npc" in capsys.readouterr().err
    assert any("1 can't hold one request to npc" in warning for warning in load(path, {}).warnings)
    path.write_text(path.read_text() + "[[nonsense]]\n")
    assert main(["check", "--config", str(path)]) == os.EX_CONFIG
    told = capsys.readouterr().err
    assert "nonsense" in told
    assert "1 can't hold one request to npc" in told
