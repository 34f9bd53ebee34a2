"""Reads a TOML manifest strictly (missing keys, wrong types and values are errors), and writes one.

In: a TOML file, or a parsed one. Out: typed values, or a BundleError that names file, table and key. Unknown
keys are noted and read past, so that a manifest of a newer version of the same format can be used; the note
suggests the most similar known key, because some are misspelt.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from engine_runtime.errors import BundleError
from engine_runtime.models.limits import Limits, shown
from engine_runtime.renamed import IN_BUNDLE, with_new_names

T = TypeVar("T")

LARGEST_FILE = 1 << 16
"""Most bytes: ten times the manifest of a released model. tomllib needs gigabytes for little more."""
# NOTE: tomllib takes the square of the parts of a dotted key in time and memory: minutes for 30,000 of them.
_MOST_PARTS = 16
_TEXT_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?"""' r"|'''.*?'''" r'|"(?:\\[^\n]|[^"\\\n])*"?' r"|'[^'\n]*'" r"|#[^\n]*", re.DOTALL
)
"""As tomllib reads them; it stops at what is malformed. A text that does not end is taken to the end of its
line: otherwise each quote in it would be tried as the beginning of another one."""
_NOT_IN_KEY = re.compile(r"[^A-Za-z0-9_\-. \t]+")
_MOST_UNKNOWN = 16
"""Keys of one table that this version does not know: more belong to another kind of file."""

_TYPE_NAMES = {
    int: "an integer",
    float: "a number",
    str: "text in quotes",
    bool: "true or false",
    dict: "a table",
}


def read_toml(file: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises BundleError for one that cannot be read, or not in little time."""
    try:
        with file.open("rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise BundleError(
            "{file} cannot be read: {reason}.", "Check its permissions.", file=file, reason=error.strerror
        ) from error
    if len(content) > LARGEST_FILE:
        raise BundleError(
            "{file} has more than the {most} bytes that a manifest may have.",
            "Restore the file.",
            file=file,
            most=LARGEST_FILE,
        )
    try:
        text = content.decode("utf-8").replace("\r\n", "\n")
        if _has_deep_key(text):
            raise BundleError(
                "{file} is not a manifest: a key has more than {most} parts.",
                "Restore the file.",
                file=file,
                most=_MOST_PARTS,
            )
        return tomllib.loads(text)
    except RecursionError as error:
        raise BundleError(
            "{file} is nested too deeply for a manifest.", "Restore the file.", file=file
        ) from error
    except ValueError as error:  # not TOML, not UTF-8, or a number with thousands of digits
        raise BundleError(
            "{file} is not valid TOML: {error}.",
            "Correct that line or restore the file.",
            file=file,
            error=error,
        ) from error


def _has_deep_key(text: str) -> bool:
    """Whether a key, in a header, before a value or in an inline table, has more parts than a manifest needs.

    Outside of texts and comments, only keys hold more than one point between other characters.
    """
    plain = _TEXT_OR_COMMENT.sub(lambda found: "" if found[0][0] == "#" else "t", text)
    return any(part.count(".") >= _MOST_PARTS for part in _NOT_IN_KEY.split(plain))


@dataclass(frozen=True, slots=True)
class Manifest:
    """A complete manifest file; creates errors that name it."""

    content: Mapping[str, Any]
    file: str
    unknown: list[str] = field(default_factory=list)
    """A sentence for each key that was read past, because this version does not know it."""

    def error(self, text: str) -> BundleError:
        """A BundleError for this file."""
        end = "" if text.endswith("?") else "."
        return BundleError(
            "{file}: {text}{end}", "Correct the file, or get it again.", file=self.file, text=text, end=end
        )

    def top(self, allowed: Collection[str]) -> Table:
        """The top level, which may hold the `allowed` tables only."""
        table = Table(self.content, "", self)
        table.allow(allowed)
        return table


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a manifest."""

    content: Mapping[str, Any]
    name: str
    manifest: Manifest

    def error(self, text: str) -> BundleError:
        """A BundleError for this table."""
        return self.manifest.error(f"[{self.name}] {text}" if self.name else text)

    def allow(self, known: Collection[str]) -> None:
        """Note each key that is not `known`: a newer version of the program may have added it.

        A key that changes how the others are to be read raises the format instead. BundleError for so many
        unknown keys that this is no such table.
        """
        unknown = [key for key in self.content if key not in known]
        if len(unknown) > _MOST_UNKNOWN:
            raise self.error(f"has {len(unknown)} unknown keys; known are {', '.join(sorted(known))}")
        for key in unknown:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"is it {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            self.manifest.unknown.append(
                f"{f'[{self.name}] ' if self.name else ''}has an unknown key {shown(key)} ({hint})"
            )

    def _missing(self, key: str) -> str:
        """The key that was probably meant to be `key`, as part of a sentence."""
        near = difflib.get_close_matches(key, self.content, n=1)
        return f"; is {shown(near[0])} meant to be it?" if near else ""

    def hold(self, limits: Limits) -> None:
        """Raise BundleError if a value violates `limits`; keys may be absent."""
        for key, limit in limits.items():
            if key in self.content and not limit.holds(self.content[key]):
                raise self.error(f"has {key} = {shown(self.content[key])}, which must be {limit}")

    def value(self, key: str, kind: type) -> Any:
        """The value of `key`, which must be there and of type `kind`."""
        if key not in self.content:
            raise self.error(f"lacks the key {key!r} ({_TYPE_NAMES[kind]}){self._missing(key)}")
        found = self.content[key]
        if kind is float and type(found) is int and abs(found) < 1 << 63:
            return float(found)
        if type(found) is not kind:
            raise self.error(f"has {key} = {shown(found)}, which must be {_TYPE_NAMES[kind]}")
        return found

    def table(self, key: str) -> Table:
        """The table `key` below this one."""
        path = f"{self.name}.{key}" if self.name else key
        if key not in self.content:
            raise self.manifest.error(f"the table [{path}] is missing{self._missing(key)}")
        return Table(with_new_names(path, self.value(key, dict), IN_BUNDLE), path, self.manifest)

    def tables(self, key: str) -> list[Table]:
        """The tables of the array `key` at the top of the manifest; none if it is left out."""
        found = self.content.get(key, [])
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise self.error(f"has {key} = {shown(found)}, which must be tables [[{key}]]")
        return [Table(item, f"{key}[{place}]", self.manifest) for place, item in enumerate(found)]

    def string(self, key: str) -> str:
        """A text value."""
        return str(self.value(key, str))

    def integer(self, key: str) -> int:
        """An integer."""
        return int(self.value(key, int))

    def strings(self, key: str) -> list[str]:
        """One text or a list of texts, as a list that is not empty."""
        found = self.content.get(key)
        if isinstance(found, list) and found and all(isinstance(item, str) for item in found):
            return list(found)
        return [self.string(key)]

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of integers above 0; empty if it is left out."""
        found = self.content.get(key, [])
        if not isinstance(found, list) or not all(type(item) is int and item > 0 for item in found):
            raise self.error(f"has {key} = {shown(found)}, which must be a list of integers above 0")
        return tuple(found)


def read_table(
    kind: type[T],
    table: Table,
    limits: Limits | None = None,
    *,
    renamed: Mapping[str, tuple[str, ...]] | None = None,
    **given: Any,
) -> T:
    """Create the dataclass `kind` from a table. Fields in `given` were read by the caller; `renamed` maps a
    key of the table to the given fields that it sets. Fields with a default may be absent. Raises
    BundleError.
    """
    hints = typing.get_type_hints(kind)
    renamed = renamed or {}
    hidden = {name for names in renamed.values() for name in names}
    known = [f for f in fields(kind) if f.name not in hidden]  # type: ignore[arg-type]
    table.allow([*renamed, *(f.name for f in known)])
    table.hold(limits or {})
    values = dict(given)
    for found in known:
        has_default = found.default is not MISSING or found.default_factory is not MISSING
        if found.name in given or (has_default and found.name not in table.content):
            continue
        values[found.name] = table.value(found.name, _plain_type(hints[found.name]))
    return kind(**values)


def _plain_type(hint: Any) -> type:
    """`int | None` -> int, `dict[str, Any]` -> dict, `Literal["a"]` -> str."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return type(typing.get_args(hint)[0])
    if origin in (types.UnionType, typing.Union):
        return next(_plain_type(part) for part in typing.get_args(hint) if part is not type(None))
    return origin if isinstance(origin, type) else hint


def stated(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass in which it differs from the defaults, as a table of a manifest.

    A field that is added later is thus written only where it is used, and older versions of the program read
    the rest. Hence a default never changes within a format.
    """
    return {
        found.name: getattr(instance, found.name)
        for found in fields(instance)
        if found.default is MISSING or getattr(instance, found.name) != found.default
    }


def to_toml(content: Mapping[str, Any], path: str = "") -> str:
    """TOML of nested tables with plain values (a JSON string, number, boolean or list is TOML as well)."""
    lines = [f"[{path}]"] if path else []
    lines += [
        f"{_key(key)} = {json.dumps(value, ensure_ascii=False)}"
        for key, value in content.items()
        if not _is_nested(value)
    ]
    for key, value in content.items():
        below = f"{path}.{_key(key)}" if path else _key(key)
        if isinstance(value, Mapping):
            lines += ["", to_toml(value, below)]
        elif _is_nested(value):
            for table in value:
                lines += ["", to_toml(table, below).replace(f"[{below}]", f"[[{below}]]", 1)]
    return "\n".join(lines).strip("\n") + "\n"


def _key(key: str) -> str:
    return key if key.replace("_", "").isalnum() and key.isascii() else json.dumps(key)


def _is_nested(value: object) -> bool:
    """Whether a value is a table or an array of tables."""
    items = value if isinstance(value, list) else [value]
    return bool(items) and all(isinstance(item, Mapping) for item in items)
