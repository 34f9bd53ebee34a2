"""The client's side of a conversation; at the other end is the server's session, without a socket."""

from __future__ import annotations

import base64
import json
import threading
from collections import deque
from typing import Any, cast

import pytest
from typing_extensions import override

from app.remote import conversation as conversation_module
from app.remote import response as response_module
from app.remote.conversation import RemoteConversation
from app.remote.dialect import read_session
from app.server.realtime_session import EngineFacts, RealtimeSession
from app.session.clocks import PendingWork
from app.session.engine_jobs import (
    Ask,
    AskAgain,
    Cancel,
    Commit,
    Confirm,
    FlowSteps,
    FlowStepsSet,
    Forget,
    Hear,
    Interrupt,
    OpenTurn,
    Remember,
    Remove,
    Reopen,
    ReplyResult,
    Restore,
    RestoreFailed,
    Result,
    RolledBack,
    TurnFailed,
    UseFlowSteps,
)
from app.session.engine_slot import EngineSlot, SlotPort
from engine_runtime.errors import LanguageError, Problem
from engine_runtime.timing import TimingBus, TimingEvent
from engine_runtime.types import (
    CancelScope,
    Modality,
    ReplyAudio,
    ReplyDone,
    ReplyEvent,
    ReplyText,
    TurnEndPrediction,
)
from tests.doubles.inline_engine import InlineEngine
from tests.doubles.scripted_engine import OUT_RATE, LoudnessVad, Script, ScriptedEngine
from tests.tools.session_driver import speech

Event = dict[str, Any]
IN_RATE = 24_000
SPEECH, TEXT = Modality.SPEECH, Modality.TEXT


class Server:
    """One session of the server; what it sends waits for `deliver`."""

    def __init__(self, script: Script, flow_steps: FlowSteps | None = None) -> None:
        self.received: list[Event] = []
        self.outgoing: deque[Event] = deque()
        self.engine = InlineEngine(ScriptedEngine(script))
        self.session = RealtimeSession(
            "scripted",
            EngineFacts(16_000, OUT_RATE),
            self.engine,
            LoudnessVad(),
            self.outgoing.append,
            lambda: 0.0,
            flow_steps=flow_steps,
        )
        self.engine.deliver = self.session.on_result
        self.created = self.outgoing.popleft()

    def take(self, event: Event) -> None:
        self.received.append(event)
        self.session.handle(json.dumps(event))


class _Count(PendingWork):
    """Counts requests that are not over."""

    count = 0

    @override
    def begin(self) -> None:
        self.count += 1

    @override
    def end(self) -> None:
        self.count -= 1


class Rig:
    """A client, its server, and what came of it."""

    def __init__(self, script: Script | None = None, flow_steps: FlowSteps | None = None) -> None:
        self.script, self.flow_steps = script or Script(chunks=3), flow_steps
        self.results: list[Result] = []
        self.timings: list[TimingEvent] = []
        self.held_timings: list[TimingEvent] = []
        """Those of speculative replies."""
        self.pending = _Count()
        self.renewals = 0
        bus = TimingBus()
        bus.subscribe(self.timings.append)
        self.server = Server(self.script, self.flow_steps)
        session = read_session(self.server.created)
        changed = threading.Condition()
        slot = EngineSlot(changed, self.pending)
        port = SlotPort(slot, changed, self.pending, self.results.append, lambda timing: None)
        self.client = RemoteConversation(session, port, bus, self._renew, lambda: 0.01)
        self.client.connect(session, self.server.take)
        self.scopes: dict[int, CancelScope] = {}
        self.commit_scopes: dict[int, CancelScope] = {}

    # The port.

    def _renew(self) -> None:
        self.renewals += 1

    # What the tests do.

    def reconnect(self) -> None:
        """The connection is lost, with all that was on its way, and another one found."""
        self.client.lose()
        self.server = Server(self.script, self.flow_steps)
        self.client.connect(read_session(self.server.created), self.server.take)

    def open(self, turn_id: int, reply: Modality = SPEECH) -> None:
        self.scopes[turn_id] = CancelScope()
        self.client.carry_out(OpenTurn(turn_id, reply, self.scopes[turn_id]))

    def commit(self, turn_id: int, reply: Modality = SPEECH, finished: float | None = None) -> None:
        """With `finished` speculatively."""
        self.commit_scopes[turn_id] = CancelScope(self.scopes[turn_id])
        timings = None if finished is None else TimingBus()
        if timings is not None:
            timings.subscribe(self.held_timings.append)
        self.client.carry_out(
            Commit(turn_id, reply, None, self.commit_scopes[turn_id], timings, finished or 0.0)
        )

    def reopen(self, turn_id: int) -> None:
        self.commit_scopes[turn_id].cancel()
        self.client.carry_out(Reopen(turn_id, self.commit_scopes[turn_id]))

    def ask(self, turn_id: int, text: str, reply: Modality = SPEECH) -> None:
        self.open(turn_id, reply)
        self.client.carry_out(Ask(turn_id, text))
        self.commit(turn_id, reply)

    def say(self, turn_id: int, seconds: float = 0.4) -> None:
        self.client.carry_out(Hear(turn_id, speech(seconds, IN_RATE)))

    def deliver(self, events: int = 1_000) -> None:
        """Let the server work, and its events come."""
        self.server.engine.work(events)
        while self.server.outgoing:
            self.client.on_event(self.server.outgoing.popleft())

    def interrupt(self, turn_id: int, samples: int, characters: int = 0) -> None:
        self.scopes[turn_id].cancel()
        self.client.carry_out(Interrupt(turn_id, samples, characters))
        self.deliver()

    # What came of it.

    def replies(self, kind: type[ReplyEvent]) -> list[Any]:
        events = [result.event for result in self.results if isinstance(result, ReplyResult)]
        return [event for event in events if isinstance(event, kind)]

    def calls(self, name: str) -> list[tuple[object, ...]]:
        return [call for call in self.server.engine.engine.calls if call[0] == name]

    def sent(self, kind: str) -> list[Event]:
        return [event for event in self.server.received if event["type"] == kind]

    @property
    def history(self) -> list[str]:
        """What the server's model remembers of replies."""
        return [str(exchange.text) for exchange in self.server.engine.engine.exchanges]

    @property
    def errors(self) -> list[Event]:
        return [event for event in self.server.outgoing if event["type"] == "error"]


def test_a_typed_question_is_answered() -> None:
    rig = Rig()
    rig.ask(1, "what is two plus three")
    assert rig.pending.count == 1
    rig.deliver()
    (done,) = rig.replies(ReplyDone)
    assert (done.text, done.finish_reason, done.modality) == ("word0 word1 word2", "stop", SPEECH)
    audio = rig.replies(ReplyAudio)
    assert {event.sample_rate for event in audio} == {OUT_RATE}
    assert [event.chunk_index for event in audio] == [0, 1, 2]
    assert done.audio_samples == sum(len(event.pcm) for event in audio) == round(1.2 * OUT_RATE)
    starts = [event.start_sample for event in rig.replies(ReplyText)]
    assert starts == [0, round(0.4 * OUT_RATE), round(0.8 * OUT_RATE)]
    assert rig.calls("push_text") == [("push_text", 1, "what is two plus three")]
    assert rig.pending.count == 0


def test_a_text_reply() -> None:
    rig = Rig()
    rig.ask(1, "hello", TEXT)
    rig.deliver()
    assert "".join(event.text for event in rig.replies(ReplyText)) == "word0 word1 word2"
    assert not rig.replies(ReplyAudio)


def test_speech_goes_to_the_server_while_it_is_spoken() -> None:
    rig = Rig()
    rig.open(1)
    rig.say(1)
    rig.say(1)
    assert len(rig.sent("input_audio_buffer.append")) == 2
    rig.commit(1)
    rig.deliver()
    assert len(rig.replies(ReplyDone)) == 1
    pushed = sum(int(str(call[2])) for call in rig.calls("push"))
    assert pushed == pytest.approx(0.8 * 16_000, rel=0.02)


def test_an_interruption_is_cut_at_what_was_heard() -> None:
    rig = Rig()
    rig.ask(1, "count")
    rig.deliver(4)  # a part of the reply
    heard = round(0.5 * OUT_RATE)
    rig.interrupt(1, heard)
    assert rig.pending.count == 0
    assert rig.calls("truncate")[-1] == ("truncate", 1, heard, 0)
    rig.ask(2, "and then")
    rig.deliver()
    assert rig.replies(ReplyDone)[-1].turn_id == 2
    assert rig.replies(ReplyDone)[-1].finish_reason == "stop"


def test_a_reply_of_which_nothing_was_heard_is_forgotten() -> None:
    rig = Rig()
    rig.ask(1, "count")
    rig.interrupt(1, 0)
    rig.ask(2, "hello")
    rig.deliver()
    assert rig.history == ["word0 word1 word2 "]
    assert rig.calls("push_text")[-1] == ("push_text", 2, "hello"), "the question before is forgotten"
    rig.reconnect()
    assert len(rig.calls("remember") or rig.sent("conversation.item.create")) == 2


def test_a_dropped_turn_is_none() -> None:
    rig = Rig()
    rig.open(1)
    rig.say(1)
    rig.scopes[1].cancel()
    rig.client.carry_out(Cancel(1))
    rig.open(2)
    rig.say(2)
    rig.commit(2)
    rig.deliver()
    assert len(rig.sent("input_audio_buffer.clear")) == 1
    assert [event.turn_id for event in rig.replies(ReplyDone)] == [2]


@pytest.mark.parametrize("made", [0, 3])
def test_a_user_who_continues_is_answered_once_and_completely(made: int) -> None:
    rig = Rig()
    rig.open(1)
    rig.say(1)
    rig.commit(1)
    first = rig.commit_scopes[1]
    if made:
        rig.deliver(made)
    first.cancel()
    rig.client.carry_out(Reopen(1, first))
    rig.deliver(0)
    rig.say(1)
    rig.commit(1)
    rig.deliver()
    rolled_back = [result for result in rig.results if isinstance(result, RolledBack)]
    assert [result.scope for result in rolled_back] == [first]
    done = [r.event for r in rig.results if isinstance(r, ReplyResult) and isinstance(r.event, ReplyDone)]
    assert [event.finish_reason for event in done] == ["stop"]
    last = max(int(str(call[1])) for call in rig.calls("commit"))
    heard = sum(int(str(call[2])) for call in rig.calls("push") if call[1] == last)
    assert heard == pytest.approx(0.8 * 16_000, rel=0.02), "the model heard both parts in one turn"
    assert rig.pending.count == 0
    assert len(rig.history) == 1


def heard(rig: Rig) -> float:
    """Speech that the model was given, in seconds."""
    return sum(int(str(call[2])) for call in rig.calls("push")) / 16_000


def test_a_speculative_reply_ends_once_it_is_confirmed() -> None:
    rig = Rig(Script(chunks=2, predictions=(0.98,)))
    rig.open(1)
    rig.say(1)
    rig.commit(1, finished=0.3)
    rig.deliver()
    (predicted,) = rig.replies(TurnEndPrediction)
    assert (predicted.turn_id, predicted.probability) == (1, 0.98)
    assert len(rig.replies(ReplyAudio)) == 2, "it is here before it is confirmed"
    assert rig.replies(ReplyDone) == []
    assert not [event for event in rig.timings if event.turn_id == 1], "nobody sees it yet"
    rig.client.carry_out(Confirm(1))
    rig.deliver()
    (done,) = rig.replies(ReplyDone)
    assert (done.finish_reason, done.text) == ("stop", "word0 word1")
    assert {"commit", "first_audio", "network", "reply"} <= {event.name for event in rig.held_timings}
    assert rig.pending.count == 0
    assert rig.errors == []


def test_a_long_speculative_reply_waits_for_its_confirmation() -> None:
    rig = Rig(Script(chunks=10, predictions=(0.98,)))
    rig.open(1)
    rig.say(1)
    rig.commit(1, finished=0.3)
    rig.deliver()
    made = len(rig.replies(ReplyAudio))
    assert 0 < made < 10
    rig.client.carry_out(Confirm(1))
    rig.deliver()
    assert len(rig.replies(ReplyAudio)) == 10
    assert len(rig.replies(ReplyDone)) == 1


def test_no_speculative_reply_is_made_to_half_a_question() -> None:
    rig = Rig(Script(predictions=(0.1,)))
    rig.open(1)
    rig.say(1)
    rig.commit(1, finished=0.3)
    rig.deliver()
    assert len(rig.replies(TurnEndPrediction)) == 1
    assert rig.replies(ReplyAudio) == []
    rig.client.carry_out(Confirm(1))  # by silence alone
    rig.deliver()
    assert len(rig.replies(ReplyDone)) == 1


def test_the_times_of_a_reply_after_one_that_was_taken_back_are_the_servers() -> None:
    rig = Rig(Script(chunks=1))
    rig.open(1)
    rig.say(1)
    rig.commit(1, finished=0.3)
    rig.deliver()
    rig.reopen(1)
    rig.say(1)
    rig.commit(1)
    rig.deliver()
    assert [event.name for event in rig.timings].count("reply") == 1


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("made", [0, 2, 1_000])
def test_a_speculative_reply_is_taken_back_without_sending_speech_again(chunks: int, made: int) -> None:
    rig = Rig(Script(chunks=chunks, predictions=(0.9,)))
    rig.open(1)
    rig.say(1)
    rig.commit(1, finished=0.3)
    rig.deliver(made)
    rig.reopen(1)
    rig.deliver(0)
    rig.say(1)
    rig.commit(1, finished=0.3)
    rig.deliver()
    rig.client.carry_out(Confirm(1))
    rig.deliver()
    assert [event.finish_reason for event in rig.replies(ReplyDone)] == ["stop"]
    assert heard(rig) == pytest.approx(0.8, rel=0.02), "each part once"
    assert [call[1] for call in rig.calls("open")] == [1], "one turn of the model"
    assert rig.calls("reopen") == [("reopen", 1)]
    assert rig.pending.count == 0
    assert rig.errors == []
    rig.client.carry_out(Remove(1))
    rig.deliver()
    assert rig.errors == [], "the server knows the items of the exchange"
    assert rig.history[chunks == 1 and made > 2 :] == []


def test_a_turn_with_a_speculative_reply_can_be_dropped() -> None:
    rig = Rig(Script(chunks=2, predictions=(0.9,)))
    rig.open(1)
    rig.say(1)
    rig.commit(1, finished=0.3)
    rig.deliver()
    rig.interrupt(1, 0)
    rig.ask(2, "hello")
    rig.deliver()
    assert [event.turn_id for event in rig.replies(ReplyDone)] == [2]
    assert rig.calls("push_text")[-1] == ("push_text", 2, "hello")
    assert rig.pending.count == 0
    assert rig.errors == []


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_speculative_reply_of_which_nothing_came_is_asked_for_on_another_connection(
    is_confirmed: bool,
) -> None:
    rig = Rig(Script(chunks=1))
    rig.open(1)
    rig.say(1)
    rig.commit(1, finished=0.3)
    if is_confirmed:
        rig.client.carry_out(Confirm(1))
    rig.reconnect()
    (asked,) = rig.sent("response.create")
    assert ("moss_voice" in asked["response"]) is not is_confirmed
    rig.deliver()
    rig.client.carry_out(Confirm(1))
    rig.deliver()
    assert len(rig.replies(ReplyDone)) == 1
    assert rig.pending.count == 0


def test_another_connection_knows_what_was_said() -> None:
    rig = Rig()
    rig.ask(1, "what is three plus four")
    rig.deliver()
    rig.open(2)
    rig.say(2)
    rig.commit(2)
    rig.deliver()
    rig.reconnect()
    rig.deliver()
    typed, spoken = rig.calls("remember")
    assert typed[2:] == (("what is three plus four",), "word0 word1 word2")
    assert spoken[3] == "word0 word1 word2"
    (length,) = cast(tuple[int], spoken[2])
    assert length == pytest.approx(0.4 * 16_000, rel=0.02), "as speech: it has no transcript"
    rig.ask(3, "and plus two")
    rig.deliver()
    assert rig.replies(ReplyDone)[-1].finish_reason == "stop"


def test_a_question_that_got_no_answer_is_asked_again() -> None:
    rig = Rig()
    rig.open(1)
    rig.say(1)
    rig.commit(1)
    rig.reconnect()
    assert rig.pending.count == 1
    rig.deliver()
    (done,) = rig.replies(ReplyDone)
    assert done.finish_reason == "stop"
    assert rig.pending.count == 0
    names = [timing.name for timing in rig.timings if timing.turn_id == 1]
    assert names.index("outage") < names.index("first_audio")
    outage = rig.timings[names.index("outage")]
    assert outage.attributes == {"reason": "connection"}
    rig.reconnect()
    assert [timing.name for timing in rig.timings].count("outage") == 1, "no turn waited"


def test_speech_in_progress_is_sent_again() -> None:
    rig = Rig()
    rig.open(1)
    rig.say(1)
    rig.client.lose()
    rig.say(1)  # while there is no connection
    rig.reconnect()
    rig.say(1)
    rig.commit(1)
    rig.deliver()
    assert sum(int(str(call[2])) for call in rig.calls("push")) == pytest.approx(1.2 * 16_000, rel=0.02)
    assert len(rig.replies(ReplyDone)) == 1


def test_a_reply_that_broke_off_ends_with_what_came() -> None:
    rig = Rig()
    rig.ask(1, "count")
    rig.deliver(2)
    rig.reconnect()
    (done,) = rig.replies(ReplyDone)
    assert (done.finish_reason, done.text) == ("cancelled", "word0")
    assert rig.pending.count == 0
    rig.deliver()
    assert rig.calls("remember") == [("remember", 1, ("count",), "word0")], (
        "what was heard of it is remembered"
    )


def test_what_is_cut_after_the_loss_is_cut_at_the_new_server_too() -> None:
    rig = Rig()
    rig.ask(1, "count")
    rig.deliver(4)
    rig.reconnect()
    rig.interrupt(1, round(0.2 * OUT_RATE))
    assert rig.calls("remember")[-1] == ("remember", 2, ("count",), "word0")
    assert rig.history == ["word0"]


def test_the_time_of_the_network_is_what_the_server_did_not_take() -> None:
    rig = Rig()
    rig.ask(1, "hello")
    rig.deliver()
    named = {event.name: event for event in rig.timings if event.turn_id == 1}
    assert set(named) >= {"commit", "first_audio", "server", "network", "reply"}
    parts = named["server"].duration_ns + named["network"].duration_ns
    assert parts == named["first_audio"].duration_ns
    assert "rtf_total" in named["reply"].attributes


def test_the_stages_in_the_server_have_times_of_this_side() -> None:
    rig = Rig()
    rig.ask(1, "hello")
    rig.deliver()
    asked_ns = next(event.start_ns for event in rig.timings if event.name == "commit")
    calls = [event for event in rig.timings if event.name == "vocoder"]
    assert len(calls) == 3, "one a chunk"
    assert {(event.turn_id, event.thread) for event in calls} == {(1, "server")}
    assert all(event.start_ns >= asked_ns for event in calls)


def test_what_is_no_stage_is_passed_over() -> None:
    rig = Rig()
    good = {"name": "prefill", "start_ms": 2, "ms": 0.5, "tokens": 7, "audio_ms": "x"}
    bad = [
        {},
        "step",
        good | {"name": "reply"},
        good | {"name": ["step"]},
        good | {"ms": -1},
        good | {"start_ms": None},
        good | {"ms": float("nan")},
        good | {"ms": True},
    ]
    rig.ask(1, "hello")
    rig.deliver()
    rig.timings.clear()
    for stages in (7, [*bad, good]):
        rig.client.on_event({"type": "moss_voice.response.timings", "ttfa_ms": 1, "stages": stages})
    (stage,) = [event for event in rig.timings if event.thread == "server"]
    assert (stage.name, stage.duration_ns, stage.attributes) == ("prefill", 500_000, {"tokens": 7.0})


def test_a_question_is_asked_again_in_its_place() -> None:
    rig = Rig()
    rig.ask(1, "one")
    rig.deliver()
    rig.ask(2, "two")
    rig.deliver()
    rig.open(3)
    rig.client.carry_out(AskAgain(3, 1))
    rig.commit(3)
    rig.deliver()
    assert rig.calls("push_text")[-1] == ("push_text", 3, "one")
    assert len(rig.history) == 1
    rig.open(4)
    rig.client.carry_out(AskAgain(4, 2))
    failed = [result for result in rig.results if isinstance(result, TurnFailed)]
    assert [
        (result.turn_id, "no longer remembered" in result.problem.what_is_wrong) for result in failed
    ] == [(4, True)]


def test_a_turn_can_be_removed() -> None:
    rig = Rig()
    rig.ask(1, "one")
    rig.deliver()
    rig.client.carry_out(Remove(1))
    rig.deliver()
    assert rig.history == []


def test_a_new_conversation_is_another_session() -> None:
    rig = Rig()
    rig.client.carry_out(Forget())
    assert rig.renewals == 0, "there is nothing to forget"
    rig.ask(1, "one")
    rig.client.carry_out(Forget())
    assert (rig.renewals, rig.pending.count) == (1, 0)
    rig.reconnect()
    assert rig.sent("conversation.item.create") == []


def test_a_kept_conversation_of_a_local_model_is_refused() -> None:
    rig = Rig()
    rig.client.carry_out(Restore({}))
    assert isinstance(rig.results[-1], RestoreFailed)


def test_an_exchange_that_was_held_elsewhere_is_told() -> None:
    rig = Rig()
    rig.client.carry_out(Remember(1, ("one",), "word"))
    rig.deliver()
    assert rig.calls("remember") == [("remember", 1, ("one",), "word")]


def test_a_failure_of_the_server_fails_the_turn() -> None:
    rig = Rig(Script(fail_on="reply"))
    rig.ask(1, "hello")
    rig.deliver()
    (failed,) = [result for result in rig.results if isinstance(result, TurnFailed)]
    assert "The engine is out of order" in failed.problem.what_is_wrong
    assert rig.pending.count == 0


def test_a_question_in_an_unknown_script_fails_alone_and_in_the_words_of_the_server() -> None:
    refusal = LanguageError("This model knows only English.", "Ask in English, or choose another model.")
    rig = Rig(Script(fail_on="push_text", error=refusal))
    rig.ask(1, "你好")
    rig.deliver()
    (failed,) = [result for result in rig.results if isinstance(result, TurnFailed)]
    assert failed == TurnFailed(
        1, Problem(refusal.what_is_wrong, refusal.problem.what_to_do), "unsupported_language"
    )
    assert rig.renewals == 0  # what was said before stays
    assert rig.pending.count == 0


def test_a_refused_request_fails_the_turn() -> None:
    rig = Rig()
    rig.ask(1, "hello")
    (asked,) = rig.sent("response.create")
    error = {"code": "invalid_value", "message": "No.", "event_id": asked["event_id"]}
    rig.client.on_event({"type": "error", "error": error})
    (failed,) = [result for result in rig.results if isinstance(result, TurnFailed)]
    assert failed.turn_id == 1
    assert rig.pending.count == 0


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": 7},
        {"type": "response.created"},
        {"type": "response.done", "response": 3},
        {"type": "response.output_audio.delta", "delta": 7},
        {"type": "response.output_item.added", "item": []},
        {"type": "error"},
        {"type": "error", "error": {"event_id": 3}},
        {"type": "session.updated"},
        {"type": "conversation.item.input_audio_transcription.completed", "item_id": None},
        {"type": "moss_voice.response.timings", "ttfa_ms": "x"},
    ],
)
def test_unexpected_events_do_no_harm(event: Event) -> None:
    rig = Rig()
    rig.client.on_event(event)
    rig.ask(1, "hello")
    rig.client.on_event(event)
    rig.deliver()
    assert rig.pending.count == 0


INFINITE = float("inf")


@pytest.mark.parametrize(
    "event",
    [
        {"type": "moss_voice.response.timings", "ttfa_ms": INFINITE, "rtf_total": INFINITE},
        {"type": "moss_voice.response.timings", "ttfa_ms": 10**400, "rtf_total": 10**400},
        {"type": "moss_voice.response.timings", "stages": [{"name": "prefill", "start_ms": 1e308, "ms": 1}]},
        {"type": "response.done", "response": {"id": ["x"]}},
        {"type": "response.created", "response": {"id": {"deep": []}}},
        {"type": "session.updated", "session": {"audio": {"input": {"format": {"rate": 10**400}}}}},
        {"type": ["response.done"]},
        {"type": "input_audio_buffer.committed", "item_id": {"a": 1}},
    ],
)
def test_no_event_of_a_server_ends_the_conversation(event: Event) -> None:
    rig = Rig()
    rig.client.on_event(event)
    rig.ask(1, "hello")
    rig.deliver(2)
    rig.client.on_event(event)
    rig.deliver()
    rig.ask(2, "and then")
    rig.deliver()
    assert rig.pending.count == 0
    assert [done.text for done in rig.replies(ReplyDone)][-1] == "word0 word1 word2"


def test_a_message_that_is_no_event_fails_the_reply_alone() -> None:
    rig = Rig()
    rig.client.on_garbage()
    rig.ask(1, "hello")
    rig.client.on_garbage()
    (failed,) = [result for result in rig.results if isinstance(result, TurnFailed)]
    assert "not an event of the Realtime protocol" in failed.problem.what_is_wrong
    rig.deliver()
    rig.ask(2, "and then")
    rig.deliver()
    assert rig.pending.count == 0
    assert [done.turn_id for done in rig.replies(ReplyDone)] == [2]


@pytest.mark.parametrize("kind", ["text", "audio"])
def test_a_reply_without_end_is_cut_off(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_module, "MOST_CHARACTERS", 1_000)
    monkeypatch.setattr(response_module, "LONGEST_S", 2.0)
    rig = Rig()
    rig.ask(1, "hello", TEXT if kind == "text" else SPEECH)
    rig.client.on_event({"type": "response.created", "response": {"id": "resp_endless"}})
    sound = base64.b64encode(bytes(2 * OUT_RATE)).decode()
    more = (
        {"type": "response.output_text.delta", "delta": "word " * 50}
        if kind == "text"
        else {"type": "response.output_audio.delta", "delta": sound}
    )
    for _ in range(50):
        rig.client.on_event({**more, "response_id": "resp_endless"})
    (done,) = rig.replies(ReplyDone)
    assert done.finish_reason == "length"
    assert len(done.text) <= 1_000
    assert sum(len(event.pcm) for event in rig.replies(ReplyAudio)) <= 4 * OUT_RATE
    assert rig.sent("response.cancel")
    assert rig.pending.count == 0


def test_what_is_kept_of_a_server_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation_module, "MOST_CHARACTERS", 100)
    monkeypatch.setattr(conversation_module, "MOST_EARLY", 3)
    rig = Rig()
    rig.open(1)
    rig.say(1)
    rig.commit(1)
    rig.deliver()
    (item_id,) = rig.client._exchanges[1].user_items
    heard: Event = {"type": "conversation.item.input_audio_transcription.completed", "item_id": item_id}
    rig.client.on_event({**heard, "transcript": "word " * 30})
    assert len(rig.client._exchanges[1].transcript) == 100
    rig.client.on_event({"type": "input_audio_buffer.speech_started"})
    for _ in range(10):
        rig.client.on_event({"type": "response.output_text.delta", "response_id": "unknown", "delta": "x"})
    assert len(rig.client._early) == 3


def confirmed(rig: Rig) -> list[FlowStepsSet]:
    rig.deliver()
    return [result for result in rig.results if isinstance(result, FlowStepsSet)]


def test_flow_steps_are_those_of_the_server() -> None:
    rig = Rig(flow_steps=FlowSteps(10, 10))
    rig.client.carry_out(UseFlowSteps(4))
    assert confirmed(rig) == [FlowStepsSet(FlowSteps(4, 10))]
    assert rig.calls("use_flow_steps") == [("use_flow_steps", 4)]
    rig.client.carry_out(UseFlowSteps(None))
    assert confirmed(rig)[1:] == [FlowStepsSet(FlowSteps(10, 10))]


def test_another_connection_has_the_chosen_flow_steps() -> None:
    rig = Rig(flow_steps=FlowSteps(10, 10))
    rig.client.carry_out(UseFlowSteps(4))
    confirmed(rig)
    rig.reconnect()
    rig.deliver()
    assert rig.server.engine.engine.flow_steps == 4


def test_refused_flow_steps_are_taken_back() -> None:
    rig = Rig(Script(fail_on="use_flow_steps"), FlowSteps(10, 10))
    rig.client.carry_out(UseFlowSteps(4))
    assert confirmed(rig) == [
        FlowStepsSet(FlowSteps(10, 10), Problem("The engine is out of order.", "Repair it."))
    ]
    rig.reconnect()
    assert not [sent for sent in rig.sent("session.update") if "flow_steps" in str(sent)]


def test_a_server_that_leaves_no_choice_is_not_asked() -> None:
    rig = Rig()
    rig.client.carry_out(UseFlowSteps(4))
    assert confirmed(rig) == []
    assert not [sent for sent in rig.sent("session.update") if "flow_steps" in str(sent)]
