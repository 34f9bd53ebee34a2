"""The tools of a session or a response: which of those that the bundle declares are offered, and whether a
reply has to call one.

In: `tools` and `tool_choice` of a client. Out: what is in force, and a ProtocolError that names the tools
that the model cannot call, which a session shows and a response raises. Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Literal

from app.server.protocol import Document, Json, ProtocolError, invalid, shown, unsupported
from engine_runtime.bundle.tools import Tool, ToolUse


class NamedTool(Document):
    """A `tool_choice` that names the tool."""

    type: Literal["function", "mcp"]
    name: str = ""
    server_label: str = ""


ToolChoice = Literal["auto", "none", "required"] | NamedTool


@dataclass(frozen=True, slots=True)
class SessionTools:
    """The tools in force."""

    declared: tuple[Tool, ...] = ()
    """Those of the bundle."""
    offered: tuple[Json, ...] = ()
    """As the client has described them."""
    choice: str = "auto"
    """auto, none, required, or the name of one that is offered."""
    is_named: bool = False
    refused: ProtocolError | None = None
    """Names those that the client wanted and the model cannot call."""

    @property
    def use(self) -> ToolUse:
        """What a reply may call."""
        if self.choice == "none" and not self.is_named:
            return ToolUse()
        names = [self.choice] if self.is_named else [tool["name"] for tool in self.offered]
        offered = tuple(tool for tool in self.declared if tool.name in names)
        return ToolUse(offered, bool(offered) and (self.is_named or self.choice == "required"))

    def document(self) -> Json:
        """`tools` and `tool_choice` as a session shows them."""
        choice: str | Json = {"type": "function", "name": self.choice} if self.is_named else self.choice
        return {"tools": list(self.offered), "tool_choice": choice if self.offered else "none"}

    def changed(self, given: list[Json] | None, choice: ToolChoice | None, name: str) -> SessionTools:
        """With the tools and the choice of the object `name` of an event, None for those before; tools that
        the model cannot call are left out. ProtocolError for a choice that cannot be."""
        changed = self
        if given is not None:
            offered, refused = self._offer(given, f"{name}.tools")
            changed = replace(self, offered=offered, refused=refused)
        names = [tool["name"] for tool in changed.offered]
        if isinstance(choice, str):
            return replace(changed, choice=choice, is_named=False)
        if choice is None:
            chosen = self.choice if self.is_named else ""
        elif choice.type == "mcp":
            raise unsupported(f"{name}.tool_choice.type")
        else:
            chosen = choice.name
            is_left_out = given is not None and changed.refused is not None
            if chosen not in names and not is_left_out:
                raise invalid(f"{name}.tool_choice.name", chosen, names)
            changed = replace(changed, choice=chosen, is_named=True)
        if chosen and chosen not in names:  # it is left out
            changed = replace(changed, choice="auto", is_named=False)
        return changed

    def _offer(self, given: list[Json], param: str) -> tuple[tuple[Json, ...], ProtocolError | None]:
        offered: list[Json] = []
        refused: list[str] = []
        first = 0
        for place, tool in enumerate(given):
            problem = self._problem_of(tool, offered)
            if problem is None:
                offered.append(tool)
                continue
            first = first if refused else place
            refused.append(problem)
        if not refused:
            return tuple(offered), None
        declared = ", ".join(json.dumps(tool.document(), ensure_ascii=False) for tool in self.declared)
        error = ProtocolError(
            "unsupported",
            "The model cannot call {tools}.",
            "It can call {declared}." if self.declared else "Its bundle declares no tools.",
            param=f"{param}[{first}]",
            tools=", ".join(refused),
            declared=declared,
        )
        return tuple(offered), error

    def _problem_of(self, tool: Json, offered: list[Json]) -> str | None:
        """The name of a tool that cannot be offered, with the reason if it is declared."""
        name = tool.get("name")
        declared = next((known for known in self.declared if known.name == name), None)
        if declared is None or tool.get("type", "function") != "function":
            return shown(name or tool.get("server_label") or tool.get("type"))
        parameters = tool.get("parameters")
        if not (parameters is None or isinstance(parameters, dict)) or not declared.takes(parameters):
            return f"{shown(name)} with these parameters"
        return f"{shown(name)} twice" if name in [known["name"] for known in offered] else None
