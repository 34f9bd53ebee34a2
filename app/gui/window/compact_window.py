"""A small window in place of the large one: state, levels, the last question and reply, mute, stop, talk.

In: events of the session through the bridge, badge and mute button of the large window. Out: commands;
`left`. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QCloseEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QToolButton, QVBoxLayout, QWidget

from app.gui.common.bridge import SessionBridge
from app.gui.common.icons import Icons
from app.gui.common.notices import ErrorBanner, NoticeLine
from app.gui.common.plain_text import PlainLabel, set_tip
from app.gui.common.themes import Theme
from app.gui.common.translation import FollowsLanguage
from app.gui.window.control_bar import ControlBar
from app.gui.window.controls import LevelMeter, TalkButton
from app.gui.window.state_badge import StateBadge
from app.session.commands import CancelTurn
from app.session.events import (
    Levels,
    ReplyCut,
    ReplyTextDelta,
    TurnCancelled,
    TurnCommitted,
    TurnExtended,
    TurnOpened,
    TurnTranscribed,
)

_SPEECH_PROBABILITY = 0.5
_MARGIN = 12
_MOST_CHARACTERS = 400
"""Newest characters of a reply that are shown: the window has four lines."""


class CompactWindow(FollowsLanguage, QWidget):
    """Closing it returns to the large window.

    Signals:
        left: the window was closed; show the large one.
    """

    left = Signal()

    def __init__(
        self, bridge: SessionBridge, controls: ControlBar, badge: StateBadge, theme: Theme, icons: Icons
    ) -> None:
        super().__init__()
        self._bridge, self._controls, self._icons, self._theme = bridge, controls, icons, theme
        self._shown_badge = badge
        self._turn_id = 0
        self._usual_height = 0
        """While there is a banner: without it."""
        self._asked: str | float = ""
        """The typed text, or the length of the speech in seconds; 0.0 while the user speaks."""
        self._reply = ""
        self.badge = StateBadge(theme, icons, names_server=True)
        self.input_meter, self.output_meter = LevelMeter(theme), LevelMeter(theme)
        self.question, self.reply = PlainLabel(), PlainLabel()
        self.banner, self.notice = ErrorBanner(theme, icons), NoticeLine()
        self.talk_button = TalkButton(theme, icons)
        self.mute_button, self.stop_button, self.pin_button, self.expand_button = (
            QToolButton() for _ in range(4)
        )
        self._lay_out()
        self._connect()
        self.set_theme(theme)
        self.retranslate()

    def set_theme(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        self._theme = theme
        self.badge.set_theme(theme)
        for button in (self.mute_button, self.stop_button, self.pin_button, self.expand_button):
            button.setIconSize(theme.square(18))
        for part in (self.talk_button, self.input_meter, self.output_meter, self.banner):
            part.set_theme(theme)
        self.stop_button.setIcon(self._icons.icon("stop", theme.text, theme.muted))
        self.pin_button.setIcon(self._icons.icon("pin", theme.text))
        self.expand_button.setIcon(self._icons.icon("expand", theme.text))
        self._show_mute(self._controls.mute_button.isChecked())

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self.setWindowTitle("MOSS Voice")
        self._show_question(self._asked)
        self.input_meter.set_label(self.tr("Input level"))
        self.output_meter.set_label(self.tr("Output level"))
        for button, name, key in (
            (self.mute_button, self.tr("Mute the microphone"), "Ctrl+M"),
            (self.stop_button, self.tr("Stop the reply"), "Esc"),
            (self.pin_button, self.tr("Keep above other windows"), ""),
            (self.expand_button, self.tr("Large window"), "F10"),
        ):
            set_tip(button, f"{name} ({key})" if key else name)
            button.setAccessibleName(name)

    def keep_on_top(self, on: bool) -> None:
        """Keep the window above others, or not."""
        was_visible = self.isVisible()
        self.setWindowFlag(Qt.WindowType.WindowStaysOnTopHint, on)  # hides the window
        self.setVisible(was_visible)

    def _follow_banner(self) -> None:
        """A window that grew for the banner shrinks when it is gone."""
        if self.banner.message:
            self._usual_height = self._usual_height or self.height()
            self.banner.need_height(self.width() - 2 * _MARGIN)
        elif self._usual_height:
            if (layout := self.layout()) is not None:
                layout.activate()  # without the minimum height of the banner
            self.resize(self.width(), self._usual_height)
            self._usual_height = 0

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Keep the room of the banner at another width."""
        super().resizeEvent(event)
        if self.banner.message and event.size().width() != event.oldSize().width():
            self.banner.need_height(self.width() - 2 * _MARGIN)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Back to the large window."""
        super().closeEvent(event)
        self.left.emit()

    # ---- from the session ----

    def _follow_badge(self) -> None:
        """Show what the badge of the large window shows."""
        shown = self._shown_badge
        self.badge.show_state(shown.state, is_reconnecting=shown.is_reconnecting)
        self.badge.show_input(shown.input, shown.keys)
        self.badge.show_server(shown.server)

    def _show_levels(self, event: Levels) -> None:
        self.input_meter.show_level(event.input_dbfs, event.vad_probability >= _SPEECH_PROBABILITY)
        self.output_meter.show_level(event.output_dbfs)

    def _open(self, event: TurnOpened) -> None:
        self._turn_id = event.turn_id
        self._show_question(event.text or 0.0)
        self._show_reply("")

    def _commit(self, event: TurnCommitted) -> None:
        if event.turn_id == self._turn_id and event.seconds:
            self._show_question(event.seconds)

    def _caption(self, event: TurnTranscribed) -> None:
        if event.turn_id == self._turn_id:
            self._show_question(event.text)

    def _take_back(self, event: TurnExtended | TurnCancelled) -> None:
        if event.turn_id == self._turn_id and (isinstance(event, TurnExtended) or not self._reply):
            self._show_question(0.0 if isinstance(event, TurnExtended) else "")
            self._show_reply("")

    def _add(self, event: ReplyTextDelta) -> None:
        if event.turn_id == self._turn_id:
            self._show_reply(self._reply + event.text)

    def _cut(self, event: ReplyCut) -> None:
        if event.turn_id == self._turn_id:
            self._show_reply(f"{event.heard_text.rstrip()} …" if event.heard_text else "")

    def _show_question(self, asked: str | float) -> None:
        self._asked = asked
        if isinstance(asked, str):
            self.question.setText(asked)
        elif asked:
            self.question.setText(self.tr("You spoke %1 s").replace("%1", f"{asked:.1f}"))
        else:
            self.question.setText(self.tr("You speak …"))

    def _show_reply(self, text: str) -> None:
        self._reply = text
        self.reply.setText(text[-_MOST_CHARACTERS:])

    def _show_mute(self, on: bool) -> None:
        colour = self._theme.danger if on else self._theme.text
        self.mute_button.setIcon(self._icons.icon("microphone-off" if on else "microphone", colour))
        self.mute_button.setChecked(on)

    # ---- set-up ----

    def _connect(self) -> None:
        bridge, mute = self._bridge, self._controls.mute_button
        self._shown_badge.changed.connect(self._follow_badge)
        bridge.state_changed.connect(lambda event: self.stop_button.setEnabled(event.can_stop))
        bridge.levels.connect(self._show_levels)
        bridge.turn_opened.connect(self._open)
        bridge.turn_committed.connect(self._commit)
        bridge.turn_transcribed.connect(self._caption)
        bridge.turn_extended.connect(self._take_back)
        bridge.turn_cancelled.connect(self._take_back)
        bridge.reply_text.connect(self._add)
        bridge.reply_cut.connect(self._cut)
        self.banner.changed.connect(self._follow_banner)
        mute.toggled.connect(self._show_mute)
        self.mute_button.clicked.connect(mute.toggle)
        self.stop_button.clicked.connect(lambda: bridge.send(CancelTurn()))
        self.pin_button.toggled.connect(self.keep_on_top)
        self.expand_button.clicked.connect(self.close)

    def _lay_out(self) -> None:
        self.setWindowIcon(self._icons.icon("moss-voice", self._theme.accent))
        head = QHBoxLayout()
        head.addWidget(self.badge)
        head.addStretch(1)
        for button in (self.mute_button, self.stop_button, self.pin_button, self.expand_button):
            head.addWidget(button)
        for button in (self.mute_button, self.pin_button):
            button.setCheckable(True)
        self.stop_button.setEnabled(False)
        meters = QHBoxLayout()
        for meter in (self.input_meter, self.output_meter):
            meters.addWidget(meter)
        card = QFrame()
        card.setProperty("role", "card")
        lines = QVBoxLayout(card)
        for label, role in ((self.question, "muted"), (self.reply, "")):
            label.setProperty("role", role)
            label.setWordWrap(True)
            label.setMinimumWidth(1)
            lines.addWidget(label)
        lines.addStretch(1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(_MARGIN, 10, _MARGIN, 12)
        layout.setSpacing(8)
        layout.addLayout(head)
        layout.addLayout(meters)
        layout.addWidget(self.banner)
        layout.addWidget(self.notice)
        layout.addWidget(card, 1)
        layout.addWidget(self.talk_button)
        self.resize(340, 190)
