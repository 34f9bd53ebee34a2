"""What the window tells the user: a line for notices that need no action, and the error banner with cause,
remedy and buttons.

In: texts. Out: the remedy that was pressed. GUI thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QElapsedTimer, Qt, QTimer, Signal
from PySide6.QtWidgets import (
    QApplication,
    QFrame,
    QHBoxLayout,
    QPushButton,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.gui.common.error_texts import cause_in_words, remedy_in_words
from app.gui.common.icons import Icons
from app.gui.common.plain_text import PlainLabel, set_tip
from app.gui.common.question import open_outside
from app.gui.common.themes import Theme
from app.gui.common.translation import FollowsLanguage
from engine_runtime.errors import Problem

SHOWN_MS = 10_000
SHOWN_SAVED_MS = 30_000
SEEN_MS = 5_000
"""A notice was read after this time, if another one waits."""
_MOST_WAITING = 8
_MOST_ERRORS = 9


@dataclass(frozen=True, slots=True)
class _Notice:
    text: str
    file: Path | None = None
    """That was saved."""
    is_answer: bool = True
    """Whether the user has just done what it is about."""


class NoticeLine(FollowsLanguage, QWidget):
    """Hidden unless there is a notice. What answers an action of the user is shown at once, for `SHOWN_MS`;
    longer for a file that was saved, whose folder a button opens. Other notices wait until the one before was
    seen, and none goes while no window is in sight.

    Signals:
        changed: another notice is shown, or none.
    """

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._current = _Notice("")
        self._waiting: deque[_Notice] = deque()
        self._original: NoticeLine | None = None
        """The line of the main window, where this one is in another window."""
        self._label = PlainLabel()
        self._label.setProperty("role", "muted")
        self._label.setWordWrap(True)
        self.folder_button = QPushButton()
        self.folder_button.setAutoDefault(False)
        self.folder_button.clicked.connect(self._open_folder)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self._label, 1)
        layout.addWidget(self.folder_button, 0, Qt.AlignmentFlag.AlignTop)
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._go_on)
        self._shown_for = QElapsedTimer()
        self.retranslate()
        self.hide()

    def text(self) -> str:
        """The latest notice that was shown."""
        return self._label.text()

    def show_notice(self, text: str) -> None:
        """Answer an action of the user, in place of an earlier answer."""
        self._answer(_Notice(text))

    def show_saved(self, file: Path) -> None:
        """Say where a file is that was saved, and offer its folder."""
        self._answer(_Notice(self.tr("Saved as %1.").replace("%1", str(file)), file))

    def announce(self, text: str) -> None:
        """Show what the user did not ask for, after the notices that are not seen yet."""
        notice = _Notice(text, is_answer=False)
        if self.isHidden():
            self._show(notice)
        elif notice != self._current and notice not in self._waiting and len(self._waiting) < _MOST_WAITING:
            self._waiting.append(notice)
            self._timer.start(max(0, SEEN_MS - self._shown_for.elapsed()))

    def mirror(self, line: NoticeLine) -> None:
        """Show in another window what `line` shows."""
        self._original = line
        line.changed.connect(self._follow_original)  # no closure: Qt ends it with this window
        self._follow_original()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self.folder_button.setText(self.tr("Open the folder"))

    def _answer(self, notice: _Notice) -> None:
        is_seen = self.isHidden() or self._shown_for.elapsed() >= SEEN_MS
        if not self._current.is_answer and not is_seen:
            self._waiting.appendleft(self._current)
        self._show(notice)

    def _show(self, notice: _Notice) -> None:
        self._current = notice
        if self._waiting:
            shown_ms = SEEN_MS
        else:
            shown_ms = SHOWN_MS if notice.file is None else SHOWN_SAVED_MS
        self._show_current(is_hidden=False)
        self._shown_for.start()
        self._timer.start(shown_ms)

    def _go_on(self) -> None:
        if not self._current.is_answer and not _is_in_sight():
            self._timer.start(SEEN_MS)
        elif self._waiting:
            self._show(self._waiting.popleft())
        else:
            self._show_current(is_hidden=True)

    def _show_current(self, *, is_hidden: bool) -> None:
        notice = self._current
        self.folder_button.setVisible(notice.file is not None)
        for part in (self._label, self):
            part.setAccessibleName(notice.text)
        self._label.setText(notice.text)
        self.setHidden(is_hidden)
        self.changed.emit()

    def _follow_original(self) -> None:
        if self._original is not None:
            self._current = self._original._current
            self._show_current(is_hidden=self._original.isHidden())

    def _open_folder(self) -> None:
        if self._current.file is not None:
            open_outside(self, self.folder_button.text(), self._current.file.parent)


def _is_in_sight() -> bool:
    """Whether a window of the program is open: each of them has a line for notices."""
    return any(
        widget.isVisible()
        and not widget.isMinimized()
        and widget.windowType() in (Qt.WindowType.Window, Qt.WindowType.Dialog)
        for widget in QApplication.topLevelWidgets()
    )


@dataclass(slots=True)
class _Error:
    words: Callable[[], tuple[str, str, str]]
    """Makes the message, what to do and the text of the button, in the current language."""
    subject: object
    count: int = 1


class ErrorBanner(FollowsLanguage, QFrame):
    """Hidden until `show_error`. A new message is shown first, and those before it once it is gone; an equal
    one is counted.

    Signals:
        remedied: the button for the remedy was pressed.
        changed: another text is shown, or none.
    """

    remedied = Signal()
    changed = Signal()

    def __init__(self, theme: Theme, icons: Icons, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "banner")
        self._icons = icons
        self._errors: list[_Error] = []
        """The last one is on show."""
        self._shown = ""
        self._original: ErrorBanner | None = None
        """The banner of the main window, where this one is in another window."""
        self._icon, self._message, self._advice = PlainLabel(), PlainLabel(), PlainLabel()
        self.more = PlainLabel()
        self._message.setProperty("role", "banner-title")
        for label in (self._message, self._advice):
            label.setWordWrap(True)
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.remedy_button = QPushButton()
        self.remedy_button.clicked.connect(self.remedied)
        self.close_button = QToolButton()
        self.close_button.clicked.connect(self.dismiss)
        words = self._words_column = QVBoxLayout()
        words.addWidget(self._message)
        words.addWidget(self._advice)
        words.addWidget(self.remedy_button, 0, Qt.AlignmentFlag.AlignLeft)
        layout = self._lines = QHBoxLayout(self)
        layout.addWidget(self._icon, 0, Qt.AlignmentFlag.AlignTop)
        layout.addLayout(words, 1)
        layout.addWidget(self.more, 0, Qt.AlignmentFlag.AlignTop)
        layout.addWidget(self.close_button, 0, Qt.AlignmentFlag.AlignTop)
        self.set_theme(theme)
        self.retranslate()
        self.hide()

    @property
    def message(self) -> str:
        """The shown message without the remedy; empty if there is none."""
        return self._shown

    @property
    def advice(self) -> str:
        """The shown remedy."""
        return self._advice.text()

    @property
    def subject(self) -> object:
        """What the shown error is about, None without one."""
        return self._errors[-1].subject if self._errors else None

    def show_error(self, problem: Problem, subject: object = None) -> None:
        """Show an error of the session or the program, translated; without a `subject`, `problem` is it."""
        subject = problem if subject is None else subject
        self.show_words(lambda: (cause_in_words(problem), remedy_in_words(problem), ""), subject)

    def show_words(self, words: Callable[[], tuple[str, str, str]], subject: object = None) -> None:
        """Show an error by a function that makes its three texts in the current language."""
        message = words()[0]
        equal = [error for error in self._errors if error.words()[0] == message]
        others = [error for error in self._errors if error not in equal]
        count = 1 + sum(error.count for error in equal)
        self._errors = [*others[1 - _MOST_ERRORS :], _Error(words, subject, count)]
        self._show_errors()

    def dismiss(self) -> None:
        """Take the shown error away."""
        self._errors = self._errors[:-1]
        self._show_errors()

    def end(self, is_over: Callable[[object], bool]) -> None:
        """Take the errors away whose cause is over, by their subjects."""
        left = [error for error in self._errors if not is_over(error.subject)]
        if len(left) < len(self._errors):
            self._errors = left
            self._show_errors()

    def _show_errors(self) -> None:
        if not self._errors:
            self._shown = ""
            self.hide()
            self.changed.emit()
            return
        error = self._errors[-1]
        message, what_to_do, remedy = error.words()
        self._shown = message
        self._message.setText(message if error.count == 1 else f"{message}  (×{error.count})")
        self._advice.setText(what_to_do)
        self._advice.setVisible(bool(what_to_do))
        self.remedy_button.setText(remedy)
        self.remedy_button.setVisible(bool(remedy))
        others = len(self._errors) - 1
        self.more.setText(self.tr("%1 more").replace("%1", str(others)))
        self.more.setVisible(others > 0)
        self.setAccessibleDescription(f"{message} {what_to_do}")
        self.changed.emit()
        self.show()

    def mirror(self, banner: ErrorBanner) -> None:
        """Show in another window what `banner` shows; the buttons are those of `banner`."""
        self._original = banner
        banner.changed.connect(self._follow_original)  # no closure: Qt ends it with this window
        self.close_button.clicked.connect(banner.dismiss)
        self.remedied.connect(banner.remedied)

    def _follow_original(self) -> None:
        if self._original is not None:
            self._errors = self._original._errors
            self._show_errors()

    def need_height(self, width: int) -> None:
        """Take the height in pixels that the texts need at this width, also from a window without room."""
        # A window grows for the minimum height of its parts, not for that of texts that wrap.
        self._words_column.invalidate()
        self.setMinimumHeight(self._lines.totalHeightForWidth(width))

    def set_theme(self, theme: Theme) -> None:
        """Take the colours and the scale of a theme."""
        px = theme.px
        self._words_column.setSpacing(px(2))
        self._lines.setContentsMargins(px(12), px(6), px(8), px(6))
        self._lines.setSpacing(px(10))
        self.close_button.setIconSize(theme.square(16))
        self._icon.setPixmap(
            self._icons.pixmap("warning", theme.danger, theme.px(20), self.devicePixelRatioF())
        )
        self.close_button.setIcon(self._icons.icon("close", theme.text))

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self.setAccessibleName(self.tr("Error"))
        set_tip(self.close_button, self.tr("Dismiss"))
        self.close_button.setAccessibleName(self.tr("Dismiss the error"))
        if self._errors:
            self._show_errors()
