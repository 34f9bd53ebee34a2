"""A small window in place of the large one: state, levels, the last question and reply, mute, stop, talk.

In: events of the session through the bridge, badge and mute button of the large window. Out: commands;
`left`. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QCloseEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QToolButton, QVBoxLayout, QWidget

from app.gui.common.bridge import SessionBridge
from app.gui.common.fitting_area import lift_onto_screen
from app.gui.common.icons import Icons
from app.gui.common.notices import ErrorBanner, NoticeLine
from app.gui.common.plain_text import PlainLabel, set_tip
from app.gui.common.themes import Theme
from app.gui.common.translation import FollowsLanguage
from app.gui.conversation.latest_exchange import LatestExchange
from app.gui.window.control_bar import ControlBar
from app.gui.window.controls import LevelMeter, TalkButton
from app.gui.window.state_badge import StateBadge
from app.session.commands import CancelTurn
from app.session.events import Levels

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
        self,
        bridge: SessionBridge,
        exchange: LatestExchange,
        controls: ControlBar,
        badge: StateBadge,
        theme: Theme,
        icons: Icons,
    ) -> None:
        super().__init__()
        self._bridge, self._controls, self._icons, self._theme = bridge, controls, icons, theme
        self._exchange = exchange
        self._usual_height = self._lifted = 0
        """While there is a banner: the height without it, and by how much the window was moved up."""
        self.badge = StateBadge(theme, icons, names_server=True)
        self.badge.mirror(badge)
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
        self._show_exchange()
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
            QTimer.singleShot(0, self, self._lift)  # after the window has grown
        elif self._usual_height:
            if (layout := self.layout()) is not None:
                layout.activate()  # without the minimum height of the banner
            self.resize(self.width(), self._usual_height)
            self.move(self.x(), self.y() + self._lifted)
            self._usual_height = self._lifted = 0

    def _lift(self) -> None:
        if self._usual_height:
            self._lifted += lift_onto_screen(self)

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

    def _show_levels(self, event: Levels) -> None:
        self.input_meter.show_level(event.input_dbfs, event.vad_probability >= _SPEECH_PROBABILITY)
        self.output_meter.show_level(event.output_dbfs)

    def _show_exchange(self) -> None:
        self.question.setText(self._exchange.question)
        self.reply.setText(self._exchange.reply[-_MOST_CHARACTERS:])

    def _show_mute(self, on: bool) -> None:
        colour = self._theme.danger if on else self._theme.text
        self.mute_button.setIcon(self._icons.icon("microphone-off" if on else "microphone", colour))
        self.mute_button.setChecked(on)

    # ---- set-up ----

    def _connect(self) -> None:
        bridge, mute = self._bridge, self._controls.mute_button
        bridge.state_changed.connect(lambda event: self.stop_button.setEnabled(event.can_stop))
        bridge.levels.connect(self._show_levels)
        self._exchange.changed.connect(self._show_exchange)
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
