"""The state machine of one Realtime session: client events in, server events and engine jobs out.

In: client events (`handle`), results of the engine (`on_result`), answers of the end-of-turn detector
(`take_rating`). Out: server events, given to `emit`; jobs; questions for the detector. It knows no socket and
no thread, and time only through the clock that is passed in. Event loop.

A conversation is a list of items. All user items since the last reply are one turn of the engine, and with
the reply one exchange of its history. Turns by voice, and the replies to all turns, are those of the
`TurnDriver` that the window has; its hooks are here. The input buffer is apart from them: what a client
appends without turn detection goes to the engine early where that is free for it, and is an item once it is
committed. At most one response is in progress. What is sent counts as heard until the client truncates the
item; an exchange of which nothing was heard leaves the history of the model.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

from app.audio.wire_format import AudioFormat
from app.dialog.turn_events import TurnEvent
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.vad import Vad
from app.server.input_buffer import InputBuffer
from app.server.items import Item, ItemList, read_item
from app.server.pending_items import PendingItems
from app.server.protocol import (
    AudioAppend,
    AudioClear,
    AudioCommit,
    ClientAction,
    Identifiers,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    Json,
    ProtocolError,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
    describe,
    parse,
)
from app.server.response import Emit, ResponseControl
from app.server.session_config import FLOW_STEPS, SessionConfig
from app.session.end_of_turn_worker import Pause, PauseRated
from app.session.engine_jobs import (
    FlowSteps,
    FlowStepsSet,
    Hear,
    Heard,
    Interrupt,
    JobQueue,
    Remember,
    Remove,
    ReplyMade,
    ReplyResult,
    Result,
    RolledBack,
    TurnFailed,
    UseFlowSteps,
)
from app.session.engine_turns import KEPT_TURNS
from app.session.events import CancelReason, SpeculationStats
from app.session.speculation import HeldReply
from app.session.turn_driver import DriverSettings, StoppedReply, TurnDriver, UserTurn
from engine_runtime.errors import MossVoiceError
from engine_runtime.timing import TimingBus
from engine_runtime.types import Pcm, ReplyEvent

LONGEST_TURN_S = 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineRates:
    """What a session needs to know of the engine's audio, in Hz."""

    input_sample_rate: int
    output_sample_rate: int


class RealtimeSession:
    """The session of one client, and the hooks of its `TurnDriver`."""

    def __init__(
        self,
        model: str,
        rates: EngineRates,
        jobs: JobQueue,
        vad: Vad,
        emit: Emit,
        clock_s: Callable[[], float],
        *,
        ask_detector: Callable[[Pause], None] | None = None,
        seed: int | None = None,
        flow_steps: FlowSteps | None = None,
        timing: TimingBus | None = None,
    ) -> None:
        """Emits session.created. `model` is the name of the bundle, `seed` that of the sampling, `flow_steps`
        those in force if the client may choose them, `timing` the engine's bus. Without `ask_detector`
        semantic turn detection relies on silence and the language model."""
        self.ids = Identifiers()
        self._send = emit
        self._rates = rates
        self._config = SessionConfig(model, flow_steps=flow_steps)
        self._jobs = jobs
        self._clock_s = clock_s
        self._seed = seed
        self._items = ItemList()
        self._pending = PendingItems(jobs)
        rate = self._config.input_format.sample_rate
        self._buffer = InputBuffer(vad, rate, rates.input_sample_rate, LONGEST_TURN_S)
        self._responses = ResponseControl(
            self.ids, self._items, rates.output_sample_rate, self._emit, clock_s
        )
        self._driver = TurnDriver(
            self._buffer.stream,
            self._pending,
            self,
            lambda: round(clock_s() * 1e9),
            DriverSettings(TurnTakingSettings()),
            ask_detector,
        )
        self._driver.timing = timing or self._driver.timing
        self._driver.use_engine(rates.input_sample_rate)
        self._item_id = ""
        """Id of the item that present speech becomes."""
        self._requested: tuple[SessionConfig, Json | None] | None = None
        """Configuration and metadata of the response that the client asks for."""
        self._cuttable: deque[int] = deque(maxlen=KEPT_TURNS)
        """Turns whose reply can still be cut at what was heard."""
        self._apply(self._config)
        self._emit({"type": "session.created", "session": self._document()})

    @property
    def is_responding(self) -> bool:
        """Whether a response is in progress."""
        return self._responses.active is not None

    # ---- in ----

    def handle(self, text: str) -> None:
        """One message of the client. What cannot be done is answered by an error event."""
        event_id = None
        try:
            event = parse(text)
            event_id = event.event_id
            self._carry_out(event.action)
        except ProtocolError as error:
            self.refuse(error, event_id or error.event_id)

    def refuse(self, error: ProtocolError, event_id: str | None = None) -> None:
        """Answer a client event by an error."""
        described = describe(error.problem, "invalid_request_error", error.code)
        self._emit({"type": "error", "error": described | {"param": error.param, "event_id": event_id}})

    def on_result(self, result: Result) -> None:
        """A result of the engine."""
        if isinstance(result, FlowStepsSet):
            self._take_flow_steps(result)
        elif isinstance(result, Heard | ReplyResult | ReplyMade | RolledBack | TurnFailed):
            self._driver.on_result(result)

    def take_rating(self, rated: PauseRated) -> None:
        """The detector's answer: how likely the user has finished."""
        self._driver.take_rating(rated)

    def _carry_out(self, action: ClientAction) -> None:
        match action:
            case SessionUpdate(session):
                steps = self._config.wanted_flow_steps(session)
                self._apply(self._config.updated(session))
                self._emit({"type": "session.updated", "session": self._document()})
                if steps is not None:
                    self._jobs.submit(UseFlowSteps(steps))
            case AudioAppend(audio):
                self._append(samples_of(audio, self._config.input_format, "audio"))
            case AudioCommit():
                self._commit_audio()
            case AudioClear():
                self._clear_audio()
                self._emit({"type": "input_audio_buffer.cleared"})
            case ItemCreate():
                self._create_item(action)
            case ItemRetrieve(item_id):
                item = self._items.get(item_id)
                self._emit({"type": "conversation.item.retrieved", "item": item.document()})
            case ItemDelete(item_id):
                self._delete_item(self._items.get(item_id))
            case ItemTruncate():
                self._truncate_item(action)
            case ResponseCreate(parameters):
                self._create_response(parameters)
            case ResponseCancel(response_id):
                self._cancel_response(response_id)
            case _:
                assert_never(action)

    # ---- configuration ----

    def _apply(self, config: SessionConfig) -> None:
        before, self._config = self._config, config
        is_manual, was_manual = config.turn_detection is None, before.turn_detection is None
        if before.input_format is not config.input_format or is_manual is not was_manual:
            if self._driver.is_hearing:
                self._stop_speech()
                self._emit({"type": "input_audio_buffer.cleared"})
            self._clear_audio()
            self._driver.forget_speech()
            self._buffer.use_rate(config.input_format.sample_rate)
        turn = self._driver.turn
        if turn is not None and turn.commit is None:
            self._driver.roll_back()
            turn.modality, turn.max_new = config.modality, config.max_output_tokens
        self._driver.apply(self._driver_settings())

    def _driver_settings(self) -> DriverSettings:
        detection = self._config.turn_detection
        taking, is_semantic = TurnTakingSettings(), False
        if detection is not None:
            taking = detection.settings(round(LONGEST_TURN_S * 1000))
            is_semantic = detection.kind == "semantic_vad" and detection.create_response
        return DriverSettings(
            turn_taking=taking,
            reply=self._config.modality,
            # A conversation has one reply at a time, so that speculation stays within what it was admitted
            # for. With turns that end by silence alone it would only spend the engine's time.
            speculate="auto" if is_semantic else "off",
            always_predicts=is_semantic,
            seed=self._seed,
            reports_stages=True,
        )

    def _take_flow_steps(self, result: FlowStepsSet) -> None:
        self._config = replace(self._config, flow_steps=result.flow_steps)
        if result.problem is not None:
            described = describe(result.problem, "invalid_request_error", "flow_steps_refused")
            self._emit({"type": "error", "error": described | {"param": FLOW_STEPS, "event_id": None}})
        else:
            self._emit({"type": "session.updated", "session": self._document()})

    # ---- the input audio buffer ----

    def _append(self, pcm: Pcm) -> None:
        if self._config.turn_detection is not None:
            self._end_played()
            for frame in self._buffer.frames(pcm):
                self._driver.hear(frame)
            return
        self._require_room(len(pcm) / self._config.input_format.sample_rate)
        self._buffer.append(pcm)
        turn = self._driver.turn
        if self._buffer.has_speech and (turn is None or turn.commit is None):
            turn = turn or self._driver.open()
            if len(new := self._buffer.take_new()):
                self._pending.submit(Hear(turn.turn_id, new))

    def _require_room(self, seconds: float) -> None:
        """More speech is about to come. ProtocolError if the turn is as long as it may be."""
        waiting = self._pending.samples + (self._buffer.samples if self._buffer.has_speech else 0)
        if waiting / self._rates.input_sample_rate + seconds > LONGEST_TURN_S:
            raise ProtocolError(
                "turn_too_long",
                "A turn has at most {seconds:g} s of audio.",
                "Commit it, or clear the buffer.",
                param="audio",
                seconds=LONGEST_TURN_S,
            )

    def _commit_audio(self) -> None:
        if self._config.turn_detection is not None:
            if not self._driver.is_hearing:
                raise ProtocolError("input_audio_buffer_commit_empty", "There is no speech to commit.")
            self._driver.finish_speech()
            self._commit_speech()
            return
        if not self._buffer.samples:
            raise ProtocolError("input_audio_buffer_commit_empty", "There is no audio to commit.")
        self._item_id = self.ids.new("item")
        self._buffer.finish()
        rest, turn = self._buffer.take_new(), self._driver.turn
        if turn is None or not self._pending.has_speech:
            self._add_committed(Item(self._item_id, "user", "input_audio"), rest)
        else:
            if len(rest):
                self._pending.submit(Hear(turn.turn_id, rest))
            self._commit_speech()
        self._buffer.clear()

    def _clear_audio(self) -> None:
        """What was said and not committed is no item."""
        self._buffer.clear()
        if self._pending.has_speech or self._driver.is_hearing:
            self._driver.stop("stopped")

    def _commit_speech(self) -> None:
        """What was said in the open turn is an item."""
        item = Item(self._item_id, "user", "input_audio")
        self._pending.commit_speech(item)
        self._add_committed(item)

    def _add_committed(self, item: Item, waiting: Pcm | None = None) -> None:
        if waiting is not None:
            self._pending.add(item, waiting)
        previous = self._items.last_id
        committed: Json = {"type": "input_audio_buffer.committed", "item_id": item.item_id}
        self._emit(committed | {"previous_item_id": previous})
        self._add_item(item)

    # ---- items ----

    def _add_item(self, item: Item) -> None:
        """Append a complete item, and report it."""
        previous = self._items.last_id
        self._items.add(item)
        for kind in ("conversation.item.added", "conversation.item.done"):
            self._emit({"type": kind, "previous_item_id": previous, "item": item.document()})

    def _create_item(self, action: ItemCreate) -> None:
        """conversation.item.create. Items are added at the end only."""
        previous, last = action.previous_item_id, self._items.last_id
        if previous is not None and previous != (last or "root"):
            raise ProtocolError(
                "unsupported", "An item can be added at the end only.", param="previous_item_id"
            )
        given = read_item(action.item, self.ids.new("item"))
        item = given.item
        if self._items.has(item.item_id):
            raise ProtocolError(
                "duplicate_item", "There is an item {item_id} already.", param="item.id", item_id=item.item_id
            )
        if item.role == "assistant":
            self._answer_elsewhere(item)
        elif given.audio is None:
            self._pending.add(item, item.text)
        else:
            known = self._config.input_format
            pcm = self._buffer.converted(samples_of(given.audio, known, "item.content.audio"))
            self._require_room(len(pcm) / self._rates.input_sample_rate)
            self._pending.add(item, pcm)
        self._driver.roll_back()
        self._add_item(item)

    def _answer_elsewhere(self, reply: Item) -> None:
        """An item of the assistant answers what waits: an exchange that was held elsewhere."""
        if self._responses.active is not None:
            raise ProtocolError(
                "response_in_progress", "A reply can be added when the response is done.", param="item"
            )
        if not self._pending:
            raise ProtocolError(
                "no_question",
                "An item of the assistant has to follow a user item that was created.",
                param="item",
            )
        question = self._pending.question()
        if question is None or self._driver.is_hearing or self._pending.has_speech:
            raise ProtocolError(
                "unsupported", "An item of the assistant answers speech or text, not both.", param="item"
            )
        self._driver.stop("replaced")
        turn_id = reply.turn_id = self._driver.reserve_turn_id()
        self._pending.answer(turn_id)
        self._jobs.submit(Remember(turn_id, question, reply.text))

    def _delete_item(self, item: Item) -> None:
        """conversation.item.delete. The model's history loses the exchange that the item belongs to."""
        active = self._responses.active
        if active is not None and item.turn_id == active.turn_id:
            raise ProtocolError(
                "response_in_progress", "The item is part of the response in progress.", param="item_id"
            )
        if self._pending.has_given(item):
            if self._driver.is_hearing:
                raise ProtocolError("unsupported", "The item is part of what is being said.", param="item_id")
            self._drop_turn()
        if item.turn_id is None:
            self._pending.remove(item)
        else:
            self._jobs.submit(Remove(item.turn_id))
        self._items.remove(item)
        self._emit({"type": "conversation.item.deleted", "item_id": item.item_id})

    def _truncate_item(self, action: ItemTruncate) -> None:
        """conversation.item.truncate: cut item and history to what was heard."""
        item, rate = self._items.get(action.item_id), self._rates.output_sample_rate
        if item.content_type != "output_audio" or action.content_index != 0:
            raise ProtocolError(
                "invalid_value", "Only part 0 of a spoken reply can be truncated.", param="item_id"
            )
        samples = action.audio_end_ms * rate // 1000
        if samples > item.samples:
            raise ProtocolError(
                "invalid_value",
                "The item has {samples} ms of audio, less than audio_end_ms.",
                param="audio_end_ms",
                samples=item.samples * 1000 // rate,
            )
        if item.turn_id is None or item.turn_id not in self._cuttable:
            raise ProtocolError("item_too_old", "Only a recent reply can be truncated.", param="item_id")
        active = self._responses.active
        if active is not None and active.item is item:
            self._driver.stop("user")
        item.truncate(samples)
        self._jobs.submit(Interrupt(item.turn_id, samples, 0))
        self._responses.end_playback()
        self._end_played()
        truncated: Json = {"type": "conversation.item.truncated", "item_id": item.item_id}
        self._emit(truncated | {"content_index": 0, "audio_end_ms": action.audio_end_ms})

    # ---- responses that the client asks for ----

    def _create_response(self, parameters: Json) -> None:
        """response.create. ProtocolError says why there can be none."""
        if self._responses.active is not None:
            raise ProtocolError(
                "conversation_already_has_active_response",
                "A response is in progress.",
                "Cancel it first.",
            )
        if parameters.get("conversation", "auto") != "auto" or parameters.get("input") is not None:
            raise ProtocolError(
                "unsupported", "Responses outside the conversation are not supported.", param="response"
            )
        if self._driver.is_hearing:
            raise ProtocolError("input_audio_buffer_open", "Commit or clear the input audio buffer first.")
        if not self._pending:
            raise ProtocolError("no_question", "There is nothing to reply to.", "Add a user item first.")
        metadata = parameters.get("metadata")
        if metadata is not None and not isinstance(metadata, dict):
            raise ProtocolError("invalid_value", "metadata has to be an object.", param="response.metadata")
        config = self._config.with_response(parameters)
        if self._pending.has_speech:
            self._drop_turn()
        turn = self._driver.turn or self._driver.open()
        turn.modality, turn.max_new = config.modality, config.max_output_tokens
        self._requested = (config, metadata)
        self._driver.answer(turn)

    def _cancel_response(self, response_id: str | None) -> None:
        active = self._responses.active
        if active is None or response_id not in (None, active.ids.response_id):
            raise ProtocolError(
                "response_cancel_not_active", "No such response is in progress.", param="response_id"
            )
        self._driver.stop("user")
        self._responses.end_playback()

    def _drop_turn(self) -> None:
        """The open turn has what does not belong to it: its items wait for another one."""
        self._driver.stop("replaced")
        self._buffer.put_back()

    def _end_played(self) -> None:
        """Once the reply was played, what comes next is a turn and no interruption."""
        if self._driver.is_replying and self._responses.is_played:
            self._driver.rest()

    # ---- hooks of the driver: the turn ----

    def turn_opened(self, turn: UserTurn, start_ms: float) -> None:
        """Speech has started, of an item with a new id."""
        turn.modality, turn.max_new = self._config.modality, self._config.max_output_tokens
        self._pending.give()  # in the order of the items: what was typed meanwhile, then what is said now
        self._start_speech(start_ms)

    def turn_reopened(self, turn: UserTurn, event: TurnEvent) -> None:
        """Cancel the response. What was committed is an item already; what follows is another one."""
        self._responses.stop("turn_detected")
        self._start_speech(event.at_ms)

    def _start_speech(self, start_ms: float) -> None:
        self._item_id = self.ids.new("item")
        started_ms = round(self._buffer.session_ms(start_ms))
        started: Json = {"type": "input_audio_buffer.speech_started", "audio_start_ms": started_ms}
        self._emit(started | {"item_id": self._item_id})

    def turn_committed(self, turn: UserTurn, event: TurnEvent) -> bool:
        """Speech has stopped and is an item; whether the session makes responses by itself."""
        self._stop_speech()
        self._commit_speech()
        detection = self._config.turn_detection
        return detection is not None and detection.create_response

    def _stop_speech(self) -> None:
        end_ms = round(self._buffer.session_ms(self._driver.speech_end_ms))
        stopped: Json = {"type": "input_audio_buffer.speech_stopped", "audio_end_ms": end_ms}
        self._emit(stopped | {"item_id": self._item_id})

    def turn_stopped(self, turn: UserTurn, reason: CancelReason, stopped: StoppedReply | None) -> None:
        """The items of a reply that was cut are answered, those of a dropped turn wait for another one."""
        if stopped is not None:
            self._pending.end_exchange()
            return
        self._pending.take_back()
        if reason == "too_short":
            self._stop_speech()
            self._emit({"type": "input_audio_buffer.cleared"})

    def turn_failed(self, failure: TurnFailed) -> None:
        """Fail the response. What was asked in the turn is not asked again."""
        _log.warning("turn %d failed: %s", failure.turn_id, failure.problem)
        kind = "server_error" if failure.code == MossVoiceError.code else "invalid_request_error"
        error = describe(failure.problem, kind, failure.code)
        if not self._responses.fail(failure.turn_id, error):
            self._emit({"type": "error", "error": error | {"param": None, "event_id": None}})
        turn = self._driver.turn
        if turn is not None and turn.turn_id == failure.turn_id:
            self._pending.end_exchange()
            self._buffer.clear()
            self._driver.stop("error")

    # ---- hooks of the driver: the reply ----

    def begin_reply(self, turn: UserTurn, held: HeldReply | None) -> None:
        """A response begins; that of a held reply with all it has by now."""
        config, metadata = self._requested or (self._config, None)
        self._requested = None
        self._cuttable.append(turn.turn_id)
        asked_s = self._clock_s() if held is None else held.asked_ns / 1e9
        self._responses.begin(turn.turn_id, config, metadata, asked_s)
        if held is not None:
            for event, at_ns in held.events:
                self._add_event(event, at_ns / 1e9)
            if held.made is not None:
                self._responses.report_times(held.made)

    def add_reply(self, turn: UserTurn, event: ReplyEvent) -> None:
        """Send the next part of the response."""
        self._add_event(event)

    def _add_event(self, event: ReplyEvent, at_s: float | None = None) -> None:
        had_sound = self._responses.has_sound
        is_last = self._responses.add(event, at_s)
        if self._responses.has_sound and not had_sound:
            self._driver.reply_heard()
        if is_last:
            self._pending.end_exchange()
            self._driver.end_turn()
            self._end_played()

    def reply_made(self, made: ReplyMade) -> None:
        """Send the times of the response."""
        self._responses.report_times(made)

    def pause_reply(self, event: TurnEvent) -> None:
        """Nothing to do: the client plays on until it is known whether that is a turn."""

    def resume_reply(self) -> None:
        """Nothing to do: nothing was paused."""

    def stop_reply(self, turn: UserTurn, reason: CancelReason) -> StoppedReply | None:
        """Cancel the response. What was sent counts as heard."""
        return self._responses.stop("turn_detected" if reason == "barge_in" else "client_cancelled")

    def speculated(self, stats: SpeculationStats) -> None:
        """Nothing to do: no event reports it to a client."""

    # ---- out ----

    def _document(self) -> Json:
        return self._config.document() | {"id": self.ids.session_id}

    def _emit(self, event: Json) -> None:
        self._send({"event_id": self.ids.new("event")} | event)


def samples_of(audio: bytes, known: AudioFormat, param: str) -> Pcm:
    """Samples [n] of bytes of the wire. ProtocolError if there are none, or not whole ones."""
    if not audio or len(audio) % known.sample_bytes:
        raise ProtocolError(
            "invalid_value",
            "{field} has to be whole samples of {type}, {sample_bytes} bytes each.",
            param=param,
            field=param,
            type=known.type,
            sample_bytes=known.sample_bytes,
        )
    return known.decode(audio)
