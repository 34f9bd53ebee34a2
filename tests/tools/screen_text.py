"""Whether a picture of the screen shows a text in its own glyphs, not in the boxes of a font that lacks them.

In: the picture, texts, and the folder of fonts that the program had. Out: for each text how well its best
place in the picture matches. Qt draws the texts; the measure is normalized cross-correlation. Main thread.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtGui import QFont, QFontDatabase, QFontMetrics, QGuiApplication, QImage, QPainter

FOUND = 0.9
"""Correlation from which on a text counts as shown. A shown one has 0.97 to 1.00; others reach 0.8 if one
letter differs, else 0.7."""
_FAMILIES = ["Noto Sans CJK SC", "DejaVu Sans"]
"""Of the fonts that the window prefers, those that the package depends on or recommends."""
_POINTS = 10.0
_HINTING = (QFont.HintingPreference.PreferNoHinting, QFont.HintingPreference.PreferFullHinting)
"""Which one the program has depends on the configuration of fontconfig there."""


def match_texts(picture: Path, fonts: Path, texts: tuple[str, ...]) -> list[float]:
    """How well the best place of `picture` agrees with each text, from 0 to 1, in the fonts below `fonts`."""
    application = QGuiApplication.instance() or QGuiApplication([])
    assert application is not None
    files = [file for file in sorted(fonts.rglob("*")) if file.suffix.lower() in (".ttf", ".ttc", ".otf")]
    loaded = [QFontDatabase.addApplicationFont(str(file)) for file in files]
    there = {name for font in loaded for name in QFontDatabase.applicationFontFamilies(font)}
    families = [name for name in _FAMILIES if name in there]
    screen = _gray(QImage(str(picture)))
    found = [
        max(_correlation(screen, _drawn(text, families, hinting)) for hinting in _HINTING) for text in texts
    ]
    for font in loaded:
        QFontDatabase.removeApplicationFont(font)
    return found


def _gray(picture: QImage) -> np.ndarray:
    gray = picture.convertToFormat(QImage.Format.Format_Grayscale8)
    rows = np.frombuffer(gray.constBits(), np.uint8).reshape(gray.height(), gray.bytesPerLine())
    return rows[:, : gray.width()].astype(np.float64)


def _drawn(text: str, families: list[str], hinting: QFont.HintingPreference) -> np.ndarray:
    font = QFont(families)
    font.setPointSizeF(_POINTS)
    font.setHintingPreference(hinting)
    extent = QFontMetrics(font).tightBoundingRect(text)
    image = QImage(extent.width() + 2, extent.height() + 2, QImage.Format.Format_RGB32)
    image.fill(Qt.GlobalColor.white)
    painter = QPainter(image)
    painter.setFont(font)
    painter.drawText(1 - extent.x(), 1 - extent.y(), text)
    painter.end()
    return _gray(image)


def _correlation(screen: np.ndarray, template: np.ndarray) -> float:
    """The largest absolute correlation coefficient of the template with any place of the screen."""
    height, width = template.shape
    shape = (screen.shape[0] + height - 1, screen.shape[1] + width - 1)
    centred = template - template.mean()
    spectrum = np.fft.rfft2(screen, shape) * np.fft.rfft2(centred[::-1, ::-1], shape)
    valid = slice(height - 1, screen.shape[0]), slice(width - 1, screen.shape[1])
    products = np.fft.irfft2(spectrum, shape)[valid]
    sums, squares = (_window_sums(values, height, width) for values in (screen, screen**2))
    variance = np.maximum(squares - sums**2 / template.size, 0.0)
    flat = variance < template.size  # a standard deviation below one gray level: nothing is drawn there
    scale = np.sqrt(np.where(flat, 1.0, variance) * (centred**2).sum())
    return float(np.where(flat, 0.0, np.abs(products) / scale).max())


def _window_sums(values: np.ndarray, height: int, width: int) -> np.ndarray:
    sums = np.pad(values.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    rows: np.ndarray = sums[height:] - sums[:-height]
    windows: np.ndarray = rows[:, width:] - rows[:, :-width]
    return windows
