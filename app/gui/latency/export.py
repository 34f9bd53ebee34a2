"""Export of the measurements: a picture that explains itself, also without a screen; CSV and trace.

In: timing events. Out: the file that the user chose, errors in the banner.
"""

from __future__ import annotations

import pickle
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from html import escape
from pathlib import Path

from PySide6.QtCore import QBuffer, QIODevice, QObject, QPoint, Qt
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QApplication, QHBoxLayout, QVBoxLayout, QWidget

from app import paths
from app.export import ExportFile
from app.gui.common import themes
from app.gui.common.notices import ErrorBanner, NoticeLine
from app.gui.common.plain_text import MarkupLabel, PlainLabel, clean
from app.gui.common.question import asked_file
from app.gui.common.themes import LIGHT, Theme
from app.gui.latency.definitions import glossary, translate
from app.gui.latency.latency_view import LatencyView
from app.gui.latency.metrics import LatencyMetrics
from app.session.report import write_chrome_trace, write_csv
from app.version import VERSION
from engine_runtime.errors import MossVoiceError
from engine_runtime.timing import TimingEvent

PICTURE_WIDTH = 1040
PIXEL_RATIO = 2
"""Pixels of a PNG per pixel of the window: it is printed, or shown on a wall."""
_PLOTS_HEIGHT = 120
"""By how much the plots are higher than they have to be."""
_MARGIN = 14
_LONGEST_NAME = 60
"""Of a model or a machine: a server may use any name."""
MOST_EVENTS = 200_000
"""Events kept for an export, the newest: several hours of conversation."""
_PACKED_EVENTS = 1_000
"""Events that are packed together, in about 2 ms."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured, where, and when: the names of the model and of the machine, "" if unknown."""

    model: str
    machine: str
    at: datetime

    @classmethod
    def now(cls, model: str, machine: str) -> Measured:
        """Until this moment."""
        return cls(model, machine, datetime.now().astimezone())

    @property
    def words(self) -> str:
        """All of it in one line."""
        parts = (self.model, self.machine, f"{self.at:%Y-%m-%d %H:%M %Z}", f"MOSS Voice {VERSION}")
        return " · ".join(clean(part.strip(), _LONGEST_NAME) for part in parts if part.strip())


class LatencyPicture(QWidget):
    """The figures of a latency view without its controls, with their origin and their definitions."""

    def __init__(self, metrics: LatencyMetrics, theme: Theme, measured: Measured) -> None:
        super().__init__()
        theme = replace(theme, scale=1.0)
        self.setStyleSheet(f"QWidget {{ font-size: 10pt; color: {theme.text}; }}{themes.style_sheet(theme)}")
        self.setPalette(themes.palette(theme))
        self.setAutoFillBackground(True)
        self.title, self.origin = PlainLabel(translate("Definitions", "Latency")), PlainLabel(measured.words)
        self.view = LatencyView(theme)
        self.view.hide_controls()
        self.definitions = MarkupLabel(), MarkupLabel()
        for line, role in ((self.title, "hint-title"), (self.origin, "muted")):
            line.setProperty("role", role)
            line.setContentsMargins(_MARGIN, 0, _MARGIN, 0)
        columns = QHBoxLayout()
        columns.setContentsMargins(_MARGIN, 0, _MARGIN, 0)
        columns.setSpacing(2 * _MARGIN)
        lines = [f"{escape(name)}: {escape(text)}" for name, text in glossary()]
        half = -(-len(lines) // 2)
        width = (PICTURE_WIDTH - 4 * _MARGIN) // 2
        for label, part in zip(self.definitions, (lines[:half], lines[half:]), strict=True):
            label.setProperty("role", "small")
            label.setWordWrap(True)
            label.setAlignment(Qt.AlignmentFlag.AlignTop)
            label.setText("<br>".join(part))
            label.setFixedWidth(width)
            columns.addWidget(label, 0, Qt.AlignmentFlag.AlignTop)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, _MARGIN, 0, _MARGIN)
        layout.setSpacing(4)
        layout.addWidget(self.title)
        layout.addWidget(self.origin)
        layout.addWidget(self.view, 1)
        layout.addLayout(columns)
        self.setFixedWidth(PICTURE_WIDTH)
        self.view.show_metrics(metrics)
        self.grab()  # what was never drawn has no layout
        for label in self.definitions:
            label.setFixedHeight(label.heightForWidth(width))
        self.view.setFixedHeight(self.view.least_height + _PLOTS_HEIGHT)
        layout.activate()
        self.setFixedHeight(layout.totalMinimumSize().height())


def save_picture(path: Path, metrics: LatencyMetrics, theme: Theme, measured: Measured) -> None:
    """Save the figures as a picture: vectors if the name ends in .svg, else PNG in `PIXEL_RATIO`. Raises
    ExportError if the file cannot be written."""
    picture = LatencyPicture(metrics, theme, measured)
    save = _svg if path.suffix.lower() == ".svg" else _png
    content = save(picture)
    picture.deleteLater()
    with ExportFile(path) as file:
        file.write(content)


def save_timings_picture(
    path: Path, events: Sequence[TimingEvent], measured: Measured, theme: Theme = LIGHT
) -> None:
    """The picture of these events. Creates an offscreen Qt application if there is none. Raises ExportError
    if the file cannot be written.
    """
    application = QApplication.instance()
    if not isinstance(application, QApplication):
        application = QApplication(["", "-platform", "offscreen"])  # regardless of QT_QPA_PLATFORM
        themes.apply_font(application)
        themes.apply(application, theme, paths.assets_dir() / "icons")
    metrics = LatencyMetrics()
    metrics.add_events(events)
    save_picture(path, metrics, theme, measured)


def _png(picture: QWidget) -> bytes:
    image = QPixmap(picture.size() * PIXEL_RATIO)
    image.setDevicePixelRatio(PIXEL_RATIO)
    picture.render(image)
    content = QBuffer()
    content.open(QIODevice.OpenModeFlag.WriteOnly)
    image.save(content, "PNG")
    return bytes(content.data().data())


def _svg(picture: LatencyPicture) -> bytes:
    content = QBuffer()
    content.open(QIODevice.OpenModeFlag.WriteOnly)
    # NOTE: this version has no clipping, and what Qt clips with SVG 1.1 vanishes in browsers; so the plots
    # draw nothing outside their ranges.
    generator = QSvgGenerator(QSvgGenerator.SvgVersion.SvgTiny12)
    generator.setOutputDevice(content)
    generator.setSize(picture.size())
    generator.setViewBox(picture.rect())
    generator.setResolution(picture.logicalDpiX())
    generator.setTitle(picture.title.text())
    generator.setDescription(picture.origin.text())
    painter = QPainter(generator)
    picture.render(painter, QPoint())
    painter.end()
    return bytes(content.data().data())


class TimingLog:
    """The newest timing events, at least `MOST_EVENTS` of them once there are so many.

    All but the last are packed: an hour of conversation has some 100,000 events, which take 40 MB as objects.
    """

    def __init__(self) -> None:
        self._blocks: deque[bytes] = deque(maxlen=MOST_EVENTS // _PACKED_EVENTS)
        self._last: list[TimingEvent] = []

    def extend(self, events: Iterable[TimingEvent]) -> None:
        """Add events, which have to be of plain values."""
        for event in events:
            self._last.append(event)
            if len(self._last) == _PACKED_EVENTS:
                self._blocks.append(zlib.compress(pickle.dumps(self._last)))
                self._last = []

    def clear(self) -> None:
        """Forget them."""
        self._blocks.clear()
        self._last = []

    def __len__(self) -> int:
        return len(self._blocks) * _PACKED_EVENTS + len(self._last)

    def __iter__(self) -> Iterator[TimingEvent]:
        """All of them, oldest first."""
        for block in self._blocks:
            yield from pickle.loads(zlib.decompress(block))
        yield from self._last


class Export(QObject):
    """The timing events of a session, and the three ways to save them.

    Attributes:
        events: the newest timing events.
        model, machine: what answers, and on what; "" if unknown.
    """

    def __init__(
        self, window: QWidget, view: LatencyView, theme: Theme, banner: ErrorBanner, notice: NoticeLine
    ) -> None:
        super().__init__(window)
        self.model = self.machine = ""
        self._theme = theme
        self.events = TimingLog()
        self._window, self._view, self._banner, self._notice = window, view, banner, notice

    def add_events(self, events: Iterable[TimingEvent]) -> None:
        """Keep more events."""
        self.events.extend(events)

    def clear(self) -> None:
        """Forget them."""
        self.events.clear()

    def save_csv(self) -> None:
        """Ask for a file and write one line per event."""
        self._ask_and_save(
            self.tr("Timings as CSV"),
            "moss-voice.csv",
            "CSV (*.csv)",
            lambda path: write_csv(path, self.events),
        )

    def save_trace(self) -> None:
        """Ask for a file and write the events for chrome://tracing and Perfetto."""
        self._ask_and_save(
            self.tr("Timings as Chrome trace"),
            "moss-voice-trace.json",
            "JSON (*.json)",
            lambda path: write_chrome_trace(path, self.events),
        )

    @property
    def origin(self) -> str:
        """The model and the machine in one line."""
        return " · ".join(clean(part, _LONGEST_NAME) for part in (self.model, self.machine) if part)

    def set_theme(self, theme: Theme) -> None:
        """Draw pictures in the colours of this theme."""
        self._theme = theme

    def save_picture(self) -> None:
        """Ask for a file and save a picture of the figures."""
        self._ask_and_save(
            self.tr("Latency view as picture"),
            "moss-voice-latency.png",
            "PNG (*.png);;SVG (*.svg)",
            lambda path: save_picture(
                path, self._view.metrics, self._theme, Measured.now(self.model, self.machine)
            ),
        )

    def _ask_and_save(self, title: str, name: str, kinds: str, save: Callable[[Path], None]) -> None:
        if (file := asked_file(self._window, title, name, kinds)) is None:
            return
        try:
            save(file)
        except MossVoiceError as error:
            self._banner.show_error(error.problem)
        else:
            self._notice.show_saved(file)
