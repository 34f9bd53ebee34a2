"""Export of timings and of the latency view, in the window and without one."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QApplication, QFileDialog

from app.gui.common.themes import DARK, LIGHT, Theme
from app.gui.common.turn_times import LOCAL_STAGES
from app.gui.latency.export import MOST_EVENTS, PICTURE_SIZE, TimingLog, save_latency_png
from app.gui.window.main_window import MainWindow
from app.session.events import Timing
from engine_runtime.errors import ExportError
from engine_runtime.timing import TimingEvent
from tests.doubles.scripted_session import ScriptedSession, all_timings


@pytest.mark.slow
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_the_picture_holds_the_stages(qapp: QApplication, tmp_path: Path, theme: Theme) -> None:
    path = tmp_path / "latency.png"
    save_latency_png(path, all_timings(), theme)
    image = QImage(str(path))
    assert (image.width(), image.height()) == (PICTURE_SIZE.width(), PICTURE_SIZE.height())
    colours = {
        image.pixelColor(x, y).name() for x in range(image.width()) for y in range(0, image.height(), 2)
    }
    assert {theme.stages[stage] for stage in LOCAL_STAGES} <= colours


def test_no_events_yield_an_empty_view(qapp: QApplication, tmp_path: Path) -> None:
    save_latency_png(tmp_path / "empty.png", [])
    assert not QImage(str(tmp_path / "empty.png")).isNull()


@pytest.mark.slow
def test_a_folder_that_is_not_there_is_explained(qapp: QApplication, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="gone"):
        save_latency_png(tmp_path / "gone" / "a.png", [])


@pytest.mark.slow
def test_it_works_in_a_process_without_a_display(tmp_path: Path, repository: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from app.gui.latency.export import save_latency_png; "
        "from tests.doubles.scripted_session import all_timings; "
        "save_latency_png(Path(sys.argv[1]), all_timings())"
    )
    environment = {
        key: value for key, value in os.environ.items() if key not in ("DISPLAY", "QT_QPA_PLATFORM")
    }
    path = tmp_path / "a.png"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, cwd=repository, env=environment)
    assert path.stat().st_size > 10_000


@pytest.mark.slow
def test_a_picture_needs_no_display(repository: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from app.gui.latency.export import save_latency_png\n"
        "save_latency_png(Path(sys.argv[1]), [])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.png")]
    environment = {**os.environ, "QT_QPA_PLATFORM": "cinema", "DISPLAY": "nowhere:99"}
    subprocess.run(command, cwd=repository, env=environment, check=True)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_timings_are_exported(
    window: MainWindow, session: ScriptedSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.feed(Timing(TimingEvent("step", 1, 10, 4_000_000, "engine", {"index": 3})))
    window.bridge.poll()
    for export, name, content in (
        (window.export.save_csv, "a.csv", b"step"),
        (window.export.save_trace, "a.json", b"traceEvents"),
        (window.export.save_picture, "a.png", b"PNG"),
    ):
        monkeypatch.setattr(
            QFileDialog, "getSaveFileName", lambda *_, chosen=name: (str(tmp_path / chosen), "")
        )
        export()
        assert content in (tmp_path / name).read_bytes()
        assert window.notice.text() == f"Saved as {tmp_path / name}."
    assert not window.banner.isVisible()


@pytest.mark.slow
def test_an_export_that_fails_is_explained(
    window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone" / "a.csv"
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(gone), ""))
    window.export.save_csv()
    assert str(gone) in window.banner.message
    assert window.banner.advice


@pytest.mark.slow
def test_an_export_that_nobody_wants_after_all_does_nothing(
    window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: ("", ""))
    window.export.save_csv()
    assert not window.banner.isVisible()


def test_the_newest_events_are_kept() -> None:
    log = TimingLog()
    sent = [
        TimingEvent("step", 1, index, 1, "engine", {"tokens": index}) for index in range(MOST_EVENTS + 1_500)
    ]
    log.extend(sent[:700])
    assert list(log) == sent[:700]
    log.extend(sent[700:])
    assert MOST_EVENTS <= len(log) < len(sent)
    assert list(log) == sent[-len(log) :]
    log.clear()
    assert (len(log), list(log)) == (0, [])


def test_events_are_packed() -> None:
    log, sent = TimingLog(), list(all_timings(rounds=20))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for event in sent:
        log.extend([replace(event, attributes=dict(event.attributes))])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(sent) > 10_000
    assert held - before < 60 * len(sent) + 400_000, "bytes; the last thousand are objects"
    assert list(log) == sent
