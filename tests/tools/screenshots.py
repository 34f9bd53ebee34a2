"""Pictures of the window in both themes and both languages, with a scripted conversation. Run by hand:

    QT_QPA_PLATFORM=offscreen python -m tests.tools.screenshots FOLDER

For review after a change of the window, and for documents.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from PySide6.QtWidgets import QApplication

from app.gui.main_window import MainWindow
from app.gui.preferences import Preferences, PreferenceStore
from app.gui.snapshot import save_png
from app.gui.themes import ThemeChoice
from tests.doubles.scripted_session import (
    EXCHANGES,
    INTERRUPTED,
    ScriptedSession,
    conversation,
    opening,
)


def main(folder: Path) -> None:
    """Save window-THEME-LANGUAGE.png and interrupted-THEME-LANGUAGE.png for every combination."""
    application = QApplication.instance() or QApplication([])
    assert isinstance(application, QApplication)
    folder.mkdir(parents=True, exist_ok=True)
    scripts = {"window": EXCHANGES, "interrupted": INTERRUPTED}
    themes = (ThemeChoice.LIGHT, ThemeChoice.DARK)
    for theme, language, (name, script) in product(themes, ("en", "zh_CN"), scripts.items()):
        with TemporaryDirectory() as settings:
            store = PreferenceStore(Path(settings) / "window.ini")
            store.save(Preferences(theme=theme, language=language))
            session = ScriptedSession()
            window = MainWindow(session, store=store)
            window.show()
            window.begin()
            session.feed(*opening())
            for events in conversation(script):
                session.feed(*events)
            window.bridge.poll()
            window.latency.redraw()
            for _ in range(5):
                application.processEvents()
            save_png(window, folder / f"{name}-{theme.value}-{language}.png")
            window.close()
            application.processEvents()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures are saved")
    main(parser.parse_args().folder)
