"""A setting: a field of a dataclass, with its limits, option and description beside its type and default.

`setting(...)` stands where the default of the field would. Together with the annotation it determines how a
value is checked and written to a file, its command-line option, and the range of a number on a page. Any
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from engine_runtime.errors import MossVoiceError

_KEY = "setting"


class OptionsError(MossVoiceError, ValueError):
    """An invalid option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One field.

    Attributes:
        kind: its type, without None.
        is_optional: whether None is a value.
        default: MISSING if it is made anew for each value of the class.
        least, most: limits of a number, or None.
        matches: a function of a text; a text for which it returns nothing is not a value.
        option: on the command line, "" if it cannot be set there; that of a boolean sets the opposite of the
            default.
        metavar, help: of that option.
        into: dataclasses that get the value, into the field of the same name or those named in `decides`.
        decides: names of the fields, and options, that it sets in place of the one of its own name.
        is_kept: whether it is kept in the file of its class.
    """

    name: str
    kind: Any
    is_optional: bool
    default: Any
    least: float | None = None
    most: float | None = None
    matches: Callable[[str], object] | None = None
    option: str = ""
    metavar: str | None = None
    help: str = ""
    into: tuple[type, ...] = ()
    decides: tuple[str, ...] = ()
    is_kept: bool = True

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of a Literal or an Enum, () for any other type."""
        if get_origin(self.kind) is Literal:
            return get_args(self.kind)
        return tuple(self.kind) if isinstance(self.kind, type) and issubclass(self.kind, Enum) else ()

    @property
    def dest(self) -> str:
        """The name of the parsed option."""
        return self.option.lstrip("-").replace("-", "_")

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the fields that it sets elsewhere."""
        return self.decides or (self.name,)

    @property
    def target(self) -> str:
        """The target that has its name, or else the first."""
        return self.name if self.name in self.targets else self.targets[0]

    @property
    def bounds(self) -> str:
        """The limits, in words."""
        return f"at least {self.least}" if self.most is None else f"{self.least} to {self.most}"

    def allows(self, value: Any) -> bool:
        """Whether a value of its type is one of the setting."""
        if value is None:
            return self.is_optional
        if self.choices:
            return value in self.choices
        if self.least is not None and not self.least <= value:  # nan is not, either
            return False
        return (self.most is None or value <= self.most) and (
            self.matches is None or bool(self.matches(value))
        )

    def text(self, value: Any) -> str:
        """A value as text; "" for None."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return "" if value is None else str(value.value if isinstance(value, Enum) else value)

    def read(self, text: str | None) -> Any:
        """The value of a text that `text` wrote; the default if it is missing, or none."""
        if text is None or (text == "" and self.is_optional):
            return self.default if text is None else None
        if self.choices or self.kind is bool:
            known = self.choices or (True, False)
            return next((value for value in known if self.text(value) == text), self.default)
        try:
            value = self.kind(text)
        except ValueError:
            return self.default
        return value if self.allows(value) else self.default


def setting(
    default: Any = MISSING, *, factory: Any = MISSING, repr: bool = True, compare: bool = True, **known: Any
) -> Any:
    """A field of a dataclass with these attributes of a `Setting`."""
    metadata = {_KEY: known}
    if factory is not MISSING:
        return field(default_factory=factory, repr=repr, compare=compare, metadata=metadata)
    return field(default=default, repr=repr, compare=compare, metadata=metadata)


@cache
def settings(owner: Any) -> Mapping[str, Setting]:
    """The fields of a dataclass, by name."""
    hints = get_type_hints(owner)
    found: dict[str, Setting] = {}
    for one in fields(owner):
        kind = hints[one.name]
        kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
        own = tuple(part for part in kinds if part is not NoneType)
        found[one.name] = Setting(
            name=one.name,
            kind=own[0] if len(own) == 1 else kind,
            is_optional=NoneType in kinds,
            default=one.default,
            **one.metadata.get(_KEY, {}),
        )
    return MappingProxyType(found)


def check(owner: Any) -> None:
    """Raise OptionsError for a number of a dataclass that is beyond the limits of its setting."""
    kind: Any = type(owner)
    for known in settings(kind).values():
        value = getattr(owner, known.name)
        if known.least is not None and not known.allows(value):
            raise OptionsError(
                "{name} is {value}.", "Give {bounds}.", name=known.name, value=value, bounds=known.bounds
            )
