"""The real network on finished and on cut questions; its features against Whisper's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from app import paths
from app.audio.wav import read_wav
from app.dialog import smart_turn
from app.dialog.smart_turn import LogMel, SmartTurn
from engine_runtime.errors import MossVoiceError
from engine_runtime.types import Pcm
from tests.factories.onnx_bytes import mean_and_project

DATA = Path(__file__).parents[2] / "data"
LAST_WORD_S = {
    "01-hello": 0.62,
    "02-who-are-you": 0.44,
    "03-three-plus-four": 1.30,
    "04-and-plus-two": 0.75,
    "05-after-monday": 1.16,
    "06-capital-of-france": 1.33,
    "07-opposite-of-hot": 1.33,
    "08-colour-of-grass": 1.06,
    "09-count-down": 1.38,
    "10-repeat": 2.01,
    "11-joke": 0.72,
}
"""Where the last word of each sample question begins."""
PAUSE_S = 0.16


@pytest.fixture(scope="module")
def detector() -> SmartTurn:
    return SmartTurn()


def paused(pcm: Pcm) -> Pcm:
    return np.concatenate([pcm, np.zeros(round(PAUSE_S * 16_000), np.float32)])


def sample(name: str) -> Pcm:
    """A sample question, with a quarter of a second of silence at its end."""
    pcm, rate = read_wav(paths.assets_dir() / "samples" / f"{name}.wav")
    assert rate == 16_000
    return pcm


def test_features_are_those_of_whisper() -> None:
    pcm, _ = read_wav(DATA / "speech" / "question.wav")
    features = LogMel()(pcm)
    assert features.shape == (80, 800)
    assert features.dtype == np.float32
    stored = load_file(DATA / "golden" / "smart_turn.safetensors")["every_20th_frame"]
    np.testing.assert_allclose(features[:, 19::20], stored, atol=2e-5)


def test_only_the_last_eight_seconds_count() -> None:
    rng = np.random.default_rng(0)
    pcm = (0.1 * rng.standard_normal(10 * 16_000)).astype(np.float32)
    assert np.array_equal(LogMel()(pcm), LogMel()(pcm[2 * 16_000 :]))
    assert not np.array_equal(LogMel()(pcm), LogMel()(pcm[: 8 * 16_000]))


@pytest.mark.slow
def test_questions_sound_finished_and_less_so_without_their_last_word(detector: SmartTurn) -> None:
    """On synthetic voices, which end every word alike, the network is less sure than on people."""
    finished, cut = [], []
    for name, last_word_s in LAST_WORD_S.items():
        pcm = sample(name)
        finished.append(detector.probability(pcm))
        cut.append(detector.probability(paused(pcm[: round(last_word_s * 16_000)])))
    assert sum(probability >= 0.5 for probability in finished) >= 9, finished
    assert sum(probability < 0.5 for probability in cut) >= 4, cut
    assert np.mean(finished) - np.mean(cut) > 0.2, (finished, cut)


@pytest.mark.slow
def test_the_summary_goes_with_what_was_heard(detector: SmartTurn) -> None:
    whole, half = (detector.hear(pcm) for pcm in (sample("10-repeat"), sample("10-repeat")[:16_000]))
    again = detector.hear(sample("10-repeat"))
    assert whole.summary is not None
    assert half.summary is not None
    assert again.summary is not None
    assert whole.summary.shape == (384,)
    assert whole.frames is not None
    assert whole.frames.shape == (400, 384)
    assert np.isfinite(whole.summary).all()
    np.testing.assert_array_equal(whole.summary, again.summary)
    assert np.abs(whole.summary - half.summary).max() > 0.1


@pytest.mark.slow
def test_another_version_of_the_network_has_no_summary(
    detector: SmartTurn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smart_turn, "_SHA256", "0" * 64)
    other = SmartTurn().hear(sample("10-repeat"))
    assert other.summary is other.frames is None
    assert other.probability == detector.hear(sample("10-repeat")).probability


@pytest.mark.slow
def test_any_length_yields_a_probability(detector: SmartTurn) -> None:
    for samples in (0, 1, 399, 16_000, 200_000):
        assert 0.0 <= detector.probability(np.zeros(samples, np.float32)) <= 1.0
    assert 0.0 <= detector.probability(np.full(16_000, np.nan, np.float32)) <= 1.0


@pytest.mark.slow
def test_the_features_keep_to_one_thread() -> None:
    """A second thread of BLAS would spin for tens of milliseconds after each call, beside the engine."""
    code = (
        "import time, numpy as np\n"
        "from app.dialog.smart_turn import LogMel\n"
        "features, pcm, work = LogMel(), np.ones(128_000, np.float32), 0.0\n"
        "features(pcm)\n"
        "began = time.process_time()\n"
        "for _ in range(20):\n"
        "    start = time.thread_time()\n"
        "    features(pcm)\n"
        "    work += time.thread_time() - start\n"
        "    time.sleep(0.03)\n"
        "print((time.process_time() - began) / work)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert float(result.stdout) < 2.0


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smart_turn, "find_model", lambda package, file: None)
    with pytest.raises(MossVoiceError, match="Smart Turn is not installed"):
        SmartTurn()


@pytest.mark.parametrize("content", [b"not a network", mean_and_project(np.zeros((2, 3), np.float32))])
def test_a_damaged_network_is_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.onnx").write_bytes(content)
    with pytest.raises(MossVoiceError, match="is damaged"):
        SmartTurn(tmp_path / "broken.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("answer", [-0.01, 1.01, float("nan")])
def test_a_network_whose_answer_is_no_probability_is_damaged(
    monkeypatch: pytest.MonkeyPatch, answer: float
) -> None:
    monkeypatch.setattr(SmartTurn, "probability", lambda self, pcm: answer)
    with pytest.raises(MossVoiceError, match="is damaged"):
        SmartTurn()
