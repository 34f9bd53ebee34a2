"""Which tools are offered, and which are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from app.server.protocol import ProtocolError
from app.server.session_config import SessionConfig
from app.server.session_tools import SessionTools
from engine_runtime.bundle.tools import Tool, ToolUse
from tests.tools.tool_server import WEATHER

WEATHER_TOOL, TIME_TOOL = Tool(**WEATHER), Tool("get_time", "The time", {"type": "object", "properties": {}})
DECLARED = SessionTools((WEATHER_TOOL, TIME_TOOL))
GIVEN: dict[str, Any] = {"type": "function", **WEATHER}
TIME: dict[str, Any] = {"type": "function", "name": "get_time", "description": "Tells the time"}


def updated(session: dict[str, Any], config: SessionConfig | None = None) -> SessionConfig:
    """The configuration after a session.update whose tools the model can call."""
    changed = (config or SessionConfig("nano", tools=DECLARED)).updated(session).config
    assert changed.tools.refused is None
    assert "refused_tools" not in changed.document()["moss_voice"]
    return changed


def use(**session: Any) -> ToolUse:
    return updated(session).tools.use


def named(name: str) -> dict[str, str]:
    return {"type": "function", "name": name}


def test_declared_tools_are_offered_as_the_client_describes_them() -> None:
    config = updated({"tools": [GIVEN, TIME]})
    assert config.document()["tools"] == [GIVEN, TIME]
    assert config.document()["tool_choice"] == "auto"
    assert config.tools.use == ToolUse((WEATHER_TOOL, TIME_TOOL))
    assert updated({"instructions": "Be brief."}, config).tools == config.tools, "others are left alone"
    config = updated({"tools": []}, config)
    assert config.tools.use == ToolUse()
    assert (config.document()["tools"], config.document()["tool_choice"]) == ([], "none")


def test_a_choice_is_auto_none_required_or_a_name() -> None:
    both = (WEATHER_TOOL, TIME_TOOL)
    assert use(tools=[GIVEN, TIME], tool_choice="auto") == ToolUse(both)
    assert use(tools=[GIVEN, TIME], tool_choice="none") == ToolUse()
    assert use(tools=[GIVEN, TIME], tool_choice="required") == ToolUse(both, is_required=True)
    assert use(tools=[GIVEN, TIME], tool_choice=named("get_time")) == ToolUse((TIME_TOOL,), is_required=True)
    assert use(tools=[], tool_choice="required") == ToolUse(), "there is none to call"
    config = updated({"tools": [GIVEN, TIME], "tool_choice": named("get_time")})
    assert config.document()["tool_choice"] == named("get_time")
    assert updated({"tools": [TIME]}, config).tools.use.is_required
    assert updated({"tools": [GIVEN]}, config).document()["tool_choice"] == "auto", "that tool is gone"


@pytest.mark.parametrize(
    ("tool", "named_as"),
    [
        ({"type": "function", "name": "reboot"}, "'reboot'."),
        ({"type": "mcp", "server_label": "files", "server_url": "https://example.org"}, "'files'."),
        ({"type": "mcp", "name": "get_time"}, "'get_time'."),
        ({"type": "function"}, "'function'."),
        ({}, "None."),
        ({"type": "function", "name": ["get_time"]}, "['get_time']."),
        ({"type": "function", "name": "get_weather"}, "'get_weather' with these parameters."),
        (GIVEN | {"parameters": "city"}, "'get_weather' with these parameters."),
        (GIVEN | {"parameters": {"type": "object"}}, "'get_weather' with these parameters."),
        (TIME, "'get_time' twice."),
    ],
)
def test_other_tools_are_refused_by_name_and_the_rest_is_in_force(
    tool: dict[str, Any], named_as: str
) -> None:
    session = {
        "tools": [TIME, tool, GIVEN],
        "output_modalities": ["text"],
        "tool_choice": named("get_weather"),
    }
    config = SessionConfig("nano", tools=DECLARED).updated(session).config
    refused = config.document()["moss_voice"]["refused_tools"]
    assert (refused["code"], refused["param"]) == ("unsupported", "session.tools[1]")
    assert named_as in refused["message"]
    assert "It can call" in refused["message"]
    assert config.document()["output_modalities"] == ["text"]
    assert config.document()["tools"] == [TIME, GIVEN]
    assert config.document()["tool_choice"] == named("get_weather")


def test_a_model_without_tools_says_so() -> None:
    session = {"tools": [GIVEN, TIME], "tool_choice": named("get_time"), "max_output_tokens": 7}
    config = SessionConfig("nano").updated(session).config
    refused = config.document()["moss_voice"]["refused_tools"]
    assert refused["message"] == (
        "The model cannot call 'get_weather', 'get_time'. Its bundle declares no tools."
    )
    assert (config.max_output_tokens, config.tools.use) == (7, ToolUse())
    assert (config.document()["tools"], config.document()["tool_choice"]) == ([], "none")


def test_a_response_with_other_tools_is_not_made() -> None:
    config = updated({"tools": [GIVEN]})
    with pytest.raises(ProtocolError, match="reboot") as caught:
        config.with_response({"tools": [{"type": "function", "name": "reboot"}]})
    assert caught.value.param == "response.tools[0]"
    left_out = config.updated({"tools": [{"type": "function", "name": "reboot"}]}).config
    assert left_out.with_response({})[0].tools.use == ToolUse(), "the session has said so already"
    with pytest.raises(ProtocolError, match="reboot"):
        left_out.with_response({"tool_choice": named("reboot")})
    with pytest.raises(ProtocolError, match="get_weather"):
        config.with_response({"tool_choice": named("get_time")})
    chosen, _ = config.with_response({"tool_choice": "required"})
    assert chosen.tools.use.is_required
    chosen, _ = config.with_response({"tools": [TIME]})
    assert chosen.tools.use == ToolUse((TIME_TOOL,))
