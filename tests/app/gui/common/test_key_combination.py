"""Which key combinations push-to-talk may have."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QKeyEvent

from app.gui.common.key_combination import combination, matches


@pytest.mark.parametrize("text", ["Ctrl+Alt+Space", "Meta+V", "Alt+Shift+T", "F9", "Shift+F2", "Pause"])
def test_combinations_that_type_nothing_can_be_used(text: str) -> None:
    assert combination(text) is not None


@pytest.mark.parametrize(
    "text", ["", "A", "Shift+A", "Space", "Return", "Ctrl+K, Ctrl+B", "Ctrl", "nonsense", "\x00", "Ctrl+"]
)
def test_others_cannot(text: str) -> None:
    assert combination(text) is None


def test_an_event_matches_with_exactly_these_modifiers() -> None:
    wanted = combination("Ctrl+Alt+T")
    assert wanted is not None
    modifier = Qt.KeyboardModifier
    both = modifier.ControlModifier | modifier.AltModifier
    for modifiers, key, expected in (
        (both, Qt.Key.Key_T, True),
        (both | modifier.KeypadModifier, Qt.Key.Key_T, True),
        (both | modifier.ShiftModifier, Qt.Key.Key_T, False),
        (modifier.ControlModifier, Qt.Key.Key_T, False),
        (both, Qt.Key.Key_U, False),
    ):
        assert matches(QKeyEvent(QEvent.Type.KeyPress, key, modifiers), wanted) is expected
