"""The bar at the bottom: start and stop, mute, devices with their meters, kind of reply, volume, counters.

In: Counters, EchoMeasured, devices and levels of the session. Out: signals for what was chosen. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QFont, QFontMetrics, QResizeEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QFrame,
    QHBoxLayout,
    QPushButton,
    QSizePolicy,
    QSlider,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.audio.echo_cancellation import EchoMeasurement
from app.gui.common.device_box import DeviceBox
from app.gui.common.icons import Icons
from app.gui.common.plain_text import PlainLabel, set_tip
from app.gui.common.themes import Theme
from app.gui.common.translation import FollowsLanguage
from app.gui.window.controls import LevelMeter, TalkButton
from app.session.events import Counters, DevicesChanged, EchoMeasured, Levels, SessionState
from engine_runtime.types import Modality

ALERT_MS = 60_000
"""A counter is shown as a warning for this long after it has grown; then it is a number like others."""
_WARNING_SIGN = "⚠ "
_LARGEST_COUNT = 99_999
"""Larger counts still fit into the width of the words."""
VOLUME_STEP = 5
"""Percent of one key press."""
_SPEECH_PROBABILITY = 0.5
_SPACING = 8
_RUNNING = (SessionState.LISTENING, SessionState.HEARING, SessionState.THINKING, SessionState.SPEAKING)


class CounterStrip(FollowsLanguage, QWidget):
    """Shows counters since the start, or since they were cleared."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._counters = self._cleared = Counters(0, 0)
        self._echo = EchoMeasurement()
        self._alerts = (QTimer(self), QTimer(self))
        """Timers of under-runs and dropped input: active while these are a warning."""
        for timer in self._alerts:
            timer.setSingleShot(True)
            timer.setInterval(ALERT_MS)
            timer.timeout.connect(self._write_counters)
        self.echo, self.underruns, self.dropped = PlainLabel(), PlainLabel(), PlainLabel()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(1)
        for label in (self.echo, self.underruns, self.dropped):
            label.setProperty("role", "counter")
            label.setAlignment(Qt.AlignmentFlag.AlignRight)
            layout.addWidget(label)
        self.retranslate()

    def show_counters(self, event: Counters) -> None:
        """Show how often playback starved and how much input was lost."""
        before, self._counters = self._counters, event
        for timer, has_grown in zip(
            self._alerts,
            (event.underruns > before.underruns, event.dropped_input > before.dropped_input),
            strict=True,
        ):
            if has_grown:
                timer.start()
        self._write_counters()

    def count_from_zero(self) -> None:
        """Count from 0 again."""
        self._cleared = self._counters
        for timer in self._alerts:
            timer.stop()
        self._write_counters()

    def show_echo(self, event: EchoMeasured) -> None:
        """Show how loud the echo is and by how much it is cancelled."""
        self._echo = event.echo
        self._write_echo()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self._write_counters()
        self._write_echo()
        bold = QFont(self.font())
        bold.setBold(True)
        metrics = QFontMetrics(bold)
        texts = [_WARNING_SIGN + self.tr("under-runs %1"), _WARNING_SIGN + self.tr("dropped input %1")]
        texts = [text.replace("%1", str(_LARGEST_COUNT)) for text in texts]
        texts += [self._echo_text(EchoMeasurement("unavailable")), self.tr("echo not measured")]
        texts.append(self._echo_in_figures(-88.0, -88.0))
        self.setMinimumWidth(max(metrics.horizontalAdvance(text) for text in texts) + 4)

    def _write_counters(self) -> None:
        underruns, dropped = self._alerts
        for label, timer, count, words, definition in (
            (
                self.underruns,
                underruns,
                self._counters.underruns - self._cleared.underruns,
                self.tr("under-runs %1"),
                self.tr("How often playback ran dry in the middle of a reply, since the start or Clear."),
            ),
            (
                self.dropped,
                dropped,
                self._counters.dropped_input - self._cleared.dropped_input,
                self.tr("dropped input %1"),
                self.tr("Microphone samples that were dropped because they were not read in time."),
            ),
        ):
            is_alert = timer.isActive()
            label.setText((_WARNING_SIGN if is_alert else "") + words.replace("%1", str(count)))
            set_tip(label, definition)
            label.setAccessibleDescription(definition)
            if label.property("alert") != is_alert:
                label.setProperty("alert", is_alert)
                label.style().unpolish(label)
                label.style().polish(label)

    def _write_echo(self) -> None:
        definition = self.tr(
            "Level of the reply in the microphone relative to playback, before and after echo "
            "cancellation (negative echo return loss, without and with its enhancement). Medians "
            "of recent moments with an echo."
        )
        self.echo.setText(self._echo_text(self._echo))
        set_tip(self.echo, definition)
        self.echo.setAccessibleDescription(definition)

    def _echo_text(self, echo: EchoMeasurement) -> str:
        if echo.state == "off":
            return self.tr("echo not cancelled")
        if echo.state == "unavailable":
            return _WARNING_SIGN + self.tr("echo not cancelled")
        if echo.state == "no_echo":
            return self.tr("no echo")
        if echo.erl_db is None or echo.erle_db is None:
            return self.tr("echo not measured")
        return self._echo_in_figures(-echo.erl_db, -echo.erl_db - echo.erle_db)

    def _echo_in_figures(self, before_db: float, after_db: float) -> str:
        text = self.tr("echo %1 → %2 dB")
        return text.replace("%1", f"{before_db:.0f}").replace("%2", f"{after_db:.0f}")


class VolumeSlider(FollowsLanguage, QSlider):
    """`valueChanged` has the volume in percent, as heard."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(Qt.Orientation.Horizontal, parent)
        self.setRange(0, 100)
        self.setSingleStep(VOLUME_STEP)
        self.setPageStep(4 * VOLUME_STEP)
        self.setValue(100)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.valueChanged.connect(self.retranslate)
        self.retranslate()

    def sizeHint(self) -> QSize:
        """Narrow: it shares a line with the meter."""
        return QSize(72, super().sizeHint().height())

    def show_volume(self, percent: int) -> None:
        """Show a volume without emitting `valueChanged`."""
        self.blockSignals(True)
        self.setValue(percent)
        self.blockSignals(False)
        self.retranslate()

    def step_volume(self, steps: int) -> None:
        """Louder or softer by so many key presses."""
        self.setValue(self.value() + steps * VOLUME_STEP)

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self.setAccessibleName(self.tr("Volume of replies"))
        text = self.tr("Volume %1 % (Ctrl+Up, Ctrl+Down)")
        set_tip(self, text.replace("%1", str(self.value())))


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
        self.start_button.clicked.connect(self._start_or_stop)
        self.talk_button = TalkButton(theme, icons)
        self.talk_button.hide()
        self.mute_button, self.interruption_button, self.rescan_button = (QToolButton() for _ in range(3))
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

    def toggle_listening(self) -> None:
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
        self.start_button.setIconSize(theme.square(18))
        self.start_button.setMinimumSize(QSize(theme.px(104), theme.px(36)))
        for button in (self.mute_button, self.interruption_button, self.rescan_button):
            button.setIconSize(theme.square(20))
        for choice in (self.speech_button, self.text_button, self.input_box, self.output_box):
            choice.setIconSize(theme.square(16))
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
            self.tr("My voice does not interrupt replies (Ctrl+I)")
            if is_blocked
            else self.tr("Keep my voice from interrupting replies (Ctrl+I)"),
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
        """The width of the narrow form, so that the window can become that narrow."""
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
        wide = super().sizeHint().width() + (self._left_out_width() if self._is_narrow else 0)
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
            level.addStrut(self.volume.sizeHint().height())  # both boxes stand at the same height
            column.addLayout(level)
            policy = box.sizePolicy()
            policy.setHorizontalPolicy(QSizePolicy.Policy.Expanding)
            box.setSizePolicy(policy)
            layout.addLayout(column)
        layout.addWidget(self.rescan_button)
        layout.addStretch()
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
        layout.addStretch()
        layout.addWidget(self.counters)
