"""One reply, from its commit until it was played, cut or discarded: playback, transcript, events.

In: the reply events of the engine. Out: PCM for `Playback`; ReplyTextDelta, ReplyFinished, PlaybackStarted,
PlaybackFinished and ReplyCut; the timings playback_hold, confirm_to_sound and voice_to_voice. Dialog thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from app.dialog.conversation import ConversationRecord, SpokenText, TranscriptTurn
from app.session.clocks import Clock
from app.session.engine_jobs import Loaded
from app.session.events import (
    CancelReason,
    Event,
    PlaybackFinished,
    PlaybackStarted,
    ReplyCut,
    ReplyFinished,
    ReplyTextDelta,
)
from app.session.playback import Playback
from app.session.speculation import HeldReply
from app.session.turn_driver import UserTurn
from app.settings import OverlapManner
from engine_runtime.timing import TimingBus
from engine_runtime.types import Modality, ReplyAudio, ReplyDone, ReplyEvent, ReplyText


@dataclass(slots=True)
class ReplyInProgress:
    """State of one reply."""

    turn: UserTurn
    asked_ns: int
    """When the turn was committed, by the session's clock."""
    confirmed_ns: int
    """When the end of the turn was confirmed; the same unless the reply is speculative."""
    is_repetition: bool = False
    is_complete: bool = False
    """The engine has generated all of it."""
    has_audio: bool = False
    """Playback began, with the first audio of the reply."""
    is_heard: bool = False
    """The first sample was handed to the loudspeaker."""
    is_paused: bool = False
    """It waits, because the user speaks."""
    said: SpokenText = field(default_factory=SpokenText)
    """Its text, as it came."""
    samples_heard: int = 0
    """Samples heard before it was restarted or stopped."""

    @property
    def heard_text(self) -> str:
        """Text of the heard part of a spoken reply, or of the shown part of a text reply."""
        is_spoken = self.turn.modality is Modality.SPEECH
        return (self.said.up_to(self.samples_heard) if is_spoken else self.said).text


class ReplyPlayer:
    """One reply at a time: `begin` at the commit, `add` for each event of the engine, `service` in every
    round; then `end` if it was played to its end, else `stop` and `cut`, or `take_back`."""

    def __init__(
        self,
        playback: Playback,
        transcript: ConversationRecord,
        clock: Clock,
        emit: Callable[[Event], None],
        least_ms: int,
    ) -> None:
        self.timing = TimingBus()
        """The engine's bus once it is loaded."""
        self.least_ms = least_ms
        """Buffered audio in ms at which the first reply of all starts."""
        self._playback = playback
        self._transcript = transcript
        self._clock = clock
        self._emit = emit
        self._engine: Loaded | None = None
        self._reply: ReplyInProgress | None = None

    # ---- state ----

    @property
    def has_reply(self) -> bool:
        """Whether a reply was begun, and neither ended nor stopped."""
        return self._reply is not None

    @property
    def is_heard(self) -> bool:
        """Whether the first sample of the reply was handed to the loudspeaker."""
        return self._reply is not None and self._reply.is_heard

    @property
    def is_repetition(self) -> bool:
        """Whether this is the reply of an earlier turn."""
        return self._reply is not None and self._reply.is_repetition

    @property
    def is_lost(self) -> bool:
        """Whether the loudspeaker was lost while the reply was played."""
        return self._reply is not None and self._reply.has_audio and self._playback.is_lost

    @property
    def is_played(self) -> bool:
        """Whether the reply is complete and its playback over."""
        return self._reply is not None and self._reply.is_complete and not self._playback.is_active

    @property
    def is_complete(self) -> bool:
        """Whether stopping does not shorten the reply: it was fully played, or is played again."""
        reply = self._reply
        if reply is None:
            return False
        was_played = not reply.has_audio or self._playback.is_over(self._clock.now_ns())
        return reply.is_repetition or (reply.is_complete and was_played)

    # ---- from its commit to its end ----

    def use_engine(self, engine: Loaded) -> None:
        """The engine is ready."""
        self._engine = engine

    def begin(self, turn: UserTurn, *, is_repetition: bool = False) -> None:
        """The turn was committed, or the reply of an earlier one is to be played again."""
        now_ns = self._clock.now_ns()
        self._reply = ReplyInProgress(turn, now_ns, now_ns, is_repetition, is_complete=is_repetition)

    def begin_held(self, turn: UserTurn, held: HeldReply) -> None:
        """The turn of a speculative reply was confirmed."""
        now_ns = self._clock.now_ns()
        reply = self._reply = ReplyInProgress(turn, held.asked_ns, now_ns)
        for event, at_ns in held.events:
            self.add(event, at_ns)
        if reply.has_audio:
            self._playback.release(now_ns, was_waiting=held.is_waiting)

    def start_over(self, spoken: TranscriptTurn) -> None:
        """Play the audio that the transcript holds of the reply, from its first sample on."""
        reply = self._present()
        reply.samples_heard = self._samples_heard(reply)  # it is not cut
        reply.has_audio = True
        reply.is_paused = False
        self._playback.begin(spoken.sample_rate, self.least_ms, self._clock.now_ns())
        for chunk in spoken.chunks:
            self._playback.push(chunk)
        if reply.is_complete:
            self._playback.finish()

    def add(self, event: ReplyEvent, at_ns: int | None = None) -> None:
        """The next event of the reply; it arrived at `at_ns`, by default just now."""
        reply = self._present()
        turn = reply.turn
        if isinstance(event, ReplyText):
            reply.said.add(event.start_sample, event.text)
            self._emit(ReplyTextDelta(turn.turn_id, event.text, event.is_subtitle))
        elif isinstance(event, ReplyAudio):
            self._transcript.add_audio(turn.turn_id, event.pcm, event.sample_rate)
            if not reply.has_audio:
                reply.has_audio = True
                self._playback.begin(event.sample_rate, self.least_ms, reply.asked_ns)
                if reply.is_paused:
                    self._playback.pause()
            if self._playback.is_active:
                if at_ns is None:
                    self._playback.push(event.pcm)
                else:
                    self._playback.push_held(event.pcm, at_ns)
        elif isinstance(event, ReplyDone):
            self._complete(reply, event)

    def service(self, now_ns: int) -> bool:
        """Advance the playback; whether the first sample of the reply was noticed just now."""
        self._playback.service(now_ns)
        reply, started_ns = self._reply, self._playback.started_ns
        if reply is None or reply.is_heard or not reply.has_audio or started_ns is None:
            return False
        reply.is_heard = True
        self._emit(PlaybackStarted(reply.turn.turn_id))
        self._time_start(reply, started_ns)
        return True

    def pause(self, overlap: OverlapManner = "pause") -> None:
        """The user speaks over the reply: fade it out, duck it, or leave it alone. The engine continues with
        it. Nothing of a reply that was not heard yet is played, whatever the mode."""
        reply = self._present()
        reply.is_paused = overlap == "pause" or not reply.is_heard
        if reply.is_paused:
            self._playback.pause()
        elif overlap == "duck":
            self._playback.duck()

    def resume(self) -> None:
        """It was not a turn: resume where the reply was faded out, or raise its volume again."""
        self._present().is_paused = False
        self._playback.resume()

    def take_back(self) -> None:
        """The user continues: there was no commit and no reply."""
        reply = self.stop()
        if reply is not None:
            self._transcript.take_back_reply(reply.turn.turn_id)

    def end(self) -> None:
        """The reply was played to its end, or its repetition is over."""
        reply = self.stop()
        if reply is not None and (reply.is_heard or reply.is_repetition):
            self._emit(PlaybackFinished(reply.turn.turn_id))

    def stop(self) -> ReplyInProgress | None:
        """Stop the playback; returns the reply that was in progress, for `cut`."""
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.samples_heard = self._samples_heard(reply)
        self._playback.stop()
        return reply

    def cut(self, reply: ReplyInProgress, reason: CancelReason) -> ReplyCut:
        """The reply was stopped before its end: keep, report and return the heard part."""
        turn, samples = reply.turn, reply.samples_heard
        known = self._transcript.get(turn.turn_id)
        made_s = known.reply_s if known is not None else 0.0
        heard_text = reply.heard_text
        self._transcript.cut(turn.turn_id, heard_text, samples)
        rate, samples_per_code = 1, 1
        if self._engine is not None:
            rate, samples_per_code = self._engine.output_sample_rate, self._engine.samples_per_code
        cut = ReplyCut(
            turn.turn_id,
            reason,
            turn.modality,
            heard_text,
            reply.said.text[len(heard_text) :],
            samples / rate,
            made_s,
            turn.user_codes,
            -(-samples // samples_per_code) if samples_per_code else 0,
        )
        self._emit(cut)
        return cut

    def _present(self) -> ReplyInProgress:
        if self._reply is None:
            raise RuntimeError("no reply was begun")
        return self._reply

    def _samples_heard(self, reply: ReplyInProgress) -> int:
        """Samples of the reply that left the loudspeaker, at its own rate."""
        now = self._playback.heard_samples(self._clock.now_ns()) if reply.has_audio else 0
        return max(reply.samples_heard, now)

    def _complete(self, reply: ReplyInProgress, done: ReplyDone) -> None:
        reply.is_complete = True
        text = done.text or reply.said.text
        self._transcript.finish(reply.turn.turn_id, text, done.finish_reason)
        if self._playback.is_active:
            self._playback.finish()
        rate = self._engine.output_sample_rate if self._engine else 1
        self._emit(
            ReplyFinished(
                reply.turn.turn_id,
                done.modality,
                done.audio_samples / rate,
                text,
                reply.turn.user_codes,
                len(done.codes),
                done.finish_reason,
            )
        )

    def _time_start(self, reply: ReplyInProgress, started_ns: int) -> None:
        turn, start = reply.turn, self._playback.start
        if start is not None and not reply.is_repetition:
            hold_ns = round(start.delay_ms * 1e6)
            self.timing.emit(
                "playback_hold",
                turn.turn_id,
                time.perf_counter_ns() - hold_ns,
                hold_ns,
                reason=start.reason,
                target_ms=start.target_ms,
            )
        if turn.last_speech_ns is not None:
            handed_ns = self._playback.handed_ns or started_ns
            # A device block may have begun before the round in which it was filled.
            sound_ns = max(handed_ns - reply.confirmed_ns, 0)
            self.timing.emit("confirm_to_sound", turn.turn_id, time.perf_counter_ns() - sound_ns, sound_ns)
            duration_ns = started_ns - turn.last_speech_ns
            self.timing.emit("voice_to_voice", turn.turn_id, turn.last_speech_wall_ns, duration_ns)
