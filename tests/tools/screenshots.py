"""Pictures of the window in both themes and both languages, with a scripted conversation. Run by hand:

    QT_QPA_PLATFORM=offscreen python -m tests.tools.screenshots FOLDER

For review after a change of the window, and for documents.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from PySide6.QtCore import QEventLoop
from PySide6.QtWidgets import QApplication

from app import paths
from app.gui.common.preferences import Language, Preferences, PreferenceStore
from app.gui.common.themes import ThemeChoice
from app.gui.conversation.history_dialog import HistoryDialog
from app.gui.settings.settings_dialog import SettingsDialog
from app.gui.window.main_window import MainWindow
from tests.doubles.scripted_session import (
    EXCHANGES,
    INTERRUPTED,
    ScriptedSession,
    conversation,
    opening,
)


def main(folder: Path) -> None:
    """Save window-THEME-LANGUAGE.png, interrupted-, history-, settings-, general-, talking-, guideN-..."""
    application = QApplication.instance() or QApplication([])
    assert isinstance(application, QApplication)
    folder.mkdir(parents=True, exist_ok=True)
    scripts = {"window": EXCHANGES, "interrupted": INTERRUPTED}
    themes = (ThemeChoice.LIGHT, ThemeChoice.DARK)
    languages: tuple[Language, ...] = ("en", "zh_CN")
    for theme, language, (name, script) in product(themes, languages, scripts.items()):
        with TemporaryDirectory() as settings:
            store = PreferenceStore(Path(settings) / "window.ini")
            store.save(Preferences(theme=theme, language=language))
            session = ScriptedSession()
            window = MainWindow(session, store=store)
            window.show()
            window.start_session()
            session.feed(*opening())
            for events in conversation(script):
                session.feed(*events)
            window.bridge.poll()
            window.latency.redraw()
            for _ in range(5):
                application.processEvents()
            window.grab().save(str(folder / f"{name}-{theme.value}-{language}.png"))
            if name == "window":
                _save_dialogs(window, folder, f"{theme.value}-{language}.png")
            window.close()
            application.processEvents()


def _save_dialogs(window: MainWindow, folder: Path, end: str) -> None:
    """Save the list of conversations, the model and general pages of the settings, and the steps of the
    guide, with the devices of this computer."""
    kept = Path(__file__).parents[1] / "data" / "version_0_1_0" / "conversations"
    history = HistoryDialog(kept, window.look.theme, window.look.icons, window)
    history.show()
    history.notice.show_saved(Path.home() / "moss-voice.flac")
    QApplication.processEvents()
    history.grab().save(str(folder / f"history-{end}"))
    history.close()
    tools, bundle = window.settings.tools, str(paths.default_bundle())
    loop = QEventLoop()
    tools.plans.found.connect(loop.quit)
    tools.plans.look_up(bundle)
    loop.exec()
    dialog = SettingsDialog(window.applied.current, None, window, window.bridge, tools)
    dialog.tabs.setCurrentWidget(dialog.model)
    dialog.show()
    QApplication.processEvents()
    dialog.grab().save(str(folder / f"settings-{end}"))
    for name, page in (("general", dialog.keeping), ("talking", dialog.sound_check)):
        tabs = map(dialog.tabs.widget, range(dialog.tabs.count()))
        dialog.tabs.setCurrentWidget(next(tab for tab in tabs if tab is not None and tab.isAncestorOf(page)))
        QApplication.processEvents()
        dialog.grab().save(str(folder / f"{name}-{end}"))
    dialog.close()
    guide = window.settings.open_guide()
    for step in range(guide.stack.count()):
        QApplication.processEvents()
        guide.grab().save(str(folder / f"guide{step + 1}-{end}"))
        guide.next_button.click()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures are saved")
    main(parser.parse_args().folder)
