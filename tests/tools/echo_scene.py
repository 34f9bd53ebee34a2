"""A room with a loudspeaker, a user, a microphone and its processing, on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from app.audio.echo_cancellation import AudioProcessing, CaptureProcessor
from app.duplex.room import SPEAKER_RATE, EchoRoom
from engine_runtime.types import Pcm

MS = 1_000_000


class Scene:
    """A room, and a processor for its microphone."""

    def __init__(self, room: EchoRoom, options: AudioProcessing) -> None:
        self.room = room
        self.processor = CaptureProcessor(room.speaker, options)
        self.captured: list[Pcm] = []
        self.processed: list[Pcm] = []
        self.late_ms: Callable[[float], float] = lambda second: 0.0
        """How late the captured samples of a second are received."""
        self._now_ms = 0
        room.open(None, 0.0)
        room.speaker.open(None, 0.0)

    def run(self, seconds: float, played: Pcm | None = None) -> tuple[Pcm, Pcm]:
        """Play something for so long; what was captured, and what came of it."""
        captured, processed = len(self.captured), len(self.processed)
        rest = np.zeros(0, dtype=np.float32) if played is None else played
        for _ in range(round(seconds * 100)):
            count = min(SPEAKER_RATE // 10, len(rest), self.room.speaker.ring.free)
            self.room.speaker.ring.write(rest[:count])
            rest = rest[count:]
            self._now_ms += 10
            self.room.service(self._now_ms * MS)
            self.room.speaker.service(self._now_ms * MS)
            pcm = self.room.ring.read(self.room.ring.available)
            self.captured.append(pcm)
            self.processed.append(self.processor.process(pcm, self._received_ns))
        return np.concatenate(self.captured[captured:]), np.concatenate(self.processed[processed:])

    def _received_ns(self, sample: int) -> int:
        late_ms = self.late_ms(sample / self.room.sample_rate)
        return self.room.sample_time_ns(sample) + round(late_ms * MS)
