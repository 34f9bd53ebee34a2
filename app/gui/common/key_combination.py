"""The combinations of global hotkeys: which ones can be used, and whether a key event is one.

In: the portable text of a combination ("Ctrl+Alt+Space"), as the preferences keep it. Pure; GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QKeyCombination, Qt
from PySide6.QtGui import QKeyEvent, QKeySequence

_MODIFIERS = (
    Qt.KeyboardModifier.ControlModifier
    | Qt.KeyboardModifier.AltModifier
    | Qt.KeyboardModifier.MetaModifier
    | Qt.KeyboardModifier.ShiftModifier
)
_TYPING = Qt.KeyboardModifier.ShiftModifier
_MODIFIER_KEYS = {
    Qt.Key.Key_Control,
    Qt.Key.Key_Shift,
    Qt.Key.Key_Alt,
    Qt.Key.Key_AltGr,
    Qt.Key.Key_Meta,
    Qt.Key.Key_unknown,
}
X_NAMES = {
    "Backspace": "BackSpace",
    "Del": "Delete",
    "Esc": "Escape",
    "Ins": "Insert",
    "PgDown": "Next",
    "PgUp": "Prior",
    "ScrollLock": "Scroll_Lock",
    "Space": "space",
}
"""Keys whose symbols X11 and Wayland name differently from Qt."""
_FREE_KEYS = {Qt.Key(Qt.Key.Key_F1 + index) for index in range(24)} | {
    Qt.Key.Key_Pause,
    Qt.Key.Key_ScrollLock,
}
"""Keys that type and edit nothing, so that they need no modifier."""


def combination(text: str) -> QKeyCombination | None:
    """The combination of this text; None if it is no single key with Ctrl, Alt or Meta, or a function key."""
    keys = QKeySequence.fromString(text, QKeySequence.SequenceFormat.PortableText)
    if keys.count() != 1:
        return None
    found: QKeyCombination = keys[0]  # type: ignore[index]
    types = not found.keyboardModifiers() & ~_TYPING and found.key() not in _FREE_KEYS
    return None if types or found.key() in _MODIFIER_KEYS else found


def native_text(text: str) -> str:
    """The combination as the desktop writes it."""
    return QKeySequence.fromString(text).toString(QKeySequence.SequenceFormat.NativeText)


def matches(event: QKeyEvent, wanted: QKeyCombination) -> bool:
    """Whether the event is about this key with exactly these modifiers."""
    modifiers = event.modifiers() & _MODIFIERS
    return event.key() == wanted.key() and modifiers == wanted.keyboardModifiers()
