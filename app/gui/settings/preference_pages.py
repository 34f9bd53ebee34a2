"""The pages of the settings dialog that do nothing but edit preferences.

In: preferences. Out: the edited preferences; a key combination that cannot be used is refused with the
reason. GUI thread.
"""

from __future__ import annotations

from functools import partial
from typing import get_args

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import QCheckBox, QKeySequenceEdit, QVBoxLayout, QWidget

from app.dialog.smart_turn import installed_model
from app.gui.common.key_combination import combination
from app.gui.common.plain_text import PlainLabel
from app.gui.common.preferences import Preferences
from app.gui.common.themes import ThemeChoice
from app.gui.settings.settings_page import SettingsPage, choice_box, spin_box
from app.settings import InputMode
from engine_runtime.options import Dtype, FlowSchedule
from engine_runtime.types import Modality


class ConversationPage(SettingsPage):
    """The seed shows "as the bundle says" at its lowest value, which means None."""

    def __init__(self) -> None:
        self.endpointing = spin_box("endpointing_ms", step=20, suffix=self.tr(" ms"))
        self.seed = spin_box("seed", special=self.tr("bundle default"))
        self._make_boxes()
        super().__init__(
            (self.tr("End of t&urn"), self.eagerness_box, self._eagerness_help()),
            (
                self.tr("Early re&plies"),
                self.speculation_box,
                self.tr(
                    "Generates the reply at your first pause and holds it until the end of your turn "
                    "is confirmed, so that it starts at once. If you continue, that work is lost. "
                    "Automatic turns this off while the engine is too slow."
                ),
            ),
            (
                self.tr("&Endpointing"),
                self.endpointing,
                self.tr(
                    "Silence that ends your turn if it is unclear whether you have finished, or if "
                    "silence alone decides."
                ),
            ),
            (
                self.tr("&Barge-in"),
                self.interruption_box,
                self.tr(
                    'When my voice stops a reply. After half a second, a short "mm-hm" or a cough '
                    "does not. With open loudspeakers this needs echo cancellation."
                ),
            ),
            (
                self.tr("Mean&while"),
                self.overlap_box,
                self.tr(
                    "What happens to a reply while you speak over it, until it is clear whether you want "
                    'it to stop. After an "mm-hm" or a cough it goes on. Automatic: softly with '
                    "headphones; with loudspeakers it pauses."
                ),
            ),
            (self.tr("&Reply as"), self.reply_box, ""),
            (
                self.tr("&Seed"),
                self.seed,
                self.tr("With the same seed, the same conversation gets the same replies."),
            ),
        )
        self.bind(
            eagerness=self.eagerness_box,
            speculate=self.speculation_box,
            endpointing_ms=self.endpointing,
            interruption=self.interruption_box,
            overlap=self.overlap_box,
            reply=self.reply_box,
            seed=self.seed,
        )

    def _make_boxes(self) -> None:
        self.eagerness_box = choice_box(
            (
                (self.tr("Patient"), "patient"),
                (self.tr("Balanced"), "balanced"),
                (self.tr("Eager"), "eager"),
                (self.tr("Silence alone"), "off"),
            )
        )
        self.speculation_box = choice_box(
            ((self.tr("Automatic"), "auto"), (self.tr("On"), "on"), (self.tr("Off"), "off"))
        )
        self.interruption_box = choice_box(
            (
                (self.tr("As soon as I speak"), "at_once"),
                (self.tr("After half a second of speech"), "half_second"),
                (self.tr("After a second of speech"), "second"),
                (self.tr("Never"), "never"),
            )
        )
        self.overlap_box = choice_box(
            (
                (self.tr("Automatic"), "auto"),
                (self.tr("It pauses"), "pause"),
                (self.tr("It goes on softly"), "duck"),
                (self.tr("It goes on as before"), "off"),
            )
        )
        self.reply_box = choice_box(((self.tr("Speech"), Modality.SPEECH), (self.tr("Text"), Modality.TEXT)))

    def _eagerness_help(self) -> str:
        if installed_model() is None:
            return self.tr(
                "Smart Turn is not installed, so silence alone ends your turn. Run moss-voice "
                "doctor to see how to install it."
            )
        return self.tr(
            "A question that sounds finished is answered after a quarter of a second; in "
            "mid-sentence the assistant waits. Eager answers sooner; patient cuts you off less "
            "often."
        )


class _KeysEdit(QKeySequenceEdit):
    """Leaves to the dialog what belongs to it: Escape and Enter alone are no hotkeys."""

    def keyPressEvent(self, event: QKeyEvent) -> None:
        is_alone = event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier == Qt.KeyboardModifier.NoModifier
        if is_alone and event.key() in (Qt.Key.Key_Escape, Qt.Key.Key_Return, Qt.Key.Key_Enter):
            event.ignore()
        else:
            super().keyPressEvent(event)


class HotkeyField(QWidget):
    """A key combination, and why one was not taken."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.keys, self.refusal = _KeysEdit(), PlainLabel()
        self.keys.setMaximumSequenceLength(1)
        self.keys.setClearButtonEnabled(True)
        self.keys.setAccessibleName(name)
        self.refusal.setProperty("role", "small")
        self.refusal.setWordWrap(True)
        self.refusal.hide()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.keys)
        column.addWidget(self.refusal)
        self.setFocusProxy(self.keys)

    @property
    def text(self) -> str:
        """The combination as portable text, "" for none."""
        return self.keys.keySequence().toString(QKeySequence.SequenceFormat.PortableText)

    def refuse(self, reason: str) -> None:
        """Show the reason and keep no combination; "" if this one can be used."""
        self.refusal.setText(reason)
        self.refusal.setVisible(bool(reason))
        if reason:
            self.keys.clear()


class TalkPage(SettingsPage):
    """`window` is the one whose shortcuts cannot be used."""

    def __init__(self, window: QWidget | None) -> None:
        self.mode_box = choice_box(
            (
                (self.tr("Voice activity"), "voice"),
                (self.tr("Push-to-talk"), "push"),
                (self.tr("Both"), "both"),
            )
        )
        self.talk_key = HotkeyField(self.tr("Hotkey of push-to-talk"))
        self.mute_key = HotkeyField(self.tr("Hotkey to mute the microphone"))
        self.window_key = HotkeyField(self.tr("Hotkey to show or hide the window"))
        super().__init__(
            (
                self.tr("T&alk by"),
                self.mode_box,
                self.tr(
                    "Push-to-talk: hold the button in the window, or Space, and speak. While you type a "
                    "question, Space types a space. Pressing stops a reply; releasing is answered at "
                    "once."
                ),
            ),
            (self.tr("&Hotkey to talk"), self.talk_key, ""),
            (self.tr("Hotkey to &mute"), self.mute_key, ""),
            (
                self.tr("Hotkey for the &window"),
                self.window_key,
                self.tr(
                    "With Ctrl, Alt or the Windows key, or a function key. They work in every window: on "
                    "X11 (package python-xlib), and on Wayland if the portal of the desktop allows it, which "
                    "asks you (package jeepney). No other key is read."
                ),
            ),
        )
        self._fields = (self.talk_key, self.mute_key, self.window_key)
        self.bind(
            input_mode=self.mode_box,
            hotkey=self.talk_key.keys,
            mute_hotkey=self.mute_key.keys,
            window_hotkey=self.window_key.keys,
        )
        self._shortcuts = [shortcut.key() for shortcut in window.findChildren(QShortcut)] if window else []
        for field in self._fields:
            field.keys.keySequenceChanged.connect(partial(self._check, field))

    @property
    def input_mode(self) -> InputMode:
        """The mode that is chosen."""
        mode: InputMode = self.mode_box.currentData()
        return mode

    def _check(self, field: HotkeyField, keys: QKeySequence) -> None:
        """Keep no combination that cannot be used."""
        if keys.isEmpty():
            return
        refusal = ""
        if combination(keys.toString()) is None:
            refusal = self.tr("%1 would type or edit something. Add Ctrl, Alt or the Windows key.")
        elif keys in self._shortcuts:
            refusal = self.tr("%1 is already in use in this window. Choose other keys.")
        elif any(other is not field and other.keys.keySequence() == keys for other in self._fields):
            refusal = self.tr("%1 is another hotkey already. Choose other keys.")
        field.refuse(refusal.replace("%1", keys.toString(QKeySequence.SequenceFormat.NativeText)))


class CodecPage(SettingsPage):
    """The flow steps show "as the bundle says" at their lowest value, which means None."""

    def __init__(self) -> None:
        self.flow_steps = spin_box("flow_steps", special=self.tr("bundle default"))
        self.schedule_box = choice_box((schedule, schedule) for schedule in get_args(FlowSchedule))
        self.codec_box = choice_box(
            ((self.tr("Automatic"), None), *((dtype, dtype) for dtype in get_args(Dtype)))
        )
        self.trt_codec = QCheckBox(self.tr("Run the codec on TensorRT"))
        self.exact_encoding = QCheckBox(self.tr("Encode my speech again at the end of my turn"))
        self.note = PlainLabel()
        self.note.setProperty("role", "small")
        super().__init__(
            (
                self.tr("&Flow steps"),
                self.flow_steps,
                self.tr("More steps sound cleaner and take longer. They apply from the next turn on."),
            ),
            (
                self.tr("Flow sc&hedule"),
                self.schedule_box,
                self.tr("Time schedule of the steps; cosine is the reference."),
            ),
            (self.tr("&Codec precision"), self.codec_box, self.tr("Half precision saves GPU memory.")),
            (
                self.tr("&TensorRT"),
                self.trt_codec,
                self.tr(
                    "Runs flow, vocoder and speech encoder with TensorRT on an NVIDIA GPU, in float32 or "
                    "float16. Their engines are built at the first start, which takes minutes; where "
                    "that fails, PyTorch is used."
                ),
            ),
            ("", self.note, ""),
            (
                self.tr("E&xact encoding"),
                self.exact_encoding,
                self.tr(
                    "Encodes as the model was trained; replies start a little later. It makes no "
                    "difference with the included bundle."
                ),
            ),
        )
        self.bind(
            flow_steps=self.flow_steps,
            flow_schedule=self.schedule_box,
            codec_dtype=self.codec_box,
            exact_encoding=self.exact_encoding,
            trt_codec=self.trt_codec,
        )
        self.trt_codec.toggled.connect(self._check)
        self.codec_box.currentIndexChanged.connect(self._check)

    def show_preferences(self, preferences: Preferences) -> None:
        """Fill the page."""
        super().show_preferences(preferences)
        self._check()

    def _check(self) -> None:
        """Say that a precision excludes TensorRT."""
        is_refused = self.trt_codec.isChecked() and self.codec_box.currentData() == "bfloat16"
        self.note.setText(self.tr("TensorRT cannot run the codec in bfloat16, so PyTorch runs it."))
        self.note.setVisible(is_refused)


class AppearancePage(SettingsPage):
    """Appearance of the window, and where it goes while it is not used."""

    def __init__(self) -> None:
        self.theme_box = choice_box(
            (
                (self.tr("Follow the desktop"), ThemeChoice.SYSTEM),
                (self.tr("Light"), ThemeChoice.LIGHT),
                (self.tr("Dark"), ThemeChoice.DARK),
            )
        )
        self.language_box = choice_box(
            ((self.tr("Follow the desktop"), "system"), ("English", "en"), ("简体中文", "zh_CN"))
        )
        self.scale = spin_box("scale_percent", step=25, suffix=" %")
        self.closes_to_tray = QCheckBox(self.tr("Keep running in the tray when the window is closed"))
        self.starts_minimised = QCheckBox(self.tr("Start minimised, in the tray if there is one"))
        self.starts_listening = QCheckBox(self.tr("Start listening when the program starts"))
        super().__init__(
            (self.tr("&Theme"), self.theme_box, ""),
            (self.tr("L&anguage"), self.language_box, ""),
            (
                self.tr("Si&ze"),
                self.scale,
                self.tr("Size of texts and plots. Ctrl and plus, minus or 0 change it in every window."),
            ),
            ("", self.closes_to_tray, ""),
            ("", self.starts_minimised, ""),
            ("", self.starts_listening, ""),
        )
        self.bind(
            theme=self.theme_box,
            language=self.language_box,
            scale_percent=self.scale,
            closes_to_tray=self.closes_to_tray,
            starts_minimised=self.starts_minimised,
            starts_listening=self.starts_listening,
        )
