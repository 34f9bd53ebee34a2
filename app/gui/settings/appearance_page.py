"""The page of the settings dialog about theme, language and the tray.

In: preferences. Out: the edited preferences. GUI thread.
"""

from __future__ import annotations

import dataclasses

from PySide6.QtWidgets import QCheckBox

from app.gui.common.preferences import Preferences
from app.gui.common.themes import ThemeChoice
from app.gui.settings.settings_page import SettingsPage, choice_box, choose


class AppearancePage(SettingsPage):
    """How the window looks, and where it is while it is not used."""

    def __init__(self) -> None:
        self.theme_box = choice_box(
            (
                (self.tr("As the desktop"), ThemeChoice.SYSTEM),
                (self.tr("Light"), ThemeChoice.LIGHT),
                (self.tr("Dark"), ThemeChoice.DARK),
            )
        )
        self.language_box = choice_box(
            ((self.tr("As the desktop"), "system"), ("English", "en"), ("简体中文", "zh_CN"))
        )
        self.closes_to_tray = QCheckBox(self.tr("Keep running in the tray when the window is closed"))
        self.starts_minimised = QCheckBox(self.tr("Start minimised, in the tray if there is one"))
        super().__init__(
            (self.tr("&Theme"), self.theme_box, ""),
            (self.tr("L&anguage"), self.language_box, ""),
            ("", self.closes_to_tray, ""),
            ("", self.starts_minimised, ""),
        )

    def show_preferences(self, preferences: Preferences) -> None:
        """Fill the page."""
        choose(self.theme_box, preferences.theme)
        choose(self.language_box, preferences.language)
        self.closes_to_tray.setChecked(preferences.closes_to_tray)
        self.starts_minimised.setChecked(preferences.starts_minimised)

    def edited(self, preferences: Preferences) -> Preferences:
        """`preferences` with the values of the page."""
        return dataclasses.replace(
            preferences,
            theme=ThemeChoice(self.theme_box.currentData()),
            language=str(self.language_box.currentData()),
            closes_to_tray=self.closes_to_tray.isChecked(),
            starts_minimised=self.starts_minimised.isChecked(),
        )
