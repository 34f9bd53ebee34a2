"""The bar at the bottom: start and stop, mute, devices with their meters, kind of reply, counters."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QFrame,
    QHBoxLayout,
    QPushButton,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.gui.common.device_box import DeviceBox
from app.gui.common.follows_language import FollowsLanguage
from app.gui.common.icons import Icons
from app.gui.common.plain_text import PlainLabel, set_tip
from app.gui.common.themes import Theme
from app.gui.window.counter_strip import CounterStrip
from app.gui.window.meters import LevelMeter
from app.gui.window.talk_button import TalkButton
from app.gui.window.volume_slider import VolumeSlider
from app.session.events import DevicesChanged, Levels, SessionState
from engine_runtime.types import Modality

_SPEECH_PROBABILITY = 0.5
_SPACING = 8
_RUNNING = (SessionState.LISTENING, SessionState.HEARING, SessionState.THINKING, SessionState.SPEAKING)


class ControlBar(FollowsLanguage, QFrame):
    """Controls of the session: reports the input of the user and shows the state of the session.

    Where they do not fit side by side, the word of the mute button and the label of the kind of reply are
    left out.

    Signals:
        started, stopped, rescanned: a button was pressed.
        muted: the microphone was muted or unmuted (bool).
        interruption_blocked: "do not interrupt" was switched (bool).
        devices_chosen: names of input and output, "" for the default.
        reply_chosen: a `Modality`.
    """

    started = Signal()
    stopped = Signal()
    rescanned = Signal()
    muted = Signal(bool)
    interruption_blocked = Signal(bool)
    devices_chosen = Signal(str, str)
    reply_chosen = Signal(object)

    def __init__(self, theme: Theme, icons: Icons, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "footer")
        self._theme, self._icons = theme, icons
        self._state = SessionState.LOADING
        self._wants_run = False
        self._is_narrow = False
        self._mute_word_width = 0
        self.start_button = QPushButton()
        self.start_button.setProperty("role", "primary")
        self.start_button.setIconSize(QSize(18, 18))
        self.start_button.clicked.connect(self._start_or_stop)
        self.talk_button = TalkButton(theme, icons)
        self.talk_button.hide()
        self.mute_button, self.interruption_button, self.rescan_button = (QToolButton() for _ in range(3))
        for button in (self.mute_button, self.interruption_button, self.rescan_button):
            button.setIconSize(QSize(20, 20))
        self.mute_button.setCheckable(True)
        self.interruption_button.setCheckable(True)
        self.interruption_button.toggled.connect(self._block_interruption)
        self.mute_button.toggled.connect(self._mute)
        self.rescan_button.clicked.connect(self.rescanned)
        self.input_meter, self.output_meter = LevelMeter(theme), LevelMeter(theme)
        self.volume = VolumeSlider()
        self.input_box, self.output_box = DeviceBox(), DeviceBox()
        # Qt on Linux takes the chosen item for the name of a box; a screen reader then asks for its label.
        self._box_names = PlainLabel("", self), PlainLabel("", self)
        for box, label in zip((self.input_box, self.output_box), self._box_names, strict=True):
            box.activated.connect(self._choose_devices)
            label.setBuddy(box)
            label.hide()
        self.speech_button, self.text_button = QPushButton(), QPushButton()
        self._replies = QButtonGroup(self)
        for choice, modality in ((self.speech_button, Modality.SPEECH), (self.text_button, Modality.TEXT)):
            choice.setProperty("role", "segment")
            choice.setCheckable(True)
            choice.setIconSize(QSize(16, 16))
            self._replies.addButton(choice)
            choice.clicked.connect(lambda _checked, chosen=modality: self.reply_chosen.emit(chosen))
        self.speech_button.setChecked(True)
        self._reply_label = PlainLabel()
        self.counters = CounterStrip()
        self._lay_out()
        self.set_theme(theme)
        self.retranslate()

    def show_state(self, state: SessionState) -> None:
        """Follow the session."""
        self._state = state
        if state in (SessionState.STOPPED, SessionState.ERROR):
            self.input_meter.reset()
            self.output_meter.reset()
        self._wants_run = state in _RUNNING or (self._wants_run and state is SessionState.LOADING)
        self.retranslate()

    @property
    def is_running(self) -> bool:
        """Whether the devices are open, or will be when the engine is loaded."""
        return self._wants_run

    def toggle(self) -> None:
        """Start or stop, as the button would."""
        if self.start_button.isEnabled():
            self._start_or_stop()

    def show_reply(self, modality: Modality) -> None:
        """Show the kind of reply without emitting `reply_chosen`."""
        (self.speech_button if modality is Modality.SPEECH else self.text_button).setChecked(True)

    def show_interruption(self, *, is_blocked: bool) -> None:
        """Show whether interruptions are blocked, without emitting `interruption_blocked`."""
        self.interruption_button.blockSignals(True)
        self.interruption_button.setChecked(is_blocked)
        self.interruption_button.blockSignals(False)
        self.retranslate()

    def show_devices(self, event: DevicesChanged, wanted_input: str, wanted_output: str) -> None:
        """List the devices; a chosen one that is absent stays listed, so that the choice is kept."""
        self.input_box.show_devices(event.inputs, event.descriptions, wanted_input, event.input)
        self.output_box.show_devices(event.outputs, event.descriptions, wanted_output, event.output)
        self.retranslate()

    def show_levels(self, event: Levels) -> None:
        """Update the meters."""
        self.input_meter.show_level(event.input_dbfs, event.vad_probability >= _SPEECH_PROBABILITY)
        self.output_meter.show_level(event.output_dbfs)

    def set_theme(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        self._theme = theme
        self.rescan_button.setIcon(self._icons.icon("rescan", theme.text, theme.muted))
        self.speech_button.setIcon(self._icons.icon("wave", theme.text))
        self.text_button.setIcon(self._icons.icon("text", theme.text))
        for part in (self.talk_button, self.input_meter, self.output_meter):
            part.set_theme(theme)
        self.retranslate()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        start = self.tr("Stop") if self._wants_run else self.tr("Start")
        self.start_button.setText(start)
        icon = "stop" if self._wants_run else "microphone"
        self.start_button.setIcon(self._icons.icon(icon, self._theme.on_accent, self._theme.muted))
        self.start_button.setEnabled(self._state is not SessionState.ERROR)
        set_tip(self.start_button, self.tr("Open or close microphone and loudspeaker (Ctrl+Space)"))
        is_mute = self.mute_button.isChecked()
        colour = self._theme.danger if is_mute else self._theme.text
        self.mute_button.setIcon(self._icons.icon("microphone-off" if is_mute else "microphone", colour))
        set_tip(
            self.mute_button,
            self.tr("Unmute the microphone (Ctrl+M)") if is_mute else self.tr("Mute the microphone (Ctrl+M)"),
        )
        self.mute_button.setText(self.tr("Muted") if is_mute else self.tr("Mute"))
        self.mute_button.setAccessibleName(self.tr("Mute the microphone"))
        self._measure_mute_word()
        is_blocked = self.interruption_button.isChecked()
        colour = self._theme.danger if is_blocked else self._theme.text
        self.interruption_button.setIcon(self._icons.icon("no-interrupt", colour))
        set_tip(
            self.interruption_button,
            self.tr("Replies are not interrupted by my voice (Ctrl+I)")
            if is_blocked
            else self.tr("Do not interrupt replies by my voice (Ctrl+I)"),
        )
        self.interruption_button.setAccessibleName(self.tr("Do not interrupt replies"))
        set_tip(self.rescan_button, self.tr("Look for sound devices again (Ctrl+R)"))
        self.rescan_button.setAccessibleName(self.tr("Look for sound devices again"))
        for box, name, default in (
            (self.input_box, self.tr("Microphone"), self.tr("Default microphone")),
            (self.output_box, self.tr("Loudspeaker"), self.tr("Default loudspeaker")),
        ):
            box.setAccessibleName(name)
            self._box_names[0 if box is self.input_box else 1].setText(name)
            box.set_default(default)
            icon_name = "microphone" if box is self.input_box else "speaker"
            for index in range(box.count()):
                box.setItemIcon(index, self._icons.icon(icon_name, self._theme.muted))
        self.input_meter.set_label(self.tr("Input level"))
        self.output_meter.set_label(self.tr("Output level"))
        self._reply_label.setText(self.tr("Reply as"))
        self.speech_button.setText(self.tr("Speech"))
        self.text_button.setText(self.tr("Text"))
        set_tip(self.speech_button, self.tr("Replies are spoken"))
        set_tip(self.text_button, self.tr("Replies are written"))

    def minimumSizeHint(self) -> QSize:
        """That of the narrow form, so that the window can become as narrow."""
        least = super().minimumSizeHint()
        return least if self._is_narrow else least - QSize(self._left_out_width(), 0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Take the form that fits."""
        super().resizeEvent(event)
        self._choose_form()

    def event(self, event: QEvent) -> bool:
        """Take the form that fits when the button of push-to-talk appears or a text changes."""
        is_done = super().event(event)
        if event.type() is QEvent.Type.LayoutRequest:
            self._choose_form()
        return is_done

    def _choose_form(self) -> None:
        wide = super().minimumSizeHint().width() + (self._left_out_width() if self._is_narrow else 0)
        if (self.width() < wide) is not self._is_narrow:
            self._is_narrow = not self._is_narrow
            self._reply_label.setHidden(self._is_narrow)
            self.mute_button.setToolButtonStyle(self._mute_style())

    def _left_out_width(self) -> int:
        return self._reply_label.sizeHint().width() + _SPACING + self._mute_word_width

    def _mute_style(self) -> Qt.ToolButtonStyle:
        style = Qt.ToolButtonStyle
        return style.ToolButtonIconOnly if self._is_narrow else style.ToolButtonTextBesideIcon

    def _measure_mute_word(self) -> None:
        widths = []
        for style in (Qt.ToolButtonStyle.ToolButtonIconOnly, Qt.ToolButtonStyle.ToolButtonTextBesideIcon):
            self.mute_button.setToolButtonStyle(style)
            widths.append(self.mute_button.sizeHint().width())
        self._mute_word_width = widths[1] - widths[0]
        self.mute_button.setToolButtonStyle(self._mute_style())

    def _start_or_stop(self) -> None:
        was_running, self._wants_run = self._wants_run, not self._wants_run
        (self.stopped if was_running else self.started).emit()
        self.retranslate()

    def _mute(self, on: bool) -> None:
        self.muted.emit(on)
        self.retranslate()

    def _block_interruption(self, on: bool) -> None:
        self.interruption_blocked.emit(on)
        self.retranslate()

    def _choose_devices(self) -> None:
        self.devices_chosen.emit(self.input_box.currentData() or "", self.output_box.currentData() or "")

    def _lay_out(self) -> None:
        layout = QHBoxLayout(self)
        layout.setContentsMargins(16, 10, 16, 10)
        layout.setSpacing(_SPACING)
        self.start_button.setMinimumSize(QSize(104, 36))
        layout.addWidget(self.start_button)
        layout.addWidget(self.talk_button)
        layout.addWidget(self.mute_button)
        layout.addWidget(self.interruption_button)
        for box, meter in ((self.input_box, self.input_meter), (self.output_box, self.output_meter)):
            column = QVBoxLayout()
            column.setSpacing(4)
            column.addWidget(box)
            level = QHBoxLayout()
            level.setSpacing(8)
            level.addWidget(meter, 1)
            if box is self.output_box:
                level.addWidget(self.volume)
            column.addLayout(level)
            layout.addLayout(column, 2)
        layout.addWidget(self.rescan_button)
        layout.addStretch(1)
        self._reply_label.setProperty("role", "muted")
        layout.addWidget(self._reply_label)
        group = QFrame()
        group.setProperty("role", "group")
        inside = QHBoxLayout(group)
        inside.setContentsMargins(3, 3, 3, 3)
        inside.setSpacing(2)
        inside.addWidget(self.speech_button)
        inside.addWidget(self.text_button)
        layout.addWidget(group)
        layout.addStretch(1)
        layout.addWidget(self.counters)
