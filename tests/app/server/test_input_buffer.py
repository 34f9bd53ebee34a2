"""Audio that a client commits itself."""

from __future__ import annotations

import numpy as np

from app.server.input_buffer import InputBuffer
from engine_runtime.types import Pcm
from tests.doubles.scripted_engine import LoudnessVad
from tests.tools.session_driver import RATE, silence, speech


class CountingVad(LoudnessVad):
    """Counts the frames that were judged."""

    judged = 0

    def probability(self, frame: Pcm) -> float:
        self.judged += 1
        return super().probability(frame)


def test_only_the_beginning_of_speech_is_looked_for() -> None:
    vad = CountingVad()
    buffer = InputBuffer(vad, RATE, RATE, 60.0)
    buffer.append(np.concatenate([silence(1.0), speech(0.2)]))
    assert buffer.has_speech
    before = vad.judged
    said = np.concatenate([speech(2.0), silence(1.0)])
    for start in range(0, len(said), 1000):
        buffer.append(said[start : start + 1000])
    assert vad.judged == before
    assert np.array_equal(buffer.take_new()[-len(said) :], said)


def test_speech_is_looked_for_again_after_a_commit() -> None:
    buffer = InputBuffer(LoudnessVad(), RATE, RATE, 60.0)
    buffer.append(np.concatenate([speech(0.5), speech(0.31)]))
    buffer.finish()
    buffer.clear()
    buffer.append(silence(1.0))
    assert not buffer.has_speech
    buffer.append(speech(0.2))
    assert buffer.has_speech


def test_what_is_not_judged_passes_time_and_is_forgotten_by_the_next_search() -> None:
    buffer = InputBuffer(LoudnessVad(), RATE, RATE, 60.0)
    buffer.append(speech(0.512))
    buffer.append(speech(1.024))
    assert buffer.end_ms == 1536.0
    buffer.finish()
    buffer.clear()
    buffer.append(silence(0.512))
    assert (buffer.end_ms, buffer.has_speech, buffer.samples) == (2048.0, False, round(0.512 * RATE))
    buffer.append(speech(0.1))
    assert buffer.has_speech
