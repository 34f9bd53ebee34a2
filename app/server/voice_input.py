"""The audio that a client appends: voice activity, turn-taking, and the speech for the engine.

In: samples at the rate of the input format. Out: turn events, and `Hear` jobs while the user speaks. Time is
that of the samples, so a client may send faster or slower than real time. With client commits there is no
turn-taking: all that is appended is speech. Event loop.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from app.audio.resample import Resampler
from app.audio.ring import Ring
from app.dialog.smart_turn import WINDOW_S
from app.dialog.turn_events import TurnEvent
from app.dialog.turn_taking import TurnTaking
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.vad import Vad
from app.session.capture import Capture
from app.session.end_of_turn_worker import Pause
from app.session.engine_jobs import Hear, JobQueue
from app.session.voice_stream import SpeechFeed
from engine_runtime.types import Pcm

_RING_S = 1
_BLOCK_S = 0.5
"""What is appended goes through the ring in blocks of at most this much."""


class NetworkMicrophone:
    """What a client sends, in a microphone's place: filled by `append`, on the clock of its samples."""

    def __init__(self, sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self.ring = Ring(_RING_S * sample_rate)
        self.name = "network"
        self.latency_s = 0.0

    @property
    def dropped_samples(self) -> int:
        """None are lost as long as each block is read before the next one."""
        return self.ring.dropped

    def open(self, device: str | None, latency_s: float) -> None:
        """Always open."""

    def close(self) -> None:
        """Always open."""

    def service(self, now_ns: int) -> None:
        """Nothing to do between two blocks."""

    def is_lost(self) -> bool:
        """A client that goes ends its session."""
        return False

    def sample_time_ns(self, index: float) -> int:
        """By the clock of the samples."""
        return round(index * 1e9 / self.sample_rate)


class VoiceInput:
    """The input audio of one session."""

    def __init__(self, vad: Vad, jobs: JobQueue, engine_rate: int, input_rate: int) -> None:
        self.turn_taking = TurnTaking(TurnTakingSettings())
        self._capture = Capture(vad, round(WINDOW_S * 1000))
        self._engine_rate = engine_rate
        self._jobs = jobs
        self._stream = self._capture.stream
        self._feed = SpeechFeed(self._stream, jobs)
        self._feed.set_rate(engine_rate)
        self._earlier_ms = 0.0
        """Length of what came at another rate before."""
        self._appended = 0
        """Samples at the present rate."""
        self.use_rate(input_rate)

    def use_rate(self, sample_rate: int) -> None:
        """What is appended has this rate from now on; what was being said is forgotten."""
        self._earlier_ms = self.now_ms if self._appended else self._earlier_ms
        self._appended = 0
        self._microphone = NetworkMicrophone(sample_rate)
        self._manual = Resampler(sample_rate, self._engine_rate)
        self._capture.attach(self._microphone)
        self.turn_taking = TurnTaking(self.turn_taking.settings)

    @property
    def now_ms(self) -> float:
        """Length of all that was appended in the session."""
        return self._earlier_ms + self._appended * 1000.0 / self._microphone.sample_rate

    # ---- turn detection ----

    def hear(self, pcm: Pcm) -> Iterator[TurnEvent]:
        """More audio [n]; yields what the user did. Between two events the caller may open, commit or drop
        the turn."""
        self._appended += len(pcm)
        size = round(_BLOCK_S * self._microphone.sample_rate)
        for start in range(0, len(pcm), size):
            self._microphone.ring.write(pcm[start : start + size])
            for frame in self._capture.frames(is_muted=False):
                start_ms, end_ms = self._stream.ms_of(frame.start), self._stream.ms_of(frame.end)
                yield from self.turn_taking.update(frame.probability, start_ms, end_ms, frame.level_db)

    def open(self, event: TurnEvent) -> float:
        """The speech of `event` begins a turn; returns where its audio begins, in ms of the session."""
        return self._earlier_ms + self._feed.open(self._start_ms(event))

    def give(self, turn_id: int) -> None:
        """Send the engine what is known to belong to the turn."""
        if self.turn_taking.is_hearing:
            self._feed.give(turn_id, self._end_ms)

    def finish(self, turn_id: int) -> None:
        """Send the rest of the turn."""
        self._feed.finish(turn_id, self._end_ms)

    @property
    def end_ms(self) -> float:
        """Where the audio of the turn ends, in ms of the session."""
        return self._earlier_ms + self._end_ms

    def close(self) -> None:
        """The turn cannot be continued any more."""
        self._feed.close()

    def pause(self, turn_id: int, event: TurnEvent) -> Pause:
        """The question for the end-of-turn detector about a pause."""
        window_ms = event.at_ms - WINDOW_S * 1e3
        start = self._stream.samples_of(max(self._start_ms(event), window_ms, 0.0))
        return Pause(turn_id, event.speech_end_ms, event.silence_ms, self._stream.utterance.since(start))

    def _start_ms(self, event: TurnEvent) -> float:
        return event.speech_start_ms - self.turn_taking.settings.pre_roll_ms

    @property
    def _end_ms(self) -> float:
        return self.turn_taking.speech_end_ms + self.turn_taking.settings.tail_ms

    # ---- client commits ----

    def hear_all(self, turn_id: int, pcm: Pcm) -> None:
        """More speech of a turn that the client commits."""
        self._appended += len(pcm)
        self._send(turn_id, self._manual.push(pcm))

    def finish_all(self, turn_id: int) -> None:
        """The client commits what was appended."""
        self._send(turn_id, self._manual.finish())

    def forget_all(self) -> None:
        """The client clears what was appended."""
        self._manual.reset()

    def converted(self, pcm: Pcm) -> Pcm:
        """A complete recording at the input rate, at the engine's."""
        resampler = Resampler(self._microphone.sample_rate, self._engine_rate)
        return np.concatenate([resampler.push(pcm), resampler.finish()])

    def _send(self, turn_id: int, pcm: Pcm) -> None:
        if len(pcm):
            self._jobs.submit(Hear(turn_id, pcm))
