"""The real network on a spoken sentence, on silence and on noise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from app.audio.wav import read_wav
from app.dialog import vad
from app.dialog.vad import SileroVad
from engine_runtime.errors import MossVoiceError
from engine_runtime.types import Pcm

QUESTION = Path(__file__).parents[2] / "data" / "speech" / "question.wav"


def rate_frames(detector: SileroVad, pcm: Pcm) -> np.ndarray:
    size = detector.frame_samples
    return np.array([detector.probability(pcm[i : i + size]) for i in range(0, len(pcm) - size + 1, size)])


@pytest.fixture(scope="module")
def question() -> Pcm:
    pcm, rate = read_wav(QUESTION)
    assert rate == SileroVad.sample_rate
    return pcm


def test_speech_is_speech_and_silence_is_not(question: Pcm) -> None:
    detector = SileroVad()
    pause = np.zeros(16_000, dtype=np.float32)
    probabilities = rate_frames(detector, np.concatenate([pause, question, pause]))
    frames = len(pause) // detector.frame_samples
    assert (probabilities[:frames] < 0.2).all()
    assert (probabilities[-frames + 8 :] < 0.2).all()
    assert (probabilities[frames:-frames] > 0.5).mean() > 0.7


def test_noise_is_not_speech(question: Pcm) -> None:
    rng = np.random.default_rng(0)
    noise = (0.05 * rng.standard_normal(48_000)).astype(np.float32)
    assert (rate_frames(SileroVad(), noise) < 0.5).all()
    noisy = question + 0.02 * rng.standard_normal(len(question)).astype(np.float32)
    assert (rate_frames(SileroVad(), noisy) > 0.5).mean() > 0.6


def test_reset_forgets_what_was_heard(question: Pcm) -> None:
    detector = SileroVad()
    first = rate_frames(detector, question)
    rate_frames(detector, question[::-1].copy())
    detector.reset()
    assert np.array_equal(rate_frames(detector, question), first)


def test_streams_share_the_network_and_nothing_else(question: Pcm, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = rate_frames(SileroVad(), question)
    one = SileroVad()
    monkeypatch.setattr(vad, "create_session", lambda *_, **__: pytest.fail("loaded twice"))
    other = SileroVad()
    size, found = one.frame_samples, []
    for start in range(0, len(question) - size + 1, size):
        found.append(one.probability(question[start : start + size]))
        other.probability(question[::-1][start : start + size])
    assert np.array_equal(found, alone)


def test_frames_must_have_the_right_size() -> None:
    with pytest.raises(ValueError, match="512"):
        SileroVad().probability(np.zeros(480, dtype=np.float32))


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vad, "find_model", lambda package, file: None)
    with pytest.raises(MossVoiceError, match="silero-vad is missing"):
        SileroVad()


def test_a_damaged_network_is_said(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a network")
    with pytest.raises(MossVoiceError, match="damaged"):
        SileroVad(tmp_path / "broken.onnx")


def test_torch_is_not_imported() -> None:
    code = "import sys; from app.dialog.vad import SileroVad; SileroVad(); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
