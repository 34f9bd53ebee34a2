"""Either library cancels the echo and keeps the user."""

from __future__ import annotations

import numpy as np
import pytest

from app.audio import echo_libraries
from app.audio.echo_cancellation import AudioProcessing
from app.audio.echo_libraries import PACKAGES, is_installed, make_processor
from app.audio.levels import dbfs, rms
from app.audio.playback_reference import FRAME_SAMPLES, RATE_HZ
from app.duplex.room import SPEAKER_RATE, EchoRoom
from app.settings import EchoLibrary
from engine_runtime.types import Pcm
from tests.tools.echo_scene import Scene


def noise(seconds: float, rate: int, seed: int = 0) -> Pcm:
    """In bursts of 200 ms."""
    white = np.random.default_rng(seed).standard_normal(round(seconds * rate)).astype(np.float32)
    loud = np.arange(len(white)) * 5 // rate % 2 == 1
    return np.float32(0.1) * white * loud


@pytest.fixture(params=PACKAGES)
def library(request: pytest.FixtureRequest) -> EchoLibrary:
    chosen: EchoLibrary = request.param
    if not is_installed(chosen):
        pytest.skip(f"{PACKAGES[chosen]} is not installed")
    return chosen


@pytest.mark.slow
def test_the_echo_goes_and_the_user_stays(library: EchoLibrary) -> None:
    scene = Scene(EchoRoom(12, 100, 100), AudioProcessing(library=library))
    scene.run(3.0, noise(3.0, SPEAKER_RATE))
    captured, processed = scene.run(1.0, noise(1.0, SPEAKER_RATE, seed=1))
    assert dbfs(rms(captured)) - dbfs(rms(processed)) > 12
    assert scene.processor.measurement.state == "cancelling"
    assert scene.processor.problem is None
    user = noise(0.6, RATE_HZ, seed=2)
    scene.room.speak(user)
    _, processed = scene.run(0.8)
    likeness = np.correlate(processed, user, "valid").max()
    assert likeness > 0.5 * float(np.dot(user, user))


@pytest.mark.parametrize("frames", [1, 7])
def test_samples_stay_in_place(library: EchoLibrary, frames: int) -> None:
    processor = make_processor(library, echo_cancellation=False, noise_suppression=True, gain_control=False)
    user = np.concatenate([np.zeros(10 * FRAME_SAMPLES, np.float32), noise(1.0, RATE_HZ)])
    blocks = user[: 70 * FRAME_SAMPLES].reshape(-1, frames * FRAME_SAMPLES)
    made = np.concatenate([processor.process(block) for block in blocks])
    assert made.dtype == np.float32
    assert len(made) == 70 * FRAME_SAMPLES
    scores = np.correlate(made, user[20 * FRAME_SAMPLES : 60 * FRAME_SAMPLES], "valid")
    assert abs(int(scores.argmax()) - 20 * FRAME_SAMPLES) <= FRAME_SAMPLES  # the filter bank's delay


def test_a_package_that_is_away_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_installed("pywebrtc")
    monkeypatch.setitem(echo_libraries.MODULES, "livekit", "no_such_package.rtc")
    assert not is_installed("livekit")


def test_a_library_of_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="'speex'"):
        AudioProcessing(library="speex")  # type: ignore[arg-type]
