"""The file of the server's key."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from app.gui.common.preference_file import ServerKey
from app.gui.common.preferences import Preferences, PreferenceStore

URL, SECRET = "wss://a.example.org", "a-secret-of-the-user"


def test_only_the_user_can_read_it_and_the_settings_do_not_hold_it(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path / "window.ini")
    assert store.save(Preferences(server=URL, server_key=SECRET))
    assert (tmp_path / "window.key").stat().st_mode & 0o777 == 0o600
    assert SECRET not in (tmp_path / "window.ini").read_text()
    assert URL in (tmp_path / "window.ini").read_text()
    loaded = PreferenceStore(tmp_path / "window.ini").load()
    assert (loaded.server, loaded.server_key) == (URL, SECRET)
    assert SECRET not in repr(loaded)


def test_no_key_leaves_no_file(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path / "window.ini")
    store.save(Preferences(server=URL, server_key=SECRET))
    store.save(Preferences())
    assert [file.name for file in tmp_path.iterdir()] == ["window.ini"]


@pytest.mark.parametrize(
    ("server", "kept"), [("ftp://a", SECRET), ("ws://a.example.org", SECRET), (URL, "umlaut ä"), ("", SECRET)]
)
def test_what_cannot_be_used_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, server: str, kept: str
) -> None:
    (tmp_path / "a.key").write_text(kept)
    with caplog.at_level(logging.DEBUG):
        assert ServerKey(tmp_path / "a.key").load(server) == ("", "")
    assert SECRET not in caplog.text


def test_a_server_without_a_key(tmp_path: Path) -> None:
    assert ServerKey(tmp_path / "none.key").load(URL) == (URL, "")


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    assert not ServerKey(tmp_path / "none" / "a.key").save(SECRET)
