"""The list of kept conversations: search, open, rename, play back, export as text or sound, delete.

In: the folder with the conversations. Out: signals to play or continue; files. GUI thread.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import QObject, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QDialog,
    QHBoxLayout,
    QHeaderView,
    QLineEdit,
    QPushButton,
    QSplitter,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from app.audio.flac import export_sound
from app.gui.common.error_texts import in_words
from app.gui.common.fitting_area import FittingArea
from app.gui.common.icons import Icons
from app.gui.common.notices import NoticeLine
from app.gui.common.plain_text import PlainLabel, set_tip
from app.gui.common.question import asked_file, is_confirmed, open_outside, warn
from app.gui.common.steps import Steps
from app.gui.common.themes import Theme
from app.gui.conversation.transcript import Transcript
from app.session.commands import PlayRecording
from app.session.conversation_folder import (
    LONGEST_TITLE,
    PACKED_SOUND,
    ConversationSummary,
    RecordError,
    count_damaged,
    count_damaged_events,
    delete_all,
    delete_conversation,
    is_being_written,
    list_conversations,
    lock,
    read_about,
    rename_conversation,
    size_bytes,
    sound_of,
)
from app.session.transcript import (
    Heading,
    RecordedEvent,
    Words,
    beginnings_of,
    read_transcript,
    searchable_text,
    spans_of,
    turn_texts,
    write_text,
)
from engine_runtime.errors import MossVoiceError

_TITLE = 0
"""The column that takes the rest of the width, and can be edited."""
_SEARCH_DELAY_MS = 150
"""Typing goes on within this time."""
_LONGEST_END_S = 10.0
"""Limit for the record thread to end a conversation, with a slow disk."""


class _Search(QObject):
    """Looks for words in the titles and texts of the listed conversations.

    Texts are read when a search first needs them, one conversation between two events, and remembered while
    the dialog is open.

    Signals:
        filtered: other conversations may be hidden.
    """

    filtered = Signal()

    def __init__(self, listed: QTreeWidget) -> None:
        super().__init__(listed)
        self._list = listed
        self._words: list[str] = []
        self._texts: dict[Path, str] = {}
        self._unread: deque[Path] = deque()
        self._reader = QTimer(self)
        self._reader.timeout.connect(self._read_one)

    def look_for(self, text: str) -> None:
        """Hide what does not have all words of `text`."""
        self._words = text.casefold().split()
        # The one on show comes first, and at once, so that it stays if it has the words.
        current = self._list.currentItem()
        items = sorted(self.items, key=lambda item: item is not current)
        folders = [summary_of(item).folder for item in items]
        self._unread = deque(folder for folder in folders if self._words and folder not in self._texts)
        if self._unread:
            self._reader.start(0)
            self._read_one()
        else:
            self._filter()

    @property
    def shown(self) -> list[QTreeWidgetItem]:
        """What is not hidden, from top to bottom."""
        return [item for item in self.items if not item.isHidden()]

    @property
    def is_finished(self) -> bool:
        """Whether all texts have been searched."""
        return not self._unread

    @property
    def items(self) -> list[QTreeWidgetItem]:
        """All of the list, from top to bottom."""
        found = map(self._list.topLevelItem, range(self._list.topLevelItemCount()))
        return [item for item in found if item is not None]

    def _read_one(self) -> None:
        if not self._unread:
            self._reader.stop()
            return
        folder = self._unread.popleft()
        self._texts[folder] = ""
        with contextlib.suppress(MossVoiceError):  # it is reported when it is opened
            self._texts[folder] = searchable_text(folder)
        self._filter()

    def _filter(self) -> None:
        """Show what matches; of what is not read yet, the title alone counts."""
        for item in self.items:
            text = f"{item.text(_TITLE)}\n{self._texts.get(summary_of(item).folder, '')}".casefold()
            item.setHidden(not all(word in text for word in self._words))
        self.filtered.emit()


def _until_over(folders: Iterable[Path]) -> Generator[None]:
    """Wait for the record thread, which ends conversations. RecordError if it does not, as that of another
    program."""
    latest_s = time.monotonic() + _LONGEST_END_S
    for folder in folders:
        while not _is_over(folder):
            if time.monotonic() > latest_s:
                os.close(lock(folder))
                break
            yield


def _is_over(folder: Path) -> bool:
    # The sound of an ended one may be being packed, which a deletion ends.
    try:
        return bool(read_about(folder)["is_ended"]) or not is_being_written(folder)
    except RecordError:  # it had no turn, and is gone
        return True


def summary_of(item: QTreeWidgetItem) -> ConversationSummary:
    """The conversation of a line of the list."""
    found: ConversationSummary = item.data(0, Qt.ItemDataRole.UserRole)
    return found


class HistoryDialog(QDialog):
    """Shows the conversations of one folder.

    Signals:
        play_wanted: play a turn; a PlayRecording.
        continue_wanted: continue a conversation; its folder.
        new_wanted: begin another conversation, so that the present one can be deleted.
    """

    play_wanted = Signal(object)
    continue_wanted = Signal(object)
    new_wanted = Signal()

    def __init__(
        self,
        root: Path,
        theme: Theme,
        icons: Icons,
        parent: QWidget | None = None,
        *,
        present: Path | None = None,
    ) -> None:
        """`present` is the folder of the conversation in progress, as far as it is from an earlier run of the
        program."""
        super().__init__(parent)
        self._root, self._present = root, present
        self._events: list[RecordedEvent] = []
        self._steps = Steps(self)
        self.search = QLineEdit()
        self.nothing_found = PlainLabel()
        self.nothing_found.hide()
        self.list = QTreeWidget()
        self._found = _Search(self.list)
        self._typing = QTimer(self)
        self._typing.setSingleShot(True)
        self._typing.setInterval(_SEARCH_DELAY_MS)
        self.transcript = Transcript(theme, icons, is_record=True)
        self.summary, self.damage = PlainLabel(), PlainLabel()
        self.summary.setProperty("role", "small")
        self.damage.setWordWrap(True)
        self.notice = NoticeLine()
        self.continue_button, self.play_button = QPushButton(), QPushButton()
        self.rename_button = QPushButton()
        self.text_button, self.sound_button = QPushButton(), QPushButton()
        self.delete_button, self.delete_all_button = QPushButton(), QPushButton()
        self._lay_out()
        self._connect()
        self.fill_list()

    @property
    def chosen(self) -> ConversationSummary | None:
        """The selected conversation."""
        item = self.list.currentItem()
        return summary_of(item) if item is not None else None

    @property
    def is_searched(self) -> bool:
        """Whether the list shows the result of the search."""
        return self._found.is_finished and not self._typing.isActive()

    def fill_list(self) -> None:
        """List the kept conversations, the latest first."""
        self.list.blockSignals(True)  # no title is edited
        self.list.clear()
        for found in list_conversations(self._root):
            minutes, seconds = divmod(round(found.seconds), 60)
            size = self.locale().formattedDataSize(found.size_bytes)
            date = found.started.astimezone().strftime("%Y-%m-%d %H:%M")
            title = found.title or self.tr("(speech)")
            item = QTreeWidgetItem([title, date, f"{minutes}:{seconds:02d}", str(found.turns), size])
            item.setData(0, Qt.ItemDataRole.UserRole, found)
            item.setFlags(item.flags() | Qt.ItemFlag.ItemIsEditable)
            self.list.addTopLevelItem(item)
        total = self.locale().formattedDataSize(size_bytes(self._root))
        self.summary.setText(
            self.tr("%1 in %2").replace("%1", total).replace("%2", str(self._root))
            if self.list.topLevelItemCount()
            else self.tr(
                "No conversations in %1. Choose what to keep on the General page of the settings."
            ).replace("%1", str(self._root))
        )
        if (first := self.list.topLevelItem(0)) is not None:
            self.list.setCurrentItem(first)
        self.list.blockSignals(False)
        self._found.look_for(self.search.text())
        self._open()

    def _follow_search(self) -> None:
        """Choose only what is in sight: buttons must not act on a conversation that is hidden."""
        shown, current = self._found.shown, self.list.currentItem()
        if current is None or current.isHidden():
            self.list.setCurrentItem(shown[0] if shown else None)  # type: ignore[arg-type]
        is_searched = self._found.is_finished and self.list.topLevelItemCount() > 0
        self.nothing_found.setVisible(is_searched and not shown)

    def _open(self) -> None:
        """Show the selected conversation."""
        chosen = self.chosen
        self._events = []
        if chosen is not None:
            self._attempt(lambda: self._events.extend(read_transcript(chosen.folder)))
        self.transcript.show_recorded(self._events)
        self._show_damage()
        for button in (self.continue_button, self.rename_button, self.text_button, self.delete_button):
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
        sound = sound_of(self.chosen.folder) if self.chosen is not None else None
        if sound is not None and span is not None:
            start, end = span
            self.play_wanted.emit(PlayRecording(sound, start, end - start))

    def _play_all(self) -> None:
        """In the player of the system, which has a position and both channels."""
        if self.chosen is not None:
            sound = sound_of(self.chosen.folder) or self.chosen.folder / PACKED_SOUND
            open_outside(self, self.windowTitle(), sound)

    def _continue(self) -> None:
        if self.chosen is not None:
            self.continue_wanted.emit(self.chosen.folder)
            self.accept()

    def _save_text(self) -> None:
        title, kinds = self.tr("Conversation as text"), self.tr("Markdown (*.md);;Text (*.txt)")
        chosen = self.chosen
        if chosen is None or (file := asked_file(self, title, "moss-voice.md", kinds)) is None:
            return
        words = Words(self.tr("You"), "MOSS", self.tr("spoke %1 s"))
        turns = turn_texts((known.event for known in self._events), beginnings_of(self._events))
        if self._attempt(lambda: write_text(file, turns, words, Heading(chosen.title, chosen.started))):
            self.notice.show_saved(file)

    def _save_sound(self) -> None:
        title, kinds = self.tr("Conversation as audio"), self.tr("FLAC (*.flac);;WAV (*.wav)")
        sound = sound_of(self.chosen.folder) if self.chosen is not None else None
        if sound is None or (file := asked_file(self, title, "moss-voice.flac", kinds)) is None:
            return
        self.notice.show_notice(self.tr("The sound is being written …"))
        self._steps.run(export_sound(sound, file), lambda: self.notice.show_saved(file), self._report)

    def _edit_title(self) -> None:
        if (item := self.list.currentItem()) is not None:
            self.list.editItem(item, _TITLE)

    def _rename(self, item: QTreeWidgetItem) -> None:
        """Keep the title that was edited; without one the conversation has its first words again."""
        found, title = summary_of(item), " ".join(item.text(_TITLE).split())
        before = found.title or self.tr("(speech)")
        if title != before and self._attempt(lambda: rename_conversation(found.folder, title)):
            found = replace(found, title=title[:LONGEST_TITLE] or found.first_words)
            self.notice.show_notice(self.tr("Renamed."))
        self.list.blockSignals(True)
        item.setData(0, Qt.ItemDataRole.UserRole, found)
        item.setText(_TITLE, found.title or self.tr("(speech)"))
        self.list.blockSignals(False)

    def _delete(self) -> None:
        if (chosen := self.chosen) is not None:
            self._remove(
                [chosen],
                (self.tr("Delete this conversation?"), self.tr("Delete")),
                lambda: delete_conversation(chosen.folder),
                self.tr("The conversation was deleted."),
            )

    def _delete_all(self) -> None:
        self._remove(
            [summary_of(item) for item in self._found.items],
            (self.tr("Delete all kept conversations?"), self.tr("Delete all")),
            lambda: delete_all(self._root),
            self.tr("All conversations were deleted."),
        )

    def _remove(
        self,
        conversations: Sequence[ConversationSummary],
        question: tuple[str, str],
        delete: Callable[[], None],
        words: str,
    ) -> None:
        """Delete them after a question; the present one ends before."""
        present = [found.folder for found in conversations if self._is_present(found)]
        consequence = self.tr("This cannot be undone.")
        if present:
            consequence += " " + self.tr("The present conversation ends with it, and a new one begins.")
        if not is_confirmed(self, question[0], consequence, question[1]):
            return
        if present:
            self.new_wanted.emit()
            self._present = None
        self._steps.run(_until_over(present), lambda: self._finish(delete, words), self._report)

    def _finish(self, delete: Callable[[], None], words: str) -> None:
        if self._attempt(delete):
            self.notice.show_notice(words)
        self.fill_list()

    def _is_present(self, found: ConversationSummary) -> bool:
        """Whether it is the conversation in progress."""
        return found.folder == self._present or (not found.is_ended and is_being_written(found.folder))

    def _attempt(self, action: Callable[[], None]) -> bool:
        """Run the action; False, and the error is reported, if it failed."""
        try:
            action()
        except MossVoiceError as error:
            self._report(error)
            return False
        return True

    def _report(self, error: MossVoiceError) -> None:
        warn(self, self.windowTitle(), in_words(error.problem))

    def _connect(self) -> None:
        self.list.currentItemChanged.connect(lambda: self._open())
        self.list.itemChanged.connect(lambda item: self._rename(item))
        self.search.textChanged.connect(self._typing.start)
        self._typing.timeout.connect(lambda: self._found.look_for(self.search.text()))
        self._found.filtered.connect(self._follow_search)
        self.rename_button.clicked.connect(self._edit_title)
        for keys, action in (
            (QKeySequence.StandardKey.Find, self.search.setFocus),
            (QKeySequence(Qt.Key.Key_F2), self._edit_title),
        ):
            QShortcut(keys, self).activated.connect(action)
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
            [self.tr("Title"), self.tr("Date"), self.tr("Length"), self.tr("Turns"), self.tr("Size")]
        )
        header = self.list.header()
        header.setStretchLastSection(False)
        header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        header.setSectionResizeMode(_TITLE, QHeaderView.ResizeMode.Stretch)
        self.list.setEditTriggers(QTreeWidget.EditTrigger.NoEditTriggers)  # _edit_title does, for one column
        self.search.setPlaceholderText(self.tr("Search titles and texts"))
        self.search.setAccessibleName(self.tr("Search"))
        self.search.setClearButtonEnabled(True)
        self.nothing_found.setText(self.tr("No conversation has all of these words."))
        self.list.setRootIsDecorated(False)
        self.list.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.list.setAccessibleName(self.windowTitle())
        self.continue_button.setText(self.tr("Continue"))
        self.rename_button.setText(self.tr("Rename"))
        set_tip(self.rename_button, self.tr("Rename this conversation (F2)"))
        self.play_button.setText(self.tr("Open in player"))
        self.text_button.setText(self.tr("Export text …"))
        self.sound_button.setText(self.tr("Export audio …"))
        self.delete_button.setText(self.tr("Delete …"))
        self.delete_all_button.setText(self.tr("Delete all …"))
        split = QSplitter(Qt.Orientation.Horizontal)
        left = QWidget()
        column = QVBoxLayout(left)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.search)
        column.addWidget(self.nothing_found)
        column.addWidget(self.list, 1)
        split.addWidget(left)
        split.addWidget(self.transcript)
        split.setSizes([520, 540])
        buttons = QHBoxLayout()
        for button in (
            self.continue_button,
            self.rename_button,
            self.play_button,
            self.text_button,
            self.sound_button,
        ):
            buttons.addWidget(button)
        buttons.addStretch(1)
        buttons.addWidget(self.delete_button)
        buttons.addWidget(self.delete_all_button)
        content, whole = QWidget(), QVBoxLayout(self)
        whole.setContentsMargins(0, 0, 0, 0)
        whole.addWidget(FittingArea(content))
        layout = QVBoxLayout(content)
        layout.setContentsMargins(16, 14, 16, 14)
        layout.addWidget(split, 1)
        layout.addWidget(self.damage)
        layout.addWidget(self.notice)
        layout.addWidget(self.summary)
        layout.addLayout(buttons)
        for button in self.findChildren(QPushButton):
            button.setAutoDefault(False)  # Enter in the search field presses none
        self.resize(QSize(1060, 620).boundedTo(self.screen().availableSize()))
