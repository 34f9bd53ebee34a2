"""The left side of a recording in place of a microphone, straight through, and the user's commands with it.

In: the stereo file of a conversation, commands with their times. Out: captured samples at the pace of the
clock; each command when its time has come. Unlike a file that is played as a sample it never waits, and it is
processed as a microphone. Dialog thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from app.audio.device_streams import DEVICE_RATE_HZ
from app.audio.ring import Ring
from app.audio.wav import WavReader
from app.session.commands import Command

_RING_SECONDS = 2.0
_REST_S = 2.0
"""Silence after the end of the record, in which a last turn ends."""
_MOST_AT_ONCE_S = 0.03


class RecordedMicrophone:
    """A microphone of a session; without a file it captures silence."""

    def __init__(
        self, file: Path | None, commands: deque[tuple[float, Command]], late_s: float = 0.0
    ) -> None:
        """AudioInputError if the file cannot be used. `commands` are sent when they are due, oldest first.
        `late_s` of silence come before all."""
        self._reader = WavReader(file, channel=0) if file is not None else None
        self.sample_rate = self._reader.sample_rate if self._reader is not None else DEVICE_RATE_HZ
        self.ring = Ring(int(_RING_SECONDS * self.sample_rate))
        self.name = ""
        self.latency_s = 0.0
        self.send: Callable[[Command], None] = lambda _: None
        """Takes the commands."""
        self.is_listened_to = False
        """Whether the session waits for speech."""
        self._commands = commands
        self._late = round(late_s * self.sample_rate)
        self._origin_ns: int | None = None
        self._given = 0
        self._quiet = 0
        """Samples given since all was said and answered."""

    @property
    def dropped_samples(self) -> int:
        """Samples that found no room in the ring."""
        return self.ring.dropped

    @property
    def is_over(self) -> bool:
        """Whether all was said, and answered."""
        return self._quiet > _REST_S * self.sample_rate

    def open(self, device: str | None, latency_s: float) -> None:
        """Begin with the next `service`; the arguments are ignored."""
        self.name = "recording"

    def close(self) -> None:
        """Stop; reopening continues from here."""
        self.name, self._origin_ns = "", None

    def service(self, now_ns: int) -> None:
        """Deliver the samples that are due at `now_ns`, and send the commands that are."""
        if not self.name:
            return
        if self._origin_ns is None:
            self._origin_ns = now_ns - self._given * 1_000_000_000 // self.sample_rate
        due = (now_ns - self._origin_ns) * self.sample_rate // 1_000_000_000 - self._given
        due = min(due, round(_MOST_AT_ONCE_S * self.sample_rate))
        if due <= 0:
            return
        block = np.zeros(due, dtype=np.float32)
        silent = min(max(self._late - self._given, 0), due)
        speech = self._reader.read(due - silent) if self._reader is not None else block[:0]
        block[silent : silent + len(speech)] = speech
        self._given += due
        self.ring.write(block)
        while self._commands and self._commands[0][0] * self.sample_rate < self._given - self._late:
            self.send(self._commands.popleft()[1])
        is_quiet = self.is_listened_to and not len(speech) and not self._commands
        self._quiet = self._quiet + due if is_quiet else 0

    def is_lost(self) -> bool:
        """Never."""
        return False

    def sample_time_ns(self, index: float) -> int:
        """When sample `index` was due."""
        return (self._origin_ns or 0) + round(index * 1e9 / self.sample_rate)
