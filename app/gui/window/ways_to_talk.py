"""How the user is heard: push-to-talk, mute, "do not interrupt", and the badge that shows it.

In: the controls, the preferences, events of microphone and samples. Out: commands to the
session; a choice of interruption for the preferences. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QMainWindow

from app.gui.common.bridge import SessionBridge
from app.gui.common.error_banner import ErrorBanner
from app.gui.common.preferences import Interruption, Preferences
from app.gui.window.control_bar import ControlBar
from app.gui.window.push_to_talk import PushToTalk
from app.gui.window.state_badge import StateBadge
from app.session.commands import HoldToTalk, Mute
from app.session.events import DevicesChanged, MicrophoneSilent
from app.settings import InputMode
from engine_runtime.errors import MossVoiceError


class WaysToTalk(QObject):
    """Of one window.

    Signals:
        interruption_chosen: "do not interrupt" was switched; an `Interruption`.
    """

    interruption_chosen = Signal(str)

    def __init__(
        self,
        window: QMainWindow,
        bridge: SessionBridge,
        controls: ControlBar,
        badge: StateBadge,
        banner: ErrorBanner,
    ) -> None:
        super().__init__(window)
        self._bridge, self._controls, self._badge, self._banner = bridge, controls, badge, banner
        self._input_mode: InputMode = "voice"
        self._hotkey = ""
        self._interruption: Interruption = "at_once"
        """The latest choice that allows interruptions."""
        self._has_sample = False
        self._has_microphone = self._has_loudspeaker = True
        self._is_silent = False
        """The microphone delivers silence."""
        self.push = PushToTalk(window, controls.talk_button)
        self.push.held.connect(lambda on: bridge.send(HoldToTalk(on)))
        self.push.failed.connect(self._show_failure)
        bridge.microphone_silent.connect(self._take_silence)
        self.push.keys_changed.connect(self._show_input)
        controls.muted.connect(self._mute)
        controls.interruption_blocked.connect(self._block_interruption)

    @property
    def talk_keys(self) -> list[str]:
        """The keys of push-to-talk, for the list of shortcuts."""
        return [] if self._input_mode == "voice" else ["Space", *filter(None, [self._hotkey])]

    def apply(self, preferences: Preferences, input_mode: InputMode) -> None:
        """Follow the preferences; `input_mode` may be that of the command line."""
        self._input_mode, self._hotkey = input_mode, preferences.hotkey
        if preferences.interruption != "never":
            self._interruption = preferences.interruption
        self._controls.show_interruption(is_blocked=preferences.interruption == "never")
        self.push.apply(is_offered=input_mode != "voice", keys=preferences.hotkey)
        self._show_input()

    def show_source(self, devices: DevicesChanged | None, *, has_sample: bool) -> None:
        """What is heard now; a sample counts as input, even without a microphone."""
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
        self._banner.show_error(error.what_is_wrong, error.what_to_do)
