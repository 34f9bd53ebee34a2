"""BigVGAN chunks against one call and against the stored wave, and refusals of both kinds."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.weights import load_weights
from engine_runtime.codec.resample import resample
from engine_runtime.codec.speech_tokenizer.features import CodecMel
from engine_runtime.codec.vocoder.stream import GraphedFrames, VocoderStream
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.errors import BundleError, ExecutorError, MelMismatchError
from engine_runtime.models.bigvgan import build_bigvgan
from engine_runtime.models.bigvgan_package import BigVGAN
from engine_runtime.types import Mel, MelSpec, Pcm
from tests.doubles.graphs import EmulatedCalls
from tests.engine_runtime.codec.vocoder.test_hift_stream import hift
from tests.tools.examples import examples

DATA = Path(__file__).parents[3] / "data"
GOLDEN = DATA / "golden"
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
SPEC = MelSpec(sample_rate=24000, n_mels=80, n_fft=1920, hop=480, win=1920, fmin=0.0, fmax=8000.0)
CONFIG = {
    "resblock": "1",
    "upsample_rates": [10, 6, 4, 2],
    "upsample_kernel_sizes": [20, 12, 8, 4],
    "upsample_initial_channel": 32,
    "resblock_kernel_sizes": [3, 7],
    "resblock_dilation_sizes": [[1, 3], [1, 2]],
    "activation": "snakebeta",
    "snake_logscale": True,
    "num_mels": 80,
}


def lively(model: torch.nn.Module) -> torch.nn.Module:
    """Weights with which a change at the edge of a window is heard at its other end, below full scale."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if name.endswith("weight"):
            torch.nn.init.normal_(parameter, std=0.6 / parameter[0].numel() ** 0.5)
    return model


@pytest.fixture(scope="module")
def bigvgan() -> Vocoder:
    return Vocoder(lively(build_bigvgan(CONFIG)), SPEC)


def mel_of(frames: int, seed: int = 0) -> Mel:
    return np.random.default_rng(seed).normal(size=(80, frames)).astype(np.float32)


@pytest.fixture(scope="module")
def question_mel() -> Mel:
    """40 frames out of the middle of a spoken question."""
    with wave.open(str(DATA / "speech" / "question.wav")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(
            np.float32
        ) / np.float32(2**15)
        pcm = resample(samples, file.getframerate(), SPEC.sample_rate)
    frames = CodecMel(SPEC)(torch.from_numpy(pcm)).numpy()
    return frames[:, 20:60]


def run(stream: VocoderStream, mel: Mel, sizes: list[int]) -> list[Pcm]:
    """Push the mel in chunks of these sizes (repeatedly), then finish."""
    parts, start, turn = [], 0, 0
    while start < mel.shape[1]:
        size = sizes[turn % len(sizes)]
        parts.append(stream.push(mel[:, start : start + size]))
        start, turn = start + size, turn + 1
    return [*parts, stream.finish()]


@pytest.mark.slow
@examples(12)
@given(frames=st.integers(1, 70), sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_any_chunking_of_bigvgan_equals_one_call(bigvgan: Vocoder, frames: int, sizes: list[int]) -> None:
    mel = mel_of(frames)
    pcm = np.concatenate(run(bigvgan.stream(), mel, sizes))
    assert pcm.shape == (frames * SPEC.hop,)
    assert np.abs(pcm - bigvgan.vocode(mel)).max() <= 1e-5


@pytest.mark.slow
def test_captured_graphs_of_two_vocoders_do_not_mix() -> None:
    calls, mel = EmulatedCalls(), mel_of(60)
    frames = GraphedFrames(calls, frozenset({20}))
    for _ in range(2):
        for scale in (1.0, 0.5):
            network = lively(build_bigvgan(CONFIG))
            nn.init.constant_(network.get_parameter("conv_pre.bias"), scale)
            want, captured = (Vocoder(network, SPEC, graphed=kept) for kept in (None, frames))
            own, plain = (np.concatenate(run(stage.stream(), mel, [20])) for stage in (captured, want))
            np.testing.assert_allclose(own, plain, rtol=0, atol=1e-5)
    assert calls.num_captured > 4


@pytest.mark.slow
@pytest.mark.parametrize("change", [{}, {"resblock": "2", "resblock_dilation_sizes": [[1, 3, 5], [1, 3]]}])
def test_context_is_enough_and_not_more_than_needed(change: dict[str, object]) -> None:
    network = lively(build_bigvgan({**CONFIG, **change}))
    stage, mel = Vocoder(network, SPEC), mel_of(80)
    assert stage.is_exact
    assert stage.right_context_frames <= 8
    reference = stage.vocode(mel)
    short = Vocoder(
        network,
        SPEC,
        left_context_frames=stage.left_context_frames - 3,
        right_context_frames=stage.right_context_frames - 3,
    )
    assert not short.is_exact
    exact, inexact = (np.concatenate(run(part.stream(), mel, [20])) for part in (stage, short))
    assert np.abs(exact - reference).max() <= 1e-5
    assert np.abs(inexact - reference).max() > np.abs(exact - reference).max()


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["snake", "snakebeta"])
@pytest.mark.parametrize("logscale", [False, True])
def test_every_activation_of_the_package(activation: str, logscale: bool) -> None:
    network = build_bigvgan({**CONFIG, "activation": activation, "snake_logscale": logscale})
    for name, parameter in lively(network).named_parameters():
        if name.endswith((".alpha", ".beta")):
            torch.nn.init.uniform_(parameter, 0.3, 1.5)
    stage, mel = Vocoder(network, SPEC), mel_of(50)
    for sizes in ([20], [3, 15]):
        assert np.abs(np.concatenate(run(stage.stream(), mel, sizes)) - stage.vocode(mel)).max() <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "least_snr_db", "most_mel_error"), [(torch.bfloat16, 25.0, 0.1), (torch.float16, 45.0, 0.02)]
)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, needs_cuda])])
def test_half_precision_is_near_float32_on_speech(
    nano_bundle: Path,
    question_mel: Mel,
    dtype: torch.dtype,
    least_snr_db: float,
    most_mel_error: float,
    device: str,
) -> None:
    """The trained vocoder in chunks against float32 in one call, both on a spoken question: noise below the
    speech by at least `least_snr_db`, and a log-mel within `most_mel_error` on average. On a CPU bfloat16
    reaches 30 dB and 0.07, float16 51 dB and 0.01."""
    section = Bundle.open(nano_bundle).vocoder
    network = build_bigvgan(section.config)
    load_weights(network, section.weights, torch.float32, torch.device("cpu"))
    exact = Vocoder(network, section.mel).vocode(question_mel)
    half = Vocoder(network, section.mel, dtype=dtype, device=device)
    noise = np.concatenate(run(half.stream(), question_mel, [20])) - exact
    assert 10 * np.log10(np.square(exact).mean() / np.square(noise).mean()) >= least_snr_db
    log_mel = CodecMel(section.mel)
    actual, wanted = (log_mel(torch.from_numpy(pcm)) for pcm in (exact + noise, exact))
    assert float((actual - wanted).abs().mean()) <= most_mel_error


def test_samples_come_as_soon_as_their_context(bigvgan: Vocoder) -> None:
    parts = run(bigvgan.stream(), mel_of(52), [20, 20, 12])
    held = bigvgan.right_context_frames * SPEC.hop
    assert [len(part) for part in parts] == [9600 - held, 9600, 5760, held]


def stored_bigvgan() -> tuple[BigVGAN, dict[str, torch.Tensor]]:
    """The stored network and its case tensors."""
    meta = json.loads((GOLDEN / "bigvgan_tiny.json").read_text())
    tensors = load_file(GOLDEN / "bigvgan_tiny.safetensors")
    network = build_bigvgan(meta["config"])
    cases = ("mel", "wave", "internal.")
    network.load_state_dict({key: value for key, value in tensors.items() if not key.startswith(cases)})
    return network, tensors


@pytest.mark.slow
def test_stored_bigvgan_in_chunks() -> None:
    network, tensors = stored_bigvgan()
    stage = Vocoder(network, SPEC)
    assert (stage.left_context_frames, stage.right_context_frames) == (28, 28)
    for sizes in ([48], [20], [1, 9]):
        pcm = np.concatenate(run(stage.stream(), tensors["mel"].numpy(), sizes))
        assert np.abs(pcm - tensors["wave"].numpy()).max() <= 5e-5


@pytest.mark.slow
def test_stream_is_as_new_after_finish_and_reset(bigvgan: Vocoder) -> None:
    stream = bigvgan.stream()
    first = np.concatenate(run(stream, mel_of(30, 1), [7]))
    stream.push(mel_of(30, 2))
    stream.reset()
    assert np.array_equal(np.concatenate(run(stream, mel_of(30, 1), [7])), first)


# bad input


def test_wrong_mels_are_refused(bigvgan: Vocoder) -> None:
    stream = bigvgan.stream()
    with pytest.raises(MelMismatchError, match=r"80 bands x frames, got \[100, 20\]"):
        stream.push(np.zeros((100, 20), dtype=np.float32))
    broken = mel_of(20)
    broken[3, 7] = np.nan
    with pytest.raises(ExecutorError, match="frame 7 of 20"):
        stream.push(broken)
    with pytest.raises(ExecutorError, match="not finite"):
        bigvgan.vocode(broken)
    assert len(np.concatenate(run(stream, mel_of(20), [20]))) == 9600  # a refused push left no trace
    assert len(bigvgan.vocode(mel_of(0))) == 0


def test_a_mel_of_another_kind_is_shown_beside_the_own(bigvgan: Vocoder) -> None:
    bigvgan.require(SPEC)
    other = MelSpec(sample_rate=22050, n_mels=80, n_fft=1024, hop=256, win=1024, fmin=0.0, fmax=8000.0)
    with pytest.raises(MelMismatchError, match=r"(?s)sample_rate, n_fft, hop, win.*22050.*24000"):
        bigvgan.require(other)


def test_network_and_mel_must_fit() -> None:
    wide = MelSpec(sample_rate=24000, n_mels=100, n_fft=1920, hop=480, win=1920, fmin=0.0, fmax=8000.0)
    with pytest.raises(MelMismatchError, match="num_mels"):
        Vocoder(build_bigvgan(CONFIG), wide)
    with pytest.raises(MelMismatchError, match="'fmax': 12000"):
        Vocoder(build_bigvgan({**CONFIG, "fmax": 12000}), SPEC)
    with pytest.raises(MelMismatchError, match="'hop_size': 240"):
        Vocoder(
            build_bigvgan(
                {**CONFIG, "upsample_rates": [5, 6, 4, 2], "upsample_kernel_sizes": [11, 12, 8, 4]}
            ),
            SPEC,
        )
    network, _ = hift()
    with pytest.raises(MelMismatchError, match="in_channels"):
        Vocoder(network, wide)
    with pytest.raises(BundleError, match="equal"):
        Vocoder(network, SPEC, left_context_frames=8, right_context_frames=4)
