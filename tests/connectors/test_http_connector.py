"""The URL that is posted to, and what all HTTP connectors share beside the exchange."""

from __future__ import annotations

import pytest

from sidecar.connectors.http_connector import joined_url


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("http://h:1", "http://h:1/v1/chat/completions"),
        ("http://h:1/", "http://h:1/v1/chat/completions"),
        ("http://h/v1", "http://h/v1/chat/completions"),
        ("https://h/api/v1///", "https://h/api/v1/chat/completions"),
        ("https://h/openai", "https://h/openai/chat/completions"),
        ("https://h/v1/chat/completions/", "https://h/v1/chat/completions"),
        ("http://[::1]:80/v1", "http://[::1]:80/v1/chat/completions"),
    ],
)
def test_the_path_is_joined_right_whatever_the_base_brings(base: str, url: str) -> None:
    assert joined_url(base, "/chat/completions") == url
