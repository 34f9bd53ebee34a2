"""How the user is heard: push-to-talk, mute, "do not interrupt", and the badge that shows it.

In: the controls, key events of a window before any widget gets them, the hotkey of the desktop, the
preferences, events of microphone and samples. Out: commands to the session; a choice of interruption for the
preferences. GUI thread.
"""

from __future__ import annotations

from typing import Literal

from PySide6.QtCore import QEvent, QKeyCombination, QObject, Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QAbstractButton,
    QApplication,
    QComboBox,
    QMainWindow,
    QTabBar,
    QWidget,
)

from app.gui.common.bridge import SessionBridge
from app.gui.common.key_combination import combination, matches, native_text
from app.gui.common.notices import ErrorBanner
from app.gui.common.preferences import Interruption, Preferences
from app.gui.conversation.composer import takes_space
from app.gui.window.control_bar import ControlBar
from app.gui.window.controls import TalkButton
from app.gui.window.global_hotkey import Action, GlobalHotkeys, Hotkey
from app.gui.window.portal_shortcuts import HotkeyError
from app.gui.window.state_badge import StateBadge
from app.session.commands import HoldToTalk, Mute
from app.session.events import DevicesChanged, MicrophoneSilent
from app.settings import InputMode
from engine_runtime.errors import MossVoiceError

_SPACE = QKeyCombination(Qt.Key.Key_Space)
_REPEAT_MS = 30
"""On X11 a repeating key sends a release and a press together, and Qt misses some of them when the two arrive
apart; a key that is not pressed again within this time was released."""
_Way = Literal["button", "key", "hotkey"]


class PushToTalk(QObject):
    """Space talks unless it is meant for what has the focus: text, also a question that was begun, or a
    control that was reached with the Tab key.

    Signals:
        held: push-to-talk was pressed or released (bool).
        keys_changed: `keys` may be others now.
    """

    held = Signal(bool)
    keys_changed = Signal()

    def __init__(self, window: QWidget, button: TalkButton) -> None:
        super().__init__(window)
        self._buttons: list[TalkButton] = []
        self._is_offered = False
        self._keys: QKeyCombination | None = None
        self._own_keys = ""
        self._ways: set[_Way] = set()
        self._held_key: int | None = None
        self._key_up = QTimer(self)
        self._key_up.setSingleShot(True)
        self._key_up.setInterval(_REPEAT_MS)
        self._key_up.timeout.connect(lambda: self._hold("key", False))
        self._moves_by_tab = False
        """The focus was moved with the keyboard since the latest click, so Space belongs to the focused
        widget."""
        self.add_window(window, button)
        application = QApplication.instance()
        assert isinstance(application, QApplication)
        self._focus_changed = application.focusChanged
        self._focus_changed.connect(self.keys_changed)

    @property
    def is_held(self) -> bool:
        """Whether it is pressed in some way."""
        return bool(self._ways)

    @property
    def keys(self) -> list[str]:
        """The keys that talk at this moment, as the desktop writes them."""
        space = [native_text("Space")] if self._is_space_free() else []
        return [*space, *filter(None, [self._own_keys])]

    def add_window(self, window: QWidget, button: TalkButton | None = None) -> None:
        """Talk in this window, too, with the keys and this button."""
        window.installEventFilter(self)
        if button is not None:
            self._buttons.append(button)
            button.hide()
            button.held.connect(lambda on: self._hold("button", on))

    def offer(self, *, is_offered: bool, keys: str) -> None:
        """Offer push-to-talk or not, with this combination ("" for none) in the window."""
        if not is_offered:
            self.let_go()
        self._is_offered = is_offered
        self._keys = combination(keys)
        self._own_keys = native_text(keys) if self._keys is not None else ""
        for button in self._buttons:
            button.setVisible(is_offered)
            button.show_keys(", ".join(filter(None, (native_text("Space"), self._own_keys))))
        self.keys_changed.emit()

    def hold_hotkey(self, on: bool) -> None:
        """The combination went down or up on the desktop, also while another window has the focus."""
        if self._is_offered or not on:
            self._hold("hotkey", on)

    def let_go(self) -> None:
        """Release whatever is held."""
        self._release_buttons()
        for way in tuple(self._ways):
            self._hold(way, False)

    def shut_down(self) -> None:
        """The windows are about to close."""
        self.let_go()
        self._is_offered = False
        self._focus_changed.disconnect(self.keys_changed)
        self._buttons.clear()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Follow the windows; consume the keys of push-to-talk."""
        kind = event.type()
        if isinstance(watched, QWidget):
            handle = watched.windowHandle()
            if kind is QEvent.Type.Show and handle is not None:
                handle.installEventFilter(self)
            elif kind in (QEvent.Type.WindowDeactivate, QEvent.Type.Hide):
                self._release_buttons()
                self._hold("key", False)
        elif kind is QEvent.Type.MouseButtonPress:
            self._moves_by_tab = False
            self.keys_changed.emit()
        elif isinstance(event, QKeyEvent) and self._is_offered:
            return self._take_press(event) if kind is QEvent.Type.KeyPress else self._take_release(event)
        return False

    def _take_press(self, event: QKeyEvent) -> bool:
        if event.key() in (Qt.Key.Key_Tab, Qt.Key.Key_Backtab):
            self._moves_by_tab = True
        is_known = self._keys is not None and matches(event, self._keys)
        if not is_known and not (matches(event, _SPACE) and self._is_space_free()):
            return False
        self._key_up.stop()
        if not event.isAutoRepeat():
            self._held_key = event.key()
            self._hold("key", True)
        return True

    def _take_release(self, event: QKeyEvent) -> bool:
        if "key" not in self._ways or event.key() != self._held_key:
            return False
        if not event.isAutoRepeat():
            self._key_up.start()
        return True

    def _is_space_free(self) -> bool:
        if "key" in self._ways:
            return True
        focus = QApplication.focusWidget()
        if takes_space(focus):
            return False
        is_control = isinstance(focus, (QAbstractButton, QComboBox, QTabBar))
        return not (is_control and self._moves_by_tab)

    def _release_buttons(self) -> None:
        for button in self._buttons:
            button.let_go()

    def _hold(self, way: _Way, on: bool) -> None:
        was_held = self.is_held
        (self._ways.add if on else self._ways.discard)(way)
        if self.is_held is not was_held:
            for button in self._buttons:
                button.show_held(self.is_held)
            self.held.emit(self.is_held)


class WaysToTalk(QObject):
    """Push-to-talk, mute and interruption of one window, and the hotkeys of the desktop.

    Signals:
        interruption_chosen: "do not interrupt" was switched; an `Interruption`.
        window_toggled: the hotkey for the window was pressed; a token of `Background.bring_to_front`.
    """

    interruption_chosen = Signal(str)
    window_toggled = Signal(str)

    def __init__(
        self,
        window: QMainWindow,
        bridge: SessionBridge,
        controls: ControlBar,
        badge: StateBadge,
        banner: ErrorBanner,
        hotkeys: GlobalHotkeys | None = None,
    ) -> None:
        super().__init__(window)
        self._bridge, self._controls, self._badge, self._banner = bridge, controls, badge, banner
        self._input_mode: InputMode = "voice"
        self._keys = ("", "", "")
        """To talk, to mute, for the window."""
        self._interruption: Interruption = "at_once"
        """The latest choice that allows interruptions."""
        self._has_sample = False
        self._has_microphone = self._has_loudspeaker = True
        self._is_silent = False
        """The microphone delivers silence."""
        self.push = PushToTalk(window, controls.talk_button)
        self.push.held.connect(lambda on: bridge.send(HoldToTalk(on)))
        self._hotkeys = GlobalHotkeys(self) if hotkeys is None else hotkeys
        self._hotkeys.pressed.connect(self._press)
        self._hotkeys.released.connect(self._release)
        self._hotkeys.failed.connect(self._show_failure)
        self._hotkeys.replaced.connect(self._end_failures)
        bridge.microphone_silent.connect(self._take_silence)
        self.push.keys_changed.connect(self._show_input)
        controls.muted.connect(self._mute)
        controls.interruption_blocked.connect(self._block_interruption)

    @property
    def chosen_keys(self) -> dict[str, str]:
        """The keys of push-to-talk and the hotkeys of the desktop, each with what it does, for the list of
        shortcuts."""
        talk, mute, window = self._keys
        chosen = {
            mute: self.tr("Mute the microphone, in every window"),
            window: self.tr("Show or hide the window, from every window"),
        }
        if self._input_mode != "voice":
            space = self.tr("Hold to talk; types a space while you type a question")
            chosen = {"Space": space, talk: self.tr("Hold to talk"), **chosen}
        return {keys: words for keys, words in chosen.items() if keys}

    def use_preferences(self, preferences: Preferences, input_mode: InputMode) -> None:
        """Follow the preferences; `input_mode` may be that of the command line."""
        self._input_mode = input_mode
        self._keys = (preferences.hotkey, preferences.mute_hotkey, preferences.window_hotkey)
        if preferences.interruption != "never":
            self._interruption = preferences.interruption
        self._controls.show_interruption(is_blocked=preferences.interruption == "never")
        self.push.offer(is_offered=input_mode != "voice", keys=preferences.hotkey)
        self._use_hotkeys()
        self._show_input()

    def shut_down(self) -> None:
        """Release the hotkeys; the windows are about to close."""
        self.push.shut_down()
        self._hotkeys.use({})

    def _use_hotkeys(self) -> None:
        talk, mute, window = self._keys
        wanted: dict[Action, tuple[str, str]] = {
            "mute": (mute, self.tr("mute or unmute the microphone")),
            "window": (window, self.tr("show or hide the window")),
        }
        if self._input_mode != "voice":
            wanted = {"talk": (talk, self.tr("hold to talk")), **wanted}
        self._hotkeys.use(
            {
                action: Hotkey(keys, description)
                for action, (text, description) in wanted.items()
                if (keys := combination(text)) is not None
            }
        )

    def _press(self, action: str, token: str) -> None:
        if action == "talk":
            self.push.hold_hotkey(True)
        elif action == "mute":
            self._controls.mute_button.toggle()
        elif action == "window":
            self.window_toggled.emit(token)

    def _release(self, action: str) -> None:
        if action == "talk":
            self.push.hold_hotkey(False)

    def show_source(self, devices: DevicesChanged | None, *, has_sample: bool) -> None:
        """Update what is heard now; a sample counts as input, even without a microphone."""
        self._has_sample = has_sample
        if devices is not None:
            self._has_microphone, self._has_loudspeaker = bool(devices.input), bool(devices.output)
        self._show_input()

    def _show_input(self) -> None:
        if self._has_sample:
            self._badge.show_input("open")
        elif not self._has_microphone:
            self._badge.show_input("no_input")
        elif not self._has_loudspeaker:
            self._badge.show_input("no_output")
        elif self._controls.mute_button.isChecked():
            self._badge.show_input("muted")
        elif self._is_silent:
            self._badge.show_input("silent")
        else:
            self._badge.show_input("push" if self._input_mode == "push" else "open", self.push.keys)

    def _take_silence(self, event: MicrophoneSilent) -> None:
        self._is_silent = event.on
        self._show_input()

    def _mute(self, on: bool) -> None:
        self._bridge.send(Mute(on))
        self._show_input()

    def _block_interruption(self, on: bool) -> None:
        self.interruption_chosen.emit("never" if on else self._interruption)

    def _show_failure(self, error: MossVoiceError) -> None:
        self._banner.show_error(error.problem, error)

    def _end_failures(self) -> None:
        self._banner.end(lambda subject: isinstance(subject, HotkeyError))
