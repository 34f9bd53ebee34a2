"""How many conversations an engine can serve: measured with replies at once, before the first conversation.

In: a loaded engine and the scheduler of its thread. Out: the real-time factor (RTF) of one reply and of
several, and the number of replies that can be made at once without a gap. Engine thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from engine_runtime.scheduler.scheduler import Scheduler
from engine_runtime.types import Modality, ReplyAudio
from engine_runtime.work import Task

if TYPE_CHECKING:  # it imports torch
    from engine_runtime.engine import Engine

USABLE = 0.9
"""Share of the engine's time that replies may take when all conversations speak at once."""
_PROBE_CODES = 25
"""Length of a measured reply: 2 s of speech."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """`rtf` is engine time / audio of one of `speaking` replies that were made at once."""

    rtf_alone: float
    rtf: float
    speaking: int

    @property
    def capacity(self) -> int:
        """Replies at once without a gap, at least one; no gain from more at once than measured is assumed."""
        return max(int(self.speaking * USABLE / self.rtf), 1)


def measure_load(engine: Engine, scheduler: Scheduler, most: int) -> EngineLoad:
    """Make one reply, then two, four, ... at once, as long as twice as many would be in time in any case, at
    most `most`."""
    speaking = 1
    rtf_alone = rtf = _measure_rtf(engine, scheduler, 1)
    while 2 * speaking <= most and 2 * rtf <= USABLE:
        speaking *= 2
        rtf = _measure_rtf(engine, scheduler, speaking)
    return EngineLoad(rtf_alone, rtf, speaking)


def _measure_rtf(engine: Engine, scheduler: Scheduler, count: int) -> float:
    """Engine time of `count` spoken replies at once, each to a second of faint noise / the audio of one."""
    noise = np.random.default_rng(0).normal(0.0, 1e-3, engine.input_sample_rate).astype(np.float32)
    params = replace(engine.bundle.lm.sampling_speech, min_new=_PROBE_CODES, max_new=_PROBE_CODES)
    conversations = [engine.new_conversation() for _ in range(count)]
    audio_s = [0.0] * count

    def reply(place: int, conversation: object) -> Task[None]:
        turn = yield from engine.open_turn_task(conversation, 0, Modality.SPEECH)  # type: ignore[arg-type]
        yield from turn.push_task(noise)
        events = yield from turn.commit_task(Modality.SPEECH, params)
        while (event := (yield from events.next_event())) is not None:
            if isinstance(event, ReplyAudio):
                audio_s[place] += len(event.pcm) / event.sample_rate

    def due_ns(place: int) -> int:
        return round(1e9 * audio_s[place])

    try:
        began_s = time.perf_counter()
        for place, conversation in enumerate(conversations):
            # As with clients that play at once: whose audio ends first goes first.
            scheduler.start(reply(place, conversation), partial(due_ns, place))
        while not scheduler.is_idle:
            scheduler.run_once()
        return (time.perf_counter() - began_s) * count / sum(audio_s)
    finally:
        for conversation in conversations:
            engine.end_conversation(conversation)
