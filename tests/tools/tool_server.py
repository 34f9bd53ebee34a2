"""A server whose model calls a tool: `python -m tests.tools.tool_server --port 8000`.

No network of this project is trained to call tools, so a scripted language model takes the place of one
(tests/doubles/answering_lm.py); engine, server and protocol are the real ones. Its bundle, of tiny random
networks, declares `get_weather` (city: a text) and `set_timer` (minutes: an integer from 1 to 60):

    What is the weather in Paris?   says "Let me look." and calls get_weather {"city": "Paris"}
    the result, such as sunny       "It is sunny."
    Set a timer for 9 minutes.      calls set_timer {"minutes": 9}; 90 is an argument that it does not take
    Restart the machine.            calls a tool that there is not
    Repeat: ANY TEXT                says that text, also one that looks like a call
    What were you told?             says the last line of its instructions
    anything else, and all speech   "I heard you."

A text reply has the same words. The sound is noise. It ends with Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from app.main import load_turn_end_detector
from app.progress import note
from app.server.run import serve
from app.server.service import ServeSettings
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from tests.doubles.answering_lm import Answer, ContextTurn, answering
from tests.factories.bundle import make_random_bundle

CALL, END = "<tool_call>", "</tool_call>"
RESULT, RESULT_END = "<tool_result>", "</tool_result>"
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "required": ["city"],
        "properties": {
            "city": {"type": "string", "description": "Name of the city"},
        },
    },
}
TIMER: dict[str, Any] = {
    "name": "set_timer",
    "description": "Rings after some minutes",
    "parameters": {
        "type": "object",
        "required": ["minutes"],
        "properties": {"minutes": {"type": "integer", "minimum": 1, "maximum": 60}},
    },
}


def make_tool_bundle(directory: Path, *, are_tokens: bool = True) -> Path:
    """Write the bundle into `directory` and return it. `are_tokens`: whether the delimiters of a call are
    tokens of the tokenizer; else they are texts."""
    added = (CALL, END, RESULT, RESULT_END) if are_tokens else ()
    return make_random_bundle(directory, added_tokens=added, change=_declare)


def _declare(manifest: dict[str, Any]) -> None:
    manifest["bundle"]["name"] = "tools"
    manifest["lm"]["subtitles"] = True
    manifest["lm"]["sampling"] = {"speech": {"max_new": 200}, "text": {"max_new": 200}}
    manifest["tools"] = [WEATHER, TIMER]
    manifest["card"] = {
        "languages": ["en"],
        "examples": ["What is the weather in Paris?"],
        "summary": {"en": "It calls a tool."},
        "follows_instructions": True,
        "tool_calls": {
            "call_begin": CALL,
            "call_end": END,
            "result_begin": RESULT,
            "result_end": RESULT_END,
            "announcement": "You may call these tools:\n{tools}",
        },
    }


def answer(turns: list[ContextTurn]) -> Answer:
    """What the scripted model answers; the table is above."""
    last = turns[-1]
    if last.role == "tool":
        return Answer(f"It is {last.text.removeprefix(RESULT).removesuffix(RESULT_END)}.")
    if found := re.search(r"weather in ([\w ]+)\W*$", last.text):
        if WEATHER["name"] not in turns[0].text:
            return Answer("I cannot look.")
        return Answer("Let me look.", call("get_weather", {"city": found[1]}))
    if found := re.search(r"timer for (\d+) minutes", last.text):
        return Answer("", call("set_timer", {"minutes": int(found[1])}))
    if last.text.startswith("Repeat: "):
        return Answer(last.text.removeprefix("Repeat: "))
    if last.text.startswith("What were you told"):
        return Answer(turns[0].text.rpartition("\n")[2])
    if last.text.startswith("Restart"):
        return Answer("", call("restart", {}))
    return Answer("I heard you.")


def call(name: str, arguments: dict[str, Any]) -> str:
    """A call as the model writes it."""
    return f"{CALL}{json.dumps({'name': name, 'arguments': arguments})}{END}"


def load(directory: Path) -> Engine:
    """The engine of the bundle in this folder."""
    return answering(Engine.load(Bundle.open(directory)), answer)


def main() -> int:
    """Serve until a signal asks for the end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8_000, help="0 for any free one")
    parser.add_argument("--conversations", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = make_tool_bundle(Path(folder) / "bundle")
        settings = ServeSettings(port=arguments.port, conversations=arguments.conversations)
        return serve(
            settings,
            lambda: load(bundle),
            load_turn_end_detector,
            lambda address: note(f"listening on {address}"),
        )


if __name__ == "__main__":
    raise SystemExit(main())
