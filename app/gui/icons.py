"""Icons of the window: line drawings from assets/icons, tinted with a colour of the theme."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from PySide6.QtCore import QByteArray, QSize, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

_SIZES = (16, 20, 24, 32, 48, 64)


class Icons:
    """Draws `name`.svg of a folder in any colour. Results are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[tuple[str, str, str], QIcon] = {}

    def icon(self, name: str, colour: str, disabled_colour: str | None = None) -> QIcon:
        """The icon in `colour` (#rrggbb), and in `disabled_colour` for a disabled button; for any screen.

        Raises FileNotFoundError for a name that is not in the folder.
        """
        key = (name, colour, disabled_colour or colour)
        if key not in self._made:
            icon = QIcon()
            source = _source(self.folder / f"{name}.svg")
            for mode, tint in ((QIcon.Mode.Normal, key[1]), (QIcon.Mode.Disabled, key[2])):
                renderer = QSvgRenderer(QByteArray(source.replace("currentColor", tint).encode()))
                for size in _SIZES:
                    icon.addPixmap(_draw(renderer, size), mode)
            self._made[key] = icon
        return self._made[key]

    def pixmap(self, name: str, colour: str, size: int, ratio: float = 1.0) -> QPixmap:
        """The icon as a pixmap of `size` logical pixels for a screen of the given pixel ratio."""
        pixmap = self.icon(name, colour).pixmap(QSize(size, size), ratio)
        pixmap.setDevicePixelRatio(ratio)
        return pixmap


@cache
def _source(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _draw(renderer: QSvgRenderer, size: int) -> QPixmap:
    pixmap = QPixmap(size, size)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    renderer.render(painter)
    painter.end()
    return pixmap
