"""The table of kinds: what a configuration may say to each, and what is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.one_connector import PRICE, config_of

from sidecar.config.keys import ConfigFaults
from sidecar.config.values import Config
from sidecar.connectors.http_connector import HttpConnector
from sidecar.connectors.kinds import KINDS
from sidecar.connectors.scripted import Scripted
from sidecar.ops.credentials import Secret


def config(connector: str, folder: Path = Path(".")) -> Config:
    return config_of(connector, folder=folder)


def built(connector: str, secret: str | None = None, folder: Path = Path(".")) -> Any:
    wanted = config(connector, folder).connectors["it"]
    return KINDS[wanted.kind].build(wanted, Secret("key", secret) if secret else None)


async def test_scripted_needs_nothing() -> None:
    assert isinstance(built('kind = "scripted"'), Scripted)


async def test_a_script_is_found_from_the_configurations_own_folder(tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text('[[rule]]\nreject = "so it says"\n')
    assert isinstance(built('kind = "scripted"\nscript = "script.toml"', folder=tmp_path), Scripted)
    with pytest.raises(ConfigFaults, match=r"absent\.toml"):
        built('kind = "scripted"\nscript = "absent.toml"', folder=tmp_path)


async def test_openai_chat_takes_its_servers_differences_and_hides_its_credential() -> None:
    connector = built(
        'kind = "openai_chat"\nbase_url = "http://127.0.0.1:1/v1"\nmax_tokens_field = "max_completion_tokens"\n'
        "send_stream_options = false\nsend_tool_choice = false\nsend_parallel_tool_calls = false\nsend_strict = false\n"
        'effort_field = "reasoning_effort"\n',
        "sk-canary",
    )
    assert isinstance(connector, HttpConnector)
    assert "canary" not in repr(connector)
    await connector.aclose()


@pytest.mark.parametrize(
    ("connector", "why"),
    [
        ('kind = "openai_chat"', "base_url"),
        (
            'kind = "openai_chat"\nbase_url = "http://127.0.0.1:1"\nmax_token_field = "max_tokens"',
            "did you mean max_tokens_field",
        ),
        ('kind = "openai_chat"\nbase_url = "http://127.0.0.1:1"\neffort_field = "reasonin"', "did you mean reasoning"),
        ('kind = "openai_cht"', "openai_chat"),
        ('kind = "scripted"\nscrpt = "x"', "did you mean script"),
        ('kind = "not_built_yet"\nbase_url = "https://h"', "scripted"),
    ],
)
def test_a_mistake_is_named_with_what_is_known(connector: str, why: str) -> None:
    with pytest.raises(ConfigFaults, match=why):
        config(connector)


@pytest.mark.parametrize(
    ("connector", "why"),
    [
        ('kind = "openai_chat"\nbase_url = "http://127.0.0.1:1"\nargv = ["x"]', "process, and this one is openai_chat"),
        ('kind = "process"\nargv = ["true"]\nroute = "native"', "of the kind llama_stack, and this one is process"),
        ('kind = "gemini"\nbase_url = "https://h"\ndialect = "openai"', "of the kind openai_chat and openai_responses"),
    ],
)
def test_a_key_of_another_kind_is_said_to_be_that_kinds(connector: str, why: str) -> None:
    with pytest.raises(ConfigFaults, match=why):
        config(connector)


@pytest.mark.parametrize("kind", ["openai_chat", "openai_responses"])
def test_efforts_of_which_no_request_can_ask_for_one_are_a_mistake(kind: str) -> None:
    served = f'kind = "{kind}"\nbase_url = "https://h"\ndialect = "openai"\n'
    model = '[[model]]\nname = "second"\nconnector = "it"\nupstream = "x"\nefforts = ["none", "minimal"]\n' + PRICE
    with pytest.raises(ConfigFaults, match="none that a request can ask for"):
        config(served + model)
    config(served + model.replace('"minimal"', '"low"'))
