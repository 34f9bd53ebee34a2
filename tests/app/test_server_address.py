"""Addresses of servers, and their keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.server_address import AddressError, parse_address, read_key


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:8000", "ws://127.0.0.1:8000/v1/realtime"),
        ("http://localhost:8000/", "ws://localhost:8000/v1/realtime"),
        ("https://voice.example.org", "wss://voice.example.org/v1/realtime"),
        ("wss://voice.example.org/v1/realtime?model=m", "wss://voice.example.org/v1/realtime?model=m"),
        ("ws://[::1]:9000/other", "ws://[::1]:9000/other"),
    ],
)
def test_an_address_becomes_a_websocket(text: str, url: str) -> None:
    assert parse_address(text).url == url


@pytest.mark.parametrize("text", ["", "ws://", "ftp://a", "ws://a:b", "ws://[::1", "a b", "ws://a:0"])
def test_what_is_no_address_is_an_error(text: str) -> None:
    with pytest.raises(AddressError, match="address"):
        parse_address(text)


def test_a_password_in_the_address_is_an_error_that_does_not_show_it() -> None:
    with pytest.raises(AddressError) as caught:
        parse_address("ws://user:secret@localhost:1")
    assert "secret" not in str(caught.value)


def test_a_key_goes_over_tls_or_stays_on_the_machine() -> None:
    for text in ("ws://127.0.0.1:1", "ws://localhost:1", "wss://voice.example.org"):
        assert parse_address(text, "a-key").key == "a-key"
    with pytest.raises(AddressError, match="encryption") as caught:
        parse_address("ws://voice.example.org", "a-key")
    assert "a-key" not in str(caught.value)


def test_no_representation_has_the_key() -> None:
    address = parse_address("wss://voice.example.org", "a-key")
    assert "a-key" not in repr(address) + str(address)
    with pytest.raises(AddressError) as caught:
        parse_address("wss://voice.example.org", "a key\n")
    assert "a key" not in str(caught.value)


def test_keys_come_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("# of the laboratory\n\n 0123456789abcdef \nanother\n")
    assert read_key(file) == "0123456789abcdef"
    assert read_key(None, {"MOSS_VOICE_SERVER_KEY": " of-the-environment "}) == "of-the-environment"
    assert read_key(None, {}) == ""
    file.write_text("\n")
    with pytest.raises(AddressError, match="has no key"):
        read_key(file)
    with pytest.raises(AddressError, match="cannot be read"):
        read_key(tmp_path / "none")


def test_a_network_without_encryption_is_warned_of() -> None:
    for text in ("ws://127.0.0.1:1", "ws://[::1]:1", "ws://localhost:1", "wss://voice.example.org"):
        assert parse_address(text).warning is None
    warning = str(parse_address("ws://voice.example.org:8000").warning)
    assert "voice.example.org:8000" in warning
    assert "without encryption" in warning
