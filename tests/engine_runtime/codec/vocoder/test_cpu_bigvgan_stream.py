"""BigVGAN with state against one call of the package's network and the stored wave, and its operations."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.weights import load_weights
from engine_runtime.codec.vocoder import cpu_convolution
from engine_runtime.codec.vocoder.cpu_bigvgan_stream import CpuBigVGANStream
from engine_runtime.codec.vocoder.stream import VocoderStream
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.errors import ExecutorError
from engine_runtime.models.bigvgan import build_bigvgan
from engine_runtime.types import Mel
from tests.engine_runtime.codec.vocoder.test_vocoder import (
    CONFIG,
    SPEC,
    lively,
    mel_of,
    question_mel,
    run,
    stored_bigvgan,
)
from tests.tools.examples import examples

__all__ = ["question_mel"]
KINDS: list[dict[str, object]] = [
    {},
    {"resblock": "2", "resblock_dilation_sizes": [[1, 3, 5], [1, 3]]},
    {
        "upsample_rates": [15, 4, 4, 2],
        "upsample_kernel_sizes": [31, 4, 10, 2],
        "resblock_kernel_sizes": [5, 7],
    },
]


def vocoder_of(change: dict[str, object]) -> Vocoder:
    return Vocoder(lively(build_bigvgan({**CONFIG, **change})), SPEC, keep_state=True)


@pytest.fixture(scope="module")
def bigvgan() -> Vocoder:
    return vocoder_of({})


@pytest.fixture(scope="module")
def vocoders() -> list[Vocoder]:
    """Of every kind, once with oneDNN's convolutions, once with Winograd's everywhere."""
    direct = [vocoder_of(change) for change in KINDS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_convolution, "LEAST_CHANNELS", 1)
        return [*direct, *(vocoder_of(change) for change in KINDS)]


@pytest.mark.slow
@examples(18)
@given(
    index=st.integers(0, 2 * len(KINDS) - 1),
    frames=st.integers(1, 60),
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any),
)
def test_any_chunking_equals_one_call(
    vocoders: list[Vocoder], index: int, frames: int, sizes: list[int]
) -> None:
    vocoder, mel = vocoders[index], mel_of(frames)
    pcm = np.concatenate(run(vocoder.stream(), mel, sizes))
    assert pcm.shape == (frames * SPEC.hop,)
    assert pcm.dtype == np.float32
    assert np.abs(pcm - vocoder.vocode(mel)).max() <= 1e-5


@pytest.mark.slow
def test_stored_wave_in_chunks() -> None:
    network, tensors = stored_bigvgan()
    stage = Vocoder(network, SPEC, keep_state=True)
    for sizes in ([48], [20], [1, 9]):
        pcm = np.concatenate(run(stage.stream(), tensors["mel"].numpy(), sizes))
        assert np.abs(pcm - tensors["wave"].numpy()).max() <= 5e-5


@pytest.mark.slow
def test_trained_network_on_speech(nano_bundle: Path, question_mel: Mel) -> None:
    section = Bundle.open(nano_bundle).vocoder
    network = build_bigvgan(section.config)
    load_weights(network, section.weights, torch.float32, torch.device("cpu"))
    context = (section.left_context_frames, section.right_context_frames)
    stage = Vocoder(
        network, SPEC, left_context_frames=context[0], right_context_frames=context[1], keep_state=True
    )
    stream = stage.stream()
    assert isinstance(stream, CpuBigVGANStream)
    pcm = np.concatenate(run(stream, question_mel, [20]))
    assert np.abs(pcm - stage.vocode(question_mel)).max() <= 1e-5


@pytest.mark.slow
def test_streams_do_not_share_state(bigvgan: Vocoder) -> None:
    mels = [mel_of(50, seed) for seed in (1, 2)]
    streams = [bigvgan.stream() for _ in mels]
    parts: list[list[np.ndarray]] = [[], []]
    for starts in zip_longest(range(0, 50, 7), range(0, 50, 20)):
        for stream, mel, kept, start, size in zip(streams, mels, parts, starts, (7, 20), strict=True):
            if start is not None:
                kept.append(stream.push(mel[:, start : start + size]))
    for stream, mel, kept in zip(streams, mels, parts, strict=True):
        pcm = np.concatenate([*kept, stream.finish()])
        assert np.abs(pcm - bigvgan.vocode(mel)).max() <= 1e-5


def test_stream_is_as_new_after_finish_and_reset(bigvgan: Vocoder) -> None:
    stream = bigvgan.stream()
    first = np.concatenate(run(stream, mel_of(30, 1), [7]))
    stream.push(mel_of(30, 2))
    stream.reset()
    assert np.array_equal(np.concatenate(run(stream, mel_of(30, 1), [7])), first)
    assert stream.finish().size == 0  # nothing was pushed


def test_a_refused_push_leaves_no_trace(bigvgan: Vocoder) -> None:
    stream, broken = bigvgan.stream(), mel_of(20)
    broken[3, 7] = np.nan
    first = stream.push(mel_of(20))
    with pytest.raises(ExecutorError, match="frame 7 of 20"):
        stream.push(broken)
    pcm = np.concatenate([first, stream.finish()])
    assert np.abs(pcm - bigvgan.vocode(mel_of(20))).max() <= 1e-5


def test_what_is_pushed_may_be_written_to_afterwards(bigvgan: Vocoder) -> None:
    stream, mel = bigvgan.stream(), mel_of(40)
    pushed = mel[:, :20].copy()
    first = stream.push(pushed)
    pushed[:] = 0.0
    pcm = np.concatenate([first, stream.push(mel[:, 20:]), stream.finish()])
    assert np.abs(pcm - bigvgan.vocode(mel)).max() <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[20], [1], [3, 11, 7]])
def test_samples_come_no_later_than_from_windows(sizes: list[int]) -> None:
    """The stream holds back samples that depend on later frames; windows hold back complete frames."""
    network = lively(build_bigvgan(CONFIG))
    windows, levels = (Vocoder(network, SPEC, keep_state=state) for state in (False, True))
    assert levels.right_context_frames == windows.right_context_frames
    actual, most = (
        np.cumsum([len(part) for part in run(stage.stream(), mel_of(60), sizes)])
        for stage in (levels, windows)
    )
    assert (actual >= most).all()
    assert (actual - most).max() < SPEC.hop


def test_less_context_than_the_network_has_is_for_windows() -> None:
    network = lively(build_bigvgan(CONFIG))
    stage = Vocoder(network, SPEC, right_context_frames=4, keep_state=True)
    assert not stage.is_exact
    assert not isinstance(stage.stream(), CpuBigVGANStream)


# operations


def operations(stream: VocoderStream) -> list[float]:
    """Floating-point operations of packets of 20 frames, the first, second and fourth, for each frame, in
    millions."""
    counts = []
    for _ in range(4):
        with FlopCounterMode(display=False) as counter:
            stream.push(mel_of(20))
        counts.append(counter.get_total_flops() / 20 / 1e6)
    return [counts[0], counts[1], counts[3]]


@pytest.mark.slow
def test_operations_of_a_packet(nano_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = {"resblock_kernel_sizes": [3, 7], "resblock_dilation_sizes": [[1, 3], [1, 2]]}
    network = build_bigvgan({**Bundle.open(nano_bundle).vocoder.config, **blocks})
    windows = operations(Vocoder(network, SPEC).stream())
    winograd = operations(Vocoder(network, SPEC, keep_state=True).stream())
    monkeypatch.setattr(cpu_convolution, "LEAST_CHANNELS", 1 << 20)
    direct = operations(Vocoder(network, SPEC, keep_state=True).stream())
    # 328 with windows, 300 with state, 221 with Winograd's algorithm, too
    assert direct[1] == direct[2] <= 0.92 * windows[2]
    assert winograd[1] == winograd[2] <= 0.68 * windows[2]
    assert winograd[0] <= direct[0] <= windows[0]
