"""The daemon of the transcripts as files: its configuration and its script, to play them against a real one."""

from __future__ import annotations

import re
from typing import Any

import tomli_w
from kit.road import CONFIG, DEFAULTS
from msgspec import Struct, structs, to_builtins

from goldens import sample_frames, transcripts
from sidecar.connectors.script import Rule

CONFIG_HEAD = """\
# A daemon that every transcript, frame and stream of the goldens can be played against:
#
#     sidecar serve --config config.toml
#     sidecar conformance --socket s.sock

"""
SCRIPT_HEAD = "# The answers of the transcripts' provider; whatever no rule matches is echoed.\n\n"


def texts() -> dict[str, str]:
    """The files by their path inside `goldens/`."""
    return {
        "daemon/config.toml": CONFIG_HEAD + _config(),
        "daemon/script.toml": SCRIPT_HEAD + tomli_w.dumps({"rule": [_plain(rule) for rule in transcripts.RULES]}),
    }


def _config() -> str:
    """The transcripts' own, with the frames' bound of `streams.json`, and the script."""
    config = CONFIG.format(**DEFAULTS).strip() + "\n"
    config = config.replace("[daemon]\n", f"[daemon]\nframe_bytes_max = {sample_frames.FRAME_BYTES_MAX}\n", 1)
    return config.replace('kind = "scripted"\n', 'kind = "scripted"\nscript = "script.toml"\n', 1)


def _plain(rule: Rule) -> dict[str, Any]:
    """What a script file says for this rule: all that is not as it is by default."""
    said = {
        field.name: getattr(rule, field.name)
        for field in structs.fields(Rule)
        if getattr(rule, field.name) != field.default
    }
    return {name: _value(value) for name, value in said.items()}


def _value(value: Any) -> Any:
    if isinstance(value, re.Pattern):
        return value.pattern
    if isinstance(value, Struct):
        return {name: inner for name, inner in to_builtins(value).items() if inner is not None}
    return [_value(inner) for inner in value] if isinstance(value, tuple) else value
