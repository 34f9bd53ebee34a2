"""Chat bubble: what the bubbles of questions and replies have in common: frame, caption, text, loudness.

In: text and levels. Out: a frame as wide as its text; `menu_wanted`. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt, Signal
from PySide6.QtGui import QContextMenuEvent, QFontMetricsF
from PySide6.QtWidgets import QFrame, QHBoxLayout, QVBoxLayout, QWidget

from app.gui.common.follows_language import FollowsLanguage
from app.gui.common.icons import Icons
from app.gui.common.plain_text import PlainLabel
from app.gui.common.themes import Theme
from app.gui.conversation.wave_strip import WaveStrip

_MARGIN, _BORDER = 14, 1
_NARROWEST = 190
_LONGEST = 20_000
"""Characters of a question or a reply."""


class Bubble(FollowsLanguage, QFrame):
    """A rounded frame with a caption, text and a picture of the loudness. As wide as its text.

    Signals:
        menu_wanted: the menu of the turn was requested, at this place on the screen.
    """

    menu_wanted = Signal(QPoint)

    def __init__(self, role: str, theme: Theme, icons: Icons, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", role)
        self.look_theme, self.look_icons = theme, icons
        self._widest = 400
        self.icon, self.caption, self.body = PlainLabel(), PlainLabel(), PlainLabel()
        self.strip = WaveStrip(theme.accent)
        self.strip.hide()
        self.caption.setProperty("role", "small")
        self.texts = [self.body]
        """Labels with text of any length, one below the other."""
        set_up_text(self.body)
        self.head = QHBoxLayout()
        self.head.setSpacing(6)
        self.head.addWidget(self.icon)
        self.head.addWidget(self.caption, 1)
        self.column = QVBoxLayout(self)
        self.column.setContentsMargins(_MARGIN, 9, _MARGIN, 10)
        self.column.setSpacing(5)
        self.column.addLayout(self.head)
        self.column.addWidget(self.strip)
        self.column.addWidget(self.body)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        """Ask for the menu."""
        self.menu_wanted.emit(event.globalPos())

    def set_widest(self, width: int) -> None:
        """Never be wider than this."""
        self._widest = max(_NARROWEST, width)
        self.fit()

    def set_body(self, text: str) -> None:
        """Show this text."""
        self.body.setText(text)
        self.body.setVisible(bool(text))
        self.fit()

    def fit(self) -> None:
        """Take the width of the text, the caption or the picture, whichever needs most."""
        metrics = QFontMetricsF(self.body.font())
        shown = [label.text() for label in self.texts if label.isVisibleTo(self)]
        lines = [line for text in shown for line in text.split("\n")[:400]]
        # Only the widest line matters, and no line needs to be measured beyond the limit.
        widest = max((metrics.horizontalAdvance(line[: self._widest]) for line in lines), default=0.0)
        self.head.invalidate()  # a layout inside another keeps its old width until the event loop runs
        wanted = max(int(widest) + 4, self.head.sizeHint().width(), self.tail_width())
        self.setFixedWidth(min(max(wanted + 2 * (_MARGIN + _BORDER), _NARROWEST), self._widest))

    def tail_width(self) -> int:
        """Width required by the widgets below the text."""
        return self.strip.sizeHint().width() if self.strip.isVisibleTo(self) else 0

    def add_level(self, dbfs: float) -> None:
        """Add the loudness of the next moment."""
        self.strip.add_level(dbfs)
        if not self.strip.isVisibleTo(self):
            self.strip.show()
            self.fit()

    def show_icon(self, name: str, colour: str) -> None:
        """Show an icon before the caption."""
        self.icon.setPixmap(self.look_icons.pixmap(name, colour, 16, self.devicePixelRatioF()))

    def set_theme(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        self.look_theme = theme
        self.strip.set_colour(theme.accent)
        self.retranslate()

    def retranslate(self) -> None:
        """Use the words of the current language."""


def set_up_text(label: PlainLabel) -> None:
    """A label for selectable text; hidden while it is empty."""
    label.most = _LONGEST
    label.setWordWrap(True)
    label.setTextInteractionFlags(
        Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
    )
    label.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
    label.hide()
