"""The page of the settings dialog about ways to talk: voice activity, push-to-talk, its keys.

In: preferences. Out: the edited preferences; a key combination that cannot be used is refused with the
reason. GUI thread.
"""

from __future__ import annotations

import dataclasses

from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QKeySequenceEdit, QVBoxLayout, QWidget

from app.gui.common.key_combination import combination
from app.gui.common.plain_text import PlainLabel
from app.gui.common.preferences import Preferences
from app.gui.settings.settings_page import SettingsPage, choice_box, choose
from app.settings import InputMode


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
        self.keys, self.refusal = QKeySequenceEdit(), PlainLabel()
        self.keys.setMaximumSequenceLength(1)
        self.keys.setClearButtonEnabled(True)
        self.refusal.setProperty("role", "small")
        self.refusal.setWordWrap(True)
        self.refusal.hide()
        field = QWidget()
        column = QVBoxLayout(field)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.keys)
        column.addWidget(self.refusal)
        field.setFocusProxy(self.keys)
        super().__init__(
            (
                self.tr("T&alk by"),
                self.mode_box,
                self.tr(
                    "Push-to-talk: hold the button in the window, or Space, and speak. In a question that "
                    "you have begun to type, Space is a space. A press stops a reply, the release is "
                    "answered at once."
                ),
            ),
            (
                self.tr("&Hotkey"),
                field,
                self.tr(
                    "For push-to-talk, with Ctrl, Alt or the Windows key, or a function key. On X11 "
                    "it works in every window (package python-xlib), elsewhere in this one. No other "
                    "key is read."
                ),
            ),
        )
        self.keys.setAccessibleName(self.tr("Hotkey of push-to-talk"))
        self._shortcuts = [shortcut.key() for shortcut in window.findChildren(QShortcut)] if window else []
        self.keys.keySequenceChanged.connect(self._check)

    @property
    def input_mode(self) -> InputMode:
        """The mode that is chosen."""
        mode: InputMode = self.mode_box.currentData()
        return mode

    @property
    def hotkey(self) -> str:
        """The combination as portable text, "" for none."""
        return self.keys.keySequence().toString(QKeySequence.SequenceFormat.PortableText)

    def show_preferences(self, preferences: Preferences) -> None:
        """Fill the page."""
        choose(self.mode_box, preferences.input_mode)
        self.keys.setKeySequence(QKeySequence.fromString(preferences.hotkey))

    def edited(self, preferences: Preferences) -> Preferences:
        """`preferences` with the values of the page."""
        return dataclasses.replace(preferences, input_mode=self.input_mode, hotkey=self.hotkey)

    def _check(self, keys: QKeySequence) -> None:
        """Keep no combination that cannot be used."""
        if keys.isEmpty():
            return
        refusal = ""
        if combination(keys.toString()) is None:
            refusal = self.tr("%1 would type or edit something. Add Ctrl, Alt or the Windows key.")
        elif keys in self._shortcuts:
            refusal = self.tr("%1 is already used in this window. Choose other keys.")
        name = keys.toString(QKeySequence.SequenceFormat.NativeText)
        self.refusal.setText(refusal.replace("%1", name))
        self.refusal.setVisible(bool(refusal))
        if refusal:
            self.keys.clear()
