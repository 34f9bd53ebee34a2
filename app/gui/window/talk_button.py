"""The button of push-to-talk: down while it is held with the mouse or the keyboard.

In: presses on the button, and whether push-to-talk is held by other means. Out: `held`. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QHideEvent, QKeyEvent, QMouseEvent
from PySide6.QtWidgets import QPushButton, QWidget

from app.gui.common.follows_language import FollowsLanguage
from app.gui.common.icons import Icons
from app.gui.common.plain_text import set_tip
from app.gui.common.themes import Theme


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
        self.setIconSize(QSize(18, 18))
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
            "Press, speak, and release: the answer begins at once. Keys: %1. In a question that you have "
            "begun to type, Space is a space."
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
