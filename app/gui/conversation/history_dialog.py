"""The list of kept conversations: open one, play it back, export it as text or sound, delete it.

In: the folder with the conversations. Out: signals to play or continue; files. GUI thread.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QDialog,
    QHBoxLayout,
    QPushButton,
    QSplitter,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from app.export import check_target
from app.export import in_words as file_error
from app.gui.common.error_texts import in_words
from app.gui.common.icons import Icons
from app.gui.common.notices import NoticeLine
from app.gui.common.plain_text import PlainLabel
from app.gui.common.question import asked_file, is_confirmed, open_outside, warn
from app.gui.common.themes import Theme
from app.gui.conversation.transcript import Transcript
from app.session.commands import PlayRecording
from app.session.conversation_folder import (
    SOUND,
    ConversationSummary,
    count_damaged,
    count_damaged_events,
    delete_all,
    delete_conversation,
    list_conversations,
    size_bytes,
)
from app.session.transcript import RecordedEvent, Words, read_transcript, spans_of, turn_texts, write_text
from engine_runtime.errors import MossVoiceError

_WORDS = 4
"""The column with the first words, which takes the rest of the width."""


class HistoryDialog(QDialog):
    """Shows the conversations of one folder.

    Signals:
        play_wanted: play a turn; a PlayRecording.
        continue_wanted: continue a conversation; its folder.
    """

    play_wanted = Signal(object)
    continue_wanted = Signal(object)

    def __init__(self, root: Path, theme: Theme, icons: Icons, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._root = root
        self._events: list[RecordedEvent] = []
        self.list = QTreeWidget()
        self.transcript = Transcript(theme, icons, is_record=True)
        self.summary, self.damage = PlainLabel(), PlainLabel()
        self.summary.setProperty("role", "small")
        self.damage.setWordWrap(True)
        self.notice = NoticeLine()
        self.continue_button, self.play_button = QPushButton(), QPushButton()
        self.text_button, self.sound_button = QPushButton(), QPushButton()
        self.delete_button, self.delete_all_button = QPushButton(), QPushButton()
        self._lay_out()
        self._connect()
        self.fill_list()

    @property
    def chosen(self) -> ConversationSummary | None:
        """The selected conversation."""
        item = self.list.currentItem()
        found: ConversationSummary | None = item.data(0, Qt.ItemDataRole.UserRole) if item else None
        return found

    def fill_list(self) -> None:
        """List the kept conversations, the latest first."""
        self.list.clear()
        for found in list_conversations(self._root):
            minutes, seconds = divmod(round(found.seconds), 60)
            size = self.locale().formattedDataSize(found.size_bytes)
            date = found.started.astimezone().strftime("%Y-%m-%d %H:%M")
            words = found.first_words or self.tr("(speech)")
            item = QTreeWidgetItem([date, f"{minutes}:{seconds:02d}", str(found.turns), size, words])
            item.setData(0, Qt.ItemDataRole.UserRole, found)
            self.list.addTopLevelItem(item)
        total = self.locale().formattedDataSize(size_bytes(self._root))
        self.summary.setText(
            self.tr("%1 in %2").replace("%1", total).replace("%2", str(self._root))
            if self.list.topLevelItemCount()
            else self.tr(
                "No conversations are kept. Choose what to keep on the General page of the settings."
            )
        )
        for column in range(_WORDS):
            self.list.resizeColumnToContents(column)
        if (first := self.list.topLevelItem(0)) is not None:
            self.list.setCurrentItem(first)
        self._open()

    def _open(self) -> None:
        """Show the selected conversation."""
        chosen = self.chosen
        self._events = []
        if chosen is not None:
            self._attempt(lambda: self._events.extend(read_transcript(chosen.folder)))
        self.transcript.show_recorded(self._events)
        self._show_damage()
        for button in (self.continue_button, self.text_button, self.delete_button):
            button.setEnabled(chosen is not None)
        for button in (self.play_button, self.sound_button):
            button.setEnabled(chosen is not None and chosen.has_sound)
        self.delete_all_button.setEnabled(chosen is not None)

    def _show_damage(self) -> None:
        """Say what is missing from the list, and from the conversation on show."""
        folders, lines = count_damaged(self._root), 0
        if self.chosen is not None:
            with contextlib.suppress(MossVoiceError):  # reported by `_open`
                lines = count_damaged_events(self.chosen.folder)
        listed = self.tr("Unreadable conversations that are not listed: %1.").replace("%1", str(folders))
        shown = self.tr("Damaged entries left out of this conversation: %1.").replace("%1", str(lines))
        self.damage.setText(" ".join([listed] * bool(folders) + [shown] * bool(lines)))
        self.damage.setVisible(bool(folders or lines))

    def _play_turn(self, turn_id: int) -> None:
        span = spans_of(self._events).get(turn_id)
        if self.chosen is not None and self.chosen.has_sound and span is not None:
            start, end = span
            self.play_wanted.emit(PlayRecording(self.chosen.folder / SOUND, start, end - start))

    def _play_all(self) -> None:
        """In the player of the system, which has a position and both channels."""
        if self.chosen is not None:
            open_outside(self, self.windowTitle(), self.chosen.folder / SOUND)

    def _continue(self) -> None:
        if self.chosen is not None:
            self.continue_wanted.emit(self.chosen.folder)
            self.accept()

    def _save_text(self) -> None:
        title, kinds = self.tr("Conversation as text"), self.tr("Markdown (*.md);;Text (*.txt)")
        if (file := asked_file(self, title, "moss-voice.md", kinds)) is not None:
            words = Words(self.tr("You"), "MOSS", self.tr("spoke %1 s"))
            self._attempt(
                lambda: write_text(file, turn_texts(known.event for known in self._events), words), file
            )

    def _save_sound(self) -> None:
        title, kinds = self.tr("Conversation as audio"), self.tr("Recordings (*.wav)")
        file = asked_file(self, title, "moss-voice.wav", kinds)
        if file is not None and self.chosen is not None:
            source = self.chosen.folder / SOUND
            self._attempt(lambda: _copy(source, file), file)

    def _delete(self) -> None:
        chosen, question = self.chosen, self.tr("Delete this conversation?")
        if chosen is not None and self._is_sure(question, self.tr("Delete")):
            self._attempt(lambda: delete_conversation(chosen.folder))
            self.fill_list()

    def _delete_all(self) -> None:
        if self._is_sure(self.tr("Delete all kept conversations?"), self.tr("Delete all")):
            self._attempt(lambda: delete_all(self._root))
            self.fill_list()

    def _is_sure(self, question: str, action: str) -> bool:
        return is_confirmed(self, question, self.tr("This cannot be undone."), action)

    def _attempt(self, action: Callable[[], None], saved: Path | None = None) -> None:
        """Run the action; report the error, or which file was `saved`."""
        try:
            action()
        except MossVoiceError as error:
            warn(self, self.windowTitle(), in_words(error.problem))
        else:
            if saved is not None:
                self.notice.show_notice(self.tr("Saved as %1.").replace("%1", str(saved)))

    def _connect(self) -> None:
        self.list.currentItemChanged.connect(lambda: self._open())
        self.transcript.play_again.connect(self._play_turn)
        self.continue_button.clicked.connect(self._continue)
        self.play_button.clicked.connect(self._play_all)
        self.text_button.clicked.connect(self._save_text)
        self.sound_button.clicked.connect(self._save_sound)
        self.delete_button.clicked.connect(self._delete)
        self.delete_all_button.clicked.connect(self._delete_all)

    def _lay_out(self) -> None:
        self.setWindowTitle(self.tr("Conversations"))
        self.list.setHeaderLabels(
            [self.tr("Date"), self.tr("Length"), self.tr("Turns"), self.tr("Size"), self.tr("Begins with")]
        )
        self.list.setRootIsDecorated(False)
        self.list.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.list.setAccessibleName(self.windowTitle())
        self.continue_button.setText(self.tr("Continue"))
        self.play_button.setText(self.tr("Open in player"))
        self.text_button.setText(self.tr("Export text …"))
        self.sound_button.setText(self.tr("Export audio …"))
        self.delete_button.setText(self.tr("Delete …"))
        self.delete_all_button.setText(self.tr("Delete all …"))
        split = QSplitter(Qt.Orientation.Horizontal)
        split.addWidget(self.list)
        split.addWidget(self.transcript)
        split.setSizes([460, 540])
        buttons = QHBoxLayout()
        for button in (self.continue_button, self.play_button, self.text_button, self.sound_button):
            buttons.addWidget(button)
        buttons.addStretch(1)
        buttons.addWidget(self.delete_button)
        buttons.addWidget(self.delete_all_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 14, 16, 14)
        layout.addWidget(split, 1)
        layout.addWidget(self.damage)
        layout.addWidget(self.notice)
        layout.addWidget(self.summary)
        layout.addLayout(buttons)
        self.resize(1000, 620)


def _copy(source: Path, target: Path) -> None:
    check_target(target)
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise file_error(target, error) from error
