"""Export of the measurements in the window: asks for a file, writes it, and reports errors."""

from __future__ import annotations

import pickle
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QWidget

from app.gui.common.error_banner import ErrorBanner
from app.gui.common.notice_line import NoticeLine
from app.gui.common.question import asked_file
from app.gui.latency.snapshot import save_png
from app.session.trace import write_chrome_trace, write_csv
from engine_runtime.errors import MossVoiceError
from engine_runtime.timing import TimingEvent

MOST_EVENTS = 200_000
"""Events kept for an export, the newest: several hours of conversation."""
_BLOCK = 1_000
"""Events that are packed together, in about 2 ms."""


class TimingLog:
    """The newest timing events, at least `MOST_EVENTS` of them once there are so many.

    All but the last are packed: an hour of conversation has some 100,000 events, which take 40 MB as objects.
    """

    def __init__(self) -> None:
        self._blocks: deque[bytes] = deque(maxlen=MOST_EVENTS // _BLOCK)
        self._last: list[TimingEvent] = []

    def extend(self, events: Iterable[TimingEvent]) -> None:
        """Add events, which have to be of plain values."""
        for event in events:
            self._last.append(event)
            if len(self._last) == _BLOCK:
                self._blocks.append(zlib.compress(pickle.dumps(self._last)))
                self._last = []

    def clear(self) -> None:
        """Forget them."""
        self._blocks.clear()
        self._last = []

    def __len__(self) -> int:
        return len(self._blocks) * _BLOCK + len(self._last)

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

    def add(self, events: Iterable[TimingEvent]) -> None:
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
            self._banner.show_error(error.what_is_wrong, error.what_to_do)
        else:
            self._notice.show_notice(self.tr("Saved as %1.").replace("%1", str(file)))
