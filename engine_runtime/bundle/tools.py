"""[[tools]] of a manifest: functions that the model may call, and [card.tool_calls]: how it writes a call.

In: the tables. Out: `Tool`s, whose parameters are a JSON schema, and the texts around a call and its result.
Of JSON schema a subset is known, and a manifest that uses more is refused: arguments that were not checked
must not reach who runs the tool. No torch. Any thread.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine_runtime.bundle.manifest import Table, read_table
from engine_runtime.errors import ToolCallError
from engine_runtime.models.limits import shown

Schema = Mapping[str, Any]
_MOST_TOOLS = 64
_DEEPEST = 8
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ANNOTATIONS = {"title", "description", "default", "examples", "$schema", "strict"}
"""Keywords that say nothing about which values are valid."""
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "enum": lambda value, known: value in known,
    "minimum": lambda value, least: value >= least,
    "maximum": lambda value, most: value <= most,
    "minLength": lambda value, least: len(value) >= least,
    "maxLength": lambda value, most: len(value) <= most,
    "minItems": lambda value, least: len(value) >= least,
    "maxItems": lambda value, most: len(value) <= most,
}
_BOUNDS_OF = {
    "object": set[str](),
    "array": {"minItems", "maxItems"},
    "string": {"enum", "minLength", "maxLength"},
    "integer": {"enum", "minimum", "maximum"},
    "number": {"enum", "minimum", "maximum"},
    "boolean": {"enum"},
}
_INNER = {"object": {"properties", "required", "additionalProperties"}, "array": {"items"}}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of an object. An argument that it does not name is refused, unless it says
    `additionalProperties = true`."""

    def document(self) -> dict[str, Any]:
        """The tool as clients and models know it."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def takes(self, parameters: Schema | None) -> bool:
        """Whether a schema names the same arguments: descriptions and defaults may differ, and whether others
        would be allowed, which the model does not give."""
        declared, given = _meaning(self.parameters), _meaning(parameters or {"type": "object"})
        return declared == given

    def check(self, arguments: object) -> None:
        """Raise ToolCallError, which names the argument, for arguments that it does not take."""
        self._check(arguments, self.parameters, "arguments")

    def _check(self, value: object, schema: Schema, path: str) -> None:
        kind = schema["type"]
        bounds = ((_BOUNDS[key], limit) for key, limit in schema.items() if key in _BOUNDS)
        if not _is_of(value, kind) or not all(holds(value, limit) for holds, limit in bounds):
            raise ToolCallError(
                "The model called {tool} with {argument} = {value}, which does not fit {schema}.",
                "Ask again.",
                tool=self.name,
                argument=path,
                value=shown(value),
                schema=json.dumps(_meaning(schema)),
            )
        if isinstance(value, dict):
            self._check_members(value, schema, path)
        elif isinstance(value, list) and "items" in schema:
            for place, item in enumerate(value):
                self._check(item, schema["items"], f"{path}[{place}]")

    def _check_members(self, value: dict[str, Any], schema: Schema, path: str) -> None:
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                raise ToolCallError(
                    "The model called {tool} without {argument}.",
                    "Ask again.",
                    tool=self.name,
                    argument=f"{path}.{name}",
                )
        for name, member in value.items():
            if name in properties:
                self._check(member, properties[name], f"{path}.{name}")
            elif not schema.get("additionalProperties", False):
                raise ToolCallError(
                    "The model called {tool} with {argument}, which it does not take.",
                    "Ask again.",
                    tool=self.name,
                    argument=shown(f"{path}.{name}"),
                )


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that a reply may call."""

    offered: tuple[Tool, ...] = ()
    is_required: bool = False
    """Whether the reply has to be a call: of the offered tool if there is only one."""

    def named(self, name: object) -> Tool | None:
        """The offered tool of this name."""
        return next((tool for tool in self.offered if tool.name == name), None)


NO_TOOLS = ToolUse()


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """The texts around a call, {"name": ..., "arguments": {...}}, in the text channel of the model, and
    around its result.

    One that is an added token of the tokenizer stands for that token alone, so that no text of a user, even
    if the model repeats it, is a call.
    """

    call_begin: str
    call_end: str
    result_begin: str = ""
    result_end: str = ""
    result_role: str = "tool"
    """Role of the turn with a result."""
    announcement: str = ""
    """What the system turn says where tools are offered, their JSON lines in place of {tools}; left out: the
    model was trained with its tools and is told nothing."""

    def announce(self, offered: tuple[Tool, ...]) -> str:
        """What the system turn says about these tools; "" for none."""
        lines = "\n".join(json.dumps(tool.document(), ensure_ascii=False) for tool in offered)
        return self.announcement.replace("{tools}", lines) if offered else ""


def parse_tool_calls(table: Table) -> ToolCallFormat:
    """[card.tool_calls]. Raises BundleError."""
    found = read_table(ToolCallFormat, table)
    for key in ("call_begin", "call_end", "result_role"):
        if not getattr(found, key).strip():
            raise table.error(f"has an empty {key}")
    return found


def parse_tools(top: Table) -> tuple[Tool, ...]:
    """[[tools]], none where they are left out. Raises BundleError."""
    tables = top.tables("tools")
    tools = tuple(read_table(Tool, table) for table in tables)
    names = [tool.name for tool in tools]
    if len(tools) > _MOST_TOOLS:
        raise top.error(f"[[tools]] has {len(tools)} tools; {_MOST_TOOLS} are the most")
    for table, tool in zip(tables, tools, strict=True):
        if not _NAME.fullmatch(tool.name) or names.count(tool.name) > 1:
            raise table.error(
                f"has name = {shown(tool.name)}; each tool needs a name of its own, of up to 64 letters, "
                "digits, underscores and hyphens"
            )
        if tool.parameters.get("type") != "object":
            raise table.error("has parameters that are not of type 'object'")
        _check_schema(tool.parameters, table, "parameters", 0)
    return tools


def _check_schema(schema: object, table: Table, path: str, depth: int) -> None:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        raise table.error(f"has {path} = {shown(schema)}, which is no schema of at most {_DEEPEST} levels")
    kind = schema.get("type")
    if kind not in _TYPES:
        raise table.error(f"has {path}.type = {shown(kind)}, which must be one of {', '.join(_TYPES)}")
    known = _BOUNDS_OF[kind] | _INNER.get(kind, set()) | _ANNOTATIONS | {"type"}
    for key, value in schema.items():
        if key not in known or not _is_keyword(key, value):
            raise table.error(f"has {path}.{key} = {shown(value)}, which cannot be checked")
    properties = schema.get("properties", {})
    if not set(schema.get("required", ())) <= properties.keys():
        raise table.error(f"has {path}.required, which names what is not in its properties")
    inner = {f"{path}.properties.{name}": one for name, one in properties.items()}
    inner |= {f"{path}.items": schema["items"]} if "items" in schema else {}
    for inner_path, one in inner.items():
        _check_schema(one, table, inner_path, depth + 1)


def _is_keyword(key: str, value: object) -> bool:
    if key in ("enum", "required"):
        return isinstance(value, list) and all(isinstance(item, str | int | float) for item in value)
    if key == "additionalProperties":
        return isinstance(value, bool)
    if key == "properties":
        return isinstance(value, dict)
    return key not in _BOUNDS or _is_of(value, "number")


def _is_of(value: object, kind: str) -> bool:
    """Whether a value is of a type of JSON: True is no integer, and infinity no number."""
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return kind == "boolean" and isinstance(value, bool)
    return isinstance(value, _TYPES[kind])


def _meaning(schema: Schema) -> dict[str, Any]:
    """A schema without what says nothing about which values are valid, in a comparable order. Whether it has
    additional properties is left out, too: some clients have to allow them, others to forbid them."""
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _ANNOTATIONS or key == "additionalProperties":
            continue
        if key == "properties" and isinstance(value, dict):
            if value:
                found[key] = {name: _meaning(one) for name, one in value.items() if isinstance(one, dict)}
        elif key == "items" and isinstance(value, dict):
            found[key] = _meaning(value)
        elif key in ("required", "enum") and isinstance(value, list):
            if value:
                found[key] = sorted(value, key=repr)
        else:
            found[key] = value
    return found
