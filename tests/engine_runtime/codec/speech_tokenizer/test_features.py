"""Whisper log-mel and codec mel against stored vectors; normalization, batches and gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from engine_runtime.codec.speech_tokenizer.features import CodecMel, Normalization, WhisperLogMel
from engine_runtime.types import MelSpec

GOLDEN = Path(__file__).parents[3] / "data" / "golden"
LOG_MEL_TOLERANCE = 1e-4
CODEC_MEL_TOLERANCE = 2e-4
RATE = 16000
CODE_SAMPLES = 1280
SEGMENT_SAMPLES = 30 * RATE
CODEC_SPEC = MelSpec(sample_rate=24000, n_mels=80, n_fft=1920, hop=480, win=1920, fmin=0.0, fmax=8000.0)


@pytest.fixture(scope="module")
def speech() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "encoder_tiny.safetensors")


@pytest.fixture(scope="module")
def codec() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "mel24k.safetensors")


def cut_segment(speech: dict[str, torch.Tensor], case: str, index: int) -> torch.Tensor:
    """One 30 s segment of a stored case, zero-padded to complete codes."""
    place = json.loads((GOLDEN / "encoder_tiny.json").read_text())["cases"][case]
    wave = speech["wave16k_int16"].float() / 32768.0
    pcm = wave[place["offset"] : place["offset"] + place["samples"]]
    segment = pcm[index * SEGMENT_SAMPLES : (index + 1) * SEGMENT_SAMPLES]
    return F.pad(segment, (0, -len(segment) % CODE_SAMPLES))


@pytest.mark.parametrize(("case", "index"), [("mult", 0), ("odd", 0), ("tiny", 0), ("long", 1)])
def test_log_mel_of_each_case(speech: dict[str, torch.Tensor], case: str, index: int) -> None:
    mel = WhisperLogMel(RATE, 128)(cut_segment(speech, case, index))
    torch.testing.assert_close(mel, speech[f"{case}.mel{index}"], atol=LOG_MEL_TOLERANCE, rtol=0.0)


def test_the_product_is_as_exact_as_the_fft(speech: dict[str, torch.Tensor]) -> None:
    """By which a GPU computes power spectra; both against the FFT in double precision."""
    features = WhisperLogMel(RATE, 128)
    windows = cut_segment(speech, "mult", 0).unfold(-1, 400, 160) * features.window
    exact = torch.fft.rfft(windows.double()).abs().square()
    for power in (features.power, features.power_by_product):
        error = (power(windows) - exact).abs().amax(-1)
        assert (error < 2e-6 * exact.amax(-1) + 1e-9).all()


def test_log_power_of_a_complete_segment(speech: dict[str, torch.Tensor]) -> None:
    features = WhisperLogMel(RATE, 128)
    pcm = features.mirror(cut_segment(speech, "long", 0), start=True, end=True)
    stored = speech["long.raw_logmel0_every_10th_frame"]
    log_power = features.log_power(pcm)
    assert log_power.shape == (128, 3000)
    # In dB below the peak the FFT's own rounding counts, so only what survives the floor is compared.
    heard = stored > stored.max() - 8.0
    torch.testing.assert_close(log_power[:, ::10][heard], stored[heard], atol=4 * LOG_MEL_TOLERANCE, rtol=0.0)


def test_running_maximum_equals_the_segment_maximum_of_every_prefix(speech: dict[str, torch.Tensor]) -> None:
    pcm = cut_segment(speech, "odd", 0)
    features = WhisperLogMel(RATE, 128, "running_max")
    running = features(pcm)
    log_power = features.log_power(features.mirror(pcm, start=True, end=True))
    for frame in (0, 7, 60, 133, log_power.shape[1] - 1):
        floor = log_power[:, : frame + 1].max() - 8.0
        expected = (log_power[:, frame].clamp_min(floor.item()) + 4.0) / 4.0
        torch.testing.assert_close(running[:, frame], expected, atol=1e-6, rtol=0.0)
    peak_frame = int(log_power.amax(dim=0).argmax())
    segment = WhisperLogMel(RATE, 128, "segment_max")(pcm)
    assert torch.equal(running[:, peak_frame:], segment[:, peak_frame:])
    assert (running[:, :peak_frame] <= segment[:, :peak_frame]).all()
    assert not torch.equal(running, segment)


@pytest.mark.parametrize("normalization", ["segment_max", "running_max"])
def test_log_mel_of_a_batch_equals_its_rows(
    speech: dict[str, torch.Tensor], normalization: Normalization
) -> None:
    features = WhisperLogMel(RATE, 80, normalization)
    batch = cut_segment(speech, "mult", 0).view(4, -1)
    mel = features(batch)
    assert mel.shape == (4, 80, 80)
    for row, pcm in zip(mel, batch, strict=True):
        torch.testing.assert_close(row, features(pcm), atol=LOG_MEL_TOLERANCE, rtol=0.0)


@pytest.mark.parametrize("samples", [0, 160, 1279, 1281])
def test_log_mel_refuses_other_lengths(samples: int) -> None:
    with pytest.raises(ValueError, match="a multiple of 160 above 200"):
        WhisperLogMel(RATE, 128)(torch.zeros(samples))


def test_unknown_normalisation_is_refused() -> None:
    with pytest.raises(ValueError, match="running_max"):
        WhisperLogMel(RATE, 128, cast(Normalization, "global_max"))


def test_codec_mel(codec: dict[str, torch.Tensor]) -> None:
    wave = codec["wave24k_int16"].float() / 32768.0
    mel = CodecMel(CODEC_SPEC)
    torch.testing.assert_close(mel(wave), codec["mel"], atol=CODEC_MEL_TOLERANCE, rtol=0.0)
    torch.testing.assert_close(
        mel(wave[:48123]), codec["mel_first_48123_samples"], atol=CODEC_MEL_TOLERANCE, rtol=0.0
    )
    batch = mel(wave[:72000].view(3, 1, 24000))
    assert batch.shape == (3, 1, 80, 50)
    torch.testing.assert_close(batch[1, 0], mel(wave[24000:48000]), atol=CODEC_MEL_TOLERANCE, rtol=0.0)


def test_codec_mel_frames_are_complete_hops() -> None:
    mel = CodecMel(CODEC_SPEC)
    frames = json.loads((GOLDEN / "mel24k.json").read_text())["frames_for_samples"]
    assert {samples: mel(torch.zeros(int(samples))).shape[-1] for samples in frames} == frames


def test_codec_mel_of_silence_has_the_floor_and_finite_gradients() -> None:
    wave = torch.zeros(4800, requires_grad=True)
    mel = CodecMel(CODEC_SPEC)(wave)
    assert mel.min().item() >= -11.513
    mel.sum().backward()
    assert wave.grad is not None
    assert torch.isfinite(wave.grad).all()


def test_codec_mel_refuses_too_little_sound() -> None:
    with pytest.raises(ValueError, match="more than 720"):
        CodecMel(CODEC_SPEC)(torch.zeros(720))
