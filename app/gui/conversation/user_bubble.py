"""Chat bubble of a question: spoken, typed or a sample.

In: source, text and length of the turn, how it ended. Out: the bubble with a caption. GUI thread.
"""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from app.gui.common.icons import Icons
from app.gui.common.themes import Theme
from app.gui.conversation.bubble import Bubble
from app.session.events import CancelReason, TurnSource


class UserBubble(Bubble):
    """A spoken question (with its length) or a typed one. `label` is the text of a sample question."""

    def __init__(
        self,
        source: TurnSource,
        text: str,
        label: str,
        theme: Theme,
        icons: Icons,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__("user", theme, icons, parent)
        self.source = source
        self.typed_text = text
        self.seconds: float | None = None
        self._progress: tuple[float, float] | None = None
        self._cancelled: CancelReason | None = None
        self.set_body(text or label)
        self.retranslate()

    @property
    def is_committed(self) -> bool:
        """Whether the turn is over."""
        return self.seconds is not None

    def commit(self, seconds: float) -> None:
        """The turn is over."""
        self.seconds = seconds
        self.strip.trim()
        self.retranslate()

    def reopen(self) -> None:
        """The user continues the turn."""
        self.seconds = None
        self.retranslate()

    def show_progress(self, heard_s: float, length_s: float) -> None:
        """Show how much of a sample was heard."""
        if self.seconds is None and length_s > 0:
            self._progress = (min(heard_s, length_s), length_s)
            self.retranslate()

    def cancel(self, reason: CancelReason) -> None:
        """The turn was dropped."""
        self._cancelled = reason
        self.retranslate()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        icon, name = {
            "voice": ("microphone", self.tr("You spoke")),
            "sample": ("wave", self.tr("Sample question")),
            "text": ("keyboard", self.tr("You typed")),
        }[self.source]
        self.show_icon(icon, self.look_theme.accent)
        parts = [name]
        if self._cancelled == "nothing_heard":
            parts.append(self.tr("nothing was heard"))
        elif self._cancelled is not None:
            parts.append(self.tr("dropped"))
        elif self.seconds is None and self._progress is not None:
            heard, length = (f"{value:.1f}" for value in self._progress)
            parts.append(self.tr("%1 of %2 s").replace("%1", heard).replace("%2", length))
        elif self.seconds is None and self.source != "text":
            parts.append(self.tr("listening …"))
        elif self.seconds:
            parts.append(self.tr("%1 s").replace("%1", f"{self.seconds:.1f}"))
        self.caption.setText(" · ".join(parts))
        self.setAccessibleName(", ".join([*parts, self.body.text()]))
        self.fit()
