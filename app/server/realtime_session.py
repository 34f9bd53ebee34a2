"""The state machine of one Realtime session: client events in, server events and engine jobs out.

In: client events (`handle`), results of the engine (`on_result`), answers of the end-of-turn detector
(`rate_pause`). Out: server events, given to `emit`; jobs; questions for the detector. It knows no socket and
no thread, and time only through the clock that is passed in. Event loop.

A conversation is a list of items. All user items since the last reply are one turn of the engine, and with
the reply one exchange of its history. At most one response is in progress. What is sent counts as heard until
the client truncates the item; an exchange of which nothing was heard leaves the history of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

from app.dialog.turn_events import TurnAction, TurnEvent
from app.dialog.vad import Vad
from app.server.identifiers import Identifiers
from app.server.item_edits import ItemEdits, samples_of
from app.server.items import Item, ItemList
from app.server.pending_exchange import PendingExchange
from app.server.protocol import (
    AudioAppend,
    AudioClear,
    AudioCommit,
    ClientAction,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    Json,
    ProtocolError,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
    parse,
)
from app.server.response import Emit
from app.server.response_control import ResponseControl
from app.server.session_config import FLOW_STEPS, SessionConfig
from app.server.voice_input import VoiceInput
from app.session.end_of_turn_worker import Pause
from app.session.engine_jobs import FlowSteps, FlowStepsSet, JobQueue, Result, UseFlowSteps

LONGEST_TURN_S = 30.0


@dataclass(frozen=True, slots=True)
class EngineRates:
    """What a session needs to know of the engine's audio, in Hz."""

    input_sample_rate: int
    output_sample_rate: int


class RealtimeSession:
    """See the module."""

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
    ) -> None:
        """Emits session.created. `model` is the name of the bundle, `seed` that of the sampling, `flow_steps`
        those in force if the client may choose them. Without `ask_detector` semantic turn detection goes by
        silence."""
        self.ids = Identifiers()
        self._send = emit
        self._ask_detector = ask_detector
        self._config = SessionConfig(model, flow_steps=flow_steps)
        self._jobs = jobs
        self._items = ItemList()
        self._turn = PendingExchange(jobs, rates.input_sample_rate, LONGEST_TURN_S, seed)
        self._voice = VoiceInput(vad, jobs, rates.input_sample_rate, self._config.input_format.sample_rate)
        self._responses = ResponseControl(
            self.ids, self._items, self._turn, self._voice, rates.output_sample_rate, self._emit, clock_s
        )
        self._edits = ItemEdits(
            self.ids,
            self._items,
            self._turn,
            self._voice,
            self._responses,
            jobs,
            rates.output_sample_rate,
            self._emit,
        )
        self._item_id = ""
        """Of the item that present speech becomes."""
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
        described = {"type": "invalid_request_error", "code": error.code, "message": str(error)}
        self._emit({"type": "error", "error": described | {"param": error.param, "event_id": event_id}})

    def on_result(self, result: Result) -> None:
        """A result of the engine."""
        if isinstance(result, FlowStepsSet):
            self._take_flow_steps(result)
        else:
            self._responses.on_result(result)

    def rate_pause(self, pause: Pause, probability: float) -> None:
        """The detector's answer: how likely the user has finished."""
        self._voice.turn_taking.rate_pause(pause.speech_end_ms, probability)

    # ---- client events ----

    def _carry_out(self, action: ClientAction) -> None:
        match action:
            case SessionUpdate(session):
                steps = self._config.wanted_flow_steps(session)
                self._apply(self._config.updated(session))
                self._emit({"type": "session.updated", "session": self._document()})
                if steps is not None:
                    self._jobs.submit(UseFlowSteps(steps))
            case AudioAppend(audio):
                self._append(audio)
            case AudioCommit():
                self._commit_audio()
            case AudioClear():
                self._drop_speech()
                self._emit({"type": "input_audio_buffer.cleared"})
            case ItemCreate():
                self._edits.create(action, self._config.input_format)
            case ItemRetrieve(item_id):
                item = self._items.get(item_id)
                self._emit({"type": "conversation.item.retrieved", "item": item.document()})
            case ItemDelete(item_id):
                self._edits.delete(self._items.get(item_id))
            case ItemTruncate():
                self._edits.truncate(action)
            case ResponseCreate(parameters):
                self._responses.create(self._config, parameters)
            case ResponseCancel(response_id):
                self._cancel(response_id)
            case _:
                assert_never(action)

    def _apply(self, config: SessionConfig) -> None:
        before, self._config = self._config, config
        is_manual, was_manual = config.turn_detection is None, before.turn_detection is None
        if before.input_format is not config.input_format or is_manual is not was_manual:
            self._drop_speech()
            self._voice.use_rate(config.input_format.sample_rate)
        if config.turn_detection is not None:
            self._voice.turn_taking.settings = config.turn_detection.settings(round(LONGEST_TURN_S * 1000))

    def _take_flow_steps(self, result: FlowStepsSet) -> None:
        self._config = replace(self._config, flow_steps=result.flow_steps)
        if result.message:
            what = f"{result.message} {result.what_to_do}".strip()
            self.refuse(ProtocolError("flow_steps_refused", what, FLOW_STEPS))
        else:
            self._emit({"type": "session.updated", "session": self._document()})

    def _append(self, audio: bytes) -> None:
        known = self._config.input_format
        pcm = samples_of(audio, known, "audio")
        if self._config.turn_detection is None:
            self._turn.make_room(len(pcm) / known.sample_rate)
            self._voice.hear_all(self._turn.open(self._config.modality), pcm)
            return
        self._responses.end_played()
        for event in self._voice.hear(pcm):
            self._on_turn_event(event)
        if self._turn.is_speaking and self._turn.turn_id is not None:
            self._voice.give(self._turn.turn_id)

    def _commit_audio(self) -> None:
        if not self._turn.is_speaking or self._turn.turn_id is None:
            raise ProtocolError("input_audio_buffer_commit_empty", "There is no speech to commit.")
        if self._config.turn_detection is None:
            self._item_id = self.ids.new("item")
            self._voice.finish_all(self._turn.turn_id)
        else:
            self._voice.finish(self._turn.turn_id)
            self._voice.turn_taking.end_turn()
        self._commit_speech()

    def _cancel(self, response_id: str | None) -> None:
        active = self._responses.active
        if active is None or response_id not in (None, active.ids.response_id):
            raise ProtocolError(
                "response_cancel_not_active", "No such response is in progress.", "response_id"
            )
        self._responses.stop("client_cancelled")

    # ---- turns by voice ----

    def _on_turn_event(self, event: TurnEvent) -> None:
        action = event.action
        if action is TurnAction.BARGE_IN or action is TurnAction.REOPEN:
            self._responses.stop("turn_detected")
            self._begin_speech(event)
        elif action is TurnAction.OPEN:
            self._begin_speech(event)
        elif action is TurnAction.PAUSE:
            turn_id = self._turn.turn_id or 0
            if self._ask_detector is not None and self._voice.turn_taking.settings.policy is not None:
                self._ask_detector(self._voice.pause(turn_id, event))
        elif action is TurnAction.DROP:
            self._stop_speech()
            self._drop_speech()
            self._emit({"type": "input_audio_buffer.cleared"})
        elif action is TurnAction.COMMIT and self._turn.turn_id is not None:
            self._voice.finish(self._turn.turn_id)
            self._stop_speech()
            self._commit_speech()
            detection = self._config.turn_detection
            if detection is not None and detection.create_response:
                self._responses.begin(self._config)
            else:
                self._voice.turn_taking.end_turn()

    def _begin_speech(self, event: TurnEvent) -> None:
        self._item_id = self.ids.new("item")
        self._turn.open(self._config.modality)
        start_ms = self._voice.open(event)
        started: Json = {"type": "input_audio_buffer.speech_started", "audio_start_ms": round(start_ms)}
        self._emit(started | {"item_id": self._item_id})

    def _stop_speech(self) -> None:
        end_ms = round(self._voice.end_ms)
        stopped: Json = {"type": "input_audio_buffer.speech_stopped", "audio_end_ms": end_ms}
        self._emit(stopped | {"item_id": self._item_id})

    def _commit_speech(self) -> None:
        item = Item(self._item_id, "user", "input_audio")
        previous = self._items.last_id
        try:
            self._turn.commit_speech(item)
        except ProtocolError:
            self._turn.drop_speech()
            raise
        committed: Json = {"type": "input_audio_buffer.committed", "item_id": item.item_id}
        self._emit(committed | {"previous_item_id": previous})
        self._edits.add(item)

    def _drop_speech(self) -> None:
        """What was said and not committed is no item."""
        if self._turn.is_speaking:
            self._turn.drop_speech()
            self._voice.close()
            self._voice.turn_taking.end_turn()
        self._voice.forget_all()

    # ---- out ----

    def _document(self) -> Json:
        return self._config.document() | {"id": self.ids.session_id}

    def _emit(self, event: Json) -> None:
        self._send({"event_id": self.ids.new("event")} | event)
