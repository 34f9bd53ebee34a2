"""English and Chinese, switched while the window is open.

The texts of the program are English in the code; assets/translations holds the others as .ts (edited with Qt
Linguist) and .qm (compiled by `pyside6-lrelease`): those of the window, and those of errors, which come from
anywhere in the program. Qt's own texts (dialog buttons) come from Qt's folder.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QLibraryInfo, QLocale, QTranslator
from PySide6.QtWidgets import QApplication, QWidget

_log = logging.getLogger(__name__)


def resolve(choice: str) -> str:
    """The language of a choice ("system", "en" or "zh_CN"): zh_CN for a Chinese desktop, else en."""
    if choice == "system":
        return "zh_CN" if QLocale.system().language() is QLocale.Language.Chinese else "en"
    return choice


class Translation:
    """Installs the translators of one language at a time; every widget then gets a LanguageChange event."""

    def __init__(self, application: QApplication, folder: Path) -> None:
        self._application, self._folder = application, folder
        self._translators: list[QTranslator] = []
        self.language = "en"

    def switch_to(self, choice: str) -> str:
        """Switch to a language; returns the language in use."""
        language = resolve(choice)
        self.remove_translators()
        if language != "en":
            qt_folder = QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)
            for name, folder in (
                (f"qtbase_{language}", qt_folder),
                (f"moss_voice_{language}", str(self._folder)),
                (f"errors_{language}", str(self._folder)),
            ):
                self._install(name, folder)
        self.language = language
        QLocale.setDefault(QLocale(language))
        return self.language

    def remove_translators(self) -> None:
        """Take the installed translators away; the texts are English then."""
        for translator in self._translators:
            self._application.removeTranslator(translator)
        self._translators = []

    def _install(self, name: str, folder: str) -> None:
        translator = QTranslator()
        if translator.load(name, folder):
            self._application.installTranslator(translator)
            self._translators.append(translator)
        else:
            _log.warning("no translation %s in %s", name, folder)


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
