"""Input of typed questions: a field that grows with its text, and a button that sends it or stops a reply."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QFocusEvent, QFontMetricsF, QInputMethodEvent, QKeyEvent
from PySide6.QtWidgets import (
    QAbstractSpinBox,
    QFrame,
    QHBoxLayout,
    QLineEdit,
    QPlainTextEdit,
    QToolButton,
    QWidget,
)

from app.gui.common.icons import Icons
from app.gui.common.plain_text import set_tip
from app.gui.common.themes import Theme

_MOST_LINES = 5


class _QuestionEdit(QPlainTextEdit):
    """A plain text field that reports Enter and its focus."""

    sent = Signal()
    focused = Signal(bool)

    def __init__(self) -> None:
        super().__init__()
        self._is_composing = False

    @property
    def is_blank(self) -> bool:
        """Whether nothing was typed, with an input method neither."""
        return not self._is_composing and self.document().isEmpty()

    def inputMethodEvent(self, event: QInputMethodEvent) -> None:
        """Note a word that is being composed."""
        self._is_composing = bool(event.preeditString())
        super().inputMethodEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Enter sends; with Shift it is a line break."""
        is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if is_enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.sent.emit()
            return
        super().keyPressEvent(event)

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Report the focus."""
        super().focusInEvent(event)
        self.focused.emit(True)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        """Report the loss of the focus."""
        super().focusOutEvent(event)
        self.focused.emit(False)


class Composer(QFrame):
    """A field for a typed question.

    Signals:
        asked: a question was sent; its text without the space around it.
        stopped: the stop button was pressed.
    """

    asked = Signal(str)
    stopped = Signal()

    def __init__(self, theme: Theme, icons: Icons, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "composer")
        self._icons, self._theme = icons, theme
        self._is_ready = self._is_replying = False
        self.edit = _QuestionEdit()
        self.edit.setProperty("role", "composer")
        self.edit.setTabChangesFocus(True)
        self.edit.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        self.edit.document().setDocumentMargin(3)
        self.edit.sent.connect(self.submit)
        self.edit.focused.connect(self._show_focus)
        self.edit.textChanged.connect(self._follow_text)
        self.button = QToolButton()
        self.button.setProperty("role", "send")
        self.button.clicked.connect(self._press)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(12, 6, 8, 6)
        layout.addWidget(self.edit, 1)
        layout.addWidget(self.button, 0, Qt.AlignmentFlag.AlignBottom)
        self.setFocusProxy(self.edit)
        self.set_theme(theme)
        self.retranslate()
        self._follow_text()

    def set_ready(self, is_ready: bool) -> None:
        """Whether questions can be asked now. Typing is always possible."""
        self._is_ready = is_ready
        self._follow_text()

    def set_replying(self, is_replying: bool) -> None:
        """Whether there is a reply that the button can stop; a typed question takes precedence."""
        self._is_replying = is_replying
        self._follow_text()

    def submit(self) -> None:
        """Ask the typed question; does nothing if it is empty or the session is not ready."""
        text = self.edit.toPlainText().strip()
        if text and self._is_ready:
            self.edit.clear()
            self.asked.emit(text)

    def set_theme(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        self._theme = theme
        self.button.setIconSize(theme.square(18))
        self._follow_text()
        self._show_button()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self.edit.setPlaceholderText(self.tr("Type a question …"))
        self.edit.setAccessibleName(self.tr("Question"))
        self.edit.setAccessibleDescription(self.tr("Enter sends, Shift+Enter starts a new line."))
        self._show_button()

    def changeEvent(self, event: QEvent) -> None:
        """Follow a change of language or font."""
        if event.type() is QEvent.Type.LanguageChange:
            self.retranslate()
        elif event.type() is QEvent.Type.FontChange:
            self._follow_text()
        super().changeEvent(event)

    @property
    def _stops(self) -> bool:
        """Whether the button stops the reply now."""
        return self._is_replying and not self.edit.toPlainText().strip()

    def _press(self) -> None:
        if self._stops:
            self.stopped.emit()
        else:
            self.submit()

    def _show_button(self) -> None:
        if self._stops:
            icon, tip, name = "stop", self.tr("Stop the reply (Esc)"), self.tr("Stop the reply")
        else:
            icon, tip, name = "send", self.tr("Ask (Enter)"), self.tr("Ask the question")
        self.button.setIcon(self._icons.icon(icon, self._theme.on_accent, self._theme.muted))
        set_tip(self.button, tip)
        self.button.setAccessibleName(name)

    def _follow_text(self) -> None:
        self.button.setEnabled(self._stops or (self._is_ready and bool(self.edit.toPlainText().strip())))
        self._show_button()
        lines = min(_MOST_LINES, max(1, int(self.edit.document().size().height())))
        spacing = QFontMetricsF(self.edit.font()).lineSpacing()
        self.edit.setFixedHeight(int(lines * spacing) + 10)

    def _show_focus(self, has_focus: bool) -> None:
        self.setProperty("focused", has_focus)
        self.style().unpolish(self)
        self.style().polish(self)


def takes_space(widget: QObject | None) -> bool:
    """Whether Space is meant as text in this widget: not in a question that has not been begun, because none
    begins with a space."""
    if isinstance(widget, _QuestionEdit):
        return not widget.is_blank
    if isinstance(widget, QPlainTextEdit):
        return not widget.isReadOnly()
    return isinstance(widget, QLineEdit | QAbstractSpinBox)
