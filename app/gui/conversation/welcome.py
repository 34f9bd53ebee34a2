"""The first screen of a conversation: how to ask, what the model can do, in which language, and examples.

In: whether the session answers, the card of its model, its server. Out: the text of an example that was
pressed. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QRect, QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QPushButton, QVBoxLayout, QWidget

from app.gui.common.destination import server_in_words
from app.gui.common.icons import Icons
from app.gui.common.plain_text import PlainLabel, clean, set_tip
from app.gui.common.themes import Theme
from app.gui.common.translation import FollowsLanguage
from engine_runtime.bundle.card import ModelCard

_CENTRED = Qt.AlignmentFlag.AlignHCenter | Qt.TextFlag.TextWordWrap
_LOGO = 64


class BalancedLabel(PlainLabel):
    """Wraps its text into as few lines as fit, then narrows them as far as the number of lines allows."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent=parent)
        self.setWordWrap(True)
        self.setAlignment(Qt.AlignmentFlag.AlignHCenter)

    def setText(self, text: str) -> None:
        """Show a text and balance its lines."""
        super().setText(text)
        self._balance()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Balance the lines for the new width."""
        super().resizeEvent(event)
        self._balance()

    def heightForWidth(self, width: int) -> int:
        """Height in pixels at this width.

        NOTE: without the margins, which are those of the present width. Otherwise a layout that compares two
        widths, with and without a scroll bar, changes between them for ever.
        """
        return self._height(width)

    def minimumSizeHint(self) -> QSize:
        """As of a label without margins, which would not get narrower again."""
        margins = self.contentsMargins()
        return super().minimumSizeHint() - QSize(margins.left() + margins.right(), 0)

    def line_width(self) -> int:
        """The least width in pixels that needs no more lines than the width of the label."""
        height = self._height(self.width())
        too_narrow, enough = 0, self.width()
        while enough - too_narrow > 1:
            middle = (too_narrow + enough) // 2
            if self._height(middle) > height:
                too_narrow = middle
            else:
                enough = middle
        return enough

    def _height(self, width: int) -> int:
        return (
            self.fontMetrics().boundingRect(QRect(0, 0, width, 1 << 16), int(_CENTRED), self.text()).height()
        )

    def _balance(self) -> None:
        margin = max(self.width() - self.line_width(), 0) // 2
        self.setContentsMargins(margin, 0, margin, 0)


class Welcome(FollowsLanguage, QWidget):
    """Shown while the conversation is empty.

    Signals:
        asked: an example was pressed; its text.
    """

    asked = Signal(str)

    def __init__(self, theme: Theme, icons: Icons, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._icons = icons
        self._card = ModelCard()
        self._language, self._server = "en", ""
        self._is_available, self._is_ready = True, False
        self._logo = PlainLabel()
        self.title, self.text = PlainLabel(), BalancedLabel()
        self.summary, self.languages = BalancedLabel(), BalancedLabel()
        self.title.setProperty("role", "hint-title")
        self.text.setProperty("role", "muted")
        self.examples: list[QPushButton] = []
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(24, 40, 24, 24)
        self._column.setSpacing(10)
        for label in (self._logo, self.title, self.text, self.summary, self.languages):
            label.setAlignment(Qt.AlignmentFlag.AlignHCenter)
            self._column.addWidget(label)
        self.set_theme(theme)
        self.retranslate()

    def show_available(self, is_available: bool) -> None:
        """Invite to ask, or say that the session cannot answer."""
        self._is_available = is_available
        self.retranslate()

    def show_card(self, card: ModelCard, server: str = "") -> None:
        """Show what the model can do; its examples can be asked from now on. `server` hears what is said, ""
        for none."""
        self._card, self._server = card, server
        for button in self.examples:
            self._column.removeWidget(button)
            button.deleteLater()
        self.examples = [self._example(text) for text in card.examples]
        self.retranslate()

    def set_ready(self, is_ready: bool) -> None:
        """Whether a question can be asked now."""
        self._is_ready = is_ready
        for button in self.examples:
            button.setEnabled(is_ready)

    def set_language(self, language: str) -> None:
        """Describe the model in this language (`zh...` or another)."""
        self._language = language
        self.retranslate()

    def set_theme(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        self._logo.setPixmap(
            self._icons.pixmap("moss-voice", theme.accent, theme.px(_LOGO), self.devicePixelRatioF())
        )

    def retranslate(self) -> None:
        """Use the words of the current language."""
        if self._is_available:
            self.title.setText(self.tr("Ask something"))
            privacy = (
                self.tr("What you say goes to the server %1.").replace("%1", server_in_words(self._server))
                if self._server
                else self.tr("Everything stays on this computer.")
            )
            text = self.tr("Press Start and speak, type a question below, or try one of the samples. %1")
            self.text.setText(text.replace("%1", privacy))
        else:
            self.title.setText(self.tr("Not available"))
            self.text.setText(self.tr("Fix the error, then restart the program."))
        self.summary.setText(self._card.summary_for(self._language))
        self.languages.setText(self._languages())
        self.languages.setProperty("role", "title")
        for label in (self.summary, self.languages):
            label.setVisible(self._is_available and bool(label.text()))
        for button in self.examples:
            button.setVisible(self._is_available)
            set_tip(button, self.tr("Ask this question"))

    def _languages(self) -> str:
        known = {"en": self.tr("English"), "zh": self.tr("Chinese")}
        names = self.tr(" and ").join(known.get(code, code) for code in self._card.languages)
        if not names:
            return ""
        is_fluent = self._card.speaks(self._language)
        text = (
            self.tr("It speaks %1.")
            if is_fluent
            else self.tr("It understands and speaks only %1: ask in %1.")
        )
        return text.replace("%1", names)

    def _example(self, text: str) -> QPushButton:
        button = QPushButton(clean(text).replace("&", "&&"))
        button.setProperty("role", "chip")
        button.setEnabled(self._is_ready)
        button.clicked.connect(lambda: self.asked.emit(text))
        self._column.addWidget(button, 0, Qt.AlignmentFlag.AlignHCenter)
        return button
