"""Texts are found in a picture where their glyphs are drawn, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtGui import QColor, QFont, QImage, QPainter
from PySide6.QtWidgets import QApplication

from tests.tools.screen_text import FOUND, match_texts

FONTS = Path("/usr/share/fonts/truetype/dejavu")


@pytest.fixture
def picture(qapp: QApplication, tmp_path: Path) -> Path:
    """A text in the font of the window, light on dark, beside boxes as a font without glyphs shows them."""
    if not (FONTS / "DejaVuSans.ttf").is_file():
        pytest.skip("needs fonts-dejavu-core")
    image = QImage(400, 200, QImage.Format.Format_RGB32)
    image.fill(QColor("#202430"))
    painter = QPainter(image)
    font = QFont("DejaVu Sans")
    font.setPointSizeF(10.0)
    painter.setFont(font)
    painter.setPen(QColor("#e0e0ff"))
    painter.drawText(57, 91, "Hello there.")
    for x in (200, 214, 228, 242):
        painter.drawRect(x, 80, 10, 12)
    painter.end()
    image.save(str(tmp_path / "screen.png"))
    return tmp_path / "screen.png"


def test_a_text_is_found_and_others_are_not(picture: Path) -> None:
    shown, other, similar = match_texts(picture, FONTS, ("Hello there.", "Good morning.", "Hello Peter."))
    assert shown > FOUND
    assert max(other, similar) < FOUND - 0.1


def test_an_empty_screen_shows_nothing(picture: Path, tmp_path: Path) -> None:
    empty = QImage(100, 60, QImage.Format.Format_RGB32)
    empty.fill(QColor("white"))
    empty.save(str(tmp_path / "empty.png"))
    assert match_texts(tmp_path / "empty.png", FONTS, ("Hello",)) == [0.0]
