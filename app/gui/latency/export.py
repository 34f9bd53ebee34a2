"""Export of the measurements: pictures of the latency view, also without a screen; timings as CSV and trace.

In: timing events. Out: the file that the user chose, errors in the banner.
"""

from __future__ import annotations

import pickle
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from PySide6.QtCore import QBuffer, QIODevice, QObject, QSize
from PySide6.QtWidgets import QApplication, QWidget

from app import paths
from app.export import ExportFile
from app.gui.common import themes
from app.gui.common.notices import ErrorBanner, NoticeLine
from app.gui.common.question import asked_file
from app.gui.common.themes import LIGHT, Theme
from app.gui.latency.latency_view import LatencyView
from app.session.report import write_chrome_trace, write_csv
from engine_runtime.errors import MossVoiceError
from engine_runtime.timing import TimingEvent

PICTURE_SIZE = QSize(1040, 820)
MOST_EVENTS = 200_000
"""Events kept for an export, the newest: several hours of conversation."""
_PACKED_EVENTS = 1_000
"""Events that are packed together, in about 2 ms."""


def save_latency_png(path: Path, events: Sequence[TimingEvent], theme: Theme = LIGHT) -> None:
    """Draw the events as in the window and save the picture. Creates an offscreen Qt application if there is
    none. Raises ExportError if the file cannot be written.
    """
    application = QApplication.instance()
    if not isinstance(application, QApplication):
        application = QApplication(["", "-platform", "offscreen"])  # regardless of QT_QPA_PLATFORM
        themes.apply_font(application)
        themes.apply(application, theme, paths.assets_dir() / "icons")
    view = LatencyView(theme)
    view.setAutoFillBackground(True)
    view.resize(PICTURE_SIZE)
    view.add_events(events)
    view.redraw()
    save_png(view, path)
    view.close()
    view.deleteLater()


def save_png(widget: QWidget, path: Path) -> None:
    """Save a picture of a widget. Raises ExportError if the file cannot be written."""
    picture = QBuffer()
    picture.open(QIODevice.OpenModeFlag.WriteOnly)
    widget.grab().save(picture, "PNG")
    with ExportFile(path) as file:
        file.write(bytes(picture.data().data()))


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
    """

    def __init__(self, window: QWidget, view: QWidget, banner: ErrorBanner, notice: NoticeLine) -> None:
        super().__init__(window)
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

    def save_picture(self) -> None:
        """Ask for a file and save a picture of the latency view."""
        self._ask_and_save(
            self.tr("Latency view as PNG"),
            "moss-voice-latency.png",
            "PNG (*.png)",
            lambda path: save_png(self._view, path),
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
