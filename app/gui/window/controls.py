"""Controls that the bar and the compact window share: level meters, and the button of push-to-talk. GUI
thread.
"""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QHideEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QPushButton, QWidget

from app.gui.common.icons import Icons
from app.gui.common.plain_text import set_tip
from app.gui.common.themes import Theme
from app.gui.common.translation import FollowsLanguage

LOWEST_DBFS = -60.0
_LOUD_DBFS = -6.0
_PEAK_FALL_DB = 1.0


def fraction(dbfs: float) -> float:
    """Place of a level on the meter, 0 at -60 dBFS and below, 1 at full scale."""
    return min(1.0, max(0.0, 1.0 - dbfs / LOWEST_DBFS))


class LevelMeter(QWidget):
    """A horizontal bar. Loud input changes its colour; the tooltip shows the value."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._label = ""
        self._level = LOWEST_DBFS
        self._peak = LOWEST_DBFS
        self._is_active = False
        self.set_theme(theme)

    @property
    def level_dbfs(self) -> float:
        """The level on show."""
        return self._level

    def sizeHint(self) -> QSize:
        """A thin bar."""
        return QSize(self._theme.px(140), self.height())

    def set_label(self, label: str) -> None:
        """Name the meter for people who do not see it."""
        self._label = label
        self.setAccessibleName(label)

    def show_level(self, dbfs: float, is_active: bool = False) -> None:
        """Show a level; `is_active` (speech is detected) draws it in the accent colour."""
        peak = max(dbfs, self._peak - _PEAK_FALL_DB, LOWEST_DBFS)
        if (dbfs, peak, is_active) == (self._level, self._peak, self._is_active):
            return
        self._level, self._peak, self._is_active = dbfs, peak, is_active
        shown = f"{max(dbfs, LOWEST_DBFS):.0f} dBFS"
        set_tip(self, f"{self._label}: {shown}")
        self.setAccessibleDescription(shown)
        self.update()

    def reset(self) -> None:
        """Clear the meter."""
        self._peak = LOWEST_DBFS
        self.show_level(LOWEST_DBFS)
        self.update()

    def set_theme(self, theme: Theme) -> None:
        """Take the colours and the scale of a theme."""
        self._theme = theme
        self.setFixedHeight(theme.px(8))
        self.setMinimumWidth(theme.px(60))
        self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw track, level and peak."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        width, height = float(self.width()), float(self.height())
        painter.setBrush(QColor(self._theme.sunken))
        painter.drawRoundedRect(QRectF(0, 0, width, height), height / 2, height / 2)
        level = width * fraction(self._level)
        if level >= 1.0:
            colour = self._theme.accent if self._is_active else self._theme.positive
            painter.setBrush(QColor(self._theme.danger if self._level > _LOUD_DBFS else colour))
            painter.drawRoundedRect(QRectF(0, 0, max(level, height), height), height / 2, height / 2)
        peak = width * fraction(self._peak)
        if peak > height:
            painter.setBrush(QColor(self._theme.muted))
            painter.drawRect(QRectF(peak - 2, 0, 2, height))
        painter.end()


class TalkButton(FollowsLanguage, QPushButton):
    """Stays down while the mouse button is, wherever the pointer moves. A click of assistive technology,
    which cannot hold, presses it, and the next one releases it.

    Signals:
        held: the button was pressed or released (bool).
    """

    held = Signal(bool)

    def __init__(self, theme: Theme, icons: Icons, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme, self._icons = theme, icons
        self._keys = ""
        self._is_pressed = False
        self._is_held = False
        self.setProperty("role", "talk")
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.clicked.connect(lambda: self._press(not self._is_pressed))
        self.retranslate()

    def show_held(self, is_held: bool) -> None:
        """Show whether push-to-talk is held, in whatever way."""
        self._is_held = is_held
        self.retranslate()

    def show_keys(self, keys: str) -> None:
        """Name the keys that do the same."""
        self._keys = keys
        self.retranslate()

    def let_go(self) -> None:
        """Release it, if it is pressed."""
        self._press(False)

    def set_theme(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        self._theme = theme
        self.retranslate()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        words = self.tr("Hold to talk"), self.tr("Release to send")
        self.setIconSize(self._theme.square(18))
        self.setText(words[self._is_held])
        self.setIcon(
            self._icons.icon("microphone", self._theme.on_accent if self._is_held else self._theme.text)
        )
        if self.property("active") != self._is_held:
            self.setProperty("active", self._is_held)
            self.style().unpolish(self)
            self.style().polish(self)
        widest = max(self.fontMetrics().horizontalAdvance(word) for word in words)
        self.setMinimumWidth(widest + self.iconSize().width() + 40)  # the bar must not move at a press
        self.setAccessibleName(words[0])
        tip = self.tr(
            "Press, speak, and release: the answer begins at once. Keys: %1. While you type a "
            "question, Space types a space."
        )
        set_tip(self, tip.replace("%1", self._keys))
        self.setAccessibleDescription(self.toolTip())

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """The left button presses it."""
        if event.button() is Qt.MouseButton.LeftButton:
            self._press(True)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        """The left button releases it."""
        if event.button() is Qt.MouseButton.LeftButton:
            self._press(False)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Moving the pointer away changes nothing."""

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Space presses it; a key that repeats is held."""
        if event.key() == Qt.Key.Key_Space:
            if not event.isAutoRepeat():
                self._press(True)
        else:
            super().keyPressEvent(event)

    def keyReleaseEvent(self, event: QKeyEvent) -> None:
        """Space releases it."""
        if event.key() == Qt.Key.Key_Space:
            if not event.isAutoRepeat():
                self._press(False)
        else:
            super().keyReleaseEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:
        """A hidden button is not held."""
        self._press(False)
        super().hideEvent(event)

    def _press(self, on: bool) -> None:
        if on is not self._is_pressed:
            self._is_pressed = on
            self.held.emit(on)
