"""Icons of the window: line drawings from assets/icons, tinted with a colour of the theme."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from PySide6.QtCore import QByteArray, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

_SIZES = (16, 20, 24, 32, 48, 64)
_MARK_SHARE, _MARK_INSET = 0.62, 0.14
"""Width of a mark as a share of its icon, and of the rim around its drawing as a share of the mark."""


class Icons:
    """Draws `name`.svg of a folder in any colour. Results are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[tuple[str, str, str], QIcon] = {}
        self._marked: dict[tuple[str, str, str], QIcon] = {}

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

    def marked(self, name: str, mark: str, colour: str) -> QIcon:
        """The icon `name`, in its own colours, with a smaller one in its corner: `mark` in white on a disc of
        `colour`. FileNotFoundError as `icon`."""
        key = (name, mark, colour)
        if key not in self._marked:
            icon = QIcon()
            whole = QSvgRenderer(QByteArray(_source(self.folder / f"{name}.svg").encode()))
            source = _source(self.folder / f"{mark}.svg").replace("currentColor", "#ffffff")
            small = QSvgRenderer(QByteArray(source.encode()))
            for size in _SIZES:
                pixmap = _draw(whole, size)
                painter = QPainter(pixmap)
                painter.setRenderHint(QPainter.RenderHint.Antialiasing)
                painter.setPen(Qt.PenStyle.NoPen)
                painter.setBrush(QColor(colour))
                width = _MARK_SHARE * size
                corner = QRectF(size - width, size - width, width, width)
                painter.drawEllipse(corner)
                inset = width * _MARK_INSET
                small.render(painter, corner.adjusted(inset, inset, -inset, -inset))
                painter.end()
                icon.addPixmap(pixmap)
            self._marked[key] = icon
        return self._marked[key]

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
