"""Errors as users read them: no credentials in any text."""

from __future__ import annotations

import pytest

from engine_runtime.errors import redact

TOKEN = "hf_" + "aB3" * 12


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://anna:secret@mirror.example/x", "http://mirror.example/x"),
        ("http://anna:se@cret@mirror.example", "http://mirror.example"),
        ("HF_ENDPOINT=https://token@mirror:8080", "HF_ENDPOINT=https://mirror:8080"),
        ("proxy 'http://:pw@[::1]:3128/' refused", "proxy 'http://[::1]:3128/' refused"),
        ("two: http://a:b@c/ and ftp://d:e@f/", "two: http://c/ and ftp://f/"),
        ("GET https://cdn/x?Signature=abc&Key-Pair-Id=1 200", "GET https://cdn/x?... 200"),
        (f"token {TOKEN}.", "token hf_...."),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ..."),
        ("mail anna@example.org about https://host/a", "mail anna@example.org about https://host/a"),
        ("hf_hub_download(repo) at /home/x?", "hf_hub_download(repo) at /home/x?"),
        ("", ""),
    ],
)
def test_credentials_are_taken_out(text: str, expected: str) -> None:
    assert redact(text) == expected
    assert redact(expected) == expected
