from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from engine_runtime.codec.voice.speaker_encoder import SpeakerEncoder
from engine_runtime.errors import BundleError, MossVoiceError
from tests.factories.onnx_bytes import mean_and_project

RATE, MELS = 16000, 80


@pytest.fixture
def network(tmp_path: Path) -> Path:
    file = tmp_path / "campplus.onnx"
    file.write_bytes(mean_and_project(np.eye(MELS, 4, dtype=np.float32)))
    return file


def _tone(seconds: float) -> np.ndarray:
    time = np.arange(round(seconds * RATE)) / RATE
    return (0.3 * np.sin(2 * np.pi * 440 * time) + 0.1 * np.sin(2 * np.pi * 2300 * time)).astype(np.float32)


def _kaldi_by_definition(pcm: np.ndarray) -> np.ndarray:
    """Kaldi's filter banks written out: feature-window.cc and mel-computations.cc, all defaults."""
    width, hop, n_fft = 400, 160, 512
    frames = np.stack([pcm[i : i + width] for i in range(0, pcm.size - width + 1, hop)]).astype(np.float64)
    frames -= frames.mean(axis=1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    frames = frames - 0.97 * before
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(width) / (width - 1))) ** 0.85
    power = np.abs(np.fft.rfft(frames * window, n_fft)) ** 2
    mel = lambda hz: 1127.0 * np.log1p(np.asarray(hz) / 700.0)  # noqa: E731
    edges = np.linspace(mel(20.0), mel(RATE / 2), MELS + 2)
    bins = mel(np.arange(n_fft // 2) * RATE / n_fft)
    lower, centre, upper = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    filters = np.minimum((bins - lower) / (centre - lower), (upper - bins) / (upper - centre)).clip(0)
    return np.log(np.maximum(power[:, : n_fft // 2] @ filters.T, np.finfo(np.float32).eps))


def test_features_are_those_of_kaldi_without_their_mean(network: Path) -> None:
    pcm = _tone(0.5) + np.random.default_rng(0).normal(0, 0.01, RATE // 2).astype(np.float32)
    features = SpeakerEncoder(network, RATE, MELS).features(pcm)
    expected = _kaldi_by_definition(pcm)
    assert features.shape == expected.shape == (48, MELS)
    np.testing.assert_allclose(features, expected - expected.mean(axis=0), atol=2e-3)
    assert np.abs(features.mean(axis=0)).max() < 1e-4


def test_the_network_gets_the_features(network: Path) -> None:
    encoder = SpeakerEncoder(network, RATE, MELS)
    vector = encoder.xvector(_tone(1.0))
    assert vector.shape == (4,)
    assert np.abs(vector).min() > 1e-3
    np.testing.assert_allclose(vector, np.abs(encoder.features(_tone(1.0))).mean(axis=0)[:4], rtol=1e-4)


def test_files_that_are_no_speaker_encoder(tmp_path: Path, network: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(network.read_bytes()[:200])
    with pytest.raises(BundleError, match="not a valid speaker encoder"):
        SpeakerEncoder(broken, RATE, MELS)
    with pytest.raises(BundleError, match="does not accept features of 40 bands"):
        SpeakerEncoder(network, RATE, 40).xvector(_tone(1.0))


def test_a_missing_library_is_named(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = SpeakerEncoder(network, RATE, MELS)
    monkeypatch.setitem(sys.modules, "kaldi_native_fbank", None)
    with pytest.raises(MossVoiceError, match=r"pip install 'moss-voice\[released\]'"):
        encoder.xvector(_tone(1.0))


def test_it_does_not_depend_on_loudness(network: Path) -> None:
    """Taking away the mean takes away the level, as long as the floor is far below."""
    encoder = SpeakerEncoder(network, RATE, MELS)
    pcm = np.random.default_rng(1).uniform(-1, 1, RATE).astype(np.float32)
    np.testing.assert_allclose(encoder.features(pcm), encoder.features(0.5 * pcm), atol=1e-3)
