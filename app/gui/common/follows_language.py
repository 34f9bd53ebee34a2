"""Base of widgets that write their texts anew when the language of the window changes. GUI thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent
from PySide6.QtWidgets import QWidget

if TYPE_CHECKING:
    _Base = QWidget
else:
    _Base = object


class FollowsLanguage(_Base):
    """Comes before the Qt class among the bases, and calls `retranslate`."""

    def retranslate(self) -> None:
        """Write all texts in the present language."""
        raise NotImplementedError

    def changeEvent(self, event: QEvent) -> None:
        """Follow a change of the language."""
        if event.type() is QEvent.Type.LanguageChange:
            self.retranslate()
        super().changeEvent(event)
