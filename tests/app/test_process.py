"""Signals, closed streams and full disks, each in its own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app import process

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def _start(folder: Path, repository: Path, *words: str) -> subprocess.Popen[bytes]:
    """A Python in `folder` that finds the program and reacts to signals as in a terminal."""
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_take_signals,
    )


def _take_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _wait_for(condition: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_conversation_and_leaves_nothing(
    number: signal.Signals, tmp_path: Path, repository: Path, random_bundle: Path
) -> None:
    folder = tmp_path / "written"
    folder.mkdir()
    question = repository / "tests" / "data" / "speech" / "question.wav"
    words = ["-m", "app", "talk", "--realtime", "--in", str(question), "--bundle", str(random_bundle)]

    def is_recording() -> bool:
        """A file is there and stays; the one that only tries the folder is removed at once."""
        before = set(folder.iterdir())
        time.sleep(0.1)
        return not before.isdisjoint(folder.iterdir())

    with _start(folder, repository, *words, "--record", "both.wav") as talk:
        _wait_for(is_recording)
        talk.send_signal(number)
        out, err = talk.communicate()
    assert (talk.returncode, out, err) == (128 + number, b"", b"")
    assert not list(folder.iterdir())


SWALLOWING = """\
import time
from app import process
try:
    with process.stopped_by_signals():
        try:
            print("ready", flush=True)
            time.sleep(30)
        except BaseException:
            pass
        try:
            time.sleep(30)
        finally:
            print("cleaned up", flush=True)
except process.Stopped as stopped:
    process.exit_now(stopped.status)
"""
IMPORTING = """\
from app import process
try:
    with process.stopped_by_signals():
        import slow
        while True: pass
except process.Stopped as stopped:
    process.exit_now(stopped.status)
"""
SLOW = """\
import time
try:
    print("ready", flush=True)
    time.sleep(0.3)
except BaseException:
    print("interrupted", flush=True)
print("imported", flush=True)
"""


@pytest.mark.slow
def test_a_library_that_loses_the_exception_is_interrupted_again(tmp_path: Path, repository: Path) -> None:
    with _start(tmp_path, repository, "-c", SWALLOWING) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(signal.SIGTERM)
        assert running.communicate() == (b"cleaned up\n", b"")
    assert running.returncode == 128 + signal.SIGTERM


@pytest.mark.slow
def test_an_import_in_progress_ends_first(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    with _start(tmp_path, repository, "-c", IMPORTING) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(signal.SIGINT)
        assert running.communicate() == (b"imported\n", b"")
    assert running.returncode == 130


@pytest.mark.slow
@pytest.mark.parametrize("is_stuck", [True, False])
def test_a_thread_that_does_not_end_is_left_behind(is_stuck: bool, repository: Path) -> None:
    """The interpreter takes itself apart only where no thread is in the middle of something."""
    code = (
        "import atexit, sys, threading, time\n"
        "from app import __main__, cli\n"
        "def main():\n"
        "    if sys.argv[1] == 'True': threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "    print('result')\n"
        "    return 3\n"
        "cli.main = main\n"
        "atexit.register(print, 'taken apart')\n"
        "sys.exit(__main__.start())"
    )
    command = [sys.executable, "-c", code, str(is_stuck)]
    result = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert result.stdout == ("result\n" if is_stuck else "result\ntaken apart\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [(signal.default_int_handler, signal.SIG_DFL), (signal.SIG_IGN, signal.SIG_IGN)],
)
def test_ctrl_c_while_modules_are_loaded_ends_the_process(before: Any, after: Any) -> None:
    of_the_test = signal.signal(signal.SIGINT, before)
    try:
        process.end_without_traceback()
        assert signal.getsignal(signal.SIGINT) is after
    finally:
        signal.signal(signal.SIGINT, of_the_test)


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert process.caught_signals() == (signal.SIGINT, signal.SIGTERM)
        with process.stopped_by_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-"])
def test_streams_may_be_closed(closed: str, tmp_path: Path, repository: Path, random_bundle: Path) -> None:
    command = f'exec "$0" -m app talk --text hi --reply text --bundle "$1" --trace t.json {closed}'
    result = subprocess.run(
        ["sh", "-c", command, sys.executable, str(random_bundle)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, b"")
    assert bool(result.stdout) == ("1>" not in closed)
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [["inspect"], ["inspect", "--json"]])
def test_output_that_cannot_be_written_is_an_error(
    words: list[str], repository: Path, random_bundle: Path
) -> None:
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "app", *words, str(random_bundle)],
            cwd=repository,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert result.returncode == 1
    assert result.stderr.startswith(b"moss-voice: The output could not be written: No space")
    assert len(result.stderr.splitlines()) == 1


def test_notes_that_nobody_can_read_stop_nothing(repository: Path, tmp_path: Path) -> None:
    code = "from app.progress import note\nnote('x')\nprint('done')"
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [sys.executable, "-c", code], cwd=repository, stdout=subprocess.PIPE, stderr=full, check=False
        )
    assert result.stdout == b"done\n"


def test_output_takes_any_character_in_any_locale(repository: Path, tmp_path: Path) -> None:
    code = "from app import process\nprocess.open_standard_streams()\nprint('你好 \\udce9')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, env=environment, capture_output=True, check=True
    )
    assert result.stdout == b"\\u4f60\\u597d \\udce9\n"


@pytest.mark.slow
def test_without_a_home_folder_commands_run(repository: Path, random_bundle: Path) -> None:
    """As in a container that runs under a number without a name."""
    code = (
        "import os, pwd, sys\n"
        "os.environ.pop('HOME', None)\n"
        "def unknown(number): raise KeyError(number)\n"
        "pwd.getpwuid = unknown\n"
        "from app.cli import main\n"
        "sys.exit(main(['inspect', sys.argv[1]]))"
    )
    command = [sys.executable, "-c", code, str(random_bundle)]
    result = subprocess.run(command, cwd=repository, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.slow
def test_a_current_folder_that_was_deleted_is_reported_in_a_message(
    repository: Path, tmp_path: Path, random_bundle: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    words = ["-m", "app", "talk", "--text", "hi", "--reply", "text", "--bundle", str(random_bundle)]
    result = subprocess.run(
        [sys.executable, *words],
        cwd=gone,
        env={**os.environ, "PYTHONPATH": str(repository)},
        preexec_fn=gone.rmdir,
        capture_output=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith(b"moss-voice: The current folder cannot be used: No such file")
    assert len(result.stderr.splitlines()) == 1
