"""Export of timings and of the latency view, in the window and without one."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QApplication, QFileDialog

from app.gui.common.themes import DARK, LIGHT, Theme
from app.gui.common.turn_times import LOCAL_STAGES
from app.gui.latency.definitions import define, number
from app.gui.latency.export import (
    PICTURE_WIDTH,
    PIXEL_RATIO,
    Measured,
    TimingLog,
    save_timings_picture,
)
from app.gui.latency.metrics import LatencyMetrics, Metric
from app.gui.window.main_window import MainWindow
from app.session.events import EngineReady, Timing
from engine_runtime.errors import ExportError
from engine_runtime.timing import TimingEvent
from tests.doubles.scripted_session import ScriptedSession, all_timings

MEASURED = Measured("nano", "a processor", datetime(2026, 5, 4, 13, 7, tzinfo=UTC))


@pytest.mark.slow
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_the_picture_holds_the_stages(qapp: QApplication, tmp_path: Path, theme: Theme) -> None:
    path = tmp_path / "latency.png"
    save_timings_picture(path, all_timings(), MEASURED, theme)
    image = QImage(str(path))
    assert image.width() == PICTURE_WIDTH * PIXEL_RATIO
    colours = {
        image.pixelColor(x, y).name() for x in range(image.width()) for y in range(0, image.height(), 2)
    }
    assert {theme.stages[stage] for stage in LOCAL_STAGES} <= colours


def test_no_events_yield_an_empty_view(qapp: QApplication, tmp_path: Path) -> None:
    save_timings_picture(tmp_path / "empty.png", [], MEASURED)
    assert not QImage(str(tmp_path / "empty.png")).isNull()


@pytest.mark.slow
def test_a_folder_that_is_not_there_is_explained(qapp: QApplication, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="gone"):
        save_timings_picture(tmp_path / "gone" / "a.png", [], MEASURED)


@pytest.mark.slow
def test_it_works_in_a_process_without_a_display(tmp_path: Path, repository: Path) -> None:
    code = (
        "import sys; from pathlib import Path; "
        "from app.gui.latency.export import Measured, save_timings_picture; "
        "from tests.doubles.scripted_session import all_timings; "
        "save_timings_picture(Path(sys.argv[1]), all_timings(), Measured.now('nano', ''))"
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
        "import sys; from pathlib import Path; "
        "from app.gui.latency.export import Measured, save_timings_picture\n"
        "save_timings_picture(Path(sys.argv[1]), [], Measured.now('nano', ''))"
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
        (window.export.save_picture, "a.svg", b"<svg"),
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


def test_the_newest_events_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 10_000
    monkeypatch.setattr("app.gui.latency.export.MOST_EVENTS", most)
    log = TimingLog()
    sent = [TimingEvent("step", 1, index, 1, "engine", {"tokens": index}) for index in range(most + 1_500)]
    log.extend(sent[:700])
    assert list(log) == sent[:700]
    log.extend(sent[700:])
    assert most <= len(log) < len(sent)
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


@pytest.mark.slow
def test_a_picture_says_what_was_measured_and_has_no_controls(qapp: QApplication, tmp_path: Path) -> None:
    path = tmp_path / "latency.svg"
    save_timings_picture(path, all_timings(), MEASURED)
    root = ElementTree.parse(path).getroot()
    space = {"svg": "http://www.w3.org/2000/svg"}
    words = " ".join("".join(text.itertext()).strip() for text in root.iterfind(".//svg:text", space))
    assert "nano · a processor · 2026-05-04 13:07 UTC · MOSS Voice" in words
    metrics = LatencyMetrics()
    metrics.add_events(all_timings())
    for metric in (Metric.PREFILL_AT_COMMIT, Metric.VOCODER, Metric.RTF_TOTAL):
        summary = metrics.summary(metric)
        assert summary is not None
        assert number(summary.last, define(metric).unit) in words
        assert define(metric).name in words
    assert "Last sample of your speech" in words  # a definition
    assert "Clear" not in words
    assert "Present" not in words


@pytest.mark.slow
def test_the_picture_of_the_window_names_the_model_and_the_machine(
    ready: MainWindow, session: ScriptedSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.feed(EngineReady("nano", 1.0, 16_000, 24_000, machine="Tensor 9000"))
    ready.bridge.poll()
    assert ready.export.origin == "nano · Tensor 9000"
    path = tmp_path / "a.svg"
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(path), ""))
    ready.export.save_picture()
    assert "Tensor 9000" in path.read_text(encoding="utf-8")
