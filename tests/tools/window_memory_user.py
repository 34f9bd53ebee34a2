"""The window of `window_memory.py`: listens as soon as it can, counts its replies in a file, saves pictures.

    python -m tests.tools.window_memory_user COUNTER [FOLDER MINUTE...]

COUNTER.ready appears when the microphone is open. Started by `window_memory.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PySide6.QtCore import QTimer

from app import cli
from app.gui.common.preferences import Preferences, PreferenceStore
from app.gui.window import run
from app.gui.window.main_window import MainWindow
from app.session.commands import Start
from app.session.events import ReplyCut, ReplyFinished, SessionState, StateChanged

_COUNTER = Path(sys.argv[1])
_PICTURES = sys.argv[2:]


class ListeningWindow(MainWindow):
    """Presses Start when the engine is loaded."""

    def start_session(self) -> None:
        """Connect the counter, and plan the pictures."""
        super().start_session()
        self._answered: set[int] = set()
        self.bridge.state_changed.connect(self._listen)
        self.bridge.reply_finished.connect(self._count)
        self.bridge.reply_cut.connect(self._count)
        for minute in map(float, _PICTURES[1:]):
            QTimer.singleShot(int(minute * 60_000), lambda minute=minute: self._save(f"{minute:02.0f}"))

    def _listen(self, change: StateChanged) -> None:
        if change.state is SessionState.STOPPED:
            self.bridge.send(Start())
        elif change.state is SessionState.LISTENING:
            _COUNTER.with_suffix(".ready").touch()

    def _count(self, reply: ReplyFinished | ReplyCut) -> None:
        """A reply that the next question cut short after some of it was heard is one, too."""
        if isinstance(reply, ReplyFinished) or reply.heard_s:
            self._answered.add(reply.turn_id)
            _COUNTER.write_text(str(len(self._answered)), encoding="utf-8")

    def _save(self, name: str) -> None:
        """Both themes, then the first one again."""
        for theme in ("a", "b"):
            self.grab().save(str(Path(_PICTURES[0]) / f"{name}-{theme}.png"))
            self.toggle_theme()


if __name__ == "__main__":
    PreferenceStore().save(Preferences())
    run.MainWindow = ListeningWindow  # type: ignore[attr-defined]
    sys.exit(cli.main([]))
