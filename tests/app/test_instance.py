"""One window for the settings: who gets them, what a later start is told, and what a dead process leaves."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app import instance
from app.instance import (
    MOST_BYTES,
    Answer,
    Instance,
    InstanceError,
    Knock,
    as_message,
    claim,
    is_of_this_user,
    read_knock,
)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's runtime folder, with a path that is longer than that of a socket may be."""
    folder = tmp_path / ("r" * 120)
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


@pytest.fixture
def first(tmp_path: Path, runtime: Path) -> Iterator[Instance]:
    """The process that has the settings."""
    found = claim(tmp_path / "settings", Knock())
    assert isinstance(found, Instance)
    yield found
    found.close()


def content_of(folder: Path) -> dict[str, object]:
    document: dict[str, object] = json.loads((folder / "window.lock").read_text())
    return document


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def answering(listener: socket.socket | None, knocks: list[bytes]) -> threading.Thread:
    """Answers one knock, as the window does."""

    def answer() -> None:
        assert listener is not None
        listener.settimeout(120)
        connection, _ = listener.accept()
        with connection:
            knocks.append(connection.recv(MOST_BYTES))
            connection.send(as_message(Answer(4711, ":7")))

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_a_later_start_gets_the_answer_of_the_first(tmp_path: Path, first: Instance) -> None:
    knocks: list[bytes] = []
    thread = answering(first.listen(), knocks)
    found = claim(tmp_path / "settings", Knock(token="a token"))
    thread.join()
    assert found == Answer(4711, ":7")
    assert read_knock(knocks[0]) == Knock(token="a token")


def test_settings_elsewhere_are_free(tmp_path: Path, first: Instance) -> None:
    other = claim(tmp_path / "other", Knock())
    assert isinstance(other, Instance)
    other.close()


def test_lock_and_socket_are_private(tmp_path: Path, runtime: Path, first: Instance) -> None:
    first.listen()
    place = Path(str(content_of(tmp_path / "settings")["socket"]))
    assert place.parent.parent == runtime
    assert stat.S_ISSOCK(place.stat().st_mode)
    assert mode_of(place.parent) == 0o700
    assert mode_of(tmp_path / "settings") == 0o700  # it was made
    assert mode_of(tmp_path / "settings" / "window.lock") == 0o600
    first.close()
    assert not list(runtime.iterdir())
    again = claim(tmp_path / "settings", Knock())
    assert isinstance(again, Instance)
    again.close()


@pytest.mark.parametrize("problem", ["open", "of another user", "absent", "not named", "relative"])
def test_a_runtime_folder_that_is_not_the_users_alone_is_not_used(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if problem == "open":
        runtime.chmod(0o755)
    elif problem == "of another user":
        if os.getuid():
            pytest.skip("only root can give a folder away")
        os.chown(runtime, 12_345, -1)
    elif problem == "absent":
        runtime.rmdir()
    elif problem == "not named":
        monkeypatch.delenv("XDG_RUNTIME_DIR")
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", ".")
    found = claim(tmp_path / "settings", Knock())
    assert isinstance(found, Instance)
    assert found.listen() is not None
    place = Path(str(content_of(tmp_path / "settings")["socket"]))
    assert place.parent.parent == tmp_path
    assert mode_of(place.parent) == 0o700
    found.close()
    assert not place.parent.exists()


def test_a_socket_in_a_folder_of_others_is_not_used(tmp_path: Path, first: Instance) -> None:
    knocks: list[bytes] = []
    listener = first.listen()
    Path(str(content_of(tmp_path / "settings")["socket"])).parent.chmod(0o777)
    with pytest.raises(InstanceError, match="reached"):
        claim(tmp_path / "settings", Knock(), sleep=lambda _: None)
    assert listener is not None
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert not knocks


def test_a_window_that_hangs_is_reported(
    tmp_path: Path, first: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "ANSWER_S", 0.05)
    first.listen()
    os.utime(tmp_path / "settings" / "window.lock", (0, 0))  # it has been there for long
    with pytest.raises(InstanceError) as error:
        claim(tmp_path / "settings", Knock())
    assert f"process {os.getpid()}" in error.value.what_is_wrong
    assert "does not answer" in error.value.what_is_wrong
    assert f"kill -9 {os.getpid()}" in error.value.what_to_do
    assert "--new-instance" in error.value.what_to_do


def test_a_young_window_gets_time_to_answer(
    tmp_path: Path, first: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "ANSWER_S", 0.0)
    thread = answering(first.listen(), [])
    assert claim(tmp_path / "settings", Knock()) == Answer(4711, ":7")
    thread.join()


def test_a_process_that_starts_is_waited_for(tmp_path: Path, first: Instance) -> None:
    threads: list[threading.Thread] = []

    def sleep(_: float) -> None:
        if not threads:
            threads.append(answering(first.listen(), []))

    assert claim(tmp_path / "settings", Knock(), sleep=sleep) == Answer(4711, ":7")
    threads[0].join()


def test_a_process_that_ends_is_waited_for(tmp_path: Path, first: Instance) -> None:
    first.listen()
    first.stop_listening()
    assert content_of(tmp_path / "settings")["socket"]  # it is stale, as after a crash
    found = claim(tmp_path / "settings", Knock(), sleep=lambda _: first.close())
    assert isinstance(found, Instance)
    found.close()


def test_a_process_that_shows_no_window_is_reported(tmp_path: Path, first: Instance) -> None:
    slept: list[float] = []
    with pytest.raises(InstanceError, match="reached"):
        claim(tmp_path / "settings", Knock(), sleep=slept.append)
    assert 15 < sum(slept) < 30


def test_a_lock_of_another_computer_is_reported_as_such(tmp_path: Path, first: Instance) -> None:
    file = tmp_path / "settings" / "window.lock"
    file.write_text(json.dumps({"pid": 3, "host": "elsewhere", "socket": ""}))
    with pytest.raises(InstanceError, match=r"\(process 3 on elsewhere\)"):
        claim(tmp_path / "settings", Knock(), sleep=lambda _: None)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[1]", b"{", b'{"pid": "x"}', b'{"pid": 1, "socket": 2}', b"\xff", b"[" * 4096),
        b'{"pid": 1, "socket": "/tmp/moss-voice-\\u0000/window"}',
    ],
)
def test_a_lock_file_of_any_content_is_usable(tmp_path: Path, runtime: Path, content: bytes) -> None:
    (tmp_path / "window.lock").write_bytes(content)
    found = claim(tmp_path, Knock())
    assert isinstance(found, Instance)
    assert found.listen() is not None
    found.close()


def test_only_sockets_of_the_program_are_removed(tmp_path: Path, runtime: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "window").write_text("of the user")
    content = {"pid": 1, "host": "", "socket": str(mine / "window")}
    (tmp_path / "window.lock").write_text(json.dumps(content))
    found = claim(tmp_path, Knock())
    assert isinstance(found, Instance)
    found.close()
    assert (mine / "window").exists()


def test_settings_that_cannot_be_locked_are_used(tmp_path: Path, runtime: Path) -> None:
    (tmp_path / "window.lock").mkdir()
    found = claim(tmp_path, Knock())
    assert isinstance(found, Instance)
    assert found.listen() is None
    found.close()


def test_only_processes_of_the_user_count(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        assert is_of_this_user(here)
        uid = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
        assert not is_of_this_user(here)


@pytest.mark.parametrize(
    "message", [b"", b"null", b"[]", b'{"raises": 1}', b'{"token": "\\u0000"}', b"{" * 4096]
)
def test_a_message_that_is_no_knock_is_none(message: bytes) -> None:
    assert read_knock(message) is None


@pytest.mark.parametrize(
    ("variables", "token"),
    [
        ({}, ""),
        ({"DESKTOP_STARTUP_ID": "x_TIME5"}, "x_TIME5"),
        ({"XDG_ACTIVATION_TOKEN": "w", "DESKTOP_STARTUP_ID": "x"}, "w"),
        ({"XDG_ACTIVATION_TOKEN": "w" * 5_000}, ""),
    ],
)
def test_the_token_of_the_launcher_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], token: str
) -> None:
    for name in ("XDG_ACTIVATION_TOKEN", "DESKTOP_STARTUP_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Knock.of_environment(raises=True) == Knock(True, token)


def test_the_user_reads_what_became_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    text = Answer(5, ":0").sentence(Knock(), ["--bundle", "my model"])
    assert "(process 5)" in text
    assert "brought to the front" in text
    assert "no effect: --bundle 'my model'." in text
    assert "display" not in text
    text = Answer(5, ":1").sentence(Knock(raises=False), [])
    assert "on the display :1" in text
    assert "front" not in text
    assert "effect" not in text


_PROCESS = """
import sys, threading, time
from pathlib import Path
from app.instance import Answer, Instance, Knock, as_message, claim
while time.time() < float(sys.argv[2]): pass
found = claim(Path(sys.argv[1]), Knock())
if isinstance(found, Answer):
    print("later", found.pid, flush=True)
    sys.exit()
listener = found.listen()
print("first", flush=True)
listener.setblocking(True)
while True:
    connection, _ = listener.accept()
    connection.recv(4096)
    connection.send(as_message(Answer(7)))
"""


@pytest.fixture
def start(repository: Path, runtime: Path) -> Iterator[Callable[[Path, float], subprocess.Popen[str]]]:
    """Starts processes that claim the settings in a folder at a given time."""
    started: list[subprocess.Popen[str]] = []

    def begin(folder: Path, at_s: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _PROCESS, str(folder), str(at_s)]
        started.append(subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_of_processes_that_start_at_once_one_is_the_first(
    tmp_path: Path, start: Callable[[Path, float], subprocess.Popen[str]]
) -> None:
    for number in range(3):
        at_s = time.time() + 1.5
        processes = [start(tmp_path / str(number), at_s) for _ in range(5)]
        lines = [process.stdout.readline().split()[0] for process in processes if process.stdout is not None]
        assert sorted(lines) == ["first", *["later"] * 4]


@pytest.mark.slow
def test_a_killed_process_leaves_nothing_behind(
    tmp_path: Path, runtime: Path, start: Callable[[Path, float], subprocess.Popen[str]]
) -> None:
    process = start(tmp_path / "settings", 0)
    assert process.stdout is not None
    assert process.stdout.readline() == "first\n"
    assert list(runtime.iterdir())
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = claim(tmp_path / "settings", Knock())
    assert isinstance(found, Instance)
    assert not list(runtime.iterdir())
    found.close()
