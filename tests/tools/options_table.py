"""Writes packaging/OPTIONS.md: each option, the field that it sets, where that is read, and its effect.

    python -m tests.tools.options_table

In: the argument parsers, the options named beside the fields of settings, and the source code of app and
engine_runtime as syntax trees. An option goes into the field that names it, or from `arguments.NAME` into a
field of another dataclass, or its command reads it; a field goes on into a field of another dataclass, or a
function reads it. Of which class an expression is say annotations and calls, as far as they say it: what they
do not say is left out, and never makes an option look read.
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from app.cli import build_parser
from app.commands import shared_options
from app.settings import StartSettings, options
from engine_runtime.options import EngineOptions

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "packaging" / "OPTIONS.md"
_PACKAGES = ("app", "engine_runtime")
_PASS_ON = ("app/settings.py: serve_options", "app/gui/common/preferences.py")
"""They translate options into those of another process, and into preferences: no readers."""
_SETTINGS = ("Settings", "Options", "Limits")
"""Ends of the names of dataclasses all of whose fields have to be read."""
_COMMANDS = ("app/cli.py", "app/commands/")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_MOST_PLACES = 3
"""Of the readers of an option, in the table."""
_CONVERSIONS = ("min", "max", "round")
"""Functions of several arguments that convert a value; any other of one argument counts as one."""
_HEAD = """# Options

Where each option of the command line goes. `python -m tests.tools.options_table` writes this file from the
argument parsers and the source code; a test compares it, and fails for an option or a field that nothing
reads. A field is named with its dataclass; an arrow leads to the field that takes its value over. At most
three readers are named, and commands and benchmarks only where nothing else reads it.
"""
_REST = """
## Fields without an option

Fields of settings that the program sets itself, or the window.

| field | read in | meaning |
|---|---|---|
"""

Field = tuple[str, str]
"""Dataclass and field."""
Part = tuple[str, str]
"""Module, and a function or class at its top."""
Argument = tuple[Part, str]
"""A part of a command that reads a parsed argument, and the name of that."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option or argument of one command.

    Attributes:
        names: as on the command line, with the name of the value.
        run: the function that runs the command.
    """

    command: str
    names: str
    dest: str
    effect: str
    run: Part


@dataclass(slots=True)
class Row:
    """An option of some commands. `fields` are where its value goes, `readers` all places that read it."""

    names: str
    effect: str
    commands: list[str]
    fields: list[Field]
    readers: list[str]


def options_of(parser: argparse.ArgumentParser, command: str = "moss-voice") -> Iterator[Option]:
    """All options and arguments of a parser and of its subcommands."""
    run = parser.get_default("run")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from options_of(child, f"{command} {name}")
        elif not isinstance(action, argparse._HelpAction | argparse._VersionAction):
            choices = "\\|".join(map(str, action.choices or ()))
            value = action.metavar if isinstance(action.metavar, str) else choices or action.dest.upper()
            names = ", ".join(f"`{name}`" for name in action.option_strings) or value
            if action.option_strings and action.nargs != 0:
                names = f"{names} {value}"
            effect = (action.help or "") % {"default": action.default, "prog": parser.prog}
            yield Option(command, names, action.dest, effect, (run.__module__, run.__name__))


@dataclass(slots=True)
class _Class:
    """What a class says about its attributes. `fields`: those of a dataclass, with their meaning. `types`:
    classes of attributes, and of what properties and methods return."""

    fields: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)


class Code:
    """What the functions of the source code read, and where they put it."""

    def __init__(self, sources: dict[str, str] | None = None) -> None:
        """`sources` are the texts of files by path, by default those of the repository."""
        if sources is None:
            paths = [path for package in _PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
            sources = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}
        trees = {path: ast.parse(text) for path, text in sources.items()}
        nodes = {path: list(ast.walk(tree)) for path, tree in trees.items()}
        self.classes: dict[str, _Class] = {}
        self.returns: dict[tuple[str, str], str] = {}
        """(path, function) -> the class that it returns; path "" where all files agree."""
        self.held: dict[str, set[str]] = defaultdict(set)
        """Attribute -> the classes that it has in any class."""
        for path, found in nodes.items():
            for node in found:
                if isinstance(node, ast.ClassDef):
                    self._note_class(node)
                elif isinstance(node, ast.FunctionDef) and (kind := _named(node.returns)):
                    self.returns[path, node.name] = kind
                    agreed = self.returns.get(("", node.name), kind)
                    self.returns["", node.name] = kind if agreed == kind else ""
        for known in self.classes.values():
            for name, kind in known.types.items():
                self.held[name].add(kind)
        self.arguments: dict[Argument, set[str]] = defaultdict(set)
        """Functions that read an argument, other than to put it into a field."""
        self.given: dict[Argument, set[Field]] = defaultdict(set)
        """Fields that an argument is put into."""
        self._readers: dict[Field, set[str]] = defaultdict(set)
        self._moves: dict[Field, set[Field]] = defaultdict(set)
        self._calls: dict[Part, set[Part]] = {}
        """The parts of the command line that a part of it names."""
        for settings in (StartSettings, EngineOptions):
            for setting in options(settings):
                self.given[(shared_options.__name__, "start_settings"), setting.dest].add(
                    (settings.__name__, setting.name)
                )
        for path, tree in trees.items():
            _Reader(self, path).visit(tree)
            if path.startswith(_COMMANDS):
                self._note_calls(_module(path), tree)

    def _note_class(self, node: ast.ClassDef) -> None:
        known = _Class()
        is_dataclass = any(_last(getattr(one, "func", one)) == "dataclass" for one in node.decorator_list)
        for line, following in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                known.types[line.target.id] = _named(line.annotation)
                if is_dataclass:
                    known.fields[line.target.id] = _text_of(following)
            elif isinstance(line, ast.FunctionDef):
                known.types[line.name] = _named(line.returns)
                for name, kind in _attributes_set(line):
                    known.types.setdefault(name, kind)
        known.types = {name: kind for name, kind in known.types.items() if kind}
        # Of two classes with one name nothing is said.
        self.classes[node.name] = _Class() if node.name in self.classes else known

    def note(self, argument: Argument | None, own: Field, reader: str, into: Field | None) -> None:
        """A function reads an argument or else a field, perhaps to put it into another field."""
        if argument is not None and into is None:
            self.arguments[argument].add(reader)
        elif argument is not None and into is not None:
            self.given[argument].add(into)
        elif into is None:
            self._readers[own].add(reader)
        elif into != own:
            self._moves[own].add(into)

    def readers(self, own: Field, seen: frozenset[Field] = frozenset()) -> set[str]:
        """Functions that read a field, also through properties of its class and through other fields."""
        found: set[str] = set()
        if own in seen:
            return found
        for reader in self._readers[own]:
            name = reader.partition(": ")[2]
            kind, _, method = name.rpartition(".")
            if kind == own[0] and method in self.classes[kind].types:
                found |= self.readers((kind, method), seen | {own})
            elif method != "__post_init__" and not reader.startswith(_PASS_ON):
                found.add(reader)
        return found.union(*(self.readers(other, seen | {own}) for other in self._moves[own]))

    def chains(self, own: Field, seen: tuple[Field, ...] = ()) -> list[str]:
        """The field with each one that takes its value over and is read: under the same name, or under any if
        no function reads the field itself."""
        seen, is_read = (*seen, own), bool(self._readers[own])
        others = [other for other in sorted(self._moves[own] - {*seen}) if self.readers(other)]
        following = [
            f"{'.'.join(own)} → {chain}"
            for other in others
            if other[1] == own[1] or not is_read
            for chain in self.chains(other, seen)
        ]
        return following or [".".join(own)]

    def reached(self, own: Field) -> list[Field]:
        """The field, and all that take its value over."""
        found, waiting = [], [own]
        while waiting:
            if (one := waiting.pop()) not in found:
                found.append(one)
                waiting += sorted(self._moves[one])
        return found

    def parts_of(self, run: Part) -> set[Part]:
        """The parts of the command line that a command runs through."""
        found: set[Part] = set()
        waiting = [run, ("app.cli", "main")]
        while waiting:
            if (part := waiting.pop()) not in found:
                found.add(part)
                waiting += self._calls.get(part, ())
        return found

    def _note_calls(self, module: str, tree: ast.Module) -> None:
        known = {one.name: (module, one.name) for one in tree.body if isinstance(one, _DEFINITIONS)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                known |= {one.name: (node.module, one.name) for one in node.names}
        for one in tree.body:
            if isinstance(one, _DEFINITIONS):
                names = {_last(node) for node in ast.walk(one) if isinstance(node, ast.Name)}
                self._calls[module, one.name] = {known[name] for name in names if name in known}


class _Reader(ast.NodeVisitor):
    """Notes what the functions of a file read."""

    def __init__(self, code: Code, path: str) -> None:
        self._code, self._path = code, path
        self._owners: list[str] = []
        self._functions: list[str] = []
        self._names: dict[str, str] = {}
        """Name -> its class, in the present function."""
        self._dicts: dict[str, str] = {}
        """Name of a dict -> the dataclass that is made of it."""
        self._into: Field | None = None
        """The field that an expression is the value of."""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """The class owns its methods."""
        self._owners.append(node.name)
        self.generic_visit(node)
        self._owners.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """A function sees the names of the one around it."""
        before = self._names, self._dicts, self._into
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        self._names = self._names | {one.arg: _named(one.annotation) for one in arguments}
        self._into = None
        body = list(ast.walk(node))
        self._dicts = dict(pair for inner in body for pair in _splatted(inner))
        for inner in body:
            self._note_assigned(inner)
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()
        self._names, self._dicts, self._into = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Call(self, node: ast.Call) -> None:
        """What a dataclass is made of goes into its fields; a conversion keeps where its value goes."""
        name, kind = _last(node.func), self._type(node)
        fields = self._code.classes[kind].fields if kind in self._code.classes else {}
        makes = bool(fields) and name in (kind, "cls", "replace")
        order = [*fields] if makes and name != "replace" else []
        converts = len(node.args) == 1 or name in _CONVERSIONS
        self._visit_for(None, node.func)
        for place, argument in enumerate(node.args):
            into = self._into if converts and not makes else None
            if place < len(order) and not isinstance(argument, ast.Starred):
                into = kind, order[place]
            self._visit_for(into, argument)
        for keyword in node.keywords:
            is_field = makes and keyword.arg in fields
            self._visit_for((kind, str(keyword.arg)) if is_field else None, keyword.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        """A dict that a dataclass is made of."""
        made = self._dicts.get(_last(node.targets[0]))
        if made is None or not isinstance(node.value, ast.Dict):
            self.generic_visit(node)
            return
        for key, value in zip(node.value.keys, node.value.values, strict=True):
            self._visit_for((made, str(key.value)) if isinstance(key, ast.Constant) else None, value)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """A condition is read, unless it alone decides on one of two constants."""
        is_all = isinstance(node.body, ast.Constant) and isinstance(node.orelse, ast.Constant)
        self._visit_for(self._into if is_all else None, node.test)
        self.visit(node.body)
        self.visit(node.orelse)

    def visit_Compare(self, node: ast.Compare) -> None:
        """As a condition."""
        for one in (node.left, *node.comparators):
            self._visit_for(None, one)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Reading a field or an argument."""
        base = self._type(node.value) if isinstance(node.ctx, ast.Load) else ""
        if base:
            places = [*self._owners, *self._functions]
            place = ".".join(places)
            argument = ((_module(self._path), places[0]), node.attr) if base == "Namespace" else None
            self._code.note(argument, (base, node.attr), f"{self._path}: {place}", self._into)
        self._visit_for(None, node.value)

    def _visit_for(self, into: Field | None, node: ast.expr) -> None:
        before, self._into = self._into, into
        self.visit(node)
        self._into = before

    def _note_assigned(self, node: ast.AST) -> None:
        match node:
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
                pairs = [*zip(targets, values, strict=False)]
            case ast.Assign([target], value) | ast.NamedExpr(target, value):
                pairs = [(target, value)]
            case ast.AnnAssign(ast.Name(name), annotation):
                self._names[name] = _named(annotation)
                return
            case _:
                return
        for target, value in pairs:
            if isinstance(target, ast.Name) and (kind := self._type(value)):
                self._names[target.id] = kind

    def _type(self, node: ast.expr) -> str:
        """The class of an expression, "" if it is not known."""
        code = self._code
        match node:
            case ast.Name("self" | "cls"):
                return self._owners[-1] if self._owners else ""
            case ast.Name(name):
                return self._names.get(name, "")
            case ast.Attribute(value, name):
                if (base := self._type(value)) in code.classes:
                    return code.classes[base].types.get(name, "")
                kinds = code.held.get(name, set())
                return next(iter(kinds)) if len(kinds) == 1 else ""
            case ast.Call(ast.Name("cls")):
                return self._owners[-1] if self._owners else ""
            case ast.Call(
                ast.Name("replace") | ast.Attribute(ast.Name("dataclasses"), "replace"), [first, *_]
            ):
                return self._type(first)
            case ast.Call(ast.Name(name)):
                known = name if name in code.classes else code.returns.get((self._path, name))
                return known or code.returns.get(("", name), "")
            case ast.Call(ast.Attribute(value, name)):
                if (base := self._type(value)) in code.classes:
                    return code.classes[base].types.get(name, "")
                return name if name in code.classes else code.returns.get(("", name), "")
            case ast.BoolOp(_, values):
                return next(filter(None, map(self._type, values)), "")
            case ast.IfExp(_, body, other):
                return self._type(body) or self._type(other)
            case ast.NamedExpr(_, value):
                return self._type(value)
        return ""


def _splatted(node: ast.AST) -> list[tuple[str, str]]:
    """The dicts that a dataclass is made of, by `Class(**name)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return []
    names = [one.value.id for one in node.keywords if one.arg is None and isinstance(one.value, ast.Name)]
    return [(name, node.func.id) for name in names]


def _attributes_set(method: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Attributes of self that a method annotates, or sets to a parameter or a new object."""
    arguments = (*method.args.args, *method.args.kwonlyargs)
    kinds = {one.arg: kind for one in arguments if (kind := _named(one.annotation))}
    for line in method.body:
        match line:
            case ast.AnnAssign(ast.Attribute(ast.Name("self"), name), annotation):
                yield name, _named(annotation)
            case ast.Assign([ast.Attribute(ast.Name("self"), name)], ast.Name(value)):
                yield name, kinds.get(value, "")
            case ast.Assign([ast.Attribute(ast.Name("self"), name)], ast.Call(ast.Name(made))):
                yield name, made
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
                for target, source in zip(targets, values, strict=False):
                    yield _last(target), kinds.get(_last(source), "")


def _named(annotation: ast.expr | None) -> str:
    """The class that an annotation names, without None; "" for any other."""
    match annotation:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
        case ast.Constant(str(text)):
            return _named(ast.parse(text, mode="eval").body)
        case ast.BinOp(left, ast.BitOr(), ast.Constant(None)):
            return _named(left)
    return ""


def _text_of(node: ast.stmt | None) -> str:
    """The text of a statement that is one."""
    match node:
        case ast.Expr(ast.Constant(str(text))):
            return " ".join(text.split())
    return ""


def _last(node: ast.expr) -> str:
    """A name, or the last of an attribute."""
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
    return ""


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def table(code: Code, options: Iterable[Option]) -> list[Row]:
    """A row for each option; the same one of several commands is one row."""
    found: dict[tuple[str, str, str], Row] = {}
    for option in options:
        fields: set[Field] = set()
        readers: set[str] = set()
        for part in code.parts_of(option.run):
            fields |= code.given[part, option.dest]
            readers |= code.arguments[part, option.dest]
        readers = readers.union(*map(code.readers, fields))
        row = Row(option.names, option.effect, [], sorted(fields), sorted(readers))
        key = option.names, option.effect, str((row.fields, row.readers))
        found.setdefault(key, row).commands.append(option.command)
    return [*found.values()]


def fields_without_option(code: Code, rows: Iterable[Row]) -> list[Field]:
    """Fields of settings that these rows, or fields that they set, lead to, and that none of them sets."""
    known: dict[Field, None] = {}
    for row in rows:
        for own in row.fields:
            known |= dict.fromkeys(code.reached(own))
    kinds = dict.fromkeys(kind for kind, _ in known if kind.endswith(_SETTINGS))
    return [(kind, name) for kind in kinds for name in code.classes[kind].fields if (kind, name) not in known]


def document(code: Code, rows: list[Row]) -> str:
    """The text of OPTIONS.md: the options by the commands that have them, then the other fields."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row.commands)].append(row)
    lines = [_HEAD]
    for commands, group in groups.items():
        title = ", ".join(command.removeprefix("moss-voice ") for command in commands)
        lines.append(f"\n## {title}\n\n| option | field | read in | effect |\n|---|---|---|---|\n")
        for row in group:
            chains = "<br>".join(f"`{chain}`" for own in row.fields for chain in code.chains(own))
            lines.append(f"| {row.names} | {chains} | {_places(row.readers)} | {_cell(row.effect)} |\n")
    lines.append(_REST)
    for own in fields_without_option(code, rows):
        places = _places(code.readers(own))
        lines.append(f"| `{'.'.join(own)}` | {places} | {_cell(code.classes[own[0]].fields[own[1]])} |\n")
    return "".join(lines)


def _places(readers: Iterable[str]) -> str:
    """Some readers: of the engine and the program or, without any, of the window, commands, benchmarks."""
    ranked: dict[int, list[str]] = defaultdict(list)
    for reader in sorted(readers, key=lambda one: (one.startswith("app/"), one)):
        parts = ("app/gui/", "app/commands/", "/bench")
        ranked[max((rank for rank, part in enumerate(parts, 1) if part in reader), default=0)].append(reader)
    shown = ranked[min(ranked)][:_MOST_PLACES] if ranked else []
    return "<br>".join(f"`{reader}`" for reader in shown)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    source = Code()
    DOCUMENT.write_text(document(source, table(source, options_of(build_parser()))), encoding="utf-8")
