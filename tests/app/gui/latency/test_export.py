"""Export of timings and of the latency view."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtWidgets import QFileDialog

from app.gui.latency.export import MOST_EVENTS, TimingLog
from app.gui.window.main_window import MainWindow
from app.session.events import Timing
from engine_runtime.timing import TimingEvent
from tests.doubles.scripted_session import ScriptedSession, all_timings


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
        TimingEvent("step", 1, index, 1, "engine", {"rows": index}) for index in range(MOST_EVENTS + 1_500)
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
