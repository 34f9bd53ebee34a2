"""How many conversations an engine can serve: measured with replies at once, before the first conversation.

In: a loaded engine and the scheduler of its thread. Out: the real-time factor (RTF) of one reply and of
several, the number of replies that can be made at once without a gap and, with the memory, the number of
conversations that are admitted. Engine thread.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from app.session.engine_host import Admission
from engine_runtime.errors import MossVoiceError
from engine_runtime.scheduler import Scheduler
from engine_runtime.types import Modality, ReplyAudio
from engine_runtime.work import Task

if TYPE_CHECKING:  # they import torch
    from engine_runtime.conversation.turn import Conversation, Turn
    from engine_runtime.engine import Engine

USABLE = 0.9
"""Share of the engine's time that replies may take when all conversations speak at once."""
_PROBE_CODES = 50
"""Length of a measured reply: 4 s of speech, so that its larger packets count, too."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """`rtf` is engine time / audio of one of `speaking` replies that were made at once."""

    rtf_alone: float
    rtf: float
    speaking: int

    @property
    def capacity(self) -> int:
        """Replies at once without a gap, at least one; larger numbers than measured are assumed to gain
        nothing."""
        return max(int(self.speaking * USABLE / self.rtf), 1)


def choose_admission(engine: Engine, scheduler: Scheduler, wanted: int | None) -> Admission:
    """As many conversations as memory and speed allow, or the number that is wanted, with a warning in the
    log if it is more. Raises MossVoiceError if memory holds fewer."""
    with_memory, what = min((most, what) for what, most in engine.conversation_limits.items())
    if wanted is not None and wanted > with_memory:
        remedy = " or shorten their context with --context-tokens" if what == "KV cache" else ""
        raise MossVoiceError(
            "The {what} of {bundle} holds {with_memory} conversations, fewer than {wanted}.",
            "Ask for fewer with --conversations{remedy}.",
            what=what,
            bundle=engine.bundle.name,
            with_memory=with_memory,
            wanted=wanted,
            remedy=remedy,
        )
    load = measure_load(engine, scheduler, with_memory if wanted is None else wanted)
    reason = f"by its speed, RTF {load.rtf:.2f} with {load.speaking} at once"
    choices = [(with_memory, f"by its {what}"), (load.capacity, reason)]
    if (speaking := engine.speaking_limit) is not None:  # users listen half of the time
        choices.append((2 * speaking, "by its flow's caches"))
    number, limit = min(choices)
    if wanted is None:
        return Admission(number, limit, load.rtf_alone)
    if wanted > number:
        _log.warning(
            "--conversations %d: without it %d would be admitted at once (limited %s). When many talk, "
            "replies may have gaps.",
            wanted,
            number,
            limit,
        )
    return Admission(wanted, "by --conversations", load.rtf_alone)


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
    """Engine time of `count` spoken replies at once, once all turns have been heard / the audio of one."""
    noise = np.random.default_rng(0).normal(0.0, 1e-3, engine.input_sample_rate).astype(np.float32)
    params = replace(engine.bundle.lm.sampling_speech, min_new=_PROBE_CODES, max_new=_PROBE_CODES)
    conversations = [engine.new_conversation() for _ in range(count)]
    turns: list[Turn] = []
    audio_s = [0.0] * count

    def listen(conversation: Conversation) -> Task[None]:
        turn = yield from engine.open_turn(conversation, 0, Modality.SPEECH)
        yield from turn.push(noise)
        turns.append(turn)

    def speak(place: int) -> Task[None]:
        events = yield from turns[place].commit(Modality.SPEECH, params)
        while (event := (yield from events.next_event())) is not None:
            if isinstance(event, ReplyAudio):
                audio_s[place] += len(event.pcm) / event.sample_rate

    def due_ns(place: int) -> int:
        return began_ns + round(1e9 * audio_s[place])

    try:
        for conversation in conversations:
            scheduler.start(listen(conversation), lambda: 0)
        _finish(scheduler)
        began_ns = time.monotonic_ns()
        for place in range(count):
            # As with clients that play at once: earliest playback deadline first.
            scheduler.start(speak(place), partial(due_ns, place))
        _finish(scheduler)
        return (time.monotonic_ns() - began_ns) * 1e-9 * count / sum(audio_s)
    finally:
        for conversation in conversations:
            engine.end_conversation(conversation)


def _finish(scheduler: Scheduler) -> None:
    while not scheduler.is_idle:
        scheduler.run_once()
