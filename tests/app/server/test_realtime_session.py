"""Contract of a Realtime session, over a scripted engine: what a client sends, and what it gets."""

from __future__ import annotations

import base64
import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.audio.wire_format import FORMATS, PCM16
from app.server.items import KEPT_MS, CallDocument, ItemDocument, OutputDocument
from app.server.protocol import EVENTS
from app.server.realtime_session import EngineFacts, RealtimeSession
from app.server.session_config import ResponseDocument, SessionDocument
from app.session.end_of_turn_worker import Pause, PauseRated
from app.session.engine_jobs import (
    Ask,
    AskAgain,
    Cancel,
    Commit,
    FlowSteps,
    Hear,
    Interrupt,
    OpenTurn,
    Remember,
    Remove,
    Reopen,
    UseContext,
)
from app.session.transcriber import Speech, TranscribedSpeech, TranscriptListener
from engine_runtime.bundle.tools import Tool
from engine_runtime.conversation.context_window import TurnRoom
from engine_runtime.errors import ContextLengthError, LanguageError, Problem
from engine_runtime.types import Modality, Pcm, SamplingParams, SystemText, ToolCall
from tests.doubles.inline_engine import InlineEngine
from tests.doubles.scripted_engine import (
    CHUNK_CODES,
    CODE_SAMPLES,
    OUT_RATE,
    LoudnessVad,
    Script,
    ScriptedEngine,
    scripted_prompt,
)
from tests.tools.session_driver import silence, speech

Event = dict[str, Any]
KINDS = """session.update input_audio_buffer.append input_audio_buffer.commit input_audio_buffer.clear
conversation.item.create conversation.item.delete conversation.item.truncate response.create
response.cancel moss_voice.response.confirm""".split()
FIELDS = """session audio input output format type turn_detection eagerness threshold item id role content
text transcript response metadata conversation output_modalities max_output_tokens item_id content_index
audio_end_ms previous_item_id""".split()
MANUAL = {"audio": {"input": {"turn_detection": None}}}
SPECULATIVE = {"moss_voice": {"speculative": True, "finished": 0.3}}


class Client:
    """A client of a session that has no socket. `now_s` is the time of both."""

    def __init__(self, script: Script | None = None, facts: Event | None = None, **options: Any) -> None:
        """`facts` are those of the engine that differ from the defaults."""
        self.engine = InlineEngine(ScriptedEngine(script))
        self.events: list[Event] = []
        self.now_s = 0.0
        known = EngineFacts(16_000, OUT_RATE, **facts or {})
        self.session = RealtimeSession(
            "scripted", known, self.engine, LoudnessVad(), self.events.append, lambda: self.now_s, **options
        )
        self.engine.deliver = self.session.on_result

    def send(self, kind: str, **fields: Any) -> list[Event]:
        """Send an event; returns what it brought at once."""
        before = len(self.events)
        self.session.handle(json.dumps({"type": kind} | fields))
        return self.events[before:]

    def append(self, pcm: Pcm, wire: str = "audio/pcm") -> list[Event]:
        """Speak in blocks of 20 ms, in real time."""
        known, before = FORMATS[wire], len(self.events)
        size = known.sample_rate // 50
        for start in range(0, len(pcm), size):
            data = known.encode(pcm[start : start + size])
            self.send("input_audio_buffer.append", audio=base64.b64encode(data).decode())
            self.now_s += 0.02
        return self.events[before:]

    def work(self, events: int = 1_000) -> list[Event]:
        before = len(self.events)
        self.engine.work(events)
        return self.events[before:]

    def ask(self, text: str = "what is two plus three", **response: Any) -> list[Event]:
        """A typed question and all that follows."""
        part = {"type": "input_text", "text": text}
        before = len(self.events)
        self.send("conversation.item.create", item={"type": "message", "role": "user", "content": [part]})
        self.send("response.create", response=response)
        self.work()
        return self.events[before:]

    def call_ids(self) -> list[str]:
        """Ids of all calls so far, also of those that the client has added."""
        added = [event["item"] for event in self.events if event["type"] == "conversation.item.added"]
        return [item["call_id"] for item in added if item["type"] == "function_call"]

    def jobs(self, kind: type) -> list[Any]:
        return [job for job in self.engine.jobs if isinstance(job, kind)]


SPOKEN = "conversation.item.input_audio_transcription."


class Transcribing(Client):
    """A client of a server that transcribes; the test answers."""

    def __init__(self, script: Script | None = None) -> None:
        self.asked: list[tuple[Speech, TranscriptListener]] = []
        super().__init__(
            script,
            transcriber="whisper-base",
            transcribe=lambda speech, give: self.asked.append((speech, give)),
        )

    def answer(self, transcript: TranscribedSpeech, place: int = 0) -> list[Event]:
        before = len(self.events)
        self.asked[place][1](transcript)
        return self.events[before:]


def transcribed(**transcription: Any) -> Event:
    return {"audio": {"input": {"transcription": {"model": "gpt-4o-mini-transcribe"} | transcription}}}


def kinds(events: list[Event]) -> list[str]:
    return [event["type"] for event in events]


def only(events: list[Event], kind: str) -> Event:
    found = [event for event in events if event["type"] == kind]
    assert len(found) == 1, kinds(events)
    return found[0]


def failures(client: Client) -> set[str]:
    """Codes of all errors, those of responses, too."""
    ended = [
        event["response"]["status_details"] for event in client.events if event["type"] == "response.done"
    ]
    errors = [event["error"] for event in client.events if event["type"] == "error"]
    return {
        error["code"] for error in [*errors, *(details["error"] for details in ended if "error" in details)]
    }


def empty(events: list[Event]) -> bool:
    """Whether the events are those of a response to nothing."""
    done = only(events, "response.done")["response"]
    return kinds(events)[0] == "response.created" and (done["status"], done["output"]) == ("completed", [])


def error_of(events: list[Event]) -> str:
    return str(only(events, "error")["error"]["code"])


def typed(text: str) -> Event:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def heard_s(client: Client, turn_id: int) -> float:
    """Speech that a turn of the engine was given."""
    return sum(len(job.pcm) for job in client.jobs(Hear) if job.turn_id == turn_id) / 16_000


def said(seconds: float) -> Pcm:
    return speech(seconds, 24_000)


def nothing(seconds: float) -> Pcm:
    return silence(seconds, 24_000)


def test_the_session_says_what_is_in_force() -> None:
    client = Client()
    session = only(client.events, "session.created")["session"]
    assert session["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}
    assert session["audio"]["input"]["turn_detection"]["type"] == "server_vad"
    updated = client.send(
        "session.update",
        session={"instructions": "Be brief.", "tools": [], **MANUAL},
    )
    session = only(updated, "session.updated")["session"]
    assert session["audio"]["input"]["turn_detection"] is None
    assert (session["instructions"], session["tools"]) == ("", []), "the model has neither"
    assert len({event["event_id"] for event in client.events}) == len(client.events)


def test_a_typed_question_is_answered_in_the_order_of_the_protocol() -> None:
    client = Client(Script(chunks=2))
    events = client.ask(metadata={"topic": "sums"})
    assert kinds(events) == [
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "rate_limits.updated",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    done = only(events, "response.done")["response"]
    assert (done["status"], done["metadata"]) == ("completed", {"topic": "sums"})
    assert done["usage"] == {
        "total_tokens": 37,
        "input_tokens": 25,
        "output_tokens": 12,
        "input_token_details": {
            "text_tokens": 20,
            "audio_tokens": 5,
            "image_tokens": 0,
            "cached_tokens": 22,
        },
        "output_token_details": {"text_tokens": 2, "audio_tokens": 10},
    }
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "word0 word1"}]
    audio = b"".join(
        base64.b64decode(event["delta"]) for event in events if event["type"] == "response.output_audio.delta"
    )
    assert len(audio) == 2 * round(0.8 * 24_000)
    expected = np.sin(2 * np.pi * 440 * np.arange(round(0.4 * 24_000)) / 24_000) * 0.5
    np.testing.assert_allclose(PCM16.decode(audio)[: len(expected)], expected, atol=1e-4)


def test_the_seed_of_the_command_line_is_that_of_the_sampling() -> None:
    client = Client(seed=7)
    client.ask()
    assert client.jobs(Commit)[0].seed == 7
    assert client.engine.engine.commits == 1


def test_text_replies() -> None:
    client = Client(Script(chunks=2))
    events = client.ask(output_modalities=["text"], max_output_tokens=5)
    assert only(events, "response.output_text.done")["text"] == "word0 word1"
    assert "response.output_audio.delta" not in kinds(events)
    (commit,) = client.jobs(Commit)
    assert (commit.reply, commit.max_new) == (Modality.TEXT, 5)


def test_the_server_finds_the_turn() -> None:
    client = Client()
    events = client.append(np.concatenate([nothing(0.5), said(1.0), nothing(0.7)]))
    started = only(events, "input_audio_buffer.speech_started")
    stopped = only(events, "input_audio_buffer.speech_stopped")
    committed = only(events, "input_audio_buffer.committed")
    assert started["item_id"] == stopped["item_id"] == committed["item_id"]
    assert started["audio_start_ms"] == pytest.approx(200, abs=40)  # 300 ms of padding
    assert stopped["audio_end_ms"] == pytest.approx(1_660, abs=60)
    assert kinds(events)[-2:] == ["response.created", "rate_limits.updated"]
    given_s = sum(len(job.pcm) for job in client.jobs(Hear)) / 16_000
    assert given_s == pytest.approx((stopped["audio_end_ms"] - started["audio_start_ms"]) / 1e3, abs=0.01)
    assert only(client.work(), "response.done")["response"]["status"] == "completed"


def test_speech_reaches_the_engine_while_it_is_spoken() -> None:
    client = Client()
    client.append(np.concatenate([nothing(0.3), said(0.5)]))
    assert client.jobs(OpenTurn)
    assert len(client.jobs(Hear)) >= 3
    assert not client.jobs(Commit)


def test_without_create_response_the_client_asks_for_one() -> None:
    client = Client()
    detection = {"type": "server_vad", "create_response": False}
    client.send("session.update", session={"audio": {"input": {"turn_detection": detection}}})
    turn = np.concatenate([said(0.6), nothing(0.8)])
    assert "response.created" not in kinds(client.append(np.concatenate([turn, turn])))
    assert len(client.jobs(OpenTurn)) == 1, "both belong to one exchange"
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"


@pytest.mark.parametrize("wire", ["audio/pcmu", "audio/pcma"])
def test_telephone_formats(wire: str) -> None:
    client = Client(Script(chunks=1))
    formats = {"input": {"format": {"type": wire}}, "output": {"format": {"type": wire}}}
    client.send("session.update", session={"audio": formats})
    line = np.concatenate([silence(0.5, 8_000), speech(1.0, 8_000), silence(0.7, 8_000)])
    assert "input_audio_buffer.committed" in kinds(client.append(line, wire))
    deltas = [event for event in client.work() if event["type"] == "response.output_audio.delta"]
    assert sum(len(base64.b64decode(event["delta"])) for event in deltas) == round(0.4 * 8_000)


def test_client_commits() -> None:
    client = Client()
    client.send("session.update", session=MANUAL)
    assert error_of(client.send("input_audio_buffer.commit")) == "input_audio_buffer_commit_empty"
    client.append(said(0.5))
    committed = client.send("input_audio_buffer.commit")
    assert kinds(committed) == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    assert sum(len(job.pcm) for job in client.jobs(Hear)) == pytest.approx(8_000, abs=2)
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"


def test_what_is_not_committed_is_no_part_of_a_response() -> None:
    client = Client()
    client.send("session.update", session=MANUAL)
    client.append(said(0.5))
    assert empty(client.send("response.create")), "the buffer is apart from the items"
    client.ask()
    client.send("input_audio_buffer.commit")
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"


def test_a_response_that_is_asked_for_while_the_user_speaks_begins_with_the_commit() -> None:
    client = Client(Script(chunks=2))
    client.append(said(0.6))
    assert client.send("response.create", response={"metadata": {"n": "1"}, "max_output_tokens": 7}) == []
    assert error_of(client.send("response.create")) == "conversation_already_has_active_response"
    created = only(client.append(nothing(0.7)), "response.created")["response"]
    assert (created["metadata"], created["max_output_tokens"]) == ({"n": "1"}, 7)
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    client.append(said(0.6))
    client.send("response.create")
    cancelled = client.send("response.cancel")
    assert kinds(cancelled) == ["response.created", "rate_limits.updated", "response.done"]
    assert cancelled[-1]["response"]["status"] == "cancelled"


def test_a_response_that_was_asked_for_over_a_cough_answers_what_was_said_before() -> None:
    client = Client(Script(chunks=2))
    client.send("conversation.item.create", item=typed("count"))
    client.append(np.concatenate([said(0.1), nothing(0.05)]))
    client.send("response.create")
    assert "response.created" in kinds(client.append(nothing(0.8)))
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert client.jobs(Ask)[-1].text == "count"


def test_parts_say_whether_they_are_sound_or_text() -> None:
    for modality, part in (
        ("audio", {"type": "audio", "transcript": "word0 word1"}),
        ("text", {"type": "text", "text": "word0 word1"}),
    ):
        client = Client(Script(chunks=2))
        events = client.ask(output_modalities=[modality])
        added = only(events, "response.content_part.added")["part"]
        assert added == part | {"transcript" if modality == "audio" else "text": ""}
        done = only(events, "response.content_part.done")["part"]
        assert done["type"] == part["type"]
        assert set(done) == set(part)


def added(client: Client, item: Event, **fields: Any) -> Event:
    """Create an item; returns its conversation.item.added."""
    return only(client.send("conversation.item.create", item=item, **fields), "conversation.item.added")


def reply(text: str) -> Event:
    return {"role": "assistant", "content": [{"type": "output_text", "text": text}]}


def test_items_are_added_at_any_place() -> None:
    client = Client()
    added(client, typed("one") | {"id": "q1"})
    added(client, reply("first") | {"id": "a1"})
    added(client, typed("two") | {"id": "q2"})
    between = added(client, typed("between") | {"id": "b"}, previous_item_id="a1")
    first = added(client, typed("zero") | {"id": "z"}, previous_item_id="root")
    assert (between["previous_item_id"], first["previous_item_id"]) == ("a1", None)
    assert added(client, reply("hello"), previous_item_id="root")["previous_item_id"] is None
    assert client.jobs(Remember) == [
        Remember(1, ("one",), "first"),
        Remember(2, ("zero",), "", 1),
        Remember(3, (), "hello", 2),
    ]
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert [job.text for job in client.jobs(Ask)] == ["between\ntwo"]
    error = only(client.send("conversation.item.create", item=typed("x"), previous_item_id="y"), "error")
    assert error["error"]["code"] == "item_create_invalid_previous_item_id"
    assert error["error"]["message"] == "Error adding item: the previous item with id 'y' does not exist."


def test_an_item_before_one_that_was_given_drops_the_open_turn() -> None:
    client = Client()
    added(client, typed("two") | {"id": "q2"})
    client.send("response.create")
    client.send("response.cancel")
    added(client, typed("one"), previous_item_id="root")
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert client.jobs(Ask)[-1].text == "one\ntwo"


def test_a_reply_without_a_question_is_part_of_the_history() -> None:
    client = Client()
    for text in ("Hello.", "How are you?"):
        added(client, reply(text))
    assert client.jobs(Remember) == [Remember(1, (), "Hello."), Remember(2, (), "How are you?")]
    assert only(client.ask(), "response.done")["response"]["status"] == "completed"


def test_a_reply_that_is_added_over_a_response_follows_it() -> None:
    client = Client(Script(chunks=3))
    client.send("conversation.item.create", item=typed("count"))
    client.send("response.create")
    client.work(events=2)
    added(client, typed("and"))
    added(client, reply("so"))
    added(client, typed("on"))
    assert not client.jobs(Remember)
    client.work()
    assert client.jobs(Remember) == [Remember(2, ("and",), "so")]
    client.send("response.create")
    client.work()
    assert client.jobs(Ask)[-1].text == "on"


def test_notes_of_the_system_are_kept_and_answer_nothing() -> None:
    client = Client()
    for role in ("system", "developer"):
        part = {"type": "input_text", "text": "Speak of trains."}
        item = added(client, {"type": "message", "role": role, "content": [part]})["item"]
        assert (item["role"], item["content"]) == ("system", [part])
    assert empty(client.send("response.create"))
    assert client.engine.jobs == [], "the model knows no notes"


def test_an_item_may_have_text_and_speech() -> None:
    client = Client()
    audio = base64.b64encode(PCM16.encode(said(0.5))).decode()
    content = [
        {"type": "input_text", "text": "Translate this."},
        {"type": "input_audio", "audio": audio, "transcript": "good morning"},
        {"type": "input_text", "text": "Into French."},
    ]
    item = added(client, {"role": "user", "content": content})["item"]
    assert [part["type"] for part in item["content"]] == ["input_text", "input_audio", "input_text"]
    assert item["content"][1] == {"type": "input_audio", "transcript": "good morning"}
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert client.engine.engine.names_of(1) == ["open", "push_text", "push", "push_text", "commit"]


@pytest.mark.parametrize(
    ("item", "code", "param"),
    [
        ({"role": "user"}, "missing_required_parameter", "item.content"),
        ({"role": "robot", "content": []}, "invalid_value", "item.role"),
        ({"type": "item_reference", "id": "f"}, "unsupported", "item.type"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "unsupported", "item.name"),
        (
            {"role": "user", "content": [{"type": "input_text"}]},
            "missing_required_parameter",
            "item.content[0].text",
        ),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]},
            "unsupported",
            "item.content[0].type",
        ),
        (
            {"role": "system", "content": [{"type": "input_audio", "audio": ""}]},
            "invalid_value",
            "item.content[0].type",
        ),
        (
            {"role": "user", "content": [{"type": "input_audio", "audio": "YWJj"}]},
            "invalid_value",
            "item.content[0].audio",
        ),
        (
            {"role": "user", "content": [{"type": "input_text", "text": "\ud800"}]},
            "invalid_value",
            "item.content[0].text",
        ),
    ],
)
def test_an_item_that_cannot_be_used_is_refused_by_name(item: Event, code: str, param: str) -> None:
    client = Client()
    error = only(client.send("conversation.item.create", event_id="e", item=item), "error")["error"]
    assert (error["code"], error["param"], error["event_id"]) == (code, param, "e"), error["message"]
    assert empty(client.send("response.create")), "nothing was added"


def test_a_response_without_a_new_question_answers_the_latest_one_again() -> None:
    client = Client(Script(chunks=2))
    client.ask("count")
    again = [client.send("response.create"), client.work()]
    assert only(again[1], "response.done")["response"]["status"] == "completed"
    assert client.jobs(AskAgain) == [AskAgain(2, 1, keeps=True)]
    assert "remove" not in client.engine.engine.names_of(1)
    client.send("response.create")
    client.send("response.cancel")
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert client.jobs(AskAgain)[1:] == [AskAgain(3, 1, keeps=True)], "the turn has it already"


def test_a_response_before_any_question_is_empty() -> None:
    client = Client()
    assert empty(client.send("response.create"))
    assert only(client.ask(), "response.done")["response"]["status"] == "completed"


def test_a_sample_may_be_split_between_two_appends() -> None:
    client = Client()
    client.send("session.update", session=MANUAL)
    data = PCM16.encode(said(0.5))
    for part in (data[:1_001], data[1_001:1_002], data[1_002:9_999], data[9_999:]):
        audio = base64.b64encode(part).decode()
        assert client.send("input_audio_buffer.append", audio=audio) == []
    client.send("input_audio_buffer.commit")
    client.send("response.create")
    heard = np.concatenate([job.pcm for job in client.jobs(Hear)])
    whole = Client()
    whole.send("session.update", session=MANUAL)
    whole.send("input_audio_buffer.append", audio=base64.b64encode(data).decode())
    whole.send("input_audio_buffer.commit")
    whole.send("response.create")
    np.testing.assert_allclose(heard, np.concatenate([job.pcm for job in whole.jobs(Hear)]), atol=1e-6)


def test_the_deltas_are_the_transcript() -> None:
    client = Client(Script(chunks=3, words=(" word", " and", "  ")))
    for modality, kind in (("audio", "response.output_audio_transcript"), ("text", "response.output_text")):
        events = client.ask(output_modalities=[modality])
        deltas = "".join(event["delta"] for event in events if event["type"] == f"{kind}.delta")
        done = only(events, f"{kind}.done")
        assert deltas == done["transcript" if modality == "audio" else "text"] == "word and"


ROOM = TurnRoom(scripted_prompt(), {Modality.SPEECH: SamplingParams(max_new=60)}, 320, CODE_SAMPLES)
MOST_S = ROOM.samples(ROOM.most) / 16_000
"""About 18 s."""


def with_room(**facts: Any) -> Client:
    """A client of a model with a short context."""
    return Client(facts={"room": ROOM} | facts)


def test_a_turn_has_one_limit_that_of_the_context() -> None:
    client = with_room()
    error = only(
        client.send("conversation.item.create", event_id="e", item=typed("many words " * 500)), "error"
    )["error"]
    assert (error["code"], error["param"], error["event_id"]) == ("turn_too_long", "item.content", "e")
    client.send("session.update", session=MANUAL)
    second = base64.b64encode(PCM16.encode(said(1.0))).decode()
    refused = [event for _ in range(31) for event in client.send("input_audio_buffer.append", audio=second)]
    assert {event["error"]["code"] for event in refused} == {"turn_too_long"}
    assert len(refused) == 31 - int(MOST_S)
    client.send("input_audio_buffer.commit")
    assert error_of(client.send("conversation.item.create", item=typed("and " * 60))) == "turn_too_long"
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert heard_s(client, turn_id=1) == pytest.approx(int(MOST_S), abs=0.01)


def test_a_monologue_is_answered_in_parts() -> None:
    client = with_room()
    client.append(np.concatenate([said(MOST_S + 0.5), nothing(0.3), said(4.0), nothing(0.8)]))
    client.work()
    done = [event["response"]["status"] for event in client.events if event["type"] == "response.done"]
    assert done == ["cancelled", "completed"]
    assert 0 < heard_s(client, turn_id=1) <= MOST_S
    assert heard_s(client, turn_id=2) == pytest.approx(4.4, abs=0.1)
    assert "error" not in kinds(client.events)


def test_instructions_reach_the_model_that_follows_them() -> None:
    client = Client(Script(chunks=1), facts={"follows_instructions": True})
    client.send("session.update", session={"instructions": "Be brief."})
    client.ask(instructions="Sing.")
    client.ask()
    told = [job.instructions for job in client.jobs(UseContext)]
    assert told == ["Be brief.", "Sing.", "Be brief."]
    note = {"role": "system", "content": [{"type": "input_text", "text": "It is late."}]}
    client.send("conversation.item.create", item=note)
    client.ask("how late?")
    assert [(type(job.text), job.text) for job in client.jobs(Ask)[-2:]] == [
        (SystemText, "It is late."),
        (str, "how late?"),
    ]
    assert client.engine.engine.contexts[-1] == ("Be brief.", 0.5)


def test_instructions_that_fill_the_context_are_refused() -> None:
    client = with_room(follows_instructions=True)
    error = only(client.send("session.update", session={"instructions": "Be brief. " * 200}), "error")
    assert (error["error"]["code"], error["error"]["param"]) == (
        "string_above_max_length",
        "session.instructions",
    )


def test_truncation_is_the_engines() -> None:
    client = Client(Script(chunks=1))
    client.send("session.update", session={"truncation": "disabled"})
    assert client.jobs(UseContext) == [UseContext("", None)]
    full = ContextLengthError("The conversation is full.", "Delete some of it.")
    client.engine.engine.script.fail_on, client.engine.engine.script.error = "push_text", full
    error = only(client.ask(), "response.done")["response"]["status_details"]["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")


def test_long_silence_after_a_reply_is_answered() -> None:
    client = Client(Script(chunks=2))
    detection = {"type": "server_vad", "idle_timeout_ms": 5_000}
    client.send("session.update", session={"audio": {"input": {"turn_detection": detection}}})
    assert client.append(nothing(6.0)) == [], "before the first reply nobody is missed"
    client.append(np.concatenate([said(0.6), nothing(0.7)]))
    client.work()
    assert client.append(nothing(5.5)) == [], "0.8 s of it the reply was played"
    events = client.append(nothing(0.5))
    assert kinds(events)[:2] == ["input_audio_buffer.timeout_triggered", "input_audio_buffer.committed"]
    assert kinds(events)[-2] == "response.created"
    triggered = events[0]
    assert triggered["item_id"] == events[1]["item_id"]
    assert triggered["audio_end_ms"] - triggered["audio_start_ms"] == pytest.approx(5_000, abs=40)
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert heard_s(client, turn_id=2) == pytest.approx(1.0, abs=0.01)
    assert client.append(nothing(5.0)) == []
    assert "input_audio_buffer.timeout_triggered" in kinds(client.append(nothing(1.5)))


def test_what_is_kept_of_the_sound_can_be_retrieved() -> None:
    client = Client(Script(chunks=3))
    committed = only(client.append(np.concatenate([said(0.6), nothing(0.7)])), "input_audio_buffer.committed")
    answer = only(client.work(), "response.done")["response"]["output"][0]

    def sound_of(item_id: str) -> Pcm:
        got = only(client.send("conversation.item.retrieve", item_id=item_id), "conversation.item.retrieved")
        return PCM16.decode(base64.b64decode(got["item"]["content"][0].get("audio", "")))

    asked = sound_of(committed["item_id"])
    assert len(asked) / 24_000 == pytest.approx(heard_s(client, turn_id=1), abs=0.01)
    assert float(np.abs(asked).max()) == pytest.approx(0.3, abs=0.02)
    assert len(sound_of(answer["id"])) == round(1.2 * 24_000)
    client.send("conversation.item.truncate", item_id=answer["id"], content_index=0, audio_end_ms=500)
    assert len(sound_of(answer["id"])) == 12_000
    for _ in range(KEPT_MS // 1_200):
        client.ask()
    assert len(sound_of(answer["id"])) == 0, "the latest two minutes are kept"


def test_a_session_that_ends_ends_its_response() -> None:
    client = Client(Script(chunks=3))
    client.send("conversation.item.create", item=typed("count"))
    client.send("response.create")
    client.work(events=2)
    before = len(client.events)
    client.session.end_response()
    done = only(client.events[before:], "response.done")["response"]
    assert done["status_details"]["reason"] == "client_cancelled"
    before = len(client.events)
    client.session.end_response()
    assert client.events[before:] == []


def test_timings_are_sent_to_who_asks_for_them() -> None:
    client = Client(Script(chunks=2))
    assert "moss_voice.response.timings" not in kinds(client.ask())
    client.send("session.update", session={"moss_voice": {"timings": True}})
    assert kinds(client.ask())[-1] == "moss_voice.response.timings"


def test_timings_say_how_the_end_of_the_turn_was_found() -> None:
    client = Client(Script(chunks=2))
    detection = {"type": "server_vad", "silence_duration_ms": 500}
    client.send(
        "session.update",
        session={"moss_voice": {"timings": True}, "audio": {"input": {"turn_detection": detection}}},
    )
    client.append(nothing(1.0))
    client.append(np.concatenate([said(0.8), nothing(0.8)]))
    spoken = only(client.work(), "moss_voice.response.timings")
    assert spoken["speech_end_ms"] == pytest.approx(1_800, abs=40)
    assert spoken["endpointing_ms"] > 450
    assert spoken["confirmed_ms"] == 0.0
    typed_one = client.ask()[-1]
    assert typed_one["type"] == "moss_voice.response.timings"
    assert "endpointing_ms" not in typed_one


def test_an_item_of_the_response_in_progress_stays() -> None:
    client = Client(Script(chunks=10))
    question = only(client.send("conversation.item.create", item=typed("one")), "conversation.item.added")
    client.send("response.create")
    client.work(events=4)
    refused = client.send("conversation.item.delete", item_id=question["item"]["id"])
    assert error_of(refused) == "response_in_progress"
    client.work()
    assert kinds(client.send("conversation.item.delete", item_id=question["item"]["id"])) == [
        "conversation.item.deleted"
    ]


def test_a_cleared_buffer_is_forgotten() -> None:
    client = Client()
    client.send("session.update", session=MANUAL)
    client.append(said(0.5))
    assert kinds(client.send("input_audio_buffer.clear")) == ["input_audio_buffer.cleared"]
    assert client.jobs(Cancel)
    assert empty(client.send("response.create"))


def test_a_turn_has_a_longest_length() -> None:
    client = Client()
    client.send("session.update", session=MANUAL)
    second = base64.b64encode(PCM16.encode(said(1.0))).decode()
    for _ in range(30):
        assert client.send("input_audio_buffer.append", audio=second) == []
    assert error_of(client.send("input_audio_buffer.append", audio=second)) == "turn_too_long"
    assert "input_audio_buffer.committed" in kinds(client.send("input_audio_buffer.commit"))


def test_speech_over_a_reply_interrupts_it() -> None:
    client = Client(Script(chunks=10))
    client.append(np.concatenate([said(0.6), nothing(0.7)]))
    client.work(events=4)  # two chunks
    events = client.append(said(0.3))
    assert kinds(events)[0] == "input_audio_buffer.speech_started", "it is why the response ends"
    done = only(events, "response.done")["response"]
    assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert done["output"][0]["status"] == "incomplete"
    (cut,) = client.jobs(Interrupt)
    assert cut.samples_played == round(0.8 * OUT_RATE), "what was sent counts as heard"
    assert "response.output_audio.delta" not in kinds(client.work()), "nothing of it comes late"


def test_speech_before_the_first_sound_continues_the_turn() -> None:
    client = Client()
    client.append(np.concatenate([said(0.6), nothing(0.7)]))
    events = client.append(said(0.3))
    assert only(events, "response.done")["response"]["output"] == []
    client.append(nothing(0.8))
    assert client.jobs(Reopen)
    assert len(client.jobs(OpenTurn)) == 1
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert client.engine.engine.names_of(1)[-1] == "commit"


def test_a_backchannel_does_not_interrupt_with_semantic_detection() -> None:
    client = Client(Script(chunks=10))
    client.send("session.update", session={"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}})
    client.append(np.concatenate([said(0.6), nothing(1.2)]))
    client.work(events=4)
    assert client.append(np.concatenate([said(0.3), nothing(0.3)])) == []
    assert "input_audio_buffer.speech_started" in kinds(client.append(said(1.2)))


def test_the_detector_is_asked_about_pauses() -> None:
    asked: list[Pause] = []
    client = Client(ask_detector=asked.append)
    client.send("session.update", session={"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}})
    client.append(np.concatenate([nothing(0.3), said(0.8), nothing(0.2)]))
    (pause,) = asked
    assert len(pause.pcm) / 16_000 == pytest.approx(1.3, abs=0.1)
    client.session.take_rating(PauseRated(pause, 0.99, 0, 0))
    assert "response.created" in kinds(client.append(nothing(0.25))), "after 350 ms and not 640"


def test_a_reply_that_was_played_is_no_longer_interrupted() -> None:
    client = Client(Script(chunks=2))  # 0.8 s
    client.append(np.concatenate([said(0.6), nothing(0.7)]))
    client.work()
    client.now_s += 0.81
    client.append(said(0.1))
    events = client.append(np.concatenate([said(0.5), nothing(0.7)]))
    assert "input_audio_buffer.committed" in kinds(events)
    assert not client.jobs(Interrupt)


def test_a_written_response_is_cut_to_the_text_that_was_sent() -> None:
    client = Client(Script(chunks=10))
    client.send("conversation.item.create", item=typed("count"))
    client.send("response.create", response={"output_modalities": ["text"]})
    client.work(events=3)
    client.send("response.cancel")
    (cut,) = client.jobs(Interrupt)
    assert (cut.samples_played, cut.characters_shown) == (0, len("word0 word1 word2 "))


def test_cancel_stops_the_response() -> None:
    client = Client(Script(chunks=10))
    part = {"type": "input_text", "text": "count"}
    client.send("conversation.item.create", item={"role": "user", "content": [part]})
    client.send("response.create")
    client.work(events=2)
    error = only(client.send("response.create"), "error")["error"]
    assert error["code"] == "conversation_already_has_active_response"
    assert error["message"].startswith("Conversation already has an active response in progress: resp_")
    assert error["moss_voice"]["remedy"].startswith("Wait until the response is finished")
    error = only(client.send("response.cancel", response_id="resp_other"), "error")["error"]
    assert (error["code"], error["param"]) == ("response_cancel_not_active", "response_id")
    assert error["message"] == "Cancellation failed: no active response found."
    done = only(client.send("response.cancel"), "response.done")["response"]
    assert done["status_details"]["reason"] == "client_cancelled"
    usage = done["usage"]
    assert (usage["input_tokens"], usage["output_token_details"]["text_tokens"]) == (25, 1), "so far"
    assert usage["output_token_details"]["audio_tokens"] == CHUNK_CODES
    assert client.jobs(Interrupt)[0].samples_played == round(0.4 * OUT_RATE)
    assert error_of(client.send("response.cancel")) == "response_cancel_not_active"
    assert kinds(client.work()) == []


def test_a_response_cancelled_before_its_first_output_can_be_asked_for_again() -> None:
    client = Client()
    part = {"type": "input_text", "text": "count"}
    client.send("conversation.item.create", item={"role": "user", "content": [part]})
    client.send("response.create")
    cancelled = only(client.send("response.cancel"), "response.done")["response"]
    assert cancelled["usage"]["total_tokens"] == 0, "nothing has come of it"
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert [job.text for job in client.jobs(Ask)] == ["count"]


def test_truncate_cuts_the_history_to_what_was_heard() -> None:
    client = Client(Script(chunks=3))
    item = only(client.ask(), "response.done")["response"]["output"][0]
    second = only(client.ask("and again"), "response.done")["response"]
    for wrong, code in (
        ({"item_id": "item_none", "content_index": 0, "audio_end_ms": 1}, "item_truncate_invalid_item_id"),
        ({"item_id": item["id"], "content_index": 1, "audio_end_ms": 1}, "invalid_value"),
        ({"item_id": item["id"], "content_index": 0, "audio_end_ms": 1_201}, "invalid_value"),
    ):
        assert error_of(client.send("conversation.item.truncate", **wrong)) == code
    events = client.send("conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=500)
    assert only(events, "conversation.item.truncated")["audio_end_ms"] == 500
    client.work()
    assert ("truncate", 1, 12_000, 0) in client.engine.engine.calls, "of the first turn, after the second"
    kept = only(client.send("conversation.item.retrieve", item_id=item["id"]), "conversation.item.retrieved")
    assert kept["item"]["content"][0]["transcript"] == "word0 word1", "the third word was not heard"
    assert second["status"] == "completed"
    whole = {"item_id": second["output"][0]["id"], "content_index": 0, "audio_end_ms": 1_200}
    assert only(client.send("conversation.item.truncate", **whole), "conversation.item.truncated")


def test_a_truncation_at_the_end_of_the_sound_may_be_rounded_up() -> None:
    client = Client(Script(chunks=3, chunk_s=9_607 / 24_000))  # 1,200.9 ms, which a client rounds as it likes
    item = only(client.ask(), "response.done")["response"]["output"][0]
    place = {"item_id": item["id"], "content_index": 0}
    beyond = client.send("conversation.item.truncate", **place, audio_end_ms=1_202)
    assert error_of(beyond) == "invalid_value"
    assert beyond[-1]["error"]["message"].startswith("Audio content of 1201ms ")
    events = client.send("conversation.item.truncate", **place, audio_end_ms=1_201)
    assert only(events, "conversation.item.truncated")["audio_end_ms"] == 1_201
    client.work()
    assert ("truncate", 1, 28_821, 0) in client.engine.engine.calls, "all of it was heard"


def test_history_is_replayed() -> None:
    client = Client()
    question = {"role": "user", "id": "q", "content": [{"type": "input_text", "text": "two plus three"}]}
    answer = {"role": "assistant", "content": [{"type": "output_text", "text": "Five."}]}
    client.send("conversation.item.create", item=question)
    events = client.send("conversation.item.create", item=answer, previous_item_id="q")
    assert only(events, "conversation.item.added")["previous_item_id"] == "q"
    assert client.jobs(Remember) == [Remember(1, ("two plus three",), "Five.")]
    duplicate = only(client.send("conversation.item.create", item=question), "error")["error"]
    assert duplicate["code"] == "item_create_duplicate_item_id"
    assert duplicate["message"] == "Error adding item: an item with id 'q' already exists."
    audio = base64.b64encode(PCM16.encode(said(0.5))).decode()
    spoken = {"role": "user", "content": [{"type": "input_audio", "audio": audio}]}
    client.send("conversation.item.create", item=spoken)
    client.send("conversation.item.create", item=answer)
    assert len(client.jobs(Remember)[1].question[0]) == pytest.approx(8_000, abs=2)
    client.ask("and plus two")
    assert client.jobs(OpenTurn)[0].turn_id == 3


def test_items_are_deleted_with_their_exchange() -> None:
    client = Client()
    item = only(client.ask(), "response.done")["response"]["output"][0]
    deleted = client.send("conversation.item.delete", item_id=item["id"])
    assert only(deleted, "conversation.item.deleted")["item_id"] == item["id"]
    assert client.jobs(Remove) == [Remove(1)]
    for action in ("retrieve", "delete"):
        gone = client.send(f"conversation.item.{action}", item_id=item["id"])
        assert error_of(gone) == f"item_{action}_invalid_item_id"
    part = {"type": "input_text", "text": "not that"}
    client.send("conversation.item.create", item={"role": "user", "id": "i", "content": [part]})
    client.send("conversation.item.delete", item_id="i")
    assert empty(client.send("response.create"))


def test_the_buffer_is_apart_from_a_reply() -> None:
    client = Client(Script(chunks=4))
    client.send("session.update", session=MANUAL)
    client.append(said(0.5))
    first = only(client.send("input_audio_buffer.commit"), "input_audio_buffer.committed")["item_id"]
    client.send("response.create")
    assert client.append(said(0.3)) == [], "the microphone stays open"
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    client.append(said(0.2))
    second = client.send("input_audio_buffer.commit")
    assert only(second, "input_audio_buffer.committed")["previous_item_id"] != first
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert heard_s(client, turn_id=1) == pytest.approx(0.5, abs=0.001)
    assert heard_s(client, turn_id=2) == pytest.approx(0.5, abs=0.001), "0.3 s over the reply, 0.2 after it"


def test_items_and_responses_work_whatever_the_buffer_holds() -> None:
    client = Client()
    client.send("session.update", session=MANUAL)
    client.append(said(0.4))
    assert only(client.ask("hello"), "response.done")["response"]["status"] == "completed"
    answered = client.engine.engine.turns[-1]
    assert (answered.heard, client.jobs(Ask)[-1].text) == ([], "hello")
    client.send("input_audio_buffer.commit")
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert heard_s(client, client.engine.engine.turns[-1].turn_id) == pytest.approx(0.4, abs=0.001)


def test_silence_before_a_question_is_dropped() -> None:
    client = Client()
    client.send("session.update", session=MANUAL)
    assert client.append(nothing(40.0)) == []
    assert not client.jobs(OpenTurn)
    client.append(said(29.0))
    client.send("input_audio_buffer.commit")
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert heard_s(client, turn_id=1) == pytest.approx(30.0, abs=0.05)


def test_speech_that_a_change_of_turn_detection_cuts_off_has_an_end() -> None:
    client = Client()
    started = only(client.append(said(0.5)), "input_audio_buffer.speech_started")
    updated = client.send("session.update", session=MANUAL)
    assert kinds(updated) == [
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.cleared",
        "session.updated",
    ]
    assert updated[0]["item_id"] == started["item_id"]
    assert empty(client.send("response.create"))


def test_a_typed_note_and_speech_are_answered_together() -> None:
    client = Client()
    client.send("conversation.item.create", item=typed("By the way, I am in Paris."))
    events = client.append(np.concatenate([said(0.6), nothing(0.7)]))
    assert "input_audio_buffer.committed" in kinds(events)
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert client.engine.engine.names_of(1) == ["open", "push_text", "push", "commit"]


def test_a_message_that_is_typed_over_a_reply_is_answered_next() -> None:
    client = Client(Script(chunks=3))
    client.send("conversation.item.create", item=typed("count"))
    client.send("response.create")
    client.work(events=2)
    added = client.send("conversation.item.create", item=typed("and backwards"))
    assert kinds(added) == ["conversation.item.added", "conversation.item.done"]
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert [(job.turn_id, job.text) for job in client.jobs(Ask)] == [(1, "count"), (2, "and backwards")]


def test_speech_at_once_after_a_typed_question_continues_it() -> None:
    client = Client(Script(chunks=3))
    client.send("conversation.item.create", item=typed("count"))
    client.send("response.create")
    events = client.append(np.concatenate([said(0.6), nothing(0.7)]))
    assert only(events, "response.done")["response"]["status"] == "cancelled"
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert client.engine.engine.names_of(1) == ["open", "push_text", "commit", "reopen", "push", "commit"]


def test_a_question_cancelled_before_its_reply_waits_beside_the_next() -> None:
    client = Client()
    client.append(np.concatenate([said(0.6), nothing(0.7)]))
    client.send("response.cancel")
    done = [event for event in client.ask("in French") if event["type"] == "response.done"]
    assert done[-1]["response"]["status"] == "completed"
    assert client.engine.engine.names_of(1)[-3:] == ["reopen", "push_text", "commit"]


def test_spoken_and_typed_items_wait_for_one_response() -> None:
    client = Client()
    detection = {"type": "server_vad", "create_response": False}
    client.send("session.update", session={"audio": {"input": {"turn_detection": detection}}})
    client.append(np.concatenate([said(0.6), nothing(0.8)]))
    client.send("conversation.item.create", item=typed("in French"))
    client.append(np.concatenate([said(0.6), nothing(0.8)]))
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert client.engine.engine.names_of(1) == ["open", "push", "push_text", "push", "commit"]


def test_a_cough_over_a_typed_question_leaves_it_to_be_answered() -> None:
    client = Client(Script(chunks=3))
    client.send("conversation.item.create", item=typed("count"))
    client.send("response.create")
    events = client.append(np.concatenate([said(0.1), nothing(0.8)]))
    assert only(events, "response.done")["response"]["status_details"]["reason"] == "turn_detected"
    assert "input_audio_buffer.cleared" in kinds(events)
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert client.jobs(Ask)[-1].text == "count"
    later = client.append(np.concatenate([said(0.1), nothing(0.8)]))
    assert "response.created" not in kinds(later), "no question waits any more"


def test_speech_is_heard_after_a_cancel_also_where_it_does_not_interrupt() -> None:
    client = Client(Script(chunks=10))
    detection = {"type": "server_vad", "interrupt_response": False}
    client.send("session.update", session={"audio": {"input": {"turn_detection": detection}}})
    turn = np.concatenate([said(0.6), nothing(0.7)])
    client.append(turn)
    client.work(events=4)
    assert client.append(turn) == [], "over the reply it is not heard"
    client.send("response.cancel")
    assert "response.created" in kinds(client.append(turn))


def test_a_cough_is_not_part_of_the_question_before_it() -> None:
    client = Client()
    detection = {"type": "server_vad", "create_response": False}
    client.send("session.update", session={"audio": {"input": {"turn_detection": detection}}})
    client.append(np.concatenate([said(0.6), nothing(0.8)]))
    question_s = heard_s(client, turn_id=1)
    cough = client.append(np.concatenate([said(0.1), nothing(0.8)]))
    assert kinds(cough)[-1] == "input_audio_buffer.cleared"
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert heard_s(client, client.jobs(Commit)[-1].turn_id) == pytest.approx(question_s, abs=0.001)


def test_one_of_several_spoken_items_is_deleted() -> None:
    client = Client()
    detection = {"type": "server_vad", "create_response": False}
    client.send("session.update", session={"audio": {"input": {"turn_detection": detection}}})
    first = client.append(np.concatenate([said(0.6), nothing(0.8)]))
    first_s = heard_s(client, turn_id=1)
    second = client.append(np.concatenate([said(0.9), nothing(0.8)]))
    both_s = heard_s(client, turn_id=1)
    item_id = only(first, "input_audio_buffer.committed")["item_id"]
    assert kinds(client.send("conversation.item.delete", item_id=item_id)) == ["conversation.item.deleted"]
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"
    assert heard_s(client, turn_id=2) == pytest.approx(both_s - first_s, abs=0.001)
    kept = only(second, "input_audio_buffer.committed")["item_id"]
    assert only(client.send("conversation.item.retrieve", item_id=kept), "conversation.item.retrieved")


@pytest.mark.parametrize("call", ["open", "push_text", "commit", "reply"])
def test_a_failure_of_the_engine_fails_the_response_and_nothing_else(call: str) -> None:
    client = Client(Script(fail_on=call))
    done = only(client.ask(), "response.done")["response"]
    assert done["status"] == "failed"
    assert done["status_details"]["error"]["message"] == "The engine is out of order. Repair it."
    client.engine.engine.script.fail_on = ""
    assert only(client.ask(), "response.done")["response"]["status"] == "completed"


def test_a_question_in_an_unknown_script_fails_the_response_as_an_invalid_request() -> None:
    refusal = LanguageError("This model knows only English.", "Ask in English, or choose another model.")
    client = Client(Script(fail_on="push_text", error=refusal))
    error = only(client.ask(), "response.done")["response"]["status_details"]["error"]
    assert error == {
        "type": "invalid_request_error",
        "code": "unsupported_language",
        "message": str(refusal),
        "moss_voice": refusal.problem.to_json(),
    }
    client.engine.engine.script.fail_on = ""
    assert only(client.ask(), "response.done")["response"]["status"] == "completed"


def test_what_is_wrong_is_named_with_the_event() -> None:
    client = Client()
    events = client.send("session.update", event_id="mine", session={"audio": {"input": {"format": 7}}})
    error = only(events, "error")["error"]
    assert (error["event_id"], error["param"]) == ("mine", "session.audio.input.format")
    assert error["code"] == "invalid_type"
    before = len(client.events)
    client.session.handle("{")
    assert error_of(client.events[before:]) == "invalid_json"
    assert error_of(client.send("response.create", response={"conversation": "none"})) == "unsupported"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 5_000)
    | st.text(max_size=5)
    | st.sampled_from(["user", "id"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), JSON)), max_size=8)
)
@pytest.mark.slow
def test_garbage_is_answered_and_leaves_a_session_that_works(messages: list[tuple[str, Event]]) -> None:
    client = Client(Script(chunks=1))
    for kind, fields in messages:
        client.send(kind, **fields)
        client.work()
    client.send("session.update", session={"output_modalities": ["audio"], **MANUAL})
    client.send("input_audio_buffer.clear")
    done = [event for event in client.ask() if event["type"] == "response.done"]
    assert done, "a typed question is answered"
    assert done[-1]["response"]["status"] == "completed"


@pytest.mark.slow
def test_every_event_is_one_of_the_official_types() -> None:
    from openai.types.realtime import RealtimeServerEvent
    from pydantic import TypeAdapter

    client = Transcribing(Script(chunks=3))
    client.send("session.update", session=transcribed())
    client.ask()
    client.ask(output_modalities=["text"])
    client.append(np.concatenate([said(0.6), nothing(0.7)]))
    client.work(events=2)
    client.append(np.concatenate([said(0.3), nothing(0.7)]))
    client.work()
    client.append(np.concatenate([said(0.1), nothing(0.7)]))
    client.send("session.update", session=MANUAL)
    client.send("input_audio_buffer.clear")
    item = only(client.ask(), "response.done")["response"]["output"][0]
    client.send("conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=10)
    client.send("conversation.item.retrieve", item_id=item["id"])
    client.send("conversation.item.delete", item_id=item["id"])
    client.send("nonsense")
    client.answer(TranscribedSpeech("what", "en", 0.9))
    client.answer(TranscribedSpeech(problem=Problem("It has ended.")), place=1)
    known = TypeAdapter[Any](RealtimeServerEvent)
    official = [event for event in client.events if not event["type"].startswith("moss_voice.")]
    for event in official:
        assert known.validate_python(event).type == event["type"]
    assert len(set(kinds(official))) >= 27


def test_flow_steps_are_in_force_once_the_engine_says_so() -> None:
    client = Client(flow_steps=FlowSteps(10, 10))
    (created,) = client.events
    assert created["session"]["moss_voice"] == {
        "timings": False,
        "speculation": False,
        "flow_steps": 10,
        "bundle_flow_steps": 10,
    }
    answer = client.send("session.update", session={"moss_voice": {"flow_steps": 4}})
    assert only(answer, "session.updated")["session"]["moss_voice"]["flow_steps"] == 10
    made = client.work()
    assert only(made, "session.updated")["session"]["moss_voice"]["flow_steps"] == 4
    assert client.engine.engine.flow_steps == 4


def test_flow_steps_that_the_engine_refuses_are_an_error() -> None:
    client = Client(Script(fail_on="use_flow_steps"), flow_steps=FlowSteps(10, 10))
    client.send("session.update", session={"moss_voice": {"flow_steps": 4}})
    error = only(client.work(), "error")["error"]
    assert (error["code"], error["param"]) == ("flow_steps_refused", "session.moss_voice.flow_steps")
    assert error["message"] == "The engine is out of order. Repair it."
    assert only(client.ask(), "response.done")["response"]["status"] == "completed"


def test_flow_steps_of_several_conversations_are_their_operators() -> None:
    client = Client()
    answer = client.send("session.update", session={"moss_voice": {"flow_steps": 4}})
    assert error_of(answer) == "unsupported"
    assert client.engine.jobs == []


TOOL = Tool("hello", "", {"type": "object"})
CALL = ToolCall("hello", "{}")
OFFERED = {"type": "function", "name": "hello"}
TOOLS = st.sampled_from([OFFERED, OFFERED | {"name": "other"}]) | JSON
"""One that the model can call, and others."""


class Caller(Client):
    """A client that takes one step after the other, and asks for responses by number. While it offers the
    tool, each reply calls it."""

    def __init__(self) -> None:
        super().__init__(Script(chunks=2, call=CALL), {"tools": (TOOL,)})
        self.send("session.update", session={"moss_voice": {"speculation": True}, "tools": [OFFERED]})
        self.asked = 0

    def step(self, kind: str, size: int) -> None:
        if kind in ("respond", "speculate"):
            self.asked += 1
            number = str(self.asked)
            asked = {"metadata": {"number": number}} | (SPECULATIVE if kind == "speculate" else {})
            self.send("response.create", event_id=number, response=asked)
        elif kind in ("speak", "pause"):
            seconds = 0.1 * (size + 1)
            self.append(said(seconds) if kind == "speak" else nothing(seconds))
        elif kind == "work":
            self.work(events=size)
        elif kind == "update":
            detection = (None, {"type": "server_vad"}, {"type": "semantic_vad", "create_response": False})
            self.send("session.update", session={"audio": {"input": {"turn_detection": detection[size % 3]}}})
        elif kind == "delete":
            ids = [event["item"]["id"] for event in self.events if event["type"].endswith("item.added")]
            self.send("conversation.item.delete", item_id=ids[size % len(ids)] if ids else "none")
        elif kind == "item":
            part = {"type": "input_text", "text": f"text {size}"}
            role = ("user", "assistant", "system")[size % 3]
            part = {"type": "output_text", "text": "so"} if role == "assistant" else part
            place = {"previous_item_id": "root"} if size > 5 else {}
            self.send("conversation.item.create", item={"role": role, "content": [part]}, **place)
        elif kind == "offer":
            self.send("session.update", session={"tools": [OFFERED] * (size % 2)})
        elif kind == "call":
            called = {"call_id": f"c{size}", "name": CALL.name, "arguments": CALL.arguments}
            self.send("conversation.item.create", item={"type": "function_call"} | called)
        elif kind == "output":
            calls = self.call_ids() or ["none"]
            given = {"call_id": calls[-1 - size % len(calls)], "output": f"text {size}"}
            self.send("conversation.item.create", item={"type": "function_call_output"} | given)
        else:
            self.send(kind)

    def outcomes(self, number: int) -> int:
        """So many responses and errors answer the response that was asked for."""
        done = [event["response"] for event in self.events if event["type"] == "response.done"]
        errors = [event["error"]["event_id"] for event in self.events if event["type"] == "error"]
        answers = [response for response in done if response["metadata"] == {"number": str(number)}]
        return len(answers) + errors.count(str(number))


STEPS = st.tuples(
    st.sampled_from(
        "respond respond speculate speak pause work update delete item item offer call output output "
        "response.cancel moss_voice.response.confirm input_audio_buffer.commit "
        "input_audio_buffer.clear".split()
    ),
    st.integers(0, 8),
)


SPOKEN_INTO = [("speak", 1), ("respond", 0), ("item", 1), ("input_audio_buffer.commit", 0), ("update", 0)]
"""The client adds a reply while the user speaks."""


@given(st.lists(STEPS, max_size=16))
@example([*SPOKEN_INTO, ("response.cancel", 0)])
@pytest.mark.slow
def test_every_response_that_is_asked_for_ends_once(steps: list[tuple[str, int]]) -> None:
    client = Caller()
    for kind, size in steps:
        client.step(kind, size)
    client.step("update", 0)
    client.send("moss_voice.response.confirm")  # in case that one waits for it
    client.work()
    client.step("offer", 0)
    assert [client.outcomes(number + 1) for number in range(client.asked)] == [1] * client.asked
    created, done = (kinds(client.events).count(f"response.{name}") for name in ("created", "done"))
    assert created == done
    assert only(client.ask(), "response.done")["response"]["status"] == "completed"
    assert "engine_failed" not in failures(client)


def values_of(schema: Event, defined: Event) -> st.SearchStrategy[Any]:
    """Values that a JSON schema allows, and some that it does not."""
    if "$ref" in schema:
        return values_of(defined[schema["$ref"].rpartition("/")[2]], defined)
    if "anyOf" in schema or "oneOf" in schema:
        branches = schema.get("anyOf") or schema["oneOf"]
        return st.one_of([values_of(branch, defined) for branch in branches])
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "array":
        return st.lists(values_of(schema.get("items", {}), defined), max_size=2)
    if kind == "object" and "properties" in schema:
        fields = {
            name: values_of(field, defined)
            for name, field in schema["properties"].items()
            if name not in UNLIKELY
        }
        required = {name: fields.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(required, optional=fields)
    if kind == "integer":
        return st.integers(schema.get("minimum", -2), min(schema.get("maximum", 400), 5_000))
    if kind == "number":
        return st.floats(schema.get("minimum", -2.0), schema.get("maximum", 5.0))
    if kind == "string":
        return st.sampled_from(["i", "j", "root", "", "hello", "AAAA", "{}"])
    return {"boolean": st.booleans(), "null": st.none()}.get(kind or "", JSON)


UNLIKELY = ("prompt", "reasoning", "tools", "input", "event_id")
"""Fields that are always refused, or that the test sets."""
ITEMS = (ItemDocument, CallDocument, OutputDocument)


@cache
def schema_values(model: Any) -> st.SearchStrategy[Any]:
    schema = model.json_schema() if hasattr(model, "json_schema") else model.model_json_schema()
    return values_of(schema, schema.get("$defs", {}))


@st.composite
def client_events(draw: st.DrawFn) -> Event:
    event: Event = draw(schema_values(EVENTS))
    item = draw(st.sampled_from(ITEMS))
    for name, model in (("session", SessionDocument), ("response", ResponseDocument), ("item", item)):
        if event.get(name) is not None:
            event[name] = draw(schema_values(model))
            if name != "item" and draw(st.booleans()):
                event[name]["tools"] = draw(st.lists(TOOLS, max_size=2))
    return event


ANSWERS = {
    "session.update": "session.updated",
    "input_audio_buffer.commit": "input_audio_buffer.committed",
    "input_audio_buffer.clear": "input_audio_buffer.cleared",
    "conversation.item.create": "conversation.item.added",
    "conversation.item.retrieve": "conversation.item.retrieved",
    "conversation.item.delete": "conversation.item.deleted",
    "conversation.item.truncate": "conversation.item.truncated",
}


@given(st.lists(st.tuples(client_events(), st.integers(0, 8)), max_size=10))
@pytest.mark.slow
def test_events_of_the_schema_are_answered(sent: list[tuple[Event, int]]) -> None:
    facts = {"room": ROOM, "follows_instructions": True, "tools": (TOOL,)}
    client = Client(Script(chunks=2, call=CALL), facts)
    client.send("session.update", session={"tools": [OFFERED]})
    client.send("conversation.item.create", item=typed("hello"))
    for event, work in sent:
        kind, item = event["type"], event.get("item") or {}
        if item.get("call_id") == "j" and (calls := client.call_ids()):
            item["call_id"] = calls[-1]
        got = kinds(send(client, event))
        if kind in ANSWERS:
            assert ("error" in got) is not (ANSWERS[kind] in got), (event, got)
        client.work(events=work)
    send(client, {"type": "session.update", "session": MANUAL | {"output_modalities": ["audio"]}})
    send(client, {"type": "input_audio_buffer.clear"})
    send(client, {"type": "moss_voice.response.confirm"})  # in case that a response waits for it
    client.work()
    created, done = (kinds(client.events).count(f"response.{name}") for name in ("created", "done"))
    assert created == done
    assert "engine_failed" not in failures(client)


def send(client: Client, event: Event) -> list[Event]:
    before = len(client.events)
    client.session.handle(json.dumps(event | {"event_id": "e"}))
    return client.events[before:]


def speculating(script: Script) -> Client:
    """A client that has asked for a speculative response to what it said."""
    client = Client(script)
    client.send("session.update", session=MANUAL | {"moss_voice": {"speculation": True}})
    client.append(said(0.4))
    client.send("input_audio_buffer.commit")
    client.send("response.create", response=SPECULATIVE)
    return client


def test_a_speculative_response_says_what_the_model_predicts_and_ends_once_it_is_confirmed() -> None:
    client = speculating(Script(chunks=1, predictions=(0.91234,)))
    events = client.work()
    predicted = only(events, "moss_voice.response.turn_end")
    assert predicted["probability"] == 0.9123
    assert predicted["response_id"] == only(client.events, "response.created")["response"]["id"]
    only(events, "response.output_audio.delta")
    assert "response.done" not in kinds(events)
    events = client.send("moss_voice.response.confirm")
    assert only(events, "response.done")["response"]["status"] == "completed"
    assert error_of(client.send("moss_voice.response.confirm")) == "response_not_speculative"
    assert kinds(client.ask())[-1] == "response.done"


def test_nothing_remains_of_a_speculative_response_that_is_cancelled() -> None:
    client = speculating(Script(chunks=1, predictions=(0.9,)))
    client.work()
    question = only(client.events, "input_audio_buffer.committed")["item_id"]
    cancelled = client.send("response.cancel")
    reply = only(cancelled, "response.done")["response"]["output"][0]["id"]
    assert only(cancelled, "conversation.item.deleted")["item_id"] == reply
    only(client.send("conversation.item.retrieve", item_id=question), "conversation.item.retrieved")
    client.append(said(0.4))
    client.send("input_audio_buffer.commit")
    events = client.send("response.create") + client.work()
    assert only(events, "response.done")["response"]["status"] == "completed"
    assert "moss_voice.response.turn_end" not in kinds(events)
    assert heard_s(client, 1) == pytest.approx(0.8, rel=0.02)


@pytest.mark.parametrize(
    "session", [{}, MANUAL, {"moss_voice": {"speculation": True}}], ids=["neither", "not asked", "detection"]
)
def test_a_speculative_response_needs_a_session_for_it(session: Event) -> None:
    client = Client()
    client.send("session.update", session=session)
    client.append(said(0.4))
    refused = only(client.send("response.create", response=SPECULATIVE), "error")["error"]
    assert (refused["code"], refused["param"]) == ("invalid_value", "response.moss_voice.speculative")


# ---- transcription ----


def test_a_spoken_turn_is_transcribed_after_its_commit_and_beside_its_reply() -> None:
    client = Transcribing()
    client.append(np.concatenate([said(1.0), nothing(1.0)]))
    assert not client.asked, "nobody has asked for it"
    client.work()
    (updated,) = client.send("session.update", session=transcribed(language="en-US", prompt="yes, no"))
    shown = updated["session"]["audio"]["input"]["transcription"]
    assert shown == {"model": "whisper-base", "language": "en", "prompt": "yes, no"}
    events = client.append(np.concatenate([nothing(1.0), said(1.0), nothing(1.0)])) + client.work()
    assert only(events, "response.done")["response"]["status"] == "completed"
    ((speech, _),) = client.asked
    assert (speech.sample_rate, speech.language, speech.prompt) == (16_000, "en", "yes, no")
    assert speech.seconds == pytest.approx(1.4, abs=0.4)
    item_id = only(events, "input_audio_buffer.committed")["item_id"]
    delta, completed = client.answer(TranscribedSpeech("what is two", "en", 1.4))
    of_item = {"item_id": item_id, "content_index": 0}
    assert delta.items() >= ({"type": f"{SPOKEN}delta", "delta": "what is two"} | of_item).items()
    assert (completed["type"], completed["transcript"]) == (f"{SPOKEN}completed", "what is two")
    assert completed.items() >= of_item.items()
    assert completed["usage"] == {"type": "duration", "seconds": 1.4}
    (retrieved,) = client.send("conversation.item.retrieve", item_id=item_id)
    assert retrieved["item"]["content"][0]["transcript"] == "what is two"


def test_audio_that_the_client_commits_is_transcribed() -> None:
    client = Transcribing()
    client.send("session.update", session=MANUAL)
    older = {"input_audio_transcription": {"model": "whisper-1"}}
    client.send("session.update", session=older)
    client.append(said(0.5))
    client.send("input_audio_buffer.commit")
    client.append(nothing(0.5))
    client.send("input_audio_buffer.commit")
    assert [speech.seconds for speech, _ in client.asked] == [0.5, pytest.approx(0.5, abs=0.02)]
    completed = client.answer(TranscribedSpeech("", "en", 0.5), place=1)
    assert kinds(completed) == [f"{SPOKEN}completed"], "there is nothing to add bit by bit"
    assert completed[0]["transcript"] == ""
    client.send("session.update", session={"input_audio_transcription": None})
    client.append(said(0.5))
    client.send("input_audio_buffer.commit")
    assert len(client.asked) == 2


def test_a_transcription_that_fails_is_of_its_item_alone() -> None:
    client = Transcribing()
    client.send("session.update", session=MANUAL)
    client.send("session.update", session=transcribed())
    client.append(said(0.5))
    committed = client.send("input_audio_buffer.commit")
    (failed,) = client.answer(TranscribedSpeech(problem=Problem("The process has ended.", "Wait.")))
    assert (failed["type"], failed["content_index"]) == (f"{SPOKEN}failed", 0)
    assert failed["item_id"] == only(committed, "input_audio_buffer.committed")["item_id"]
    assert failed["error"]["code"] == "transcription_failed"
    assert failed["error"]["message"] == "The process has ended. Wait."
    client.send("response.create")
    assert only(client.work(), "response.done")["response"]["status"] == "completed"


def test_words_of_a_deleted_item_are_dropped() -> None:
    client = Transcribing()
    client.send("session.update", session=MANUAL)
    client.send("session.update", session=transcribed())
    client.append(said(0.5))
    committed = client.send("input_audio_buffer.commit")
    client.send(
        "conversation.item.delete", item_id=only(committed, "input_audio_buffer.committed")["item_id"]
    )
    assert client.answer(TranscribedSpeech("gone", "en", 0.5)) == []


def test_a_server_that_cannot_transcribe_says_so_once_and_keeps_the_rest_of_the_update() -> None:
    client = Client()
    (updated,) = client.send("session.update", session=transcribed() | {"max_output_tokens": 7})
    assert updated["type"] == "session.updated"
    assert updated["session"]["audio"]["input"]["transcription"] is None
    assert updated["session"]["max_output_tokens"] == 7
    turn = np.concatenate([said(1.0), nothing(1.0)])
    failed = only(client.append(turn) + client.work(), f"{SPOKEN}failed")
    assert failed["error"]["code"] == "unsupported"
    assert "--transcribe" in failed["error"]["message"]
    client.append(np.concatenate([nothing(1.0), turn]))
    client.work()
    assert kinds(client.events).count("input_audio_buffer.committed") == 2
    assert kinds(client.events).count(f"{SPOKEN}failed") == 1
    assert "error" not in kinds(client.events)
