"""The volume of replies and samples: a slider from 0 to 100 %, for mouse and keyboard. GUI thread."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QSlider, QWidget

from app.gui.common.follows_language import FollowsLanguage
from app.gui.common.plain_text import set_tip

STEP = 5
"""Percent of one key press."""


class VolumeSlider(FollowsLanguage, QSlider):
    """`valueChanged` has the volume in percent, as heard."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(Qt.Orientation.Horizontal, parent)
        self.setRange(0, 100)
        self.setSingleStep(STEP)
        self.setPageStep(4 * STEP)
        self.setValue(100)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.valueChanged.connect(self.retranslate)
        self.retranslate()

    def sizeHint(self) -> QSize:
        """Narrow: it shares a line with the meter."""
        return QSize(72, 16)

    def show_volume(self, percent: int) -> None:
        """Show a volume without emitting `valueChanged`."""
        self.blockSignals(True)
        self.setValue(percent)
        self.blockSignals(False)
        self.retranslate()

    def change(self, steps: int) -> None:
        """Louder or softer by so many key presses."""
        self.setValue(self.value() + steps * STEP)

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self.setAccessibleName(self.tr("Volume of replies"))
        text = self.tr("Volume %1 % (Ctrl+Up, Ctrl+Down)")
        set_tip(self, text.replace("%1", str(self.value())))
