"""The state machine of one Realtime session: client events in, server events and engine jobs out.

In: client events (`handle`), results of the engine (`on_result`), answers of the end-of-turn detector
(`take_rating`). Out: server events, given to `emit`; jobs; questions for the detector. It knows no socket and
no thread, and time only through the clock that is passed in. Event loop.

A conversation is a list of items. All user items since the last reply are one turn of the engine, and with
the reply one exchange of its history. Turns by voice, and the replies to all turns, are those of the
`TurnDriver` that the window has; its hooks are here. The input buffer is apart from them: what a client
appends without turn detection goes to the engine early where that is free for it, and is an item once it is
committed. At most one response is in progress; one that is asked for while the user speaks begins with the
commit of that speech. Without a question it asks the latest one again; without any it is empty. What is sent
counts as heard until the client truncates the item; an exchange of which nothing was heard leaves the history
of the model.
"""

from __future__ import annotations

import base64
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np

from app.audio.resample import Resampler
from app.audio.wire_format import AudioFormat, pcm16
from app.dialog.turn_events import TurnEvent
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.vad import Vad
from app.server.input_buffer import InputBuffer
from app.server.items import Item, ItemList, Part, read_item, spoken_item
from app.server.pending_items import Content, PendingItems
from app.server.protocol import (
    AudioAppend,
    AudioClear,
    AudioCommit,
    ClientEvent,
    Identifiers,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    Json,
    ProtocolError,
    ResponseCancel,
    ResponseConfirm,
    ResponseCreate,
    SessionUpdate,
    describe,
    invalid,
    parse,
)
from app.server.response import Emit, Endpoint, ResponseControl
from app.server.session_config import FLOW_STEPS, SessionConfig, Transcription
from app.server.session_tools import SessionTools
from app.session.end_of_turn_worker import Pause, PauseRated
from app.session.engine_jobs import (
    AskAgain,
    Confirm,
    FlowSteps,
    FlowStepsSet,
    Hear,
    Interrupt,
    JobQueue,
    Remember,
    Remove,
    ReplyMade,
    ReplyResult,
    Result,
    RolledBack,
    TurnFailed,
    UseContext,
    UseFlowSteps,
)
from app.session.engine_turns import KEPT_TURNS
from app.session.events import CancelReason, SpeculationStats
from app.session.speculation import HeldReply
from app.session.transcriber import Speech, Transcribe, TranscribedSpeech
from app.session.turn_driver import DriverSettings, StoppedReply, TurnDriver, UserTurn
from engine_runtime.bundle.tools import Tool
from engine_runtime.conversation.context_window import RETENTION, TurnRoom
from engine_runtime.errors import MossVoiceError, Problem, ToolCallError
from engine_runtime.timing import TimingBus
from engine_runtime.types import Pcm, ReplyDone, ReplyEvent, SystemText, ToolOutput, TurnEndPrediction

LONGEST_TURN_S = 30.0
_LEAST_TURN_S = 3.0
"""A spoken turn may be this long, however many items wait with it."""
_NO_TRANSCRIBER = Problem(
    "This server does not transcribe what the user says.",
    "Start it with --transcribe and the folder of a Whisper model.",
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a session needs to know of the engine. Rates are in Hz."""

    input_sample_rate: int
    output_sample_rate: int
    room: TurnRoom | None = None
    """How much of the context a turn may take; None where only its length is limited."""
    follows_instructions: bool = False
    """Whether the model heeds texts of the system."""
    tools: tuple[Tool, ...] = ()
    """Those that the model can call."""


class RealtimeSession:
    """The session of one client, and the hooks of its `TurnDriver`."""

    def __init__(
        self,
        model: str,
        facts: EngineFacts,
        jobs: JobQueue,
        vad: Vad,
        emit: Emit,
        clock_s: Callable[[], float],
        *,
        ask_detector: Callable[[Pause], None] | None = None,
        seed: int | None = None,
        flow_steps: FlowSteps | None = None,
        timing: TimingBus | None = None,
        transcriber: str | None = None,
        transcribe: Transcribe | None = None,
    ) -> None:
        """Emits session.created. `model` is the name of the bundle, `seed` that of the sampling, `flow_steps`
        those in force if the client may choose them, `timing` the engine's bus. Without `ask_detector`
        semantic turn detection relies on silence and the language model. `transcribe` has the user's speech
        transcribed by the model named `transcriber`, and answers in the event loop; None where the server
        cannot."""
        self.ids = Identifiers()
        self._send = emit
        self._facts = facts
        self._config = SessionConfig(
            model,
            flow_steps=flow_steps,
            follows_instructions=facts.follows_instructions,
            transcriber=transcriber,
            tools=SessionTools(facts.tools),
        )
        self._transcribe = transcribe
        self._refused: Transcription | None = None
        """The transcription that was asked for in vain, once the client was told so."""
        self._told = UseContext("", RETENTION)
        """What the engine knows of instructions, truncation and tools."""
        self._most_tokens = 0
        """Tokens of the context that a turn may take. Counted when the configuration changes, since every
        append asks for it."""
        self._jobs = jobs
        self._clock_s = clock_s
        self._seed = seed
        self._items = ItemList()
        self._pending = PendingItems(jobs, lambda: self._driver.reserve_turn_id(), self._tokens)
        rate = self._config.input_format.sample_rate
        self._buffer = InputBuffer(vad, rate, facts.input_sample_rate, self._speech_room_s)
        self._responses = ResponseControl(
            self.ids, self._items, facts.output_sample_rate, self._emit, clock_s
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
        self._driver.use_engine(facts.input_sample_rate)
        self._item_id = ""
        """Id of the item that present speech becomes."""
        self._odd = b""
        """The first part of a sample whose rest the next append has."""
        self._requested: tuple[SessionConfig, Json | None] | None = None
        """Configuration and metadata of the response that the client asks for, until it begins."""
        self._endpoint: Endpoint | None = None
        """How the end of the latest turn was found, until its response begins."""
        self._held: list[Json] | None = None
        """The end of a response that speech has cut, until the start of the speech is reported."""
        self._is_cut_short = False
        """Whether speech has ended the latest response before its first sound."""
        self._quiet_ms: float | None = None
        """Since when, by the audio that was appended, a reply is over and nobody speaks."""
        self._asked_again: int | None = None
        """The latest turn that has the question of an earlier one."""
        self._cuttable: deque[int] = deque(maxlen=KEPT_TURNS)
        """Turns whose reply can still be cut at what was heard."""
        self._said: tuple[Part, Pcm] | None = None
        """What was committed last, until it is kept: seconds of sound would delay the reply."""
        self._apply(self._config)
        self._emit({"type": "session.created", "session": self._document()})

    @property
    def is_responding(self) -> bool:
        """Whether a response is in progress. One that waits for the client's confirmation does not count: the
        client may never give it."""
        return self._responses.active is not None and not self._responses.is_speculative

    # ---- in ----

    def handle(self, text: str) -> None:
        """Handle one message of the client. A failure is answered by an error event."""
        event_id = None
        try:
            event = parse(text)
            event_id = event.event_id
            self._carry_out(event)
        except ProtocolError as error:
            self.refuse(error, event_id or error.event_id)

    def refuse(self, error: ProtocolError, event_id: str | None = None) -> None:
        """Answer a client event by an error."""
        self._emit({"type": "error", "error": error.document() | {"event_id": event_id}})

    def end_response(self) -> None:
        """The session ends: so does the response in progress, or that which was asked for."""
        if self._responses.active is not None or self._requested is not None:
            self._cancel_response(None)

    def on_result(self, result: Result) -> None:
        """A result of the engine."""
        if isinstance(result, FlowStepsSet):
            self._take_flow_steps(result)
        elif isinstance(result, ReplyResult) and isinstance(result.event, TurnEndPrediction):
            turn = self._driver.turn
            if self._responses.is_speculative and turn is not None and turn.commit is result.scope:
                self._responses.predict(result.event.probability)
            self._driver.on_result(result)
        elif isinstance(result, ReplyResult | ReplyMade | RolledBack | TurnFailed):
            self._driver.on_result(result)

    def take_rating(self, rated: PauseRated) -> None:
        """The detector's answer: how likely the user has finished."""
        self._driver.take_rating(rated)

    def _carry_out(self, event: ClientEvent) -> None:
        match event:
            case SessionUpdate():
                config, steps = self._config.updated(event.session)
                self._check_instructions(config, "session.instructions")
                self._apply(config)
                self._emit({"type": "session.updated", "session": self._document()})
                if steps is not None:
                    self._jobs.submit(UseFlowSteps(steps))
            case AudioAppend():
                self._append(self._whole_samples(event.audio))
            case AudioCommit():
                self._commit_audio()
            case AudioClear():
                self._clear_audio()
                self._emit({"type": "input_audio_buffer.cleared"})
                self._begin_waiting()
            case ItemCreate():
                self._create_item(event)
            case ItemRetrieve():
                item = self._items.get(event.item_id, "retrieve")
                self._emit({"type": "conversation.item.retrieved", "item": self._with_sound(item)})
            case ItemDelete():
                self._delete_item(self._items.get(event.item_id, "delete"))
            case ItemTruncate():
                self._truncate_item(event)
            case ResponseCreate():
                self._create_response(event.response or {})
            case ResponseCancel():
                self._cancel_response(event.response_id)
            case ResponseConfirm():
                self._confirm_response()
            case _:
                assert_never(event)

    # ---- configuration ----

    def _apply(self, config: SessionConfig) -> None:
        before, self._config = self._config, config
        self._most_tokens = self._most_tokens_with(config.instructions)
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
            self._use_config(turn)
        elif turn is None:
            self._tell_context(config)
        self._driver.apply(self._driver_settings())
        self._begin_waiting()

    def _driver_settings(self) -> DriverSettings:
        detection = self._config.turn_detection
        taking, is_semantic = TurnTakingSettings(), False
        if detection is not None:
            longest_s = max(self._speech_room_s, _LEAST_TURN_S)
            taking = detection.settings(round(longest_s * 1000))
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

    def _whole_samples(self, data: bytes) -> Pcm:
        """The samples that appended bytes complete."""
        data, known = self._odd + data, self._config.input_format
        end = len(data) // known.sample_bytes * known.sample_bytes
        self._odd = data[end:]
        return known.decode(data[:end])

    def _append(self, pcm: Pcm) -> None:
        if self._config.turn_detection is not None:
            self._end_played()
            for frame in self._buffer.frames(pcm):
                self._driver.hear(frame)
            self._note_silence()
            return
        known = self._config.input_format.sample_rate
        waiting = self._buffer.samples if self._buffer.has_speech else 0
        self._require_room([waiting + len(pcm) * self._facts.input_sample_rate // known], "audio")
        self._buffer.append(pcm)
        turn = self._driver.turn
        if self._buffer.has_speech and (turn is None or turn.commit is None):
            turn = turn or self._driver.open()
            if len(new := self._buffer.take_new()):
                self._pending.submit(Hear(turn.turn_id, new))

    def _note_silence(self) -> None:
        """Nobody may have spoken for long after a reply: that is answered, too, where the session says so."""
        detection, now_ms = self._config.turn_detection, self._buffer.end_ms
        is_quiet = self._driver.turn is None and not self._driver.is_hearing and self._responses.is_played
        # While a tool runs the silence is the client's.
        if not is_quiet or not self._responses.has_replied or self._items.awaits_output:
            self._quiet_ms = None
            return
        self._quiet_ms = now_ms if self._quiet_ms is None else self._quiet_ms
        timeout_ms = detection.idle_timeout_ms if detection is not None else None
        if timeout_ms is None or now_ms - self._quiet_ms < timeout_ms or self._requested is not None:
            return
        self._item_id = self.ids.new("item")
        triggered: Json = {"type": "input_audio_buffer.timeout_triggered", "item_id": self._item_id}
        start_ms, end_ms = round(self._quiet_ms), round(now_ms)
        self._emit(triggered | {"audio_start_ms": start_ms, "audio_end_ms": end_ms})
        self._quiet_ms = None
        self._add_waiting(self._buffer.latest())
        self._requested = (self._config, None)
        self._begin_waiting()

    def _tokens(self, part: Content | int) -> int:
        """Tokens of the context for a text or speech [n], or for so many samples; 0 where it has no limit."""
        room = self._facts.room
        if room is None:
            return 0
        return room.tokens(part if isinstance(part, str | int) else len(part))

    def _check_instructions(self, config: SessionConfig, param: str) -> None:
        room = self._facts.room
        if config.instructions == self._config.instructions:  # they were checked, and a reply waits
            return
        if room is not None and 2 * room.tokens(config.instructions) > room.most:
            raise ProtocolError(
                "string_above_max_length",
                "The instructions have {tokens} tokens, more than half of the {most} that the context holds.",
                "Shorten them.",
                param=param,
                tokens=room.tokens(config.instructions),
                most=room.most,
            )

    def _most_tokens_with(self, instructions: str) -> int:
        room = self._facts.room
        return 0 if room is None else room.most - (room.tokens(instructions) if instructions else 0)

    @property
    def _speech_room_s(self) -> float:
        """So much may still be said before the next reply."""
        room, rate = self._facts.room, self._facts.input_sample_rate
        left_s = LONGEST_TURN_S - self._pending.samples / rate
        if room is not None:
            left_s = min(left_s, room.samples(self._most_tokens - self._pending.tokens) / rate)
        return left_s

    def _require_room(self, parts: Sequence[str | int], param: str) -> None:
        """Texts, and speech in samples, are to be added. ProtocolError if the turn gets longer than it may
        be."""
        rate = self._facts.input_sample_rate
        spoken = sum(part for part in parts if not isinstance(part, str))
        if spoken and self._pending.samples + spoken > LONGEST_TURN_S * rate:
            raise ProtocolError(
                "turn_too_long",
                "A turn has at most {seconds:g} s of audio.",
                "Commit it and ask for a response, or clear the buffer.",
                param=param,
                seconds=LONGEST_TURN_S,
            )
        tokens = self._pending.tokens + sum(map(self._tokens, parts))
        if tokens > self._most_tokens:
            raise ProtocolError(
                "turn_too_long",
                "This turn would have {tokens} tokens, and the context of the model holds {most} beside the "
                "reply.",
                "Send less at once.",
                param=param,
                tokens=tokens,
                most=self._most_tokens,
            )

    def _commit_audio(self) -> None:
        if self._config.turn_detection is not None:
            if not self._driver.is_hearing:
                raise nothing_to_commit()
            self._driver.finish_speech()
            self._commit_speech()
            return
        if not self._buffer.samples:
            raise nothing_to_commit()
        if not self._buffer.has_speech:
            self._require_room([self._buffer.samples], "audio")
        self._odd = b""
        self._item_id = self.ids.new("item")
        self._buffer.finish()
        rest, turn = self._buffer.take_new(), self._driver.turn
        if turn is None or not self._pending.has_speech:
            self._add_waiting(rest)
        else:
            if len(rest):
                self._pending.submit(Hear(turn.turn_id, rest))
            self._commit_speech()
        self._buffer.clear()

    def _clear_audio(self) -> None:
        """Drop speech that was not committed: it is not an item."""
        self._buffer.clear()
        self._odd = b""
        if self._pending.has_speech or self._driver.is_hearing:
            self._driver.stop("stopped")

    def _commit_speech(self) -> None:
        """Turn the speech of the open turn into an item."""
        item = spoken_item(self._item_id)
        self._add_committed(item, self._pending.commit_speech(item))

    def _add_waiting(self, said: Pcm) -> None:
        """Speech that no turn has yet becomes an item."""
        item = spoken_item(self._item_id)
        self._pending.add(item, (said,))
        self._add_committed(item, said)

    def _add_committed(self, item: Item, said: Pcm) -> None:
        self._keep_said()
        self._said = item.parts[0], said
        previous = self._items.last_id
        committed: Json = {"type": "input_audio_buffer.committed", "item_id": item.item_id}
        self._emit(committed | {"previous_item_id": previous})
        self._add_item(item)
        self._have_transcribed(item, said)

    def _keep_said(self) -> None:
        """Keep the sound of what was committed last."""
        if self._said is not None:
            (part, said), self._said = self._said, None
            self._items.keep(part, pcm16(said), self._facts.input_sample_rate)

    # ---- transcription ----

    def _have_transcribed(self, item: Item, said: Pcm) -> None:
        """Ask for the words of a spoken item, if the client wants them.

        A client that asks for what this server does not have is told so by the failure of its first item:
        several send the field by themselves, and one ends at an `error`.
        """
        wanted = self._config.transcription
        if wanted is None:
            return
        if self._transcribe is not None:
            speech = Speech(said, self._facts.input_sample_rate, wanted.language, wanted.prompt)
            self._transcribe(speech, lambda transcript: self._take_transcript(item, transcript))
        elif self._refused != wanted:
            self._refused = wanted
            self._fail_transcription(item, _NO_TRANSCRIBER, "invalid_request_error", "unsupported")

    def _take_transcript(self, item: Item, transcript: TranscribedSpeech) -> None:
        """The words of an item, which may be deleted by now."""
        if not self._items.has(item):
            return
        if transcript.problem is not None:
            self._fail_transcription(item, transcript.problem, "server_error", "transcription_failed")
            return
        item.parts[0].text = transcript.text
        if transcript.text:
            self._emit(_transcription_event(item, "delta") | {"delta": transcript.text})
        usage = {"type": "duration", "seconds": round(transcript.seconds, 2)}
        completed: Json = {"transcript": transcript.text, "usage": usage}
        self._emit(_transcription_event(item, "completed") | completed)

    def _fail_transcription(self, item: Item, problem: Problem, kind: str, code: str) -> None:
        error = describe(problem, kind, code) | {"param": None}
        self._emit(_transcription_event(item, "failed") | {"error": error})

    # ---- items ----

    def _add_item(self, item: Item, later: Sequence[Item] = ()) -> None:
        """Add a complete item before the `later` ones, and report it."""
        self._items.add(item, later)
        previous = self._items.before(item)
        for kind in ("conversation.item.added", "conversation.item.done"):
            self._emit({"type": kind, "previous_item_id": previous, "item": item.document()})

    def _with_sound(self, item: Item) -> Json:
        """The item as an object of the protocol, with what is kept of its sound."""
        self._keep_said()
        facts, config = self._facts, self._config
        known, rate = config.input_format, facts.input_sample_rate
        if item.role == "assistant":
            known, rate = config.output_format, facts.output_sample_rate
        document = item.document()
        for part, described in zip(item.parts, document.get("content", ()), strict=False):
            if part.sound:
                resampler = Resampler(rate, known.sample_rate)
                pcm = np.concatenate(part.sound).astype(np.float32) / 32_768.0
                data = known.encode(np.concatenate([resampler.push(pcm), resampler.finish()]))
                described["audio"] = base64.b64encode(data).decode("ascii")
        return document

    def _create_item(self, event: ItemCreate) -> None:
        """conversation.item.create."""
        later = self._items.after(event.previous_item_id)
        given = read_item(event.item, self.ids, self._facts.tools)
        item = given.item
        if item.role == "tool":
            self._items.require_call(item)
        known = self._config.input_format
        parts: list[Content] = []
        recorded: list[tuple[Part, Pcm]] = []
        for place, (part, audio) in enumerate(zip(item.parts, given.audio, strict=True)):
            if audio is not None:
                pcm = samples_of(audio, known, f"item.content[{place}].audio")
                pcm = self._buffer.converted(pcm)
                parts.append(pcm)
                recorded.append((part, pcm))
            elif item.role == "user" and part.text.strip():
                parts.append(part.text)
            elif item.role == "system" and part.text.strip() and self._facts.follows_instructions:
                parts.append(SystemText(part.text))
            elif item.role == "tool":
                parts.append(ToolOutput(part.text))
        if parts:
            sizes = [part if isinstance(part, str) else len(part) for part in parts]
            self._require_room(sizes, "item.output" if item.role == "tool" else "item.content")
        self._add_item(item, later)
        for part, pcm in recorded:
            self._items.keep(part, pcm16(pcm), self._facts.input_sample_rate)
        if parts or item.call is not None or (item.role == "assistant" and item.text.strip()):
            self._driver.roll_back()
            self._let_know(item, tuple(parts), later)

    def _let_know(self, item: Item, parts: tuple[Content, ...], later: Sequence[Item]) -> None:
        """Give the engine an item: with those that wait or, before an item of its history, at once."""
        follower = next((one for one in later if one.turn_id is not None or self._pending.has(one)), None)
        if follower is None or self._pending.has(follower):
            is_idle = not self._driver.is_hearing and self._responses.active is None
            if self._driver.turn is not None and is_idle and (follower or item.role == "assistant"):
                self._drop_turn()  # it has what comes later
            self._pending.add(item, parts, follower)
            return
        item.turn_id = self._driver.reserve_turn_id()
        self._jobs.submit(Remember(item.turn_id, parts, item.reply, follower.turn_id))

    def _delete_item(self, item: Item) -> None:
        """conversation.item.delete. The model's history loses the exchange that the item belongs to."""
        active = self._responses.active
        if active is not None and item.turn_id == active.turn_id:
            raise ProtocolError(
                "response_in_progress", "The item is part of the response in progress.", param="item_id"
            )
        if self._pending.has_given(item):
            if self._driver.is_hearing:
                raise ProtocolError(
                    "unsupported", "The item is part of the speech in progress.", param="item_id"
                )
            self._drop_turn()
        if item.turn_id is None:
            self._pending.remove(item)
        else:
            self._jobs.submit(Remove(item.turn_id))
            self._items.forget_turn(item.turn_id)
        self._items.remove(item)
        self._emit({"type": "conversation.item.deleted", "item_id": item.item_id})

    def _truncate_item(self, action: ItemTruncate) -> None:
        """conversation.item.truncate: cut item and history to what was heard."""
        item, rate = self._items.get(action.item_id, "truncate"), self._facts.output_sample_rate
        if [part.type for part in item.parts] != ["output_audio"]:
            raise ProtocolError(
                "invalid_value", "Only model output audio messages can be truncated.", param="item_id"
            )
        if action.content_index != 0:
            raise invalid("content_index", action.content_index, "0")
        # A client may round the length of the sound up.
        whole_ms = -(-item.samples * 1000 // rate)
        if action.audio_end_ms > whole_ms:
            raise ProtocolError(
                "invalid_value",
                "Audio content of {audio_ms}ms is already shorter than {audio_end_ms}ms.",
                param="audio_end_ms",
                audio_ms=whole_ms,
                audio_end_ms=action.audio_end_ms,
            )
        if item.turn_id is None or item.turn_id not in self._cuttable:
            raise ProtocolError("item_too_old", "Only a recent reply can be truncated.", param="item_id")
        active = self._responses.active
        if active is not None and active.item is item:
            self._driver.stop("user")
        samples = min(action.audio_end_ms * rate // 1000, item.samples)
        item.truncate(samples)
        self._jobs.submit(Interrupt(item.turn_id, samples, 0))
        self._responses.end_playback()
        self._end_played()
        truncated: Json = {"type": "conversation.item.truncated", "item_id": item.item_id}
        self._emit(truncated | {"content_index": 0, "audio_end_ms": action.audio_end_ms})

    # ---- responses that the client asks for ----

    def _create_response(self, parameters: Json) -> None:
        """response.create. ProtocolError says why there can be none."""
        active = self._responses.active
        if active is not None or self._requested is not None:
            raise ProtocolError(
                "conversation_already_has_active_response",
                "Conversation already has an active response in progress: {response}.",
                "Wait until the response is finished before creating a new one.",
                response=active.ids.response_id if active is not None else "not begun",
            )
        requested = self._config.with_response(parameters)
        self._check_instructions(requested[0], "response.instructions")
        self._requested = requested
        turn = self._driver.turn
        if turn is not None and self._driver.is_hearing:
            self._driver.roll_back()
            self._use_config(turn)
        else:
            self._begin_waiting()

    def _begin_waiting(self) -> None:
        """Begin the response that was asked for, if there is one and the user does not speak."""
        if self._requested is None or self._driver.is_hearing:
            return
        if self._pending.has_speech:
            self._drop_turn()
        turn, earlier = self._driver.turn, self._items.latest_question
        # The open turn may have the question: that of an earlier turn, or one before a reply of the client.
        known = turn is not None and turn.turn_id in (self._asked_again, earlier)
        if not self._pending.has_question and not known:
            if earlier is None:
                self._respond_to_nothing()
                return
            turn = turn or self._driver.open()
            self._jobs.submit(AskAgain(turn.turn_id, earlier, keeps=True))
            self._asked_again = turn.turn_id
        turn = turn or self._driver.open()
        self._use_config(turn)
        self._driver.answer(turn, self._requested[0].finished)

    def _respond_to_nothing(self) -> None:
        """Nobody has asked anything: the response is empty."""
        self._begin_response(self._driver.turn_id, self._clock_s())
        self._responses.end_empty()

    def _use_config(self, turn: UserTurn) -> None:
        """Reply to the turn as the session says, or the response that was asked for."""
        config = self._config if self._requested is None else self._requested[0]
        turn.modality, turn.max_new = config.modality, config.max_output_tokens
        self._tell_context(config)

    def _tell_context(self, config: SessionConfig) -> None:
        context = UseContext(config.instructions, config.retention, config.tools.use)
        if context != self._told:
            self._told = context
            self._jobs.submit(context)

    def _cancel_response(self, response_id: str | None) -> None:
        active = self._responses.active
        if self._requested is not None and response_id is None:
            self._begin_response(self._driver.turn_id, self._clock_s())
            self._responses.stop("client_cancelled")
            return
        if active is None or response_id not in (None, active.ids.response_id):
            raise ProtocolError(
                "response_cancel_not_active",
                "Cancellation failed: no active response found.",
                param="response_id",
            )
        self._driver.stop("user")
        self._responses.end_playback()

    def _confirm_response(self) -> None:
        active = self._responses.active
        if active is None or not active.is_speculative:
            raise ProtocolError(
                "response_not_speculative", "Confirmation failed: no speculative response found."
            )
        self._jobs.submit(Confirm(active.turn_id))
        for event in self._responses.confirm():
            if isinstance(event, ReplyMade):
                self._responses.report_times(event)
            else:
                self._add_event(event)

    def _drop_turn(self) -> None:
        """Drop the open turn, which has speech that does not belong to it: its items wait for another
        turn."""
        self._driver.stop("replaced")
        self._buffer.put_back()

    def _end_played(self) -> None:
        """Once the reply was played, what comes next is a turn and no interruption."""
        if self._driver.is_replying and self._responses.is_played:
            self._driver.rest()

    # ---- hooks of the driver: the turn ----

    def turn_opened(self, turn: UserTurn, start_ms: float) -> None:
        """Speech has started, of an item with a new id."""
        self._use_config(turn)
        self._driver.apply(self._driver_settings())
        self._pending.give()  # in the order of the items: what was typed meanwhile, then what is said now
        self._start_speech(start_ms)

    def turn_reopened(self, turn: UserTurn, event: TurnEvent) -> None:
        """Cancel the response. What was committed is an item already; what follows is another one."""
        self._start_speech(event.at_ms)
        self._is_cut_short = self._responses.stop("turn_detected") is not None

    def _start_speech(self, start_ms: float) -> None:
        self._item_id = self.ids.new("item")
        started_ms = round(self._buffer.session_ms(start_ms))
        started: Json = {"type": "input_audio_buffer.speech_started", "audio_start_ms": started_ms}
        ended, self._held = self._held or [], None
        self._emit(started | {"item_id": self._item_id})
        for event in ended:
            self._send(event)

    def turn_committed(self, turn: UserTurn, event: TurnEvent) -> bool:
        """Speech has stopped and is an item; whether the session makes responses by itself."""
        self._stop_speech()
        self._commit_speech()
        buffer, detection = self._buffer, self._config.turn_detection
        end = buffer.stream.end_of_sound(buffer.stream.samples_of(event.speech_end_ms))
        end_ms = buffer.session_ms(buffer.stream.ms_of(end))
        has_reply = self._requested is not None or (detection is not None and detection.create_response)
        self._endpoint = Endpoint(end_ms, buffer.end_ms - end_ms) if has_reply else None
        return has_reply

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
            detection = self._config.turn_detection
            if self._is_cut_short and detection is not None and detection.create_response:
                self._requested = self._requested or (self._config, None)
            self._begin_waiting()

    def turn_failed(self, failure: TurnFailed) -> None:
        """Fail the response. What was asked in the turn is not asked again."""
        _log.warning("turn %d failed: %s", failure.turn_id, failure.problem)
        is_ours = failure.code in (MossVoiceError.code, ToolCallError.code)
        kind = "server_error" if is_ours else "invalid_request_error"
        error = describe(failure.problem, kind, failure.code)
        turn = self._driver.turn
        is_present = turn is not None and turn.turn_id == failure.turn_id
        if is_present and self._requested is not None:
            self._begin_response(failure.turn_id, self._clock_s())
        if not self._responses.fail(failure.turn_id, error):
            self._emit({"type": "error", "error": error | {"param": None, "event_id": None}})
        if is_present:
            self._pending.end_exchange()
            self._buffer.clear()
            self._driver.stop("error")

    # ---- hooks of the driver: the reply ----

    def begin_reply(self, turn: UserTurn, held: HeldReply | None) -> None:
        """Begin a response; for a held reply with all of its events so far."""
        self._cuttable.append(turn.turn_id)
        self._begin_response(turn.turn_id, self._clock_s() if held is None else held.asked_ns / 1e9)
        if held is not None:
            for event, at_ns in held.events:
                self._add_event(event, at_ns / 1e9)
            if held.made is not None:
                self._responses.report_times(held.made)

    def _begin_response(self, turn_id: int, asked_s: float) -> None:
        config, metadata = self._requested or (self._config, None)
        endpoint, self._endpoint = self._endpoint, None
        self._requested, self._is_cut_short = None, False
        self._responses.begin(turn_id, config, metadata, asked_s, endpoint)

    def add_reply(self, turn: UserTurn, event: ReplyEvent) -> None:
        """Send the next part of the response. The end of a speculative one waits for its confirmation."""
        if self._responses.is_speculative and isinstance(event, ReplyDone):
            self._responses.hold(event)
        else:
            self._add_event(event)

    def _add_event(self, event: ReplyEvent, at_s: float | None = None) -> None:
        had_sound = self._responses.has_sound
        is_last = self._responses.add(event, at_s)
        if self._responses.has_sound and not had_sound:
            self._driver.reply_heard()
        if is_last:
            self._keep_said()
            self._pending.end_exchange()
            self._driver.end_turn()
            self._end_played()

    def reply_made(self, made: ReplyMade) -> None:
        """Send the times of the response."""
        if self._responses.is_speculative:
            self._responses.hold(made)
        else:
            self._responses.report_times(made)

    def pause_reply(self, event: TurnEvent) -> None:
        """Nothing to do: the client keeps playing until it is known whether that is a turn."""

    def resume_reply(self) -> None:
        """Nothing to do: nothing was paused."""

    def stop_reply(self, turn: UserTurn, reason: CancelReason) -> StoppedReply | None:
        """Cancel the response. What was sent counts as heard."""
        if reason != "barge_in":
            return self._responses.stop("client_cancelled")
        self._held = []
        stopped = self._responses.stop("turn_detected")
        self._is_cut_short = stopped == StoppedReply("unheard")
        is_full = self._speech_room_s < _LEAST_TURN_S
        # What was said has filled the context: it cannot be continued, and what follows is another turn.
        return StoppedReply("cut") if stopped == StoppedReply("unheard") and is_full else stopped

    def speculated(self, stats: SpeculationStats) -> None:
        """Nothing to do: no event reports it to a client."""

    # ---- out ----

    def _document(self) -> Json:
        return self._config.document() | {"id": self.ids.session_id}

    def _emit(self, event: Json) -> None:
        event = {"event_id": self.ids.new("event")} | event
        if self._held is None:
            self._send(event)
        else:
            self._held.append(event)


def _transcription_event(item: Item, name: str) -> Json:
    kind = f"conversation.item.input_audio_transcription.{name}"
    return {"type": kind, "item_id": item.item_id, "content_index": 0}


def nothing_to_commit() -> ProtocolError:
    """There is no audio in the buffer."""
    return ProtocolError(
        "input_audio_buffer_commit_empty",
        "Error committing input audio buffer: the buffer has no audio.",
        "Append some first.",
    )


def samples_of(audio: bytes, known: AudioFormat, param: str) -> Pcm:
    """Samples [n] of bytes of the wire. ProtocolError if there are none, or not whole ones."""
    if not audio or len(audio) % known.sample_bytes:
        raise ProtocolError(
            "invalid_value",
            "{field} must be whole samples of {type}, {sample_bytes} bytes each.",
            param=param,
            field=param,
            type=known.type,
            sample_bytes=known.sample_bytes,
        )
    return known.decode(audio)
