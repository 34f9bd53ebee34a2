"""The echo goes, the user stays; without an echo nothing is changed; what stands in the way is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.audio import echo_libraries
from app.audio.echo_cancellation import AudioProcessing, CaptureProcessor, EchoMode
from app.audio.levels import dbfs, rms
from app.audio.playback_reference import FRAME_SAMPLES, RATE_HZ
from app.audio.resample import Resampler
from app.audio.wav_streams import WavSpeaker
from app.duplex.room import SPEAKER_RATE, EchoRoom
from app.settings import EchoLibrary
from engine_runtime.types import Pcm
from tests.tools.echo_scene import Scene


def syllables(seconds: float, rate: int, seed: int = 0) -> Pcm:
    """Noise in bursts, up to 4 kHz."""
    rng = np.random.default_rng(seed)
    resampler = Resampler(8_000, rate)
    white = rng.standard_normal(round(seconds * 8_000)).astype(np.float32)
    loud = np.sin(2 * np.pi * 3 * np.arange(len(white)) / 8_000) > -0.3
    return np.float32(0.1) * np.concatenate([resampler.push(white * loud), resampler.finish()])


@pytest.mark.parametrize(("loss_db", "delay_ms", "skew_ppm"), [(6, 50, 0), (12, 250, 0), (20, 100, 300)])
@pytest.mark.slow
def test_an_echo_is_cancelled_and_measured(loss_db: float, delay_ms: float, skew_ppm: float) -> None:
    scene = Scene(EchoRoom(loss_db, delay_ms, skew_ppm), AudioProcessing())
    scene.run(4.0, syllables(4.0, SPEAKER_RATE))
    captured, processed = scene.run(4.0, syllables(4.0, SPEAKER_RATE, seed=1))
    assert dbfs(rms(captured)) - dbfs(rms(processed)) > 12  # 20 dB above the noise of the room at -20 dB
    echo = scene.processor.measurement
    assert echo.state == "cancelling"
    assert echo.delay_ms == pytest.approx(delay_ms, abs=4)
    assert echo.erl_db == pytest.approx(loss_db, abs=3)
    assert echo.erle_db is not None
    assert echo.erle_db > 12


def test_a_user_is_heard_through_the_echo() -> None:
    scene = Scene(EchoRoom(12, 100), AudioProcessing())
    scene.run(6.0, syllables(6.0, SPEAKER_RATE))
    user = syllables(1.0, RATE_HZ, seed=2)
    scene.room.speak(user)
    _, processed = scene.run(1.0, syllables(1.0, SPEAKER_RATE, seed=3))
    likeness = np.correlate(processed, user[: len(processed) - 800], "valid").max()
    assert likeness > 0.5 * float(np.dot(user, user))


@pytest.mark.slow
def test_automatic_is_off_with_headphones_and_changes_no_bit() -> None:
    scene = Scene(EchoRoom(12, 100), AudioProcessing())
    scene.room.echo_gain = 0.0
    scene.run(6.0, syllables(6.0, SPEAKER_RATE))
    assert scene.processor.measurement.state == "no_echo"
    before = sum(map(len, scene.processed))
    scene.room.speak(syllables(1.0, RATE_HZ, seed=2), after_s=0.5)
    scene.run(3.0, syllables(3.0, SPEAKER_RATE, seed=1))
    captured, processed = np.concatenate(scene.captured), np.concatenate(scene.processed)
    assert len(processed) > before + 2.9 * RATE_HZ
    assert np.array_equal(processed[before:], captured[before : len(processed)])
    assert scene.processor.measurement.state == "no_echo"


@pytest.mark.slow
def test_an_echo_that_begins_later_is_suspected_at_once_and_cancelled() -> None:
    scene = Scene(EchoRoom(12, 100), AudioProcessing())
    scene.room.echo_gain = 0.0
    scene.run(5.0, syllables(5.0, SPEAKER_RATE))
    scene.room.echo_gain = 1.0
    late_ms = 0
    for _ in range(30):
        if scene.processor.suspects_echo or scene.processor.measurement.state == "cancelling":
            break
        scene.run(0.02, syllables(0.02, SPEAKER_RATE, seed=late_ms))
        late_ms += 20
    assert late_ms <= 300
    scene.run(1.0, syllables(1.0, SPEAKER_RATE, seed=4))
    captured, processed = scene.run(1.0, syllables(1.0, SPEAKER_RATE, seed=5))
    assert dbfs(rms(captured)) - dbfs(rms(processed)) > 15


@pytest.mark.slow
def test_a_gap_of_the_loudspeaker_or_another_one_leaves_open_whether_there_is_an_echo() -> None:
    """While the reference is aligned anew, an echo cannot be found."""
    scene = Scene(EchoRoom(12, 100), AudioProcessing())
    scene.room.echo_gain = 0.0
    for seed in range(4):
        scene.run(1.4, syllables(1.4, SPEAKER_RATE, seed))
        scene.room.speaker.open(None, 0.0)
    assert scene.processor.measurement.state == "cancelling"
    scene.run(4.0, syllables(4.0, SPEAKER_RATE))
    assert scene.processor.measurement.state == "no_echo"
    scene.room.speaker.open(None, 0.0)
    scene.run(0.5, syllables(0.5, SPEAKER_RATE))
    assert scene.processor.measurement.state == "cancelling"


@pytest.mark.slow
@pytest.mark.parametrize("has_echo", [True, False])
def test_nothing_is_concluded_while_the_clocks_are_found(has_echo: bool) -> None:
    """On a busy computer the first callbacks come late, and the reference slides to its place for seconds."""
    scene = Scene(EchoRoom(12, 100), AudioProcessing())
    scene.late_ms = lambda second: max(30.0 - 5.0 * second, 0.0)
    scene.room.echo_gain = float(has_echo)
    states = []
    for seed in range(12):
        scene.run(2.0, syllables(2.0, SPEAKER_RATE, seed))
        states.append(scene.processor.measurement.state)
    assert states[:3] == ["cancelling"] * 3
    assert states[-1] == ("cancelling" if has_echo else "no_echo")
    if has_echo:
        assert set(states) == {"cancelling"}


@pytest.mark.slow
def test_after_an_echo_it_takes_longer_to_conclude_that_there_is_none() -> None:
    """One whose delay jitters is not found for seconds."""
    scene = Scene(EchoRoom(12, 100), AudioProcessing())
    scene.run(4.0, syllables(4.0, SPEAKER_RATE))
    assert scene.processor.cancels_echo
    scene.room.echo_gain = 0.0
    for seed in range(2):
        scene.run(8.0, syllables(8.0, SPEAKER_RATE, seed))
        assert scene.processor.measurement.state == "cancelling"
    scene.run(8.0, syllables(8.0, SPEAKER_RATE, seed=2))
    assert scene.processor.measurement.state == "no_echo"


def test_on_stays_on() -> None:
    scene = Scene(EchoRoom(12, 100), AudioProcessing("on"))
    scene.room.echo_gain = 0.0
    scene.run(6.0, syllables(6.0, SPEAKER_RATE))
    assert scene.processor.measurement.state == "cancelling"


def test_off_is_the_capture_itself() -> None:
    scene = Scene(EchoRoom(6, 100), AudioProcessing("off"))
    captured, processed = scene.run(1.0, syllables(1.0, SPEAKER_RATE))
    assert np.array_equal(captured, processed)
    assert scene.processor.measurement.state == "off"
    assert scene.processor.problem is None


def test_noise_suppression_and_gain_control_work_without_echo_cancellation() -> None:
    quiet, loud = EchoRoom(60, 100, seed=1), EchoRoom(60, 100, seed=1)
    captured, suppressed = Scene(quiet, AudioProcessing("off", noise_suppression=True)).run(3.0)
    assert 6 < dbfs(rms(captured[RATE_HZ:])) - dbfs(rms(suppressed[RATE_HZ:])) < 20
    scene = Scene(loud, AudioProcessing("off", gain_control=True))
    loud.speak(0.1 * syllables(6.0, RATE_HZ))
    captured, raised = scene.run(6.0)
    assert dbfs(rms(raised[-RATE_HZ:])) > dbfs(rms(captured[-RATE_HZ:])) + 6


def test_options_count_from_the_next_frame() -> None:
    scene = Scene(EchoRoom(6, 100), AudioProcessing("off"))
    scene.run(0.5, syllables(0.5, SPEAKER_RATE))
    scene.processor.apply(AudioProcessing("on"))
    scene.run(3.0, syllables(3.0, SPEAKER_RATE, seed=1))
    captured, processed = scene.run(1.0, syllables(1.0, SPEAKER_RATE, seed=2))
    assert dbfs(rms(captured)) - dbfs(rms(processed)) > 15


@pytest.mark.parametrize(("library", "name"), [("pywebrtc", "pywebrtc-audio"), ("livekit", "livekit")])
@pytest.mark.parametrize("mode", ["auto", "on"])
@pytest.mark.parametrize("package", ["no_such_package", "damaged_package"])
def test_without_the_package_the_capture_is_passed_on(
    library: EchoLibrary,
    name: str,
    mode: EchoMode,
    package: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "damaged_package.py").write_text("raise ImportError('libstdc++.so.6: version not found')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(echo_libraries.MODULES, library, package)
    scene = Scene(EchoRoom(6, 100), AudioProcessing(mode, library=library))
    captured, processed = scene.run(1.0, syllables(1.0, SPEAKER_RATE))
    assert np.array_equal(captured, processed)
    assert f"needs the package {name}, which" in str(scene.processor.problem)
    assert scene.processor.measurement.state == "unavailable"


def test_another_rate_is_passed_on() -> None:
    processor = CaptureProcessor(WavSpeaker(SPEAKER_RATE), AudioProcessing(), sample_rate=8_000)
    pcm = syllables(0.1, 8_000)
    assert processor.process(pcm, lambda sample: 0) is pcm
    assert "8,000" in str(processor.problem)


class SilentClock(WavSpeaker):
    """Is open, but never plays anything, so that it has no time."""

    def service(self, now_ns: int) -> None:
        pass


def test_a_loudspeaker_without_a_clock_delays_nothing_and_is_reported() -> None:
    room = EchoRoom(12, 100)
    room.speaker = SilentClock(SPEAKER_RATE, room.hear)
    scene = Scene(room, AudioProcessing())
    captured, processed = scene.run(2.0, syllables(2.0, SPEAKER_RATE))
    assert len(captured) - len(processed) < FRAME_SAMPLES
    assert scene.processor.problem is None
    scene.run(2.0)
    assert "does not say when" in str(scene.processor.problem)
    assert scene.processor.measurement.state == "unavailable"


def test_a_closed_or_stuck_loudspeaker_holds_the_capture_up_for_a_moment_only() -> None:
    scene = Scene(EchoRoom(12, 100), AudioProcessing())
    scene.run(2.0, syllables(2.0, SPEAKER_RATE))
    scene.room.speaker.service = lambda now_ns: None  # type: ignore[method-assign]
    scene.run(2.0)
    captured = sum(map(len, scene.captured))
    assert captured - sum(map(len, scene.processed)) <= 12 * FRAME_SAMPLES
    scene.room.speaker.close()
    scene.run(1.0)
    captured = sum(map(len, scene.captured))
    assert captured - sum(map(len, scene.processed)) < FRAME_SAMPLES
    assert scene.processor.problem is None


def test_blocks_of_any_length_yield_all_samples_in_order() -> None:
    room = EchoRoom(12, 100)
    room.echo_gain = 0.0
    processor = CaptureProcessor(room.speaker, AudioProcessing())
    room.speaker.open(None, 0.0)
    room.speaker.service(0)
    pcm = syllables(1.0, RATE_HZ)
    out = []
    rng = np.random.default_rng(0)
    at = 0
    while at < len(pcm):
        count = int(rng.integers(0, 700))
        at += count
        room.speaker.service(at * 1_000_000_000 // RATE_HZ)
        out.append(processor.process(pcm[at - count : at], room.sample_time_ns))
    made = np.concatenate(out)
    assert len(pcm) - 12 * FRAME_SAMPLES <= len(made) <= len(pcm)
    assert np.isfinite(made).all()
    middle = made[4_000:12_000]
    scores = np.correlate(pcm[3_500:12_500], middle, "valid")
    assert abs(int(scores.argmax()) - 500) <= 200  # the filters of the module delay by less than 12 ms


def test_what_is_played_before_the_reference_is_settled_may_be_an_echo() -> None:
    scene = Scene(EchoRoom(12, 100), AudioProcessing())
    scene.run(0.3, syllables(0.3, SPEAKER_RATE))
    assert scene.processor.suspects_echo
    scene.run(0.5, syllables(0.5, SPEAKER_RATE))
    assert not scene.processor.suspects_echo
