"""The user's voice as frames and as the audio of a turn."""

from __future__ import annotations

import numpy as np
import pytest

from app.session.voice_stream import VoiceStream
from tests.doubles.scripted_engine import LoudnessVad
from tests.tools.session_driver import RATE, silence, speech


@pytest.mark.parametrize("keep_ms", [1_000, 10_000], ids=["older sound is dropped", "all is kept"])
def test_speech_ends_where_its_sound_does(keep_ms: int) -> None:
    stream = VoiceStream(LoudnessVad(), keep_ms)
    list(stream.frames(np.concatenate([silence(2.0), speech(0.5), silence(0.5)])))
    late = round(0.09 * RATE)
    assert stream.end_of_sound(round(2.5 * RATE) + late) == pytest.approx(2.5 * RATE, abs=RATE // 100)
