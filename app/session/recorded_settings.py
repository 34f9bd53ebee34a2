"""Settings of a recording, converted back into values.

In: the plain values of conversation.json. Out: the dataclass. What is missing, unknown or of another kind is
as in the default, because settings change between versions. Any thread.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

Settings = TypeVar("Settings")


def settings_of(document: Any, default: Settings) -> Settings:
    """The settings of a document, else those of `default`."""
    known: dict[str, Any] = document if isinstance(document, dict) else {}
    values = {
        field.name: _value(known.get(field.name), getattr(default, field.name))
        for field in fields(default)  # type: ignore[arg-type]
    }
    try:
        return replace(default, **values)  # type: ignore[type-var]
    except ValueError:
        return default


def _value(value: Any, default: Any) -> Any:
    if is_dataclass(default):
        return settings_of(value, default)
    if isinstance(default, Enum):
        return next((member for member in type(default) if member.value == value), default)
    is_alike = isinstance(value, int | str if default is None else type(default))
    return value if is_alike else default
