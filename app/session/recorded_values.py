"""Values of a recording: plain ones for JSON, and back into dataclasses by the annotations of their fields.

In: dataclasses, or the plain values of a file that anybody may have changed. Out: plain values, or
dataclasses in which every field has its annotated type, numbers are finite, and texts are Unicode of limited
length. Any thread.
"""

from __future__ import annotations

import contextlib
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from engine_runtime.errors import Problem

LONGEST_TEXT = 20_000
"""Characters of a text that are read; no question or reply is longer."""
_LARGEST_NUMBER = 1 << 64

Settings = TypeVar("Settings")


def plain(value: Any) -> Any:
    """Dataclasses and other values as JSON values."""
    if isinstance(value, Problem):
        return {"what_is_wrong": value.what_is_wrong, "what_to_do": value.what_to_do}
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    if isinstance(value, frozenset):
        return sorted(plain(part) for part in value)
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def value_of(kind: Any, value: Any) -> Any:
    """A plain value as the type `kind`, an annotation: the reverse of `plain`. ValueError if it is none."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _first_of(get_args(kind), value)
    if origin is Literal:
        if not any(value == known and type(value) is type(known) for known in get_args(kind)):
            raise ValueError(f"{value!r:.80} is none of {get_args(kind)}")
        return value
    if origin in (tuple, frozenset) and isinstance(value, list):
        kinds = get_args(kind)
        if origin is frozenset or kinds[-1] is Ellipsis:
            kinds = kinds[:1] * len(value)
        return origin(value_of(part, one) for part, one in zip(kinds, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {value_of(str, name): value_of(get_args(kind)[1], one) for name, one in value.items()}
    if is_dataclass(kind) and isinstance(value, dict):
        return _dataclass_of(kind, value)
    if kind is Path and isinstance(value, str) and "\0" not in value:
        return Path(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind in (int, float) and type(value) in (int, kind) and -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER:
        return kind(value)
    if kind is str and isinstance(value, str):
        return text_of(value)
    if kind in (bool, NoneType) and type(value) is kind:
        return value
    raise ValueError(f"{value!r:.80} is not a {kind}")


def settings_of(document: Any, default: Settings) -> Settings:
    """The settings of a document. What is missing, unknown or of another kind is as in `default`, because
    settings change between versions."""
    known: dict[str, Any] = document if isinstance(document, dict) else {}
    values: dict[str, Any] = {}
    whole: Any = type(default)
    for name, kind in _kinds(whole).items():
        before = getattr(default, name)
        if is_dataclass(before):
            values[name] = settings_of(known.get(name), before)
        elif name in known:
            with contextlib.suppress(ValueError):
                values[name] = value_of(kind, known[name])
    try:
        return replace(default, **values)  # type: ignore[type-var]
    except ValueError:  # they do not fit together
        return default


def revived(kind: type[Any], entry: dict[str, Any]) -> Any | None:
    """The event or command of a line, None if a field is missing or makes no sense."""
    try:
        return value_of(kind, entry)
    except ValueError:
        return None


def text_of(value: str) -> str:
    """A text that can be shown and written: lone surrogates replaced, at most `LONGEST_TEXT` characters."""
    return value[:LONGEST_TEXT].encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _first_of(kinds: tuple[Any, ...], value: Any) -> Any:
    for kind in kinds:
        with contextlib.suppress(ValueError):
            return value_of(kind, value)
    raise ValueError(f"{value!r:.80} is none of {kinds}")


def _dataclass_of(kind: Any, document: dict[str, Any]) -> Any:
    kinds = _kinds(kind)
    needed = [field.name for field in fields(kind) if field.default is field.default_factory is MISSING]
    if missing := [name for name in needed if name not in document]:
        raise ValueError(f"{kind.__name__} has no {missing[0]}")
    return kind(**{name: value_of(kinds[name], document[name]) for name in kinds if name in document})


@cache
def _kinds(kind: Any) -> dict[str, Any]:
    """Name -> type of the fields of a dataclass."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
