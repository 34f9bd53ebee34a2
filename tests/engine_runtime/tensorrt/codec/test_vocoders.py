"""Both vocoders with exported graphs: the same wave, and the windows that stay in torch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from engine_runtime.codec.graph import Runner
from engine_runtime.codec.onnx_graph import OnnxRunner
from engine_runtime.codec.vocoder.bigvgan_stream import BigVGANWindows
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.models.bigvgan import build_bigvgan
from engine_runtime.models.hift import HiFT
from engine_runtime.tensorrt.codec.graphs import EngineHiFT, EngineWindows, bigvgan_graphs, hift_graph
from engine_runtime.types import Mel, Pcm
from tests.engine_runtime.codec.vocoder.test_vocoder import CONFIG, SPEC, lively, mel_of, run, stored_bigvgan
from tests.factories.graphs import Exported, difference_on_onnx

pytestmark = pytest.mark.slow


SIZES = [20, 40]


def counted(runner: Runner, name: str, calls: Counter[str]) -> Runner:
    def call(*inputs: torch.Tensor) -> Any:
        calls[name] += 1
        return runner(*inputs)

    return call


def spoken(vocoder: Vocoder, mel: Mel) -> Pcm:
    return np.concatenate(run(vocoder.stream(), mel, SIZES))


@pytest.fixture
def small() -> Vocoder:
    """Two stages of one kernel: a graph that is exported in no time."""
    few = {"upsample_rates": [24, 20], "upsample_kernel_sizes": [48, 40]}
    kernels = {"resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1]]}
    return Vocoder(lively(build_bigvgan(CONFIG | few | kernels)), SPEC)


def test_bigvgan_sounds_the_same(small: Vocoder, exported: Exported) -> None:
    windows, calls = small.network, Counter[str]()
    assert isinstance(windows, BigVGANWindows)
    mel = mel_of(130)
    want, context = spoken(small, mel), (small.left_context_frames, small.right_context_frames)
    both = []
    for graph in bigvgan_graphs(windows, 80, context, SIZES, small.like):
        file = exported(f"bigvgan_small_{graph.name}", graph)
        assert difference_on_onnx(graph, file) <= 1e-4
        both.append((graph, counted(OnnxRunner(graph, file), graph.name, calls)))
    small.network = EngineWindows(windows, context, *both)
    assert np.abs(spoken(small, mel) - want).max() <= 5e-5
    # pushes of 20, 40, 20, 40 and 10 frames; the last, and the end, are of sizes that no packet has
    assert calls == {"vocoder_start": 1, "vocoder": 3}


def test_a_window_without_a_frame_beside_its_context_stays_in_torch(small: Vocoder) -> None:
    windows, (left, right) = small.network, (14, 14)
    assert isinstance(windows, BigVGANWindows)
    first, later = bigvgan_graphs(windows, 80, (left, right), [4, 8], small.like)
    for graph, least in ((first, right + 1), (later, left + 4 + right)):
        assert not graph.fits((torch.zeros(1, 80, least - 1),))
        assert graph.fits((torch.zeros(1, 80, least),))


def test_a_window_of_the_stored_wave(bigvgan: Vocoder) -> None:
    """The module that is exported, in torch: exporting a BigVGAN of full depth takes minutes."""
    windows, tensors = bigvgan.network, stored_bigvgan()[1]
    assert isinstance(windows, BigVGANWindows)
    _, graph = bigvgan_graphs(windows, 80, (14, 14), [12], bigvgan.like)
    window = tensors["mel"][None, :, 4:44]
    with torch.no_grad():
        (samples,) = graph.module(window)
    # the stored wave was made with all of the context, this window with half of it
    wave = tensors["wave"][18 * 480 : 30 * 480]
    assert (samples - wave).abs().max() <= 0.05 * wave.abs().max()


def test_hift_sounds_the_same(hift_vocoder: Vocoder, exported: Exported) -> None:
    network, calls = hift_vocoder.network, Counter[str]()
    assert isinstance(network, HiFT)
    mel = 0.5 * mel_of(130)
    want = spoken(hift_vocoder, mel)
    graph = hift_graph(network, hift_vocoder.right_context_frames, SIZES, hift_vocoder.like)
    file = exported("hift_tiny", graph)
    assert difference_on_onnx(graph, file) <= 1e-5
    hift_vocoder.network = EngineHiFT(network, graph, counted(OnnxRunner(graph, file), "vocoder", calls))
    assert np.abs(spoken(hift_vocoder, mel) - want).max() <= 1e-4
    # 20 frames, then 48, 28, 48 with the overlap; the last 18 are fewer than any packet has
    assert calls == {"vocoder": 4}
