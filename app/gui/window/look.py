"""How the window looks: theme, scale, icons, font and language of the preferences.

In: preferences, the colour scheme of the desktop. Out: the style and the translators of the application;
`theme_changed`. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QApplication, QWidget

from app import paths
from app.gui.common import themes
from app.gui.common.icons import Icons
from app.gui.common.preferences import Preferences
from app.gui.common.themes import ThemeChoice
from app.gui.common.translation import Translation


class Look(QObject):
    """Theme and language of one window.

    Attributes:
        theme: the theme in use.

    Signals:
        theme_changed: the new `Theme`.
    """

    theme_changed = Signal(object)

    def __init__(self, window: QWidget, preferences: Preferences) -> None:
        super().__init__(window)
        application = QApplication.instance()
        assert isinstance(application, QApplication)
        self._application = application
        self._choice, self._scale = preferences.theme, preferences.scale_percent / 100
        self.icons = Icons(paths.assets_dir() / "icons")
        self.translation = Translation(application, paths.assets_dir() / "translations")
        self.translation.switch_to(preferences.language)
        self.theme = themes.resolve(self._choice, self._scale)
        themes.apply_font(application, self._scale)
        themes.apply(application, self.theme, self.icons.folder)
        application.styleHints().colorSchemeChanged.connect(self._follow_desktop)

    def use_preferences(self, preferences: Preferences) -> None:
        """Take the theme, the scale and the language of other preferences."""
        self._choice, self._scale = preferences.theme, preferences.scale_percent / 100
        self._use_theme()
        self.translation.switch_to(preferences.language)

    def _use_theme(self) -> None:
        theme = themes.resolve(self._choice, self._scale)
        if theme != self.theme:
            if theme.scale != self.theme.scale:
                themes.apply_font(self._application, theme.scale)
            self.theme = theme
            themes.apply(self._application, theme, self.icons.folder)
            self.theme_changed.emit(theme)

    def _follow_desktop(self) -> None:
        if self._choice is ThemeChoice.SYSTEM:
            self._use_theme()
