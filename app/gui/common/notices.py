"""What the window tells the user: a line for notices that need no action, and the error banner with cause,
remedy and buttons.

In: texts. Out: the remedy that was pressed. GUI thread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QToolButton, QVBoxLayout, QWidget

from app.gui.common.error_texts import cause_in_words, remedy_in_words
from app.gui.common.icons import Icons
from app.gui.common.plain_text import PlainLabel, set_tip
from app.gui.common.question import open_outside
from app.gui.common.themes import Theme
from app.gui.common.translation import FollowsLanguage
from engine_runtime.errors import Problem

SHOWN_MS = 10_000
SHOWN_SAVED_MS = 30_000


class NoticeLine(FollowsLanguage, QWidget):
    """Hidden until `show_notice`, and again `SHOWN_MS` after the latest one; longer for a file that was
    saved, whose folder a button opens.

    Signals:
        noticed: a notice is shown; its text.
    """

    noticed = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._file: Path | None = None
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
        self._timer.timeout.connect(self.hide)
        self.retranslate()
        self.hide()

    def text(self) -> str:
        """The latest notice."""
        return self._label.text()

    def show_notice(self, text: str) -> None:
        """Show `text` in place of an earlier one."""
        self._tell(text, None)

    def show_saved(self, file: Path) -> None:
        """Say where a file is that was saved, and offer its folder."""
        self._tell(self.tr("Saved as %1.").replace("%1", str(file)), file)

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self.folder_button.setText(self.tr("Open the folder"))

    def _tell(self, text: str, file: Path | None) -> None:
        self._file = file
        self.folder_button.setVisible(file is not None)
        self._label.setText(text)
        self._label.setAccessibleName(text)
        self.setAccessibleName(text)
        self.show()
        self._timer.start(SHOWN_MS if file is None else SHOWN_SAVED_MS)
        self.noticed.emit(text)

    def _open_folder(self) -> None:
        if self._file is not None:
            open_outside(self, self.folder_button.text(), self._file.parent)


class ErrorBanner(FollowsLanguage, QFrame):
    """Hidden until `show_error`; an equal message is counted, a new one replaces the old.

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
        self._count = 0
        self._shown = ""
        self._original: ErrorBanner | None = None
        """The banner of the main window, where this one is in another window."""
        self._words: Callable[[], tuple[str, str, str]] = lambda: ("", "", "")
        self._icon, self._message, self._advice = PlainLabel(), PlainLabel(), PlainLabel()
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

    def show_error(self, problem: Problem) -> None:
        """Show an error of the session or the program, translated."""
        self.show_words(lambda: (cause_in_words(problem), remedy_in_words(problem), ""))

    def show_words(self, words: Callable[[], tuple[str, str, str]]) -> None:
        """Show an error by functions that make its three texts in the current language."""
        self._count = self._count + 1 if words()[0] == self._shown else 1
        self._words = words
        self._show_texts()
        self.show()

    def _show_texts(self) -> None:
        message, what_to_do, remedy = self._words()
        self._shown = message
        self._message.setText(message if self._count == 1 else f"{message}  (×{self._count})")
        self._advice.setText(what_to_do)
        self._advice.setVisible(bool(what_to_do))
        self.remedy_button.setText(remedy)
        self.remedy_button.setVisible(bool(remedy))
        self.setAccessibleDescription(f"{message} {what_to_do}")
        self.changed.emit()

    def dismiss(self) -> None:
        """Take the banner away."""
        self._shown, self._count = "", 0
        self.hide()
        self.changed.emit()

    def mirror(self, banner: ErrorBanner) -> None:
        """Show in another window what `banner` shows; the buttons are those of `banner`."""
        self._original = banner
        banner.changed.connect(self._follow_original)  # no closure: Qt ends it with this window
        self.close_button.clicked.connect(banner.dismiss)
        self.remedied.connect(banner.remedied)

    def _follow_original(self) -> None:
        banner = self._original
        if banner is not None and banner.message:
            self._words, self._count = banner._words, banner._count
            self._show_texts()
            self.show()
        else:
            self.dismiss()

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
        if self._shown:
            self._show_texts()
