"""The badge with the state of the session: an icon, a word and a colour.

In: the state of the session, whether a source of speech is open and unmuted, the server that hears it. GUI
thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QWidget

from app.gui.common.destination import server_in_words
from app.gui.common.icons import Icons
from app.gui.common.plain_text import PlainLabel, set_tip
from app.gui.common.themes import Theme
from app.gui.common.translation import FollowsLanguage
from app.session.events import SessionState

_ICONS = {
    SessionState.STOPPED: "pause",
    SessionState.LOADING: "clock",
    SessionState.LISTENING: "ear",
    SessionState.HEARING: "microphone",
    SessionState.THINKING: "settings",
    SessionState.SPEAKING: "speaker",
    SessionState.ERROR: "warning",
    "no_input": "microphone-off",
    "no_output": "speaker",
    "muted": "microphone-off",
    "silent": "microphone-off",
    "push": "microphone",
    "reconnecting": "rescan",
}
InputState = Literal["open", "no_input", "no_output", "muted", "silent", "push"]
"""Whether a conversation is possible: no_input and no_output while no microphone or no loudspeaker is open,
muted while its sound is dropped, silent while it delivers none, push while it counts only with push-to-talk.
"""


class StateBadge(FollowsLanguage, QFrame):
    """Shows one `SessionState`.

    Signals:
        changed: icon, word or colour may be different now.
    """

    changed = Signal()

    def __init__(
        self, theme: Theme, icons: Icons, parent: QWidget | None = None, *, names_server: bool = False
    ) -> None:
        """`names_server`: the server is named beside the state, else in the tooltip alone."""
        super().__init__(parent)
        self.setProperty("role", "badge")
        self._theme, self._icons = theme, icons
        self.state = SessionState.LOADING
        self.input: InputState = "open"
        self.keys: tuple[str, ...] = ()
        """The push-to-talk keys that work now, as the desktop writes them."""
        self.is_reconnecting = False
        """Whether the connection to the server was lost and is being restored."""
        self.server = ""
        """The server that hears the user, "" for none."""
        self._original: StateBadge | None = None
        """The badge of the main window, where this one is in another window."""
        self.word = ""
        """The state in the language of the window."""
        self._icon, self._word, self._host = PlainLabel(), PlainLabel(), PlainLabel()
        self._host.setProperty("role", "small")
        self._names_server = names_server
        layout = self._line = QHBoxLayout(self)
        layout.addWidget(self._icon)
        layout.addWidget(self._word)
        layout.addWidget(self._host)
        self.set_theme(theme)

    def show_state(self, state: SessionState, *, is_reconnecting: bool = False) -> None:
        """Show this state, or that there is no connection to the server."""
        self.state, self.is_reconnecting = state, is_reconnecting
        self.retranslate()

    def mirror(self, badge: StateBadge) -> None:
        """Show what the badge of another window shows."""
        self._original = badge
        badge.changed.connect(self._follow_original)  # no closure: Qt ends it with this window
        self._follow_original()

    def _follow_original(self) -> None:
        if (badge := self._original) is not None:
            self.show_state(badge.state, is_reconnecting=badge.is_reconnecting)
            self.show_input(badge.input, badge.keys)
            self.show_server(badge.server)

    def show_server(self, server: str) -> None:
        """Show that the user's voice goes to this server, "" for none."""
        if server != self.server:
            self.server = server
            self.retranslate()

    def show_input(self, state: InputState, keys: Sequence[str] = ()) -> None:
        """While the session listens, show whether speech can be heard at all, and with which keys."""
        if (state, tuple(keys)) != (self.input, self.keys):
            self.input, self.keys = state, tuple(keys)
            self.retranslate()

    @property
    def _shown(self) -> SessionState | InputState | Literal["reconnecting"]:
        if self.is_reconnecting and self.state is not SessionState.ERROR:
            return "reconnecting"
        return self.input if self.state is SessionState.LISTENING and self.input != "open" else self.state

    @property
    def icon_name(self) -> str:
        """The icon of the state."""
        return _ICONS[self._shown]

    def set_theme(self, theme: Theme) -> None:
        """Take the colours and the scale of a theme."""
        self._theme, px = theme, theme.px
        self._line.setContentsMargins(px(10), px(3), px(12), px(3))
        self._line.setSpacing(px(6))
        self.retranslate()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        words = {
            SessionState.STOPPED: (self.tr("Ready"), self.tr("Press Start to talk, or type a question.")),
            SessionState.LOADING: (self.tr("Loading"), self.tr("The model is being loaded.")),
            SessionState.LISTENING: (self.tr("Listening"), self.tr("Speak whenever you like.")),
            SessionState.HEARING: (
                self.tr("Hearing you"),
                self.tr("Your speech is understood as it arrives."),
            ),
            SessionState.THINKING: (self.tr("Thinking"), self.tr("The reply is being generated.")),
            SessionState.SPEAKING: (self.tr("Speaking"), self.tr("The reply is being played.")),
            SessionState.ERROR: (self.tr("Not available"), self.tr("The model could not be loaded.")),
            "no_input": (
                self.tr("No microphone"),
                self.tr("Connect one (it is used automatically), or type a question."),
            ),
            "no_output": (
                self.tr("No loudspeaker"),
                self.tr("Replies can only be read. Connect one; it is used automatically."),
            ),
            "muted": (self.tr("Muted"), self.tr("The microphone is muted. Press Ctrl+M to unmute it.")),
            "silent": (
                self.tr("No sound"),
                self.tr(
                    "The microphone delivers silence. Check that it is not muted, or choose another one."
                ),
            ),
            "push": self._words_of_push(),
            "reconnecting": (
                self.tr("Reconnecting"),
                self.tr("The connection to the server was lost. Once it is back the conversation continues."),
            ),
        }
        self.word, explanation = words[self._shown]
        host = server_in_words(self.server) if self.server else ""
        if host:
            heard = self.tr("What you say goes to the server %1.").replace("%1", host)
            explanation = f"{explanation} {heard}"
        self._host.setText(host)
        self._host.setVisible(self._names_server and bool(host))
        word, colour = self.word, self.colour
        self._word.setText(word)
        self._word.setStyleSheet(f"color: {colour}; font-weight: 600;")
        ratio = self.devicePixelRatioF()
        self._icon.setPixmap(self._icons.pixmap(self.icon_name, colour, self._theme.px(16), ratio))
        set_tip(self, explanation)
        self.setAccessibleName(self.tr("State: %1").replace("%1", word))
        self.setAccessibleDescription(explanation)
        self.changed.emit()

    def _words_of_push(self) -> tuple[str, str]:
        if not self.keys:
            return self.tr("Hold the button to talk"), self.tr("Hold the button below while you speak.")
        explanation = self.tr("Hold the button below, or %1, while you speak.")
        keys = self.tr(" or ").join(self.keys)
        return self.tr("Hold %1 to talk").replace("%1", self.keys[0]), explanation.replace("%1", keys)

    @property
    def colour(self) -> str:
        """The colour of the state."""
        theme = self._theme
        return {
            SessionState.STOPPED: theme.muted,
            SessionState.LOADING: theme.caution,
            SessionState.LISTENING: theme.positive,
            SessionState.HEARING: theme.accent,
            SessionState.THINKING: theme.caution,
            SessionState.SPEAKING: theme.accent,
            SessionState.ERROR: theme.danger,
            "no_input": theme.danger,
            "no_output": theme.danger,
            "muted": theme.muted,
            "silent": theme.danger,
            "push": theme.positive,
            "reconnecting": theme.caution,
        }[self._shown]
