"""Who may connect."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.server.access import (
    Access,
    AccessError,
    check_address,
    check_cluster,
    check_tls,
    is_loopback,
    read_keys,
    warnings,
)

KEY = "0123456789abcdef"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": f"Bearer {KEY}"}, None),
        ({"authorization": f"bearer  {KEY}"}, None),
        ({"authorization": "Bearer 0123456789abcdeX"}, 401),
        ({"authorization": "Bearer ä"}, 401),
        ({"authorization": f"Basic {KEY}"}, 401),
        ({"sec-websocket-protocol": f"realtime, openai-insecure-api-key.{KEY}"}, None),
        ({"authorization": f"Bearer {KEY}", "origin": "https://example.org"}, 403),
    ],
)
def test_a_key_is_needed(headers: dict[str, str], status: int | None) -> None:
    refusal = Access((KEY, "another-long-key-1")).refusal(headers)
    assert (refusal[0] if refusal else None) == status


def test_web_pages_need_permission_even_without_keys() -> None:
    access = Access(origins=("https://example.org",))
    assert access.refusal({"origin": "https://example.org"}) is None
    refusal = access.refusal({"origin": "https://other.example"})
    assert refusal is not None
    assert "--allow-origin" in refusal[1]
    assert Access().refusal({}) is None


@pytest.mark.parametrize(
    ("keys", "origin", "host", "may_connect"),
    [
        ((), "http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ((), "http://[::1]:8000", "[::1]:8000", True),
        ((), "http://localhost:8000", "127.0.0.1:8000", False),
        ((), "http://evil.example:8000", "evil.example:8000", False),
        ((KEY,), "https://voice.example.org", "voice.example.org", True),
        ((KEY,), "https://evil.example", "voice.example.org", False),
        ((), "null", "", False),
    ],
)
def test_the_page_of_the_server_may_connect(
    keys: tuple[str, ...], origin: str, host: str, may_connect: bool
) -> None:
    headers = {"origin": origin, "host": host, "authorization": f"Bearer {KEY}"}
    assert (Access(keys).refusal(headers) is None) is may_connect


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_the_own_machine_needs_no_key(host: str) -> None:
    assert is_loopback(host)
    check_address(host, Access())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_every_other_address_does(host: str) -> None:
    with pytest.raises(AccessError, match="no API key"):
        check_address(host, Access())
    check_address(host, Access((KEY,)))


def test_keys_come_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# of the lab\n{KEY}\n\n")
    assert read_keys(file, {"MOSS_VOICE_API_KEYS": "ignored"}) == (KEY,)
    assert read_keys(None, {"MOSS_VOICE_API_KEYS": f"{KEY}, {KEY}2"}) == (KEY, f"{KEY}2")
    assert read_keys(None, {}) == ()
    for text, message in (("short\n", "too short"), ("# none\n", "has no key"), (f"{KEY}ä\n", "characters")):
        file.write_text(text)
        with pytest.raises(AccessError, match=message):
            read_keys(file)
    with pytest.raises(AccessError, match="cannot be read"):
        read_keys(tmp_path / "missing")


def test_keys_of_the_environment_may_be_the_lines_of_a_file() -> None:
    assert read_keys(None, {"MOSS_VOICE_API_KEYS": f"{KEY}\n{KEY}2\n"}) == (KEY, f"{KEY}2")


def test_what_is_allowed_but_unsafe_is_named(tmp_path: Path) -> None:
    keys = tmp_path / "my keys"
    keys.write_text(KEY)
    keys.chmod(0o600)
    assert list(warnings("127.0.0.1", None, [keys, None])) == []
    assert list(warnings("0.0.0.0", tmp_path / "cert.pem", [keys])) == []
    (text,) = warnings("0.0.0.0", None, [keys])
    assert "--tls-cert" in text
    for mode in (0o640, 0o604):
        keys.chmod(mode)
        (text,) = warnings("127.0.0.1", None, [keys])
        assert f"chmod 600 '{keys}'" in text


def test_a_cluster_has_to_demand_a_token(caplog: pytest.LogCaptureFixture) -> None:
    check_cluster({"RAY_AUTH_MODE": "token"})
    assert caplog.messages == []
    for environ in ({}, {"RAY_AUTH_MODE": ""}, {"RAY_AUTH_MODE": "Token"}):
        with pytest.raises(AccessError, match="RAY_AUTH_MODE=token"):
            check_cluster(environ)
    check_cluster({"RAY_AUTH_MODE": "disabled"})
    assert caplog.messages == ["cluster_without_authentication"]


def test_a_certificate_is_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    check_tls(None, None)
    with pytest.raises(AccessError, match="both"):
        check_tls(tmp_path / "cert.pem", None)
    (tmp_path / "cert.pem").write_text("no certificate")
    with pytest.raises(AccessError, match="cannot be used"):
        check_tls(tmp_path / "cert.pem", tmp_path / "key.pem")
