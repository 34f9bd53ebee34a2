"""Conversations with servers that this project did not write: doubles of two dialects, without a socket."""

from __future__ import annotations

import json
import threading
from collections import deque
from typing import Any

import pytest
from pydantic import TypeAdapter

from app.remote.conversation import RemoteConversation
from app.remote.dialect import read_session
from app.session.clocks import PendingWork
from app.session.engine_jobs import (
    Ask,
    Commit,
    Confirm,
    EngineNotice,
    Hear,
    Interrupt,
    OpenTurn,
    ReplyMade,
    ReplyResult,
    Result,
    Transcribed,
    TurnFailed,
)
from app.session.engine_slot import EngineSlot, SlotPort
from engine_runtime.timing import TimingBus, TimingEvent
from engine_runtime.types import CancelScope, Modality, ReplyAudio, ReplyDone
from tests.doubles.openai_realtime import REPLY_S, WORDS, OpenAiSession
from tests.doubles.speech_to_speech import SpeechToSpeechSession
from tests.tools.session_driver import speech

Event = dict[str, Any]
SPEECH = Modality.SPEECH
RATE = 24_000


class Talk:
    """A conversation with one server; what the server sends waits for `deliver`."""

    def __init__(
        self, make_server: type[OpenAiSession] | type[SpeechToSpeechSession], voice: str = ""
    ) -> None:
        self.sent: list[Event] = []
        self.received: list[Event] = []
        self.results: list[Result] = []
        self.timings: list[TimingEvent] = []
        self._waiting: deque[Event] = deque()
        self.server = make_server(self._waiting.append)
        self.pending = PendingWork()
        bus = TimingBus()
        bus.subscribe(self.timings.append)
        changed = threading.Condition()
        slot = EngineSlot(changed, self.pending)
        port = SlotPort(slot, changed, self.pending, self.results.append, lambda timing: None)
        session = read_session(self._next())
        self.session = session
        self.client = RemoteConversation(session, port, bus, lambda: None, lambda: None, voice)
        self.client.connect(session, self._send)
        self._scope = CancelScope()

    def _send(self, event: Event) -> None:
        self.sent.append(event)
        self.server.handle(json.dumps(event))

    def _next(self) -> Event:
        self.received.append(self._waiting.popleft())
        return self.received[-1]

    def deliver(self, without: str = "") -> None:
        """All that the server has sent, but for events of the type `without`."""
        while self._waiting:
            if (event := self._next())["type"] != without:
                self.client.on_event(event)

    def open(self, turn_id: int) -> None:
        self._scope = CancelScope()
        self.client.carry_out(OpenTurn(turn_id, SPEECH, self._scope))

    def commit(self, turn_id: int, timings: TimingBus | None = None) -> None:
        self.client.carry_out(Commit(turn_id, SPEECH, None, CancelScope(self._scope), timings, 0.3))

    def say(self, turn_id: int) -> None:
        """A spoken question."""
        self.open(turn_id)
        self.client.carry_out(Hear(turn_id, speech(0.5, RATE)))
        self.commit(turn_id)

    def ask(self, turn_id: int, text: str) -> None:
        self.open(turn_id)
        self.client.carry_out(Ask(turn_id, text))
        self.commit(turn_id)

    def interrupt(self, turn_id: int, samples: int) -> None:
        self._scope.cancel()
        self.client.carry_out(Interrupt(turn_id, samples, 0))

    def replies(self, kind: type[Any]) -> list[Any]:
        events = [result.event for result in self.results if isinstance(result, ReplyResult)]
        return [event for event in events if isinstance(event, kind)]

    def captions(self) -> list[tuple[int, str]]:
        """The words of the user's turns."""
        words = [result for result in self.results if isinstance(result, Transcribed)]
        return [(result.turn_id, result.text) for result in words]

    def failures(self) -> list[str]:
        return [str(result.problem) for result in self.results if isinstance(result, TurnFailed)]

    def errors(self) -> list[str]:
        """Codes of the errors that the server has sent."""
        errors = [event["error"] for event in self.received if event["type"] == "error"]
        return [error.get("code") or error["type"] for error in errors]


def openai(voice: str = "") -> tuple[Talk, OpenAiSession]:
    talk = Talk(OpenAiSession, voice)
    assert isinstance(talk.server, OpenAiSession)
    talk.deliver()
    return talk, talk.server


def test_a_session_with_openai_has_nothing_that_it_refuses() -> None:
    talk, server = openai()
    assert talk.session.model == "gpt-realtime"
    assert not talk.session.offers_speculation
    assert not talk.session.offers_timings
    talk.say(1)
    talk.deliver()
    talk.ask(2, "And of Spain?")
    talk.deliver()
    first, second = talk.replies(ReplyDone)
    assert (first.text, first.finish_reason, first.turn_id) == ("".join(WORDS), "stop", 1)
    assert second.turn_id == 2
    spoken = sum(len(event.pcm) for event in talk.replies(ReplyAudio) if event.turn_id == 1)
    assert spoken == pytest.approx(REPLY_S * RATE)
    assert server.heard_s == [pytest.approx(0.5)]
    assert list(server.items.values()) == ["user", "assistant"] * 2
    assert talk.errors() == []
    assert talk.pending.idle.is_set()


def test_openai_replies_in_the_voice_that_was_chosen() -> None:
    talk, server = openai("cedar")
    assert server.voice == "cedar"
    assert talk.results == []


def test_a_voice_that_openai_does_not_have_is_said_once() -> None:
    talk, server = openai("nano")
    (notice,) = talk.results
    assert isinstance(notice, EngineNotice)
    assert "does not have the voice nano: Invalid value: 'nano'" in str(notice.problem)
    assert server.voice == "marin"
    talk.say(1)
    talk.deliver()
    assert len(talk.replies(ReplyDone)) == 1
    talk.sent.clear()
    talk.client.lose()
    talk.client.connect(talk.session, talk.sent.append)
    assert "nano" not in str(talk.sent), "another connection does not ask for it again"


def test_what_the_user_said_comes_from_openai() -> None:
    talk, _ = openai()
    talk.say(1)
    talk.say(2)  # before the words of the first are there
    talk.deliver()
    talk.ask(3, "typed")
    talk.deliver()
    assert talk.captions() == [(1, "question 1"), (2, "question 2")]


def test_what_openai_does_not_measure_is_absent() -> None:
    talk, _ = openai()
    for turn_id in (1, 2):
        talk.say(turn_id)
        talk.deliver()
    assert {event.name for event in talk.timings} == {"commit", "first_audio"}, "no stage, server or network"
    assert not [result for result in talk.results if isinstance(result, ReplyMade)]


def test_openai_is_not_asked_for_a_reply_that_may_be_taken_back() -> None:
    talk, _ = openai()
    talk.open(1)
    talk.client.carry_out(Hear(1, speech(0.5, RATE)))
    talk.commit(1, TimingBus())  # as a session that speculates in any case
    talk.client.carry_out(Confirm(1))
    talk.deliver()
    assert talk.errors() == []
    assert len(talk.replies(ReplyDone)) == 1


def test_a_reply_of_openai_is_cut_where_it_was_heard() -> None:
    talk, server = openai()
    server.makes = 2
    talk.say(1)
    talk.deliver()
    talk.interrupt(1, RATE // 10)
    (cut,) = [event for event in talk.sent if event["type"] == "conversation.item.truncate"]
    assert (server.items[cut["item_id"]], cut["audio_end_ms"]) == ("assistant", 100)
    server.settle()
    talk.deliver()
    assert talk.errors() == []


def test_a_question_waits_until_openai_has_ended_the_response_before() -> None:
    talk, server = openai()
    server.makes = 1
    talk.say(1)
    talk.deliver()
    talk.interrupt(1, RATE // 10)
    talk.say(2)
    talk.deliver()
    assert talk.errors() == ["conversation_already_has_active_response"]
    assert talk.failures() == []
    server.settle()
    talk.deliver()
    (done,) = talk.replies(ReplyDone)
    assert (done.turn_id, done.text) == (2, "".join(WORDS))
    assert talk.pending.idle.is_set()


def test_a_limit_of_openai_fails_the_question_with_its_words() -> None:
    talk, server = openai()
    server.failure = ("rate_limit_exceeded", "Rate limit reached for gpt-realtime. Try again in 2 s.")
    talk.say(1)
    talk.deliver()
    (failed,) = talk.failures()
    assert "Rate limit reached for gpt-realtime. Try again in 2 s." in failed
    server.failure = None
    talk.say(2)
    talk.deliver()
    assert [done.turn_id for done in talk.replies(ReplyDone)] == [2]


@pytest.mark.slow
def test_the_double_speaks_as_openai_does() -> None:
    from openai.types.realtime import RealtimeServerEvent

    talk, server = openai()
    talk.say(1)
    talk.ask(2, "again")
    server.handle(json.dumps({"type": "session.update", "event_id": "e", "session": {"moss_voice": {}}}))
    server.expire()
    talk.deliver()
    known: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
    for event in talk.received:
        assert known.validate_python(event).type == event["type"]
    assert len({event["type"] for event in talk.received}) > 15


def test_each_sentence_of_speech_to_speech_is_shown() -> None:
    talk = Talk(SpeechToSpeechSession)
    talk.ask(1, "hello")
    part: Event = {"type": "response.output_audio_transcript.done", "response_id": "resp_1"}
    for event in (
        {"type": "response.created", "response": {"id": "resp_1"}},
        part | {"transcript": "One."},
        part | {"transcript": "Two."},
        {"type": "response.done", "response": {"id": "resp_1", "status": "completed"}},
    ):
        talk.client.on_event(event)
    assert talk.replies(ReplyDone)[0].text == "One. Two."


def test_a_response_that_speech_to_speech_did_not_announce_is_taken() -> None:
    talk = Talk(SpeechToSpeechSession)
    talk.open(1)
    talk.client.carry_out(Hear(1, speech(0.5, RATE)))
    talk.deliver()
    talk.commit(1)
    talk.deliver("response.created")
    assert [event.text for event in talk.replies(ReplyDone)] == ["You said: turn 1."]
    assert talk.pending.idle.is_set()


def test_words_of_speech_whose_item_speech_to_speech_does_not_name_are_of_the_present_turn() -> None:
    talk = Talk(SpeechToSpeechSession)
    talk.open(1)
    talk.client.carry_out(Hear(1, speech(0.5, RATE)))
    talk.deliver()
    talk.commit(1)
    talk.deliver("input_audio_buffer.committed")
    assert talk.captions() == [(1, "turn 1")]
