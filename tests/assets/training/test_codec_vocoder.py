"""The vocoder of a codec: trained, interrupted, resumed, written as a file that the program loads, judged."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from app.audio.wav import read_wav
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.bundle.vocoder_file import read_vocoder, with_vocoder
from engine_runtime.errors import MelMismatchError, MossVoiceError
from engine_runtime.models.bigvgan import build_bigvgan, check_config, receptive_field
from tests.assets.conftest import Recipe

MEL = describe("moss-speech").flow.mel
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture
def codec_vocoder(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """With short segments, and discriminators from the third step on."""
    module = recipe("codec_vocoder")
    monkeypatch.setattr(module, "FRAMES", 30)
    monkeypatch.setattr(module, "SPECTRAL_STEPS", 2)
    monkeypatch.setitem(module.SIZES, "tiny", module.Size(16, 1, 1e-3))
    torch.manual_seed(0)
    return module


def new(codec_vocoder: ModuleType, **change: Any) -> Any:
    return codec_vocoder.CodecVocoder(replace(MEL, **change), codec_vocoder.SIZES["tiny"], "cpu")


def segments(seed: int = 0) -> torch.Tensor:
    """Tones."""
    time = np.arange(30 * MEL.hop) / MEL.sample_rate
    tones = np.random.default_rng(seed).uniform(100, 800, (2, 1))
    return torch.from_numpy(np.rint(8_000 * np.sin(2 * np.pi * tones * time)).astype(np.int16))


def test_the_sizes_have_the_mel_and_hold_back_little(codec_vocoder: ModuleType) -> None:
    for size in codec_vocoder.SIZES.values():
        config = codec_vocoder.config_of(MEL, size)
        stated = {key: config[key] for key in ("num_mels", "sampling_rate", "n_fft", "hop_size", "win_size")}
        assert tuple(stated.values()) == (80, 24_000, 1920, 480, 1920)
        # Fewer than the 20 frames of the first packet, which would otherwise make no sound.
        assert receptive_field(config) == (9, 9)
        assert check_config(config) == config
    with pytest.raises(MossVoiceError, match="480 samples of a frame, but the mel has a hop of 256"):
        codec_vocoder.config_of(replace(MEL, hop=256), codec_vocoder.SIZES["tiny"])


@pytest.mark.slow
def test_the_loss_falls(codec_vocoder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_vocoder, "SPECTRAL_STEPS", 40)
    training = new(codec_vocoder)
    losses = [training.step(segments(), 0.3)[0].item() for _ in range(12)]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.slow
def test_a_resumed_training_is_the_one_that_went_on(codec_vocoder: ModuleType, tmp_path: Path) -> None:
    first = new(codec_vocoder)
    for _ in range(3):  # both kinds of steps
        first.step(segments(), 0.3)
    first.seconds = 12.5
    first.save(tmp_path)
    second = new(codec_vocoder)
    second.resume(tmp_path / codec_vocoder.CHECKPOINT)
    assert (second.steps, second.seconds) == (3, 12.5)
    made = []
    for training in (first, second):
        torch.manual_seed(1)
        losses = training.step(segments(1), 0.4)
        states = (training.gan.generator, training.gan.discriminators)
        values = [value for module in states for value in module.state_dict().values()]
        made.append([*losses, *values, *training.average.values])
    for one, other in zip(*made, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.slow
def test_a_checkpoint_of_another_mel_or_size_is_refused(codec_vocoder: ModuleType, tmp_path: Path) -> None:
    new(codec_vocoder).save(tmp_path)
    with pytest.raises(MelMismatchError) as caught:
        new(codec_vocoder, fmax=12_000.0).resume(tmp_path / codec_vocoder.CHECKPOINT)
    assert "fmax=8000.0" in str(caught.value)
    assert "fmax=12000.0" in str(caught.value)
    codec_vocoder.SIZES["tiny"] = codec_vocoder.Size(32, 1, 1e-3)
    with pytest.raises(MossVoiceError, match="is of another --size"):
        new(codec_vocoder).resume(tmp_path / codec_vocoder.CHECKPOINT)


@pytest.mark.slow
def test_the_file_is_that_of_the_average(
    codec_vocoder: ModuleType, random_bundle: Path, tmp_path: Path
) -> None:
    training = new(codec_vocoder)
    for _ in range(2):
        training.step(segments(), 0.3)
    training.save(tmp_path)
    bundle = with_vocoder(Bundle.open(random_bundle), tmp_path / codec_vocoder.VOCODER)
    assert bundle.vocoder.mel == bundle.flow.mel == MEL
    wave = torch.sin(torch.arange(24_000) * 0.05) * 0.3
    with training.average.applied():
        wanted = training.gan.generator(training.codec_mel(wave)[None])
    from safetensors.torch import load_file

    network = build_bigvgan(bundle.vocoder.config)
    network.load_state_dict({k: v.float() for k, v in load_file(tmp_path / "vocoder.safetensors").items()})
    with torch.no_grad():
        made = network(training.codec_mel(wave)[None])
    inner = slice(10 * 480, -10 * 480)  # the activation of the training differs at the ends of a signal
    torch.testing.assert_close(made[..., inner], wanted[..., inner].detach(), atol=2e-3, rtol=0.02)
    distance = training.mel_distance([wave])
    direct = (training.codec_mel(made[0, 0]) - training.codec_mel(wave)).abs().mean().item()
    assert distance == pytest.approx(direct, rel=0.02)


@pytest.mark.slow
def test_losses_that_are_not_finite_are_not_saved(
    codec_vocoder: ModuleType, recipe: Recipe, recordings: Path, tmp_path: Path
) -> None:
    training = new(codec_vocoder)
    speech = recipe("speech_folder").SpeechFolder(recordings, tmp_path, MEL.sample_rate)
    training.step = lambda samples, progress: (torch.tensor(torch.nan),)
    with pytest.raises(MossVoiceError, match="no longer finite"):
        codec_vocoder.train(training, speech, tmp_path, 2e-3, 2)
    assert not (tmp_path / codec_vocoder.CHECKPOINT).exists()


def call(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, words)])
    module.main()


@pytest.mark.slow
def test_from_recordings_to_a_judged_vocoder(
    codec_vocoder: ModuleType,
    recipe: Recipe,
    recordings: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps: list[int] = []
    step = codec_vocoder.CodecVocoder.step

    def counted(self: Any, *given: Any) -> Any:
        steps.append(self.steps)
        if len(steps) in (4, 6):
            raise KeyboardInterrupt
        return step(self, *given)

    monkeypatch.setattr(codec_vocoder.CodecVocoder, "step", counted)
    words: list[str | Path] = [recordings, tmp_path, "--size", "tiny", "--batch", "1", "--device", "cpu"]
    for _ in range(2):
        call(codec_vocoder, monkeypatch, *words)
    assert steps == [0, 1, 2, 3, 3, 4]  # the second call went on where the first was stopped
    said = capsys.readouterr().out
    assert "0 steps done" in said
    assert "3 steps done" in said
    assert said.count("Stopped. The same command goes on.") == 2
    assert read_vocoder(tmp_path / "vocoder.safetensors").kind == "bigvgan"
    judge = recipe("judge_vocoder")
    monkeypatch.setattr(judge, "LEAST_RMS", 0.0)  # four steps make no speech
    copies = tmp_path / "copies"
    given: list[str | Path] = [
        tmp_path / "vocoder.safetensors",
        tmp_path / "held_out",
        "--copies",
        copies,
        "--device",
        "cpu",
    ]
    call(judge, monkeypatch, *given)
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert row["held_back_frames"] == 9
    assert row["streaming_difference"] < 1e-5
    assert row["mel_distance"] > 0.1
    copy, rate = read_wav(copies / "000-vocoder.wav")
    held_out, _ = read_wav(tmp_path / "held_out" / "000.wav")
    assert rate == MEL.sample_rate
    assert len(copy) == len(held_out) // MEL.hop * MEL.hop
    monkeypatch.setattr(judge, "LEAST_RMS", 10.0)
    with pytest.raises(MossVoiceError, match="made no speech of recording 0"):
        call(judge, monkeypatch, *given)
