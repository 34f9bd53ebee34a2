"""The presentation: what a room sees, how it begins and ends, and that everything fits."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pyqtgraph as pg
import pytest
from PySide6.QtCore import QPoint, QSize, Qt
from PySide6.QtGui import QImage, QPainter, QPicture
from PySide6.QtWidgets import QApplication, QLabel, QScrollArea, QWidget
from pytestqt.qtbot import QtBot

from app.gui.common.preferences import Language, Preferences, PreferenceStore
from app.gui.common.themes import DARK, ThemeChoice
from app.gui.common.turn_times import LatencyStage
from app.gui.latency.definitions import define, number, stage_sentence
from app.gui.latency.metrics import Metric
from app.gui.window.main_window import MainWindow
from app.gui.window.presenter import Presenter
from app.session.commands import CancelTurn
from app.session.events import ReplyTextDelta, SessionState, StateChanged, Timing, TurnCommitted, TurnOpened
from app.session.report import ConversationReport
from engine_runtime.timing import TimingEvent
from tests.doubles import timed_turns
from tests.doubles.scripted_session import ScriptedSession, conversation
from tests.doubles.timed_turns import spoken_turn

CTRL = Qt.KeyboardModifier.ControlModifier
SHARE = 0.4
"""Scale of a picture in which a screen looks as from afar."""


def present(qtbot: QtBot, window: MainWindow, width: int = 1280, height: int = 720) -> Presenter:
    """The presenter on show, with the focus."""
    window.modes.toggle_presenter()
    presenter = window.modes.presenter
    assert presenter is not None
    qtbot.waitUntil(lambda: QApplication.activeWindow() is presenter)
    presenter.showNormal()  # the screen of the offscreen platform is small
    presenter.resize(width, height)
    QApplication.processEvents()
    return presenter


def area_of(presenter: Presenter) -> QScrollArea:
    (area,) = [found for found in presenter.findChildren(QScrollArea) if found.parent() is presenter]
    return area


def is_cut(presenter: Presenter) -> bool:
    """Whether a part of the presentation is outside its window."""
    area = area_of(presenter)
    return area.horizontalScrollBar().maximum() > 0 or area.verticalScrollBar().maximum() > 0


def texts_on(axis: pg.AxisItem) -> list[str]:
    """The numbers that an axis shows."""
    picture = QPicture()
    painter = QPainter(picture)
    texts = [text for _, _, text in axis.generateDrawSpecs(painter)[2]]
    painter.end()
    return texts


@pytest.mark.slow
def test_f11_covers_the_screen_and_escape_leaves(
    qtbot: QtBot, ready: MainWindow, session: ScriptedSession
) -> None:
    assert ready.modes.presenter is None  # it costs nothing before
    qtbot.keyClick(ready, Qt.Key.Key_F11)
    presenter = ready.modes.presenter
    assert presenter is not None
    assert presenter.isFullScreen()
    qtbot.waitUntil(lambda: QApplication.activeWindow() is presenter)
    qtbot.keyClick(presenter, Qt.Key.Key_Escape)
    assert not presenter.isVisible()
    assert session.commands == []  # nothing was stopped
    qtbot.waitUntil(lambda: QApplication.activeWindow() is ready)
    qtbot.keyClick(ready, Qt.Key.Key_Escape)
    assert session.commands == [CancelTurn()]
    ready.latency.present_button.click()
    assert presenter.isVisible()
    qtbot.waitUntil(lambda: QApplication.activeWindow() is presenter)
    qtbot.keyClick(presenter, Qt.Key.Key_F11)
    assert not presenter.isVisible()
    ready.modes.toggle_presenter()
    presenter.leave_button.click()
    assert not ready.modes.is_presenting


@pytest.mark.slow
def test_captions_and_state_are_those_of_the_conversation(
    qtbot: QtBot, ready: MainWindow, session: ScriptedSession
) -> None:
    presenter = present(qtbot, ready)
    assert presenter.question.text() == "Ask something."
    session.feed(TurnOpened(1, "voice"), StateChanged(SessionState.HEARING))
    ready.bridge.poll()
    assert presenter.question.text() == "You speak …"
    assert presenter.badge.state is SessionState.HEARING
    session.feed(
        TurnCommitted(1, 1.9), ReplyTextDelta(1, "two plus", True), ReplyTextDelta(1, " three", True)
    )
    ready.bridge.poll()
    assert (presenter.question.text(), presenter.reply.text()) == ("You spoke 1.9 s", "two plus three")
    assert presenter.model.text() == ready.export.origin == "nano"


@pytest.mark.slow
def test_the_waterfall_grows_with_the_turn(qtbot: QtBot, ready: MainWindow, session: ScriptedSession) -> None:
    presenter = present(qtbot, ready)
    first, second = spoken_turn(1), spoken_turn(2, at_ms=9_000.0)
    session.feed(*(Timing(event) for event in first))
    ready.bridge.poll()
    presenter.redraw()
    assert presenter.waterfall_sum.text() == "840 ms"
    sums = []
    for event in second[: [event.name for event in second].index("first_audio") + 1]:
        session.feed(Timing(event))
        ready.bridge.poll()
        presenter.redraw()
        sums.append(presenter.waterfall_sum.text())
    so_far = ["625 ms so far", "640 ms so far", "655 ms so far", "750 ms so far", "800 ms so far", "800 ms"]
    assert sums == ["840 ms", "840 ms", "600 ms so far", *so_far]


@pytest.mark.slow
def test_the_plots_show_the_newest_values_and_start_over(
    qtbot: QtBot, ready: MainWindow, session: ScriptedSession
) -> None:
    presenter = present(qtbot, ready)
    for events in conversation():
        session.feed(*events)
    ready.bridge.poll()
    presenter.redraw()
    main = {"prefill": Metric.PREFILL_AT_COMMIT, "vocoder": Metric.VOCODER, "rtf": Metric.RTF_TOTAL}
    assert list(presenter.plots) == list(main)
    for name, metric in main.items():
        summary = ready.latency.metrics.summary(metric)
        assert summary is not None
        unit = define(metric).unit
        assert presenter.plots[name].value.text() == number(summary.last, unit)
        assert presenter.plots[name].unit.text() == unit
    ready.latency.clear()
    presenter.redraw()
    assert {plot.value.text() for plot in presenter.plots.values()} == {"–"}
    assert presenter.waterfall_sum.text() == ""


@pytest.mark.slow
def test_each_stage_is_explained_in_a_sentence(qtbot: QtBot, ready: MainWindow) -> None:
    presenter = present(qtbot, ready)
    assert not presenter.stages.isVisible()
    qtbot.keyClick(presenter, Qt.Key.Key_E)
    assert presenter.stages.isVisible()
    text = presenter.stages.accessibleDescription()
    for stage in (LatencyStage.ENDPOINTING, LatencyStage.PREFILL, LatencyStage.VOCODER, LatencyStage.DEVICE):
        assert stage_sentence(stage) in text
    assert presenter.explain_button.isChecked()
    qtbot.keyClick(presenter, Qt.Key.Key_E)
    assert presenter.plots["rtf"].isVisible()


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh_CN"])
@pytest.mark.parametrize(("width", "height"), [(1024, 700), (1280, 720), (1920, 1080), (3840, 2160)])
def test_everything_fits_at_any_size(
    qtbot: QtBot,
    session: ScriptedSession,
    store: PreferenceStore,
    width: int,
    height: int,
    language: str,
) -> None:
    store.save(Preferences(theme=ThemeChoice.DARK, language="zh_CN" if language == "zh_CN" else "en"))
    window = MainWindow(session, store=store)
    qtbot.addWidget(window)
    window.show()
    presenter = present(qtbot, window, width, height)
    for events in conversation():
        session.feed(*events)
    session.feed(*(Timing(each) for each in early_turn(99)))
    window.bridge.poll()
    presenter.redraw()
    legend = presenter.waterfall_legend
    assert legend.text().splitlines() == list(presenter.waterfall.legend)
    assert len(presenter.waterfall.legend) == 2
    for is_explaining in (False, True):
        presenter.explain_button.setChecked(is_explaining)
        qtbot.waitUntil(lambda: not is_cut(presenter))
        qtbot.waitUntil(lambda: legend.heightForWidth(legend.width()) <= legend.height())
    presenter.explain_button.setChecked(False)
    window.banner.show_words(lambda: ("The loudspeaker is gone.", "Connect it again.", ""))
    assert not presenter.reply.isVisible()
    for is_explaining in (False, True):
        presenter.explain_button.setChecked(is_explaining)
        qtbot.waitUntil(lambda: not is_cut(presenter))
    presenter.explain_button.setChecked(False)
    window.banner.dismiss()
    assert presenter.reply.isVisible()
    for plot in presenter.plots.values():
        for label in filter(QLabel.text, (plot.title, plot.value, plot.unit)):
            needed = label.fontMetrics().horizontalAdvance(label.text())
            assert needed <= label.width()
            corner = label.mapTo(presenter, QPoint(label.width(), label.height()))
            assert corner.x() <= width
    assert presenter.plots["rtf"].value.fontMetrics().height() > height / 24
    axis = presenter.plots["rtf"].plot.getPlotItem().getAxis("left")
    assert "1.0" in texts_on(axis)  # the line of real time
    presenter.resize(1024, 700)
    qtbot.waitUntil(lambda: not is_cut(presenter))
    assert presenter.size() == QSize(1024, 700)
    window.close()


def early_turn(turn_id: int) -> list[TimingEvent]:
    """A reply that was begun before the end of the turn was confirmed, after a pause that was rated."""
    late, event = ("endpointing", "voice_to_voice", "playback_hold"), timed_turns.event
    rating: dict[str, float | str] = {"probability": 0.9, "stage": "likely"}
    return [
        event("end_of_turn", 60_160, 0, turn_id, **rating, asked_ms=120.0, answered_ms=160.0),
        event("endpointing", 60_000, 500, turn_id),
        *(each for each in spoken_turn(turn_id, at_ms=59_560) if each.name not in late),
        event("voice_to_voice", 60_000, 530, turn_id),
    ]


@pytest.mark.slow
def test_its_size_has_keys_of_its_own(qtbot: QtBot, ready: MainWindow, store: PreferenceStore) -> None:
    presenter = present(qtbot, ready)
    before = presenter.plots["rtf"].value.fontMetrics().height()
    for _ in range(5):
        qtbot.keyClick(presenter, Qt.Key.Key_Plus, CTRL)
    QApplication.processEvents()
    assert presenter.plots["rtf"].value.fontMetrics().height() >= 1.9 * before
    qtbot.waitUntil(lambda: is_cut(presenter))  # and can be scrolled
    assert store.load().scale_percent == 100
    qtbot.keyClick(presenter, Qt.Key.Key_0, CTRL)
    qtbot.waitUntil(lambda: not is_cut(presenter))


@pytest.mark.slow
def test_theme_and_errors_reach_it(qtbot: QtBot, ready: MainWindow) -> None:
    presenter = present(qtbot, ready)
    qtbot.keyClick(presenter, Qt.Key.Key_T, CTRL)
    assert DARK.surface in presenter.styleSheet()
    ready.banner.show_words(lambda: ("The loudspeaker is gone.", "Connect it.", ""))
    assert presenter.banner.isVisible()
    assert presenter.banner.message == "The loudspeaker is gone."


@pytest.mark.slow
def test_all_of_it_can_be_reached_and_read_out(qtbot: QtBot, ready: MainWindow) -> None:
    presenter = present(qtbot, ready)
    focusable = [
        widget
        for widget in presenter.findChildren(QWidget)
        if widget.focusPolicy() & Qt.FocusPolicy.TabFocus and widget.isVisible()
    ]
    assert {presenter.explain_button, presenter.leave_button} <= set(focusable)
    shown: tuple[QWidget, ...] = (presenter.question, presenter.reply, presenter.waterfall)
    for part in (*shown, *presenter.plots.values()):
        assert part.accessibleName()


def read_at_a_distance(presenter: Presenter, label: QLabel, file: Path, language: str = "eng") -> str:
    """What tesseract reads of a label in a picture of the window that is scaled to 40 %."""
    picture = presenter.grab().toImage()
    small = picture.scaled(
        picture.size() * SHARE,
        Qt.AspectRatioMode.KeepAspectRatio,
        Qt.TransformationMode.SmoothTransformation,
    )
    corner = label.mapTo(presenter, QPoint())
    left, top, width, height = (
        round(length * SHARE) for length in (corner.x(), corner.y(), label.width(), label.height())
    )
    # Tesseract is made for large dark letters on white; enlarging adds nothing that the small picture lacks.
    part = small.copy(left, top, width, height).convertToFormat(QImage.Format.Format_Grayscale8)
    part = part.scaledToHeight(4 * height, Qt.TransformationMode.SmoothTransformation)
    if part.pixelColor(0, 0).lightnessF() < 0.5:
        part.invertPixels()
    page = QImage(part.size() + QSize(60, 40), QImage.Format.Format_Grayscale8)
    page.fill(part.pixelColor(0, 0))
    painter = QPainter(page)
    painter.drawImage(30, 20, part)
    painter.end()
    page.save(str(file))
    command = ["tesseract", str(file), "-", "--psm", "7", "-l", language]
    return " ".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def can_read(language: str) -> bool:
    """Whether tesseract knows the language."""
    if shutil.which("tesseract") is None:
        return False
    listed = subprocess.run(["tesseract", "--list-langs"], capture_output=True, text=True, check=True)
    return language in listed.stdout.split()


def are_alike(read: str, title: str) -> bool:
    """Whether at most one character was taken for another: at this size some of Chinese are 8 pixels high."""
    read = read.replace(" ", "").replace("(", "（").replace(")", "）").replace(",", "，")
    return len(read) == len(title) and sum(a != b for a, b in zip(read, title, strict=True)) <= 1


TITLES = {
    "en": ["Prefill", "Vocoder per chunk", "RTF, real-time factor"],
    "zh_CN": ["预填充", "声码器（每块）", "RTF，实时率"],
}
SUMS = {"en": "From the end of your speech to the first sound", "zh_CN": "从您说完到第一个声音"}


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh_CN"])
@pytest.mark.parametrize("choice", [ThemeChoice.LIGHT, ThemeChoice.DARK])
def test_titles_units_and_values_are_read_at_a_distance_as_the_report_has_them(
    qtbot: QtBot,
    ready: MainWindow,
    session: ScriptedSession,
    tmp_path: Path,
    choice: ThemeChoice,
    language: Language,
) -> None:
    script = "eng" if language == "en" else "chi_sim"
    if not can_read(script):
        pytest.skip(f"needs tesseract-ocr with {script}")
    ready.applied.apply(dataclasses.replace(ready.applied.current, theme=choice, language=language))
    presenter, report = present(qtbot, ready), ConversationReport()
    for events in conversation():
        session.feed(*events)
        for event in events:
            report.add(event)
    ready.bridge.poll()
    presenter.redraw()
    QApplication.processEvents()
    turn = report.document()["turns"][-1]["timings"]

    def read(label: QLabel, letters: str = "eng") -> str:
        return read_at_a_distance(presenter, label, tmp_path / "a.png", letters)

    plots = presenter.plots.values()
    labels = [*(plot.title for plot in plots), presenter.waterfall_title]
    titles = [*TITLES[language], SUMS[language]]
    assert [label.text() for label in labels] == titles
    for label, title in zip(labels, titles, strict=True):
        text = read(label, script)
        assert text == title if language == "en" else are_alike(text, title)
    figures = [[read(label) for label in (plot.value, plot.unit) if label.text()] for plot in plots]
    assert figures == [
        [f"{turn['prefill_at_commit_ms']:.1f}", "ms"],
        [f"{turn['vocoder_ms']:.1f}", "ms"],
        [f"{turn['rtf_total']:.2f}"],
    ]
    assert read(presenter.waterfall_sum) == f"{turn['voice_to_voice_ms']:.0f} ms"
