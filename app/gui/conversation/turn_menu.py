"""The menu of a turn: copy its texts, ask it again, delete it, save its sound.

In: the turn's bubbles. Out: signals with the turn's id; copied text goes to the clipboard.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, QPoint, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QMenu, QWidget

from app.gui.conversation.reply_bubble import ReplyBubble
from app.gui.conversation.user_bubble import UserBubble


class TurnMenu(QObject):
    """Shows the menu, one at a time.

    Signals:
        retry_wanted: ask the question again; the turn's id, its source and its typed text.
        delete_wanted: the turn's id.
        save_wanted: save the sound of the reply; the turn's id.
    """

    retry_wanted = Signal(int, str, str)
    delete_wanted = Signal(int)
    save_wanted = Signal(int)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._parent = parent

    def make(self, turn_id: int, user: UserBubble, reply: ReplyBubble | None) -> QMenu:
        """The menu for a turn. An incomplete reply cannot be requested again yet."""
        menu = QMenu(self._parent)
        said = user.typed_text
        answer = reply.body.text() if reply is not None else ""
        menu.addAction(self.tr("Copy the question"), lambda: self._copy(said)).setEnabled(bool(said))
        menu.addAction(self.tr("Copy the reply"), lambda: self._copy(answer)).setEnabled(bool(answer))
        menu.addSeparator()
        retry = menu.addAction(
            self.tr("Ask again (removes what came after)"),
            lambda: self.retry_wanted.emit(turn_id, user.source, said),
        )
        retry.setEnabled(user.is_committed)
        menu.addAction(
            self.tr("Delete question and reply"), lambda: self.delete_wanted.emit(turn_id)
        ).setEnabled(user.is_committed)
        menu.addSeparator()
        has_sound = reply is not None and reply.again.isVisibleTo(reply)
        save = menu.addAction(self.tr("Save the reply as WAV …"), lambda: self.save_wanted.emit(turn_id))
        save.setEnabled(has_sound)
        return menu

    def show(self, turn_id: int, user: UserBubble, reply: ReplyBubble | None, at: QPoint) -> None:
        """Show the menu at a place of the screen."""
        menu = self.make(turn_id, user, reply)
        menu.aboutToHide.connect(menu.deleteLater)
        menu.popup(at)

    @staticmethod
    def _copy(text: str) -> None:
        QGuiApplication.clipboard().setText(text)
