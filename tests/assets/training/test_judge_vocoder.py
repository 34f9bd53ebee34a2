"""The judge: packets, and a stream that differs from one call."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from app.audio.wav import read_wav
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.vocoder_file import write_bigvgan
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.errors import MossVoiceError
from engine_runtime.models.bigvgan import build_bigvgan
from engine_runtime.options import EngineOptions
from tests.assets.conftest import Recipe
from tests.engine_runtime.codec.vocoder.test_vocoder import CONFIG, SPEC, lively, mel_of


@pytest.fixture
def judge_vocoder(recipe: Recipe) -> ModuleType:
    return recipe("judge_vocoder")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> EngineOptions:
    file = tmp_path_factory.mktemp("vocoder") / "loud.safetensors"
    write_bigvgan(file, lively(build_bigvgan(CONFIG)).state_dict(), CONFIG, SPEC)
    return EngineOptions(vocoder=file)


@pytest.mark.parametrize("frames", [7, 20, 55])
def test_packets_of_a_reply_are_all_spoken(judge_vocoder: ModuleType, frames: int) -> None:
    vocoder = Vocoder(lively(build_bigvgan(CONFIG)), SPEC)
    pcm, times = judge_vocoder.stream(vocoder, mel_of(frames), [20, 10])
    assert len(times) == {7: 1, 20: 1, 55: 5}[frames] + 1
    assert np.abs(pcm - vocoder.vocode(mel_of(frames))).max() <= 1e-5


def test_recordings_of_any_rate_are_judged_and_their_absence_is_named(
    judge_vocoder: ModuleType, recordings: Path, tmp_path: Path
) -> None:
    found = judge_vocoder.read_recordings(recordings, 48_000)
    first, rate = read_wav(recordings / "C.WAV")
    assert len(found) == 4
    assert len(found[0]) == len(first) * 48_000 // rate
    with pytest.raises(MossVoiceError, match="There is no WAV or FLAC file in"):
        judge_vocoder.read_recordings(tmp_path, 24_000)


def test_a_judgement(
    judge_vocoder: ModuleType, random_bundle: Path, options: EngineOptions, tmp_path: Path
) -> None:
    pcm = np.sin(np.arange(24_000) * 0.05).astype(np.float32) * 0.3
    row = judge_vocoder.judge("loud", Bundle.open(random_bundle), options, [pcm], tmp_path)
    assert row.streaming_difference < 1e-5
    assert row.mel_distance > 0.1
    assert row.rtf > 0
    assert options.vocoder is not None
    assert row.megabytes == round(options.vocoder.stat().st_size / 1e6, 1)
    assert len(read_wav(tmp_path / "000-loud.wav")[0]) == 24_000


def test_a_stream_with_a_seam_is_refused(
    judge_vocoder: ModuleType,
    random_bundle: Path,
    options: EngineOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_call = Vocoder.vocode
    monkeypatch.setattr(Vocoder, "vocode", lambda self, mel: one_call(self, mel) * 1.01)
    pcm = torch.sin(torch.arange(24_000) * 0.05).numpy() * 0.3
    with pytest.raises(MossVoiceError, match="Streaming through loud differs from one call by"):
        judge_vocoder.judge("loud", Bundle.open(random_bundle), options, [pcm], tmp_path)
