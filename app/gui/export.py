"""Export of what the window has measured: asks for a file, writes it, and puts failures into words."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QFileDialog, QWidget

from app.session.trace import write_chrome_trace, write_csv
from engine_runtime.errors import MossVoiceError
from engine_runtime.timing import TimingEvent

MOST_EVENTS = 200_000
"""Events kept for an export, the newest: several hours of conversation."""


class EventLog:
    """The timing events of a session, for export."""

    def __init__(self) -> None:
        self._events: deque[TimingEvent] = deque(maxlen=MOST_EVENTS)

    def extend(self, events: Iterable[TimingEvent]) -> None:
        """Keep more events."""
        self._events.extend(events)

    def clear(self) -> None:
        """Forget all."""
        self._events.clear()

    def __len__(self) -> int:
        return len(self._events)

    def save_csv(self, path: Path) -> None:
        """One line per event. Raises ExportError if the file cannot be written."""
        write_csv(path, list(self._events))

    def save_trace(self, path: Path) -> None:
        """For chrome://tracing and Perfetto. Raises ExportError if the file cannot be written."""
        write_chrome_trace(path, list(self._events))


def ask_and_save(
    parent: QWidget, title: str, name: str, kinds: str, save: Callable[[Path], None]
) -> MossVoiceError | None:
    """Ask for a file and write it; returns the error to show, None if it was written or nobody wanted it."""
    chosen, _ = QFileDialog.getSaveFileName(parent, title, str(Path.home() / name), kinds)
    if not chosen:
        return None
    try:
        save(Path(chosen))
    except MossVoiceError as error:
        return error
    except OSError as error:
        advice = QCoreApplication.translate("Export", "Choose another folder, or free some space.")
        return MossVoiceError(f"{error.strerror or error}: {chosen}. {advice}")
    return None
