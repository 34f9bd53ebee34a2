"""The window as `moss-voice` opens it, with a user who types a question, plays a sample, and closes it.

    python -m tests.tools.driven_window

For tests that observe the process from outside. Exit status 0 once both are answered.
"""

from __future__ import annotations

import sys

from app import cli, paths
from app.gui.window import run
from app.gui.window.main_window import MainWindow
from app.session.commands import PlaySample
from app.session.events import SessionState, StateChanged


class DrivenWindow(MainWindow):
    """Closes itself after two replies."""

    has_asked = False
    replies = 0

    def start_session(self) -> None:
        """Ask as soon as the engine is loaded."""
        super().start_session()
        self.bridge.state_changed.connect(self._ask)
        self.bridge.reply_finished.connect(self._continue)

    def _ask(self, change: StateChanged) -> None:
        if change.state is SessionState.STOPPED and not DrivenWindow.has_asked:
            DrivenWindow.has_asked = True
            self.composer.edit.setPlainText("what is two plus three")
            self.composer.submit()

    def _continue(self) -> None:
        DrivenWindow.replies += 1
        if DrivenWindow.replies == 1:
            self.bridge.send(PlaySample(paths.assets_dir() / "samples" / "01-hello.wav"))
        else:
            self.close()


def main() -> int:
    """Run the program with that window."""
    run.MainWindow = DrivenWindow  # type: ignore[attr-defined]
    return cli.main([]) or int(DrivenWindow.replies != 2)


if __name__ == "__main__":
    sys.exit(main())
