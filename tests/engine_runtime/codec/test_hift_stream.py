"""HiFT's streaming protocol against stored waves, alone and behind the chunked flow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engine_runtime.codec.hift_stream import HiFTStream
from engine_runtime.codec.recorded import RecordedFrames
from engine_runtime.codec.token2mel import Token2Mel
from engine_runtime.codec.vocoder import Vocoder, VocoderStream
from engine_runtime.models.hift import HiFT, HiFTConfig
from engine_runtime.types import Mel, MelSpec, Pcm
from tests.emulated_graphs import EmulatedCalls
from tests.engine_runtime.codec.test_token2mel import make_flow, prompt_of

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
SPEC = MelSpec(sample_rate=24000, n_mels=80, n_fft=1920, hop=480, win=1920, fmin=0.0, fmax=8000.0)


def run(stream: VocoderStream, mel: Mel, sizes: list[int]) -> Pcm:
    """Push the mel in pieces of the given sizes (over and over), then finish."""
    parts, start, turn = [], 0, 0
    while start < mel.shape[1]:
        size = sizes[turn % len(sizes)]
        parts.append(stream.push(mel[:, start : start + size]))
        start, turn = start + size, turn + 1
    return np.concatenate([*parts, stream.finish()])


def hift() -> tuple[HiFT, dict[str, torch.Tensor]]:
    """The stored network and its case tensors."""
    table = dict(json.loads((GOLDEN / "hift_tiny.json").read_text())["config"])
    istft, f0 = table.pop("istft_params"), table.pop("f0_predictor")
    table |= {"n_fft": istft["n_fft"], "hop_len": istft["hop_len"], "f0_channels": f0["cond_channels"]}
    tensors = load_file(GOLDEN / "hift_tiny.safetensors")
    cases = {
        key: value for key, value in tensors.items() if key.startswith(("off.", "stream.", "e2e.", "folded."))
    }
    network = HiFT(HiFTConfig.from_dict(table))
    network.load_state_dict({key: value for key, value in tensors.items() if key not in cases})
    return network.fold().eval(), cases


def stored_draws(cases: dict[str, torch.Tensor]) -> Callable[[], Callable[[int], torch.Tensor]]:
    def start() -> Callable[[int], torch.Tensor]:
        calls = iter(range(5))
        return lambda frames: cases[f"stream.call{next(calls)}.draw_noise"][None, : frames * 480]

    return start


def test_hift_protocol_of_stored_calls() -> None:
    network, cases = hift()
    stage = Vocoder(network, SPEC)
    stream = HiFTStream(network, 8, stored_draws(cases), stage.check, torch.zeros(0))
    mel = cases["stream.mel"].numpy()
    parts = [stream.push(mel[:, start : start + 20]) for start in range(0, 92, 20)]
    parts[-1] = np.concatenate((parts[-1], stream.finish()))
    for index, part in enumerate(parts):
        want = cases[f"stream.call{index}.wave"].numpy()
        assert part.shape == want.shape
        assert np.abs(part - want).max() <= 3e-3


def test_codes_to_wave_through_the_chunked_stages() -> None:
    """As upstream's last call differs (full attention), only the samples before it can be compared."""
    (flow, flow_cases), (network, cases) = make_flow(), hift()
    stage = Vocoder(network, SPEC)
    stream = HiFTStream(network, 8, stored_draws(cases), stage.check, torch.zeros(0))
    codes = flow_cases["in.token"].numpy().astype(np.int64)
    mels = Token2Mel(flow, SPEC, steps=10, prompt=prompt_of(flow_cases, 10)).stream().push(codes)
    pcm = np.concatenate([stream.push(mel) for mel in mels])
    want = cases["e2e.wave"].numpy()
    assert len(pcm) == 34560
    assert np.abs(pcm - want[: len(pcm)]).max() <= 3e-3


def test_recordings_serve_every_stream_of_a_network() -> None:
    network, cases = hift()
    mel, calls = cases["stream.mel"].numpy(), EmulatedCalls()
    want = run(Vocoder(network, SPEC, seed=3).stream(), mel, [20])
    stage = Vocoder(network, SPEC, seed=3, recorded=RecordedFrames(calls, frozenset({20})))
    for _ in range(2):
        np.testing.assert_allclose(run(stage.stream(), mel, [20]), want, rtol=0, atol=1e-5)
    made = calls.num_recordings
    assert made > 0
    other = hift()[0]
    run(Vocoder(other, SPEC, recorded=RecordedFrames(calls, frozenset({20}))).stream(), mel, [20])
    assert calls.num_recordings == 2 * made


@pytest.mark.parametrize("sizes", [[20], [3], [1], [9, 2, 40]])
def test_any_chunks_give_every_sample_once_and_repeat(sizes: list[int]) -> None:
    network, cases = hift()
    stage, mel = Vocoder(network, SPEC, seed=3), cases["stream.mel"].numpy()
    stream = stage.stream()
    first, second = run(stream, mel, sizes), run(stream, mel, sizes)
    assert first.shape == (92 * 480,)
    assert np.abs(first).max() <= network.config.audio_limit * 1.09  # the halves of the window add up to 1.08
    assert np.array_equal(first, second)


def test_noise_follows_the_seed() -> None:
    network, cases = hift()
    mel = cases["stream.mel"].numpy()
    stage = Vocoder(network, SPEC, seed=3)
    assert run(stage.stream(), mel[:, :5], [5]).shape == (5 * 480,)
    assert run(stage.stream(), mel[:, :0], [5]).shape == (0,)
    assert np.array_equal(stage.vocode(mel), stage.vocode(mel))
    assert not np.array_equal(stage.vocode(mel), Vocoder(network, SPEC, seed=4).vocode(mel))


@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 1e-4), (torch.bfloat16, 5e-3)])
def test_lower_number_formats_keep_the_phase(dtype: torch.dtype, most: float) -> None:
    """A mel that is rounded before its fundamental is estimated would let the phases drift apart."""
    mel = np.random.default_rng(0).normal(-5.0, 2.0, (80, 60)).astype(np.float32)
    whole, lower = (Vocoder(hift()[0], SPEC, dtype=kind) for kind in (torch.float32, dtype))
    for wanted, got in (
        (whole.vocode(mel), lower.vocode(mel)),
        (run(whole.stream(), mel, [20]), run(lower.stream(), mel, [20])),
    ):
        assert np.square(got - wanted).mean() <= most * np.square(wanted).mean()
