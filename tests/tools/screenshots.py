"""Pictures of every view with a scripted conversation, by theme, language and size. Run by hand:

    QT_QPA_PLATFORM=offscreen python -m tests.tools.screenshots FOLDER --sizes 1024x700 3840x2160

For review after a change of the window, and for documents. Dialogs and menus have sizes of their own; they
are taken once, with the first of the sizes.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import get_args

from PySide6.QtCore import QEventLoop, QSize, QTimer
from PySide6.QtWidgets import QApplication, QMenu, QWidget

from app import paths
from app.gui.common.preferences import Language, Preferences, PreferenceStore
from app.gui.common.themes import ThemeChoice
from app.gui.conversation.history_dialog import HistoryDialog
from app.gui.settings.settings_dialog import SettingsDialog
from app.gui.window.main_window import MainWindow
from app.session.events import ErrorRaised
from engine_runtime.errors import MossVoiceError
from tests.doubles.scripted_session import (
    EXCHANGES,
    INTERRUPTED,
    Exchange,
    ScriptedSession,
    conversation,
    opening,
)

SCREEN = QSize(3840, 2160)
SIZES = ("1024x700", "1920x1080", "3840x2160")
_SETTLING = 5
"""Passes of the event loop until layouts and wrapped texts have their size."""


@dataclass(frozen=True)
class Look:
    """How a set of pictures looks; `size` is that of the window."""

    theme: ThemeChoice
    language: Language
    size: QSize


class Album:
    """Saves the pictures of one look; `settings` is a folder for the preferences."""

    def __init__(self, folder: Path, look: Look, settings: Path) -> None:
        self.look = look
        self._folder = folder
        self._settings = settings
        self._end = f"{look.theme.value}-{look.language}-{look.size.width()}x{look.size.height()}.png"

    def open_window(self, script: tuple[Exchange, ...]) -> MainWindow:
        """A window in which the script was spoken."""
        store = PreferenceStore(Path(mkdtemp(dir=self._settings)) / "window.ini")
        store.save(Preferences(theme=self.look.theme, language=self.look.language))
        session = ScriptedSession()
        window = MainWindow(session, store=store)
        window.resize(self.look.size)
        window.show()
        window.start_session()
        session.feed(*opening())
        for events in conversation(script):
            session.feed(*events)
        window.bridge.poll()
        window.latency.redraw()
        return window

    def save(self, name: str, widget: QWidget, size: QSize | None = None) -> None:
        """A picture of the widget, at a size or at its own."""
        if size is not None:
            widget.resize(size)
        _settle()
        widget.grab().save(str(self._folder / f"{name}-{self._end}"))

    def save_modal(self, name: str, action: Callable[[], object]) -> None:
        """A picture of the dialog that `action` opens and waits for."""

        def take() -> None:
            dialog = QApplication.activeModalWidget()
            assert dialog is not None
            self.save(name, dialog)
            dialog.close()

        QTimer.singleShot(0, take)
        action()

    def save_menu(self, name: str, menu: QMenu) -> None:
        """A picture of the menu."""
        menu.popup(menu.pos())
        self.save(name, menu)
        menu.close()


def main(folder: Path, looks: Sequence[Look]) -> None:
    """Save VIEW-THEME-LANGUAGE-SIZE.png of each view in each look."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as settings:
        platform = Path(settings) / "screen.json"
        screen = {"name": "screen", "x": 0, "y": 0, "width": SCREEN.width(), "height": SCREEN.height()}
        platform.write_text(
            json.dumps({"screens": [screen | {"logicalDpi": 96, "logicalBaseDpi": 96, "dpr": 1}]})
        )
        os.environ["QT_QPA_PLATFORM"] = f"offscreen:configfile={platform}"
        application = QApplication.instance() or QApplication([])
        assert isinstance(application, QApplication)
        for look in looks:
            album = Album(folder, look, Path(settings))
            _save_conversations(album)
            if look.size == looks[0].size:
                _save_dialogs(album)


def _save_conversations(album: Album) -> None:
    size = album.look.size
    scripts: dict[str, tuple[Exchange, ...]] = {
        "window": EXCHANGES,
        "interrupted": INTERRUPTED,
        "welcome": (),
    }
    for name, script in scripts.items():
        window = album.open_window(script)
        album.save(name, window)
        if script is EXCHANGES:
            _save_presenter(album, window)
            window.modes.toggle_detached()
            album.save("latency", window.modes.detached, size)
            window.modes.toggle_panel()
            album.save("conversation", window, size)
        window.close()
        _settle()


def _save_presenter(album: Album, window: MainWindow) -> None:
    window.modes.present(True)
    presenter = window.modes.presenter
    assert presenter is not None
    presenter.showNormal()
    album.save("presenter", presenter, album.look.size)
    presenter.explain_button.setChecked(True)
    album.save("presenter-stages", presenter)
    presenter.explain_button.setChecked(False)
    session = window.bridge.session
    assert isinstance(session, ScriptedSession)
    problem = MossVoiceError(
        "The sound device {names} was lost.",
        "It is reconnected automatically; check its cable or choose another one.",
        names="USB headset",
    ).problem
    session.feed(ErrorRaised(problem, is_fatal=False))
    window.bridge.poll()
    album.save("presenter-error", presenter)
    window.modes.present(False)
    album.save("error", window)
    window.banner.dismiss()


def _save_dialogs(album: Album) -> None:
    """Menus, dialogs and the compact window, with the devices of this computer."""
    window = album.open_window(EXCHANGES)
    for name, menu in (("menu-export", window.header.menu), ("menu-help", window.help)):
        album.save_menu(name, menu)
    album.save_modal("about", window.help.show_about)
    album.save_modal("keys", window.shortcuts.show_list)
    album.save_modal("new-conversation", window.conversations.start_new)
    kept = Path(__file__).parents[1] / "data" / "version_0_1_0" / "conversations"
    history = HistoryDialog(kept, window.look.theme, window.look.icons, window)
    history.show()
    history.notice.show_saved(Path.home() / "moss-voice.flac")
    album.save("history", history)
    history.close()
    tools, bundle = window.settings.tools, str(paths.default_bundle())
    loop = QEventLoop()
    tools.plans.found.connect(loop.quit)
    tools.plans.look_up(bundle)
    loop.exec()
    dialog = SettingsDialog(window.applied.current, None, window, window.bridge, tools, window.settings.gpu)
    dialog.show()
    for index in range(dialog.tabs.count()):
        dialog.tabs.setCurrentIndex(index)
        album.save(f"settings{index + 1}", dialog)
    dialog.close()
    guide = window.settings.open_guide()
    for step in range(guide.stack.count()):
        album.save(f"guide{step + 1}", guide)
        guide.next_button.click()
    window.modes.enter_compact()
    album.save("compact", window.modes.compact)
    window.modes.show_large()
    window.close()
    _settle()


def _settle() -> None:
    for _ in range(_SETTLING):
        QApplication.processEvents()


def _size(text: str) -> QSize:
    width, _, height = text.partition("x")
    return QSize(int(width), int(height))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the pictures are saved")
    parser.add_argument("--sizes", nargs="+", type=_size, default=[_size(text) for text in SIZES])
    parser.add_argument(
        "--themes", nargs="+", type=ThemeChoice, default=[ThemeChoice.LIGHT, ThemeChoice.DARK]
    )
    parser.add_argument("--languages", nargs="+", choices=get_args(Language), default=get_args(Language))
    given = parser.parse_args()
    looks = [Look(*look) for look in product(given.themes, given.languages, given.sizes)]
    main(given.folder, looks)
