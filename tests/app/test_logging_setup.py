from __future__ import annotations

import faulthandler
import logging
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import logging_setup
from app.logging_setup import set_up_logging


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    before = list(root.handlers), root.level, sys.excepthook, threading.excepthook
    raises = logging.raiseExceptions
    factory = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(factory)
    faulthandler.disable()
    for handler in root.handlers:
        handler.close()
    root.handlers[:], root.level = before[0], before[1]
    sys.excepthook, threading.excepthook = before[2], before[3]
    logging.raiseExceptions = raises


def test_records_go_to_the_file_and_not_to_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "logs" / "a.log"
    set_up_logging(file)
    logging.getLogger("engine_runtime.test").info("loaded")
    assert "loaded" in file.read_text()
    assert capsys.readouterr().err == ""


def test_verbose_shows_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(tmp_path / "a.log", verbose=True)
    logging.getLogger("x").debug("detail")
    assert "detail" in capsys.readouterr().err


def test_setting_up_twice_logs_once(tmp_path: Path) -> None:
    set_up_logging(tmp_path / "a.log")
    set_up_logging(tmp_path / "a.log")
    logging.getLogger("x").warning("once")
    assert (tmp_path / "a.log").read_text().count("once") == 1


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    set_up_logging(tmp_path / "file" / "a.log")
    logging.getLogger("x").info("still runs")


def test_errors_of_threads_are_logged(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    set_up_logging(file)

    def fail() -> None:
        raise RuntimeError("lost in a thread")

    thread = threading.Thread(target=fail, name="worker")
    thread.start()
    thread.join()
    text = file.read_text()
    assert "uncaught error in thread worker" in text
    assert "lost in a thread" in text


def _mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_only_the_owner_reads_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging_setup, "MAX_BYTES", 200)
    file = tmp_path / "a.log"
    file.write_text("of an earlier version\n")
    file.chmod(0o644)
    set_up_logging(file)
    assert _mode(file) == 0o600
    for _ in range(4):
        logging.getLogger("x").info("long enough to begin another file" * 5)
    assert {_mode(path) for path in tmp_path.iterdir()} == {0o600}
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("verbose", [False, True])
def test_passwords_in_urls_are_not_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verbose: bool
) -> None:
    """Neither by the program nor by a library that has handlers of its own, in messages and tracebacks."""
    url, file = "http://anna:secret@host/x", tmp_path / "a.log"
    set_up_logging(file, verbose)
    library = logging.getLogger("library.of.someone")
    library.propagate = False
    handler = logging.StreamHandler(sys.stderr)
    library.addHandler(handler)
    try:
        logging.getLogger("x").info("GET %s", url)
        library.warning("retrying %s", url)
        try:
            raise ValueError(f"cannot reach {url}")
        except ValueError as error:
            logging.getLogger("x").critical("failed", exc_info=error)
    finally:
        library.removeHandler(handler)
    text = file.read_text() + capsys.readouterr().err
    assert "GET http://host/x" in text
    assert "retrying http://host/x" in text
    assert "ValueError: cannot reach http://host/x" in text
    assert "secret" not in text
    assert "anna" not in text


def test_a_disk_that_is_full_later_puts_nothing_on_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging(tmp_path / "a.log")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        logging.getLogger("x").warning("more than ten bytes")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert capsys.readouterr().err == ""


def test_a_crash_after_the_rotation_is_in_the_log(repository: Path, tmp_path: Path) -> None:
    code = (
        "import logging, os, sys; from pathlib import Path; from app import logging_setup\n"
        "logging_setup.MAX_BYTES = 300\n"
        "logging_setup.set_up_logging(Path(sys.argv[1]))\n"
        "for _ in range(2): logging.getLogger('x').warning('x' * 200)\n"
        "other = open(sys.argv[2], 'w')\n"
        "os.abort()"
    )
    file, other = tmp_path / "a.log", tmp_path / "other"
    command = [sys.executable, "-c", code, str(file), str(other)]
    subprocess.run(command, cwd=repository, check=False, capture_output=True)
    assert file.with_name("a.log.1").exists()
    assert "Fatal Python error: Aborted" in file.read_text()
    assert other.read_text() == ""


def test_a_device_in_the_place_of_the_log_keeps_its_permissions(tmp_path: Path) -> None:
    before = Path(os.devnull).stat().st_mode
    (tmp_path / "a.log").symlink_to(os.devnull)
    set_up_logging(tmp_path / "a.log")
    logging.getLogger("x").warning("lost")
    assert Path(os.devnull).stat().st_mode == before
