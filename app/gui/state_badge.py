"""The badge with the state of the session: an icon, a word and a colour.

In: the state of the session, and whether a source of speech is open and unmuted. GUI thread.
"""

from __future__ import annotations

from typing import Literal

from PySide6.QtCore import QEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QWidget

from app.gui.icons import Icons
from app.gui.themes import Theme
from app.session.messages import SessionState

_ICONS = {
    SessionState.STOPPED: "pause",
    SessionState.LOADING: "clock",
    SessionState.LISTENING: "ear",
    SessionState.HEARING: "microphone",
    SessionState.THINKING: "settings",
    SessionState.SPEAKING: "speaker",
    SessionState.ERROR: "warning",
    "no_input": "microphone-off",
    "muted": "microphone-off",
}
InputState = Literal["open", "no_input", "muted"]
"""Whether speech can be heard: no_input while no microphone is open, muted while its sound is dropped."""


class StateBadge(QFrame):
    """Shows one `SessionState`."""

    def __init__(self, theme: Theme, icons: Icons, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "badge")
        self._theme, self._icons = theme, icons
        self.state = SessionState.LOADING
        self.input: InputState = "open"
        self._icon, self._word = QLabel(), QLabel()
        layout = QHBoxLayout(self)
        layout.setContentsMargins(10, 3, 12, 3)
        layout.setSpacing(6)
        layout.addWidget(self._icon)
        layout.addWidget(self._word)
        self.retranslate()

    def show_state(self, state: SessionState) -> None:
        """Show this state."""
        self.state = state
        self.retranslate()

    def show_input(self, state: InputState) -> None:
        """While the session listens, show whether speech can be heard at all."""
        self.input = state
        self.retranslate()

    @property
    def _shown(self) -> SessionState | InputState:
        return self.input if self.state is SessionState.LISTENING and self.input != "open" else self.state

    def set_theme(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        self._theme = theme
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
                self.tr("Connect one, which is then used by itself, or type a question."),
            ),
            "muted": (self.tr("Muted"), self.tr("The microphone is muted. Press Ctrl+M to unmute it.")),
        }
        word, explanation = words[self._shown]
        colour = self._colour()
        self._word.setText(word)
        self._word.setStyleSheet(f"color: {colour}; font-weight: 600;")
        ratio = self.devicePixelRatioF()
        self._icon.setPixmap(self._icons.pixmap(_ICONS[self._shown], colour, 16, ratio))
        self.setToolTip(explanation)
        self.setAccessibleName(self.tr("State: %1").replace("%1", word))
        self.setAccessibleDescription(explanation)

    def changeEvent(self, event: QEvent) -> None:
        """Follow a change of the language."""
        if event.type() is QEvent.Type.LanguageChange:
            self.retranslate()
        super().changeEvent(event)

    def _colour(self) -> str:
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
            "muted": theme.muted,
        }[self._shown]
