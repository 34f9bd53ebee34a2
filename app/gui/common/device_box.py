"""A combo box for sound devices: their descriptions are shown, their names are the data.

Descriptions are often longer than there is room for. GUI thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QPaintEvent
from PySide6.QtWidgets import (
    QComboBox,
    QStyle,
    QStyleOptionComboBox,
    QStylePainter,
    QWidget,
)

from app.gui.common.plain_text import clean, set_tip

_LONGEST = 200
"""Characters of the name of a device."""
_USUAL = 26
"""Characters of a description that are shown if there is room."""


class DeviceBox(QComboBox):
    """As wide as the layout permits; a description that does not fit is elided. The first item, whose name is
    "", is the default device."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._default = self._default_is = ""
        self.addItem("", "")
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.setMinimumContentsLength(7)
        self.currentTextChanged.connect(self.updateGeometry)

    def sizeHint(self) -> QSize:
        """As wide as the description, or as its beginning."""
        text = self.fontMetrics().horizontalAdvance(self.currentText()[:_USUAL]) + 2  # it is rounded
        return super().sizeHint().expandedTo(QSize(self.width() - self._text_width() + text, 0))

    def show_devices(
        self, names: Iterable[str], descriptions: Mapping[str, str], wanted: str, in_use: str = ""
    ) -> None:
        """List the devices with `wanted` chosen; it stays listed while it is absent, so that the choice is
        kept. `in_use` is the open device, "" for none."""
        self.clear()
        self.addItem("", "")
        for name in names:
            self.addItem(clean(descriptions.get(name) or name, _LONGEST), name)
        if wanted and self.findData(wanted) < 0:
            known = descriptions.get(wanted)
            text = known or self.tr("%1 (not connected)").replace("%1", wanted)
            self.addItem(clean(text, _LONGEST), wanted)
        self.setCurrentIndex(max(0, self.findData(wanted)))
        shown = clean(descriptions.get(in_use) or in_use, _LONGEST)
        self._default_is = "" if wanted else shown
        set_tip(self, self.tr("In use: %1").replace("%1", shown) if shown else "")
        self.set_default(self._default)

    def set_default(self, words: str) -> None:
        """Name the default device, with the actual device behind it."""
        self._default = words
        named = self.tr("%1: %2").replace("%1", words).replace("%2", self._default_is)
        self.setItemText(0, named if self._default_is else words)

    def shown_text(self) -> str:
        """The current description, elided to the available width."""
        elide = Qt.TextElideMode.ElideRight
        return self.fontMetrics().elidedText(self.currentText(), elide, self._text_width())

    def _text_width(self) -> int:
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        part = QStyle.SubControl.SC_ComboBoxEditField
        field = self.style().subControlRect(QStyle.ComplexControl.CC_ComboBox, option, part, self)
        icon = 0 if self.itemIcon(self.currentIndex()).isNull() else self.iconSize().width() + 4
        return field.width() - icon - 2

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw the box as Qt does, with the elided text."""
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        option.currentText = self.shown_text()
        painter = QStylePainter(self)
        painter.drawComplexControl(QStyle.ComplexControl.CC_ComboBox, option)
        painter.drawControl(QStyle.ControlElement.CE_ComboBoxLabel, option)
        painter.end()
