"""Finds the templates of errors in the code, and writes assets/translations/errors_zh_CN.ts.

    python -m tests.tools.error_templates

In: the source code of app and engine_runtime as syntax trees: each `Problem(...)`, and each error made with a
cause, a remedy and values. Out: their templates. The file of translations keeps those of templates that are
still there, and gets new ones without a translation: add that, then run `pyside6-lrelease` on the file. Which
templates have to be translated says `is_shown`.
"""

from __future__ import annotations

import ast
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.sax.saxutils import escape

from engine_runtime.errors import fields_of

ROOT = Path(__file__).resolve().parents[2]
TRANSLATIONS = ROOT / "assets" / "translations" / "errors_zh_CN.ts"
CONTEXT = "Errors"
_PACKAGES = ("app", "engine_runtime")
_BASES = ("MossVoiceError", "Problem")
_WITH_CODE = "ProtocolError"
"""Its first argument is a code."""
_OWN_OPTIONS = frozenset({"is_final", "is_expected", "param", "event_id"})
"""Keywords of errors that are no values of their texts."""
_SHOWN = (
    *("app/audio", "app/dialog", "app/gpu_runtime", "app/gui", "app/remote"),
    *("app/export.py", "app/installed_models.py", "app/instance.py", "app/server_address.py"),
    *("app/session", "engine_runtime/installation.py", "engine_runtime/cuda/availability.py"),
    "engine_runtime/whisper.py",
)
"""Where the problems come from that the window is made to show. What else an engine may say is shown in
English unless it is translated."""
_WORD = re.compile(r"[A-Za-z]{2}")


@dataclass(frozen=True, slots=True)
class Construction:
    """One call that makes an error or a problem. `causes` and `remedies` are those that it may have."""

    place: str
    causes: tuple[str, ...]
    remedies: tuple[str, ...]
    values: frozenset[str]


def templates() -> dict[str, str]:
    """Each template -> a place of the code that has it."""
    return {
        template: made.place
        for made in constructions()
        for template in (*made.causes, *made.remedies)
        if _has_words(template)
    }


def is_shown(place: str) -> bool:
    """Whether the window is made to show what this place of the code reports."""
    return place.startswith(_SHOWN)


def translations(file: Path = TRANSLATIONS) -> dict[str, str]:
    """Template -> its translation, "" if there is none."""
    return {
        message.findtext("source", ""): message.findtext("translation", "")
        for message in ElementTree.parse(file).getroot().iter("message")
    }


@cache
def constructions() -> tuple[Construction, ...]:
    """All of the code. ValueError where a template is neither a literal nor a constant."""
    modules = {
        str(file.relative_to(ROOT)): ast.parse(file.read_text("utf-8"))
        for package in _PACKAGES
        for file in sorted((ROOT / package).rglob("*.py"))
    }
    kinds = _kinds(modules)
    return tuple(
        made
        for place, module in modules.items()
        if place != "engine_runtime/errors.py"
        for made in _constructions_of(place, module, kinds, modules)
    )


def document() -> str:
    """The file of translations: templates in order, with the translations that are known."""
    known = translations() if TRANSLATIONS.is_file() else {}
    wanted = sorted(
        template for template, place in templates().items() if is_shown(place) or known.get(template)
    )
    messages = "".join(_message(template, known.get(template, "")) for template in wanted)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE TS>\n'
        '<TS version="2.1" language="zh_CN" sourcelanguage="en">\n'
        f"<context>\n    <name>{CONTEXT}</name>\n{messages}</context>\n</TS>\n"
    )


def _message(template: str, translation: str) -> str:
    source, text = (escape(text, {"'": "&apos;", '"': "&quot;"}) for text in (template, translation))
    state = "" if translation else ' type="unfinished"'
    return (
        f"    <message>\n        <source>{source}</source>\n"
        f"        <translation{state}>{text}</translation>\n    </message>\n"
    )


def _has_words(template: str) -> bool:
    fields = [name for name, _ in fields_of(template)]
    return bool(_WORD.search(template.format_map(dict.fromkeys(fields, _Nothing()))))


class _Nothing:
    def __format__(self, spec: str) -> str:
        return ""

    def __repr__(self) -> str:
        return ""


def _kinds(modules: dict[str, ast.Module]) -> frozenset[str]:
    """The names of all classes of errors."""
    bases = {
        node.name: {_name_of(base) for base in node.bases}
        for module in modules.values()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
    }
    kinds = set(_BASES)
    while more := {name for name, of in bases.items() if of & kinds} - kinds:
        kinds |= more
    return frozenset(kinds)


def _constructions_of(
    place: str, module: ast.Module, kinds: frozenset[str], modules: dict[str, ast.Module]
) -> Iterator[Construction]:
    for node in ast.walk(module):
        if not isinstance(node, ast.Call):
            continue
        name = _name_of(node.func)
        if name == "with_remedy":
            remedies = tuple(_texts(node.args[0], place, module, modules))
            yield Construction(f"{place}:{node.lineno}", (), remedies, frozenset())
        elif name in kinds:
            arguments = node.args[1:] if name == _WITH_CODE else node.args
            causes, remedies = (
                tuple(text for argument in part for text in _texts(argument, place, module, modules))
                for part in (arguments[:1], arguments[1:])
            )
            values = {keyword.arg for keyword in node.keywords if keyword.arg not in _OWN_OPTIONS}
            yield Construction(
                f"{place}:{node.lineno}", causes, remedies, frozenset(str(value) for value in values)
            )


def _texts(
    argument: ast.expr, place: str, module: ast.Module, modules: dict[str, ast.Module]
) -> Iterator[str]:
    """The literals that an argument may be."""
    match argument:
        case ast.Constant(str() as text):
            yield text
        case ast.IfExp(body=body, orelse=other):
            yield from _texts(body, place, module, modules)
            yield from _texts(other, place, module, modules)
        case ast.Name(name) if (constant := _constant(name, module, modules)) is not None:
            yield from _texts(constant, place, module, modules)
        case _:
            raise ValueError(f"{place}:{argument.lineno}: {ast.unparse(argument)} is not a template")


def _constant(name: str, module: ast.Module, modules: dict[str, ast.Module]) -> ast.expr | None:
    """The value of a constant of a module, or of the one that it is imported from."""
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(assigned)], value=value) if assigned == name:
                return value
            case ast.ImportFrom(module=str() as source, names=names) if any(
                known.name == name for known in names
            ):
                file = f"{source.replace('.', '/')}.py"
                return _constant(name, modules[file], modules) if file in modules else None
    return None


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


if __name__ == "__main__":
    TRANSLATIONS.write_text(document(), "utf-8")
