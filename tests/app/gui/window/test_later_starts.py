"""A later start of the program knocks at the window."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.gui.window import later_starts
from app.gui.window.later_starts import LaterStarts
from app.instance import MOST_BYTES, Instance, Knock, as_message, claim


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the settings."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path / "settings"


@pytest.fixture
def starts(qtbot: QtBot, place: Path) -> Iterator[LaterStarts]:
    """The one that listens."""
    found = claim(place, Knock())
    assert isinstance(found, Instance)
    starts = LaterStarts(found)
    yield starts
    starts.close()
    found.close()


def connect(place: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    name = json.loads((place / "window.lock").read_text())["socket"]
    descriptor = os.open(Path(name).parent, os.O_RDONLY)
    connection.connect(f"/proc/self/fd/{descriptor}/window")
    os.close(descriptor)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the window has closed it without an answer."""
    try:
        return connection.recv(MOST_BYTES) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_a_knock_is_answered(qtbot: QtBot, place: Path, starts: LaterStarts) -> None:
    knocks: list[Knock] = []
    starts.knocked.connect(knocks.append)
    with connect(place) as later:
        later.send(as_message(Knock(token="t")))
        qtbot.waitUntil(lambda: bool(knocks))
        assert json.loads(later.recv(MOST_BYTES))["pid"] == os.getpid()
    assert knocks == [Knock(token="t")]


@pytest.mark.parametrize("message", [b"{}}", b"x" * 10_000, b"[]"])
def test_what_is_no_knock_is_not_answered(
    qtbot: QtBot, place: Path, starts: LaterStarts, message: bytes
) -> None:
    knocks: list[Knock] = []
    starts.knocked.connect(knocks.append)
    with connect(place) as later:
        later.send(message)
        qtbot.waitUntil(lambda: is_closed(later))
    assert not knocks


def test_a_process_that_sends_nothing_stops_nobody(qtbot: QtBot, place: Path, starts: LaterStarts) -> None:
    knocks: list[Knock] = []
    starts.knocked.connect(knocks.append)
    silent = [connect(place) for _ in range(12)]
    with connect(place) as later:
        later.send(as_message(Knock()))
        qtbot.waitUntil(lambda: bool(knocks))
    assert is_closed(silent[0])
    for connection in silent:
        connection.close()


def test_another_user_is_not_answered(
    qtbot: QtBot, place: Path, starts: LaterStarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later_starts, "is_of_this_user", lambda _: False)
    with connect(place) as later:
        later.send(as_message(Knock()))
        qtbot.waitUntil(lambda: is_closed(later))


def test_nobody_listens_after_the_window_has_closed(qtbot: QtBot, place: Path, starts: LaterStarts) -> None:
    with connect(place) as waiting:
        starts.close()
        assert is_closed(waiting)
    with pytest.raises(FileNotFoundError):
        connect(place)
