"""The tools that a bundle declares, and the arguments that they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.manifest import Manifest
from engine_runtime.bundle.tools import Tool, ToolCallFormat, parse_tools
from engine_runtime.errors import BundleError, ToolCallError
from tests.factories.bundle import write_manifest
from tests.tools.tool_server import TIMER, WEATHER

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "required": ["city"],
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 9},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "hours": {"type": "array", "items": {"type": "number"}, "maxItems": 2},
        "at": {"type": "object", "required": ["x"], "properties": {"x": {"type": "boolean"}}},
    },
}
TOOL = Tool("get_weather", "The weather of a city", PARAMETERS)


def parse(*tools: Any) -> tuple[Tool, ...]:
    return parse_tools(Manifest({"tools": list(tools)}, "bundle.toml").top({"tools"}))


def test_a_manifest_declares_tools(tool_bundle: Path, random_bundle: Path) -> None:
    card = Bundle.open(tool_bundle).card
    assert [tool.document() for tool in card.tools] == [WEATHER, TIMER]
    assert card.tool_calls is not None
    assert (card.tool_calls.call_begin, card.tool_calls.result_role) == ("<tool_call>", "tool")
    assert '"name": "get_weather"' in card.tool_calls.announce(card.tools)
    assert card.tool_calls.announce(()) == ""
    without = Bundle.open(random_bundle).card
    assert (without.tools, without.tool_calls) == ((), None)


def test_tools_need_a_way_to_write_a_call(tmp_path: Path) -> None:
    from tests.factories.bundle import describe_bundle, write_tokenizer

    manifest = describe_bundle(write_tokenizer(tmp_path / "tokenizer.json")) | {"tools": [WEATHER]}
    write_manifest(tmp_path, manifest)
    with pytest.raises(BundleError, match=r"card\.tool_calls"):
        Bundle.open(tmp_path, "none")
    card: dict[str, Any] = {"languages": ["en"], "examples": ["Hi."], "summary": {"en": "It calls."}}
    card["tool_calls"] = {"call_begin": "<call>", "call_end": ""}
    write_manifest(tmp_path, manifest | {"card": card})
    with pytest.raises(BundleError, match="call_end"):
        Bundle.open(tmp_path, "none")


@pytest.mark.parametrize(
    ("tool", "named"),
    [
        ({"name": "get weather"}, "name"),
        ({"name": "w" * 65}, "name"),
        ({"parameters": {}}, "type"),
        ({"parameters": {"type": "string"}}, "type"),
        ({"parameters": {"type": "object", "oneOf": []}}, "oneOf"),
        ({"parameters": {"type": "object", "required": ["city"]}}, "required"),
        ({"parameters": {"type": "object", "properties": {"a": {"type": "text"}}}}, r"properties\.a\.type"),
        ({"parameters": {"type": "object", "properties": {"a": 5}}}, r"properties\.a"),
        (
            {"parameters": {"type": "object", "properties": {"a": {"type": "string", "minimum": 1}}}},
            r"a\.minimum",
        ),
        (
            {"parameters": {"type": "object", "properties": {"a": {"type": "integer", "maximum": "7"}}}},
            r"a\.maximum",
        ),
        (
            {"parameters": {"type": "object", "properties": {"a": {"type": "array", "items": [1]}}}},
            r"a\.items",
        ),
    ],
)
def test_what_cannot_be_checked_is_refused_by_name(tool: dict[str, Any], named: str) -> None:
    with pytest.raises(BundleError, match=named):
        parse(WEATHER | tool)


def test_a_manifest_with_odd_tools_is_refused() -> None:
    with pytest.raises(BundleError, match="name"):
        parse(WEATHER, WEATHER)
    with pytest.raises(BundleError, match=r"\[\[tools\]\]"):
        parse("get_weather")
    with pytest.raises(BundleError, match="64"):
        parse(*(WEATHER | {"name": f"tool{number}"} for number in range(65)))
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(10):
        nested = {"type": "array", "items": nested}
    with pytest.raises(BundleError, match="levels"):
        parse(WEATHER | {"parameters": {"type": "object", "properties": {"a": nested}}})


@pytest.mark.parametrize(
    "arguments",
    [
        {"city": "Paris"},
        {"city": "Paris", "days": 7, "unit": "F", "hours": [1, 2.5], "at": {"x": True}},
    ],
)
def test_arguments_that_a_tool_takes(arguments: object) -> None:
    TOOL.check(arguments)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "arguments"),
        ({}, r"arguments\.city"),
        ({"city": 5}, r"arguments\.city"),
        ({"city": ""}, r"arguments\.city"),
        ({"city": "P" * 10}, r"arguments\.city"),
        ({"city": "Paris", "days": 0}, r"arguments\.days"),
        ({"city": "Paris", "days": 8}, r"arguments\.days"),
        ({"city": "Paris", "days": 1.5}, r"arguments\.days"),
        ({"city": "Paris", "days": True}, r"arguments\.days"),
        ({"city": "Paris", "unit": "K"}, r"arguments\.unit"),
        ({"city": "Paris", "hours": [1, "2"]}, r"arguments\.hours\[1\]"),
        ({"city": "Paris", "hours": [1, float("inf")]}, r"arguments\.hours\[1\]"),
        ({"city": "Paris", "hours": [1, 2, 3]}, r"arguments\.hours"),
        ({"city": "Paris", "at": {}}, r"arguments\.at\.x"),
        ({"city": "Paris", "country": "France"}, r"arguments\.country"),
        ({"city": "Paris", "at": {"x": True, "y": 1}}, r"arguments\.at\.y"),
    ],
)
def test_other_arguments_are_refused_by_name(arguments: object, named: str) -> None:
    with pytest.raises(ToolCallError, match=named) as caught:
        TOOL.check(arguments)
    assert caught.value.code == "invalid_tool_call"


def test_a_tool_may_take_other_arguments() -> None:
    Tool("any", "", {"type": "object", "additionalProperties": True}).check({"x": [1]})


def test_schemas_are_equal_if_they_take_the_same_arguments() -> None:
    city = PARAMETERS["properties"]["city"] | {"description": "Where", "title": "City"}
    described = PARAMETERS["properties"] | {"city": city}
    assert TOOL.takes(PARAMETERS | {"properties": described, "additionalProperties": False, "strict": True})
    assert TOOL.takes(PARAMETERS | {"additionalProperties": True, "$schema": "http://json-schema.org/"})
    assert not TOOL.takes(PARAMETERS | {"required": []})
    assert not TOOL.takes(PARAMETERS | {"properties": described | {"x": {"type": "string"}}})
    assert not TOOL.takes(None)
    assert Tool("now", "", {"type": "object"}).takes(None)
    assert Tool("now", "", {"type": "object"}).takes({"type": "object", "properties": {}, "required": []})


def test_a_model_may_be_told_nothing_of_its_tools() -> None:
    assert ToolCallFormat("<call>", "</call>").announce((TOOL,)) == ""
