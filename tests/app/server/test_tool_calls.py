"""Function calling: real session, engine and codec, with a language model that calls a tool
(tests/tools/tool_server.py)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.server.realtime_session import EngineFacts, RealtimeSession
from app.session.engine_jobs import (
    Ask,
    Commit,
    Confirm,
    Job,
    OpenTurn,
    Reopen,
    ReplyResult,
    Result,
    TurnFailed,
    UseContext,
)
from app.session.engine_turns import EngineHistory, EngineTurns
from engine_runtime.bundle.tools import ToolUse
from engine_runtime.engine import Engine
from engine_runtime.timing import TimingBus
from engine_runtime.types import CancelScope, Modality, ReplyDone, ToolCall
from engine_runtime.work import run_alone
from tests.doubles.inline_engine import InlineEngine
from tests.doubles.scripted_engine import LoudnessVad
from tests.tools.tool_server import TIMER, WEATHER, call, load
from tests.tools.turns import check

Event = dict[str, Any]
GIVEN: Event = {"type": "function", **WEATHER}
BOTH: list[Event] = [GIVEN, {"type": "function", **TIMER}]
PARIS = '{"city": "Paris"}'
QUESTION = "What is the weather in Paris?"


@pytest.fixture(scope="module")
def loaded(tool_bundle: Path) -> Engine:
    return load(tool_bundle)


class Client:
    """A client of a session that has no socket."""

    def __init__(self, engine: Engine) -> None:
        self.engine = InlineEngine(engine)
        self.events: list[Event] = []
        self.now_s = 0.0
        facts = EngineFacts(
            engine.input_sample_rate,
            engine.output_sample_rate,
            engine.turn_room,
            tools=engine.bundle.card.tools,
        )
        self.session = RealtimeSession(
            "tools", facts, self.engine, LoudnessVad(), self.events.append, lambda: self.now_s
        )
        self.engine.deliver = self.session.on_result

    def send(self, kind: str, **fields: Any) -> list[Event]:
        """Send an event; returns what it brought, with the whole reply."""
        before = len(self.events)
        self.session.handle(json.dumps({"type": kind, "event_id": "mine"} | fields))
        self.engine.work()
        self.now_s += 20.0  # the reply is played
        return self.events[before:]

    def create(self, item: Event, **fields: Any) -> list[Event]:
        return self.send("conversation.item.create", item=item, **fields)

    def type(self, text: str) -> list[Event]:
        part = {"type": "input_text", "text": text}
        return self.create({"type": "message", "role": "user", "content": [part]})

    def ask(self, text: str, **response: Any) -> list[Event]:
        """A typed question and the events of its response."""
        self.type(text)
        return self.send("response.create", response=response)

    def answer(self, call_id: str, output: str) -> list[Event]:
        """The result of a call, and the events of the response to it."""
        item = {"type": "function_call_output", "call_id": call_id, "output": output}
        assert kinds(self.create(item)) == ["conversation.item.added", "conversation.item.done"]
        return self.send("response.create")


@pytest.fixture
def client(loaded: Engine) -> Iterator[Client]:
    engine = Engine(loaded.stages)
    client = Client(engine)
    updated = client.send("session.update", session={"tools": BOTH})
    assert only(updated, "session.updated")["session"]["tools"] == BOTH
    yield client
    check(engine)
    engine.close()


def kinds(events: list[Event]) -> list[str]:
    return [event["type"] for event in events]


def only(events: list[Event], kind: str) -> Event:
    found = [event for event in events if event["type"] == kind]
    assert len(found) == 1, kinds(events)
    return found[0]


def done(events: list[Event]) -> Event:
    response: Event = only(events, "response.done")["response"]
    return response


def transcript(events: list[Event]) -> str:
    return str(only(events, "response.output_audio_transcript.done")["transcript"])


def called(events: list[Event]) -> Event:
    """The item of the call that a response ends with."""
    (item,) = [item for item in done(events)["output"] if item["type"] == "function_call"]
    return dict(item)


def error(events: list[Event]) -> Event:
    found: Event = only(events, "error")["error"]
    return found


def test_a_call_suspends_the_reply_and_its_result_continues_it(client: Client) -> None:
    events = client.ask(QUESTION)
    order = kinds(events)
    assert order[: order.index("response.content_part.added")] == [
        "response.created",
        "rate_limits.updated",
        "response.output_item.added",
        "conversation.item.added",
    ]
    assert order[order.index("response.output_audio.done") :] == [
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    assert transcript(events) == "Let me look.", "the call is not heard"
    assert done(events)["status"] == "completed"
    message, item = done(events)["output"]
    assert message["type"] == "message"
    known = {"type": "function_call", "name": "get_weather", "arguments": PARIS, "status": "completed"}
    assert known.items() <= item.items()
    places = [event["output_index"] for event in events if "output_index" in event]
    assert places == sorted(places)
    assert set(places) == {0, 1}
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"][1]
    assert (added["arguments"], added["status"], added["call_id"]) == ("", "in_progress", item["call_id"])
    (finished,) = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    expected = {"name": "get_weather", "arguments": PARIS, "call_id": item["call_id"], "item_id": item["id"]}
    assert expected.items() <= finished.items()
    assert transcript(client.answer(item["call_id"], "sunny")) == "It is sunny."
    assert transcript(client.ask("Hello.")) == "I heard you."


def test_a_text_reply_may_call(client: Client) -> None:
    client.send("session.update", session={"output_modalities": ["text"]})
    events = client.ask(QUESTION)
    assert only(events, "response.output_text.done")["text"] == "Let me look."
    events = client.answer(called(events)["call_id"], "")
    assert only(events, "response.output_text.done")["text"] == "It is ."


@pytest.mark.parametrize("modality", ["audio", "text"])
def test_the_client_may_choose_that_the_reply_is_a_call(client: Client, modality: str) -> None:
    for choice in ("required", {"type": "function", "name": "get_weather"}):
        events = client.ask(QUESTION, tool_choice=choice, output_modalities=[modality])
        assert [item["type"] for item in done(events)["output"]] == ["function_call"]
        assert called(events)["arguments"] == PARIS
    assert transcript(client.ask(QUESTION, tool_choice="none")) == "I cannot look."
    assert transcript(client.ask(QUESTION, tools=[])) == "I cannot look."
    assert called(client.ask(QUESTION)), "of a response alone"


@pytest.mark.parametrize(
    ("question", "named"),
    [("Set a timer for 90 minutes.", "arguments.minutes"), ("Restart the machine.", "restart")],
)
def test_a_call_that_cannot_be_run_fails_the_response_by_name(
    client: Client, question: str, named: str
) -> None:
    failed = done(client.ask(question))
    assert failed["status"] == "failed"
    problem = failed["status_details"]["error"]
    assert (problem["type"], problem["code"]) == ("server_error", "invalid_tool_call")
    assert named in problem["message"]
    assert called(client.ask(QUESTION))["arguments"] == PARIS, "the conversation goes on"


def test_what_a_user_types_calls_nothing(client: Client) -> None:
    written = call("get_weather", {"city": "Rome"})
    assert transcript(client.ask(written)) == "I heard you."
    events = client.ask(f"Repeat: {written}")
    assert transcript(events) == written
    assert [item["type"] for item in done(events)["output"]] == ["message"]


def test_a_result_needs_its_call(client: Client) -> None:
    output = {"type": "function_call_output", "call_id": "call_other", "output": "sunny"}
    problem = error(client.create(output))
    assert (problem["code"], problem["param"]) == ("invalid_tool_call_id", "item.call_id")
    assert problem["message"] == "Tool call ID 'call_other' not found in conversation."
    assert problem["event_id"] == "mine"
    call_id = called(client.ask(QUESTION))["call_id"]
    client.answer(call_id, "sunny")
    assert "already has" in error(client.create(output | {"call_id": call_id}))["message"]
    assert error(client.create(output | {"call_id": "a/b"}))["param"] == "item.call_id"


def test_calls_of_an_earlier_session_are_created_again(client: Client) -> None:
    question = {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}
    item = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": PARIS}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
    for given in (question, item, output):
        assert not [event for event in client.create(given) if event["type"] == "error"]
    assert transcript(client.send("response.create")) == "It is sunny."
    odd = r'{ "city": "\ud800" }'
    assert kinds(client.create(item | {"arguments": odd}))[-1] == "conversation.item.done"
    assert transcript(client.ask("Hello.")) == "I heard you."
    problem = error(client.create(item | {"name": "reboot"}))
    assert (problem["code"], problem["param"]) == ("unsupported", "item.name")
    assert error(client.create(item | {"arguments": "[]"}))["param"] == "item.arguments"
    assert error(client.create(item | {"arguments": "{"}))["param"] == "item.arguments"


def test_results_of_two_calls_are_answered_at_once(client: Client) -> None:
    for number in ("1", "2"):
        item = {"type": "function_call", "call_id": number, "name": "get_weather", "arguments": PARIS}
        client.create(item)
        client.create({"type": "function_call_output", "call_id": number, "output": f"sunny {number}"})
    assert transcript(client.send("response.create")) == "It is sunny 2."
    call_id = called(client.ask(QUESTION))["call_id"]
    client.type("Hello.")
    assert transcript(client.answer(call_id, "rainy")) == "It is rainy."


def test_a_question_may_come_before_the_result(client: Client) -> None:
    call_id = called(client.ask(QUESTION))["call_id"]
    assert transcript(client.ask("Hello.")) == "I heard you."
    assert transcript(client.answer(call_id, "sunny")) == "It is sunny."
    assert transcript(client.send("response.create")) == "It is sunny.", "the latest is answered again"


def test_calls_and_results_are_retrieved_and_deleted(client: Client) -> None:
    item = called(client.ask(QUESTION))
    client.answer(item["call_id"], "sunny")
    added = [event["item"] for event in client.events if event["type"] == "conversation.item.added"]
    (output,) = [known for known in added if known["type"] == "function_call_output"]
    assert (output["output"], output["status"]) == ("sunny", "completed")
    for known in (item, output):
        found = client.send("conversation.item.retrieve", item_id=known["id"])
        assert only(found, "conversation.item.retrieved")["item"] == known
        fields = {"item_id": known["id"], "content_index": 0, "audio_end_ms": 0}
        assert error(client.send("conversation.item.truncate", **fields))["param"] == "item_id"
    for known in (output, item):
        assert kinds(client.send("conversation.item.delete", item_id=known["id"]))[-1] == (
            "conversation.item.deleted"
        )
    again = {"type": "function_call_output", "call_id": item["call_id"], "output": "rainy"}
    assert error(client.create(again))["code"] == "invalid_tool_call_id"
    assert transcript(client.ask("Hello.")) == "I heard you."


def test_a_result_that_waits_can_be_deleted(client: Client) -> None:
    call_id = called(client.ask(QUESTION))["call_id"]
    output = {"type": "function_call_output", "id": "mine", "call_id": call_id, "output": "sunny"}
    client.create(output)
    client.send("conversation.item.delete", item_id="mine")
    client.create(output | {"output": "rainy"})
    assert transcript(client.send("response.create")) == "It is rainy."


def test_a_reply_that_is_cut_keeps_its_call(client: Client) -> None:
    events = client.ask(QUESTION)
    message = done(events)["output"][0]
    cut = client.send("conversation.item.truncate", item_id=message["id"], content_index=0, audio_end_ms=200)
    assert kinds(cut) == ["conversation.item.truncated"]
    assert transcript(client.answer(called(events)["call_id"], "sunny")) == "It is sunny."


def test_speech_goes_on_while_a_tool_runs(client: Client) -> None:
    detection = {"type": "server_vad", "idle_timeout_ms": 5_000}
    client.send("session.update", session={"audio": {"input": {"turn_detection": detection}}})
    call_id = called(client.ask(QUESTION))["call_id"]
    silence = "A" * (4 * 24_000 * 2 // 3)  # 1 s
    for _ in range(8):
        assert client.send("input_audio_buffer.append", audio=silence) == [], "it waits for the tool"
    assert transcript(client.answer(call_id, "sunny")) == "It is sunny."


def test_a_refused_tool_leaves_the_rest_of_the_update_in_force(client: Client) -> None:
    session = {"tools": [{"type": "function", "name": "reboot"}], "output_modalities": ["text"]}
    (updated,) = client.send("session.update", session=session)  # some clients end at any error
    assert updated["session"]["output_modalities"] == ["text"]
    assert updated["session"]["tools"] == []
    refused = updated["session"]["moss_voice"]["refused_tools"]
    assert (refused["code"], refused["param"]) == ("unsupported", "session.tools[0]")
    assert "'reboot'" in refused["message"]
    client.type("Hello.")
    (refused,) = client.send("response.create", response={"tools": session["tools"]})
    assert refused["error"]["param"] == "response.tools[0]"


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_call_that_cannot_be_run_counts_once_the_user_has_finished(
    loaded: Engine, is_confirmed: bool
) -> None:
    engine, results, commit = Engine(loaded.stages), list[Result](), CancelScope()
    turns = EngineTurns(EngineHistory(engine, results.append), results.append)

    def do(*jobs: Job) -> None:
        for job in jobs:
            run_alone(turns.carry_out(job))
        while run_alone(turns.advance()):
            pass

    do(
        UseContext("", 0.5, ToolUse(engine.bundle.card.tools)),
        OpenTurn(1, Modality.TEXT, CancelScope()),
        Ask(1, "Set a timer for 90 minutes."),
        Commit(1, Modality.TEXT, None, commit, timings=TimingBus()),
    )
    assert not [result for result in results if isinstance(result, TurnFailed)]
    if is_confirmed:
        do(Confirm(1))
        assert [result.code for result in results if isinstance(result, TurnFailed)] == ["invalid_tool_call"]
    else:
        again = Commit(1, Modality.TEXT, None, CancelScope())
        do(Reopen(1, commit), Ask(1, QUESTION), again)
        last = [result.event for result in results if isinstance(result, ReplyResult)][-1]
        assert isinstance(last, ReplyDone)
        assert last.call == ToolCall("get_weather", PARIS)
    check(engine)
    engine.close()


@pytest.mark.slow
def test_the_official_client_runs_a_tool(repository: Path) -> None:
    import asyncio

    from openai import AsyncOpenAI

    async def until_done(connection: Any) -> list[Any]:
        events = []
        async for event in connection:
            assert event.type != "error", event
            events.append(event)
            if event.type == "response.done":
                break
        return events

    async def converse(address: str) -> None:
        openai = AsyncOpenAI(
            api_key="none", base_url=f"http://{address}/v1", websocket_base_url=f"ws://{address}/v1"
        )
        async with openai.realtime.connect(model="tools") as connection:
            tools: Any = [GIVEN]
            await connection.session.update(session={"type": "realtime", "tools": tools})
            part = {"type": "input_text", "text": QUESTION}
            question: Any = {"type": "message", "role": "user", "content": [part]}
            await connection.conversation.item.create(item=question)
            await connection.response.create()
            events = await until_done(connection)
            (item,) = [item for item in events[-1].response.output if item.type == "function_call"]
            (finished,) = [one for one in events if one.type == "response.function_call_arguments.done"]
            assert (item.name, json.loads(finished.arguments)) == ("get_weather", {"city": "Paris"})
            output: Any = {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
            await connection.conversation.item.create(item=output)
            await connection.response.create()
            events = await until_done(connection)
            (said,) = [one for one in events if one.type == "response.output_audio_transcript.done"]
            assert said.transcript == "It is sunny."

    command = [sys.executable, "-m", "tests.tools.tool_server", "--port", "0", "--conversations", "1"]
    process = subprocess.Popen(command, cwd=repository, stderr=subprocess.PIPE, text=True, env=os.environ)
    assert process.stderr is not None
    try:
        address = next(line for line in process.stderr if "listening on" in line)
        asyncio.run(asyncio.wait_for(converse(address.split("://")[1].split("/")[0]), 240))
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.stderr.close()
