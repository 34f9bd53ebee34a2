"""The page of the settings dialog about turns and replies.

In: preferences. Out: the edited preferences. GUI thread.
"""

from __future__ import annotations

import dataclasses

from app.dialog.smart_turn import installed_model
from app.gui.common.preferences import ENDPOINTING_RANGE_MS, LARGEST_SEED, Preferences
from app.gui.settings.settings_page import SettingsPage, choice_box, choose, spin_box
from engine_runtime.types import Modality


class ConversationPage(SettingsPage):
    """The seed shows "as the bundle says" at its lowest value, which means None."""

    def __init__(self) -> None:
        self.endpointing = spin_box(*ENDPOINTING_RANGE_MS, step=20, suffix=self.tr(" ms"))
        self.seed = spin_box(-1, LARGEST_SEED, special=self.tr("as the bundle says"))
        self._make_boxes()
        super().__init__(
            (self.tr("End of t&urn"), self.eagerness_box, self._eagerness_help()),
            (
                self.tr("Early re&plies"),
                self.speculation_box,
                self.tr(
                    "Generates the reply at your first pause and holds it until the end of your turn "
                    "is confirmed, so that it starts at once. If you continue, that work is lost. "
                    "Automatic turns this off while the engine is too slow."
                ),
            ),
            (
                self.tr("&Endpointing"),
                self.endpointing,
                self.tr(
                    "Silence that ends your turn if it is unclear whether you have finished, or if "
                    "silence alone decides."
                ),
            ),
            (
                self.tr("Barge-in"),
                self.interruption_box,
                self.tr(
                    'When my voice stops a reply. After half a second, a short "mm-hm" or a cough '
                    "does not. With open loudspeakers this needs echo cancellation."
                ),
            ),
            (self.tr("&Reply as"), self.reply_box, ""),
            (self.tr("&Seed"), self.seed, self.tr("The same conversation gets the same replies.")),
        )

    def show_preferences(self, preferences: Preferences) -> None:
        """Fill the page."""
        choose(self.eagerness_box, preferences.eagerness)
        choose(self.speculation_box, preferences.speculate)
        self.endpointing.setValue(preferences.endpointing_ms)
        choose(self.interruption_box, preferences.interruption)
        choose(self.reply_box, preferences.reply)
        self.seed.setValue(self.seed.minimum() if preferences.seed is None else preferences.seed)

    def edited(self, preferences: Preferences) -> Preferences:
        """`preferences` with the values of the page."""
        seed = self.seed.value()
        return dataclasses.replace(
            preferences,
            eagerness=self.eagerness_box.currentData(),
            speculate=self.speculation_box.currentData(),
            endpointing_ms=self.endpointing.value(),
            interruption=self.interruption_box.currentData(),
            reply=Modality(self.reply_box.currentData()),
            seed=None if seed == self.seed.minimum() else seed,
        )

    def _make_boxes(self) -> None:
        self.eagerness_box = choice_box(
            (
                (self.tr("Patient"), "patient"),
                (self.tr("Balanced"), "balanced"),
                (self.tr("Eager"), "eager"),
                (self.tr("Silence alone"), "off"),
            )
        )
        self.speculation_box = choice_box(
            ((self.tr("Automatic"), "auto"), (self.tr("On"), "on"), (self.tr("Off"), "off"))
        )
        self.interruption_box = choice_box(
            (
                (self.tr("As soon as I speak"), "at_once"),
                (self.tr("After half a second of speech"), "half_second"),
                (self.tr("After a second of speech"), "second"),
                (self.tr("Never"), "never"),
            )
        )
        self.reply_box = choice_box(((self.tr("Speech"), Modality.SPEECH), (self.tr("Text"), Modality.TEXT)))

    def _eagerness_help(self) -> str:
        if installed_model() is None:
            return self.tr(
                "Smart Turn is not installed, so silence alone ends your turn. Run moss-voice "
                "doctor to see how to install it."
            )
        return self.tr(
            "A question that sounds finished is answered after a quarter of a second; in "
            "mid-sentence the assistant waits. Eager answers sooner, patient cuts you off less often."
        )
