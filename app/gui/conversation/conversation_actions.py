"""Actions on turns and conversations: start, ask again, delete, save, continue, list, play back.

In: menus and dialogs. Out: commands to the session, files; copied text goes to the clipboard. GUI thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from PySide6.QtCore import QObject, QPoint, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QMenu, QWidget

from app.audio.flac import export_sound, joined, write_sound
from app.gui.common.bridge import SessionBridge
from app.gui.common.icons import Icons
from app.gui.common.notices import ErrorBanner, NoticeLine
from app.gui.common.question import asked_file, is_confirmed
from app.gui.common.steps import Steps
from app.gui.common.themes import Theme
from app.gui.conversation.bubbles import ReplyBubble, UserBubble
from app.gui.conversation.history_dialog import HistoryDialog
from app.gui.conversation.transcript import Transcript
from app.session.commands import (
    DeleteTurn,
    NewConversation,
    PlayAgain,
    PlayRecording,
    RetryTurn,
)
from app.session.conversation_folder import clear_remains, latest_open, read_about, sound_of
from app.session.erased_turns import finish_all
from app.session.events import ConversationContinued, RecordingStopped, TurnOpened
from app.session.transcript import (
    Heading,
    TurnText,
    Words,
    as_text,
    how_to_continue,
    read_transcript,
    spans_of,
    title_of,
    write_text,
)
from engine_runtime.errors import MossVoiceError
from engine_runtime.types import Pcm

_log = logging.getLogger(__name__)


class TurnMenu(QObject):
    """Shows the menu, one at a time.

    Signals:
        retry_wanted: ask the question again; the turn's id, its source and what is known of its words.
        delete_wanted: the turn's id.
        save_wanted: save the sound of the reply; the turn's id.
    """

    retry_wanted = Signal(int, str, str)
    delete_wanted = Signal(int)
    save_wanted = Signal(int)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._parent = parent

    def menu_for(self, turn_id: int, user: UserBubble, reply: ReplyBubble | None) -> QMenu:
        """The menu for a turn. An incomplete reply cannot be requested again yet."""
        menu = QMenu(self._parent)
        said = user.said
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
        save = menu.addAction(self.tr("Save the reply as audio …"), lambda: self.save_wanted.emit(turn_id))
        save.setEnabled(has_sound)
        return menu

    def popup(self, turn_id: int, user: UserBubble, reply: ReplyBubble | None, at: QPoint) -> None:
        """Show the menu at a place of the screen."""
        menu = self.menu_for(turn_id, user, reply)
        menu.aboutToHide.connect(menu.deleteLater)
        menu.popup(at)

    @staticmethod
    def _copy(text: str) -> None:
        QGuiApplication.clipboard().setText(text)


class ConversationActions(QObject):
    """The actions of one window."""

    def __init__(
        self,
        window: QWidget,
        bridge: SessionBridge,
        transcript: Transcript,
        banner: ErrorBanner,
        notice: NoticeLine,
        folder: Callable[[], Path],
    ) -> None:
        """`folder` tells where conversations are kept."""
        super().__init__(window)
        self._window, self._bridge = window, bridge
        self._transcript, self._banner, self._notice = transcript, banner, notice
        self._folder = folder
        self._steps = Steps(self)
        self._continued: Path | None = None
        """Folder of the conversation on show, if it was begun in an earlier run of the program."""
        self._started: datetime | None = None
        """When the conversation on show began."""
        self._earlier: dict[int, PlayRecording] = {}
        """Turns of an earlier run of the program with recorded sound."""
        self.menu = TurnMenu(window)
        self.menu.retry_wanted.connect(
            lambda turn_id, source, text: bridge.send(RetryTurn(turn_id, source, text))
        )
        self.menu.delete_wanted.connect(lambda turn_id: bridge.send(DeleteTurn(turn_id)))
        self.menu.save_wanted.connect(self.save_reply)
        transcript.menu_wanted.connect(self._show_menu)
        transcript.play_again.connect(self._play_again)
        bridge.conversation_continued.connect(self._show_continued)
        bridge.turn_opened.connect(self._note_beginning)

    def start_new(self) -> None:
        """Forget the conversation, after a question if there is one; the figures stay."""
        if self._transcript.turn_count and not is_confirmed(
            self._window,
            self.tr("Start a new conversation?"),
            self.tr("The assistant forgets this one."),
            self.tr("New conversation"),
        ):
            return
        self._begin_new()

    def finish_deletions(self) -> None:
        """Finish deletions that were interrupted when the program was killed."""
        finish_all(self._folder())
        clear_remains(self._folder())

    def continue_latest(self) -> None:
        """Continue the conversation in progress when the program ended, if there is one; a notice says if
        that is not possible."""
        latest = latest_open(self._folder())
        if latest is None:
            return
        try:
            self._bridge.send(how_to_continue(latest.folder))
        except MossVoiceError as error:
            _log.warning("the latest conversation cannot be continued: %s", error)
            self._show_error(error)

    def open_history(self, theme: Theme, icons: Icons) -> None:
        """Show the list of kept conversations."""
        dialog = HistoryDialog(self._folder(), theme, icons, self._window, present=self._continued)
        dialog.new_wanted.connect(self._begin_new)
        dialog.play_wanted.connect(self._bridge.send)
        dialog.continue_wanted.connect(self._continue)
        dialog.exec()
        dialog.deleteLater()

    def save_reply(self, turn_id: int) -> None:
        """Ask for a file and save the sound of a reply."""
        pcm, rate = self._bridge.session.reply_audio(turn_id)
        if not len(pcm):
            self._banner.show_words(
                lambda: (self.tr("The audio of this reply is no longer available."), "", "")
            )
            return
        title, kinds = self.tr("Reply as audio"), self.tr("FLAC (*.flac);;WAV (*.wav)")
        file = asked_file(self._window, title, f"moss-voice-{turn_id}.flac", kinds)
        if file is not None:
            self._save(file, lambda: write_sound(file, pcm, rate))

    def save_text(self) -> None:
        """Ask for a file and save the conversation on show as text, also one that is not kept."""
        if not (turns := self._turns()):
            return
        title, kinds = self.tr("Conversation as text"), self.tr("Markdown (*.md);;Text (*.txt)")
        file = asked_file(self._window, title, "moss-voice.md", kinds)
        if file is not None:
            heading = Heading(title_of(turns), self._started)
            self._save(file, lambda: write_text(file, turns, self._words(), heading))

    def save_sound(self) -> None:
        """Ask for a file and save the sound of the conversation on show: both sides if it is kept with its
        sound, else the replies that are remembered."""
        recorded = self._bridge.session.recorded_sound()
        if recorded is None and self._continued is not None:
            recorded = sound_of(self._continued)
        replies = [] if recorded is not None else self._replies()
        if recorded is None and not replies:
            self._notice.show_notice(self.tr("Nothing has been heard yet."))
            return
        title, kinds = self.tr("Conversation as audio"), self.tr("FLAC (*.flac);;WAV (*.wav)")
        file = asked_file(self._window, title, "moss-voice.flac", kinds)
        if file is None:
            return
        if recorded is None:
            rate = replies[0][1]
            self._save(file, lambda: write_sound(file, joined(replies), rate))
            return
        self._notice.show_notice(self.tr("The sound is being written …"))
        self._steps.run(export_sound(recorded, file), lambda: self._notice.show_saved(file), self._show_error)

    def copy_text(self) -> None:
        """Copy the conversation on show to the clipboard."""
        if turns := self._turns():
            QGuiApplication.clipboard().setText(as_text(turns, self._words()))
            self._notice.show_notice(self.tr("Conversation copied."))

    def _turns(self) -> list[TurnText]:
        """The turns on show; a notice says if there are none."""
        if not (turns := self._transcript.turn_texts()):
            self._notice.show_notice(self.tr("Nothing has been said yet."))
        return turns

    def _replies(self) -> list[tuple[Pcm, int]]:
        """The replies that are remembered, each with its rate."""
        found = map(self._bridge.session.reply_audio, self._transcript.turn_ids)
        return [(pcm, rate) for pcm, rate in found if len(pcm)]

    def _words(self) -> Words:
        return Words(self.tr("You"), "MOSS", self.tr("spoke %1 s"))

    def _save(self, file: Path, write: Callable[[], None]) -> None:
        try:
            write()
        except MossVoiceError as error:
            self._show_error(error)
        else:
            self._notice.show_saved(file)

    def _show_error(self, error: MossVoiceError) -> None:
        self._banner.show_error(error.problem)

    def _begin_new(self) -> None:
        self._bridge.send(NewConversation())
        self._banner.end(lambda subject: isinstance(subject, RecordingStopped))  # it is recorded again
        self._transcript.clear()
        self._continued = self._started = None
        self._earlier = {}

    def _note_beginning(self) -> None:
        if self._started is None:
            self._started = datetime.now().astimezone()

    def _continue(self, folder: Path) -> None:
        try:
            command = how_to_continue(folder)
        except MossVoiceError as error:
            self._show_error(error)
            return
        self._bridge.send(NewConversation())
        self._bridge.send(command)

    def _show_continued(self, event: ConversationContinued) -> None:
        try:
            events = read_transcript(event.folder)
            self._started = datetime.fromisoformat(read_about(event.folder)["started"])
        except MossVoiceError as error:
            self._show_error(error)
            return
        self._continued = event.folder
        self._transcript.show_recorded(events)
        sound = sound_of(event.folder)
        known = {found.event.turn_id for found in events if isinstance(found.event, TurnOpened)}
        self._earlier = {}
        if sound is not None:
            self._earlier = {
                turn_id: PlayRecording(sound, start, end - start)
                for turn_id, (start, end) in spans_of(events).items()
                if turn_id in known
            }

    def _play_again(self, turn_id: int) -> None:
        self._bridge.send(self._earlier.get(turn_id) or PlayAgain(turn_id))

    def _show_menu(self, turn_id: int, place: QPoint) -> None:
        user, reply = self._transcript.bubbles(turn_id)
        if user is not None:
            self.menu.popup(turn_id, user, reply, place)
