from __future__ import annotations

import faulthandler
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.logging_setup import set_up_logging


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    before = list(root.handlers), root.level, sys.excepthook, threading.excepthook
    yield
    faulthandler.disable()
    for handler in root.handlers:
        handler.close()
    root.handlers[:], root.level = before[0], before[1]
    sys.excepthook, threading.excepthook = before[2], before[3]


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
