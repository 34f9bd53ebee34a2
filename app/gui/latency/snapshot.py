"""A PNG of the latency view from a list of timing events, drawn without a screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QBuffer, QIODevice, QSize
from PySide6.QtWidgets import QApplication, QWidget

from app import paths
from app.export import ExportFile
from app.gui.common import themes
from app.gui.common.themes import LIGHT, Theme
from app.gui.latency.latency_view import LatencyView
from engine_runtime.timing import TimingEvent

SIZE = QSize(1040, 820)


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
    view.resize(SIZE)
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
