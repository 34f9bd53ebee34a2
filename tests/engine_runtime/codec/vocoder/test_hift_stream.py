"""HiFT's streaming protocol against stored waves, alone and behind the chunked flow, and the seams between
its chunks against the one-shot call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engine_runtime.codec.flow.token2mel import Token2Mel, arrays_of
from engine_runtime.codec.vocoder.hift_stream import DrawNoise, HiFTStream, fade_weights
from engine_runtime.codec.vocoder.stream import GraphedFrames, VocoderStream
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.models.hift import HarmonicSource, HiFT, HiFTConfig
from engine_runtime.types import Mel, MelSpec, Pcm
from tests.doubles.graphs import EmulatedCalls
from tests.engine_runtime.codec.flow.test_token2mel import prompt_of
from tests.factories.tiny_flow import make_flow

GOLDEN = Path(__file__).parents[3] / "data" / "golden"
SPEC = MelSpec(sample_rate=24000, n_mels=80, n_fft=1920, hop=480, win=1920, fmin=0.0, fmax=8000.0)


def run(stream: VocoderStream, mel: Mel, sizes: list[int]) -> Pcm:
    """Push the mel in chunks of these sizes (repeatedly), then finish."""
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


class UpstreamStream(HiFTStream):
    """The protocol used for the stored waves: phases restart with each call, the complete excitation of the
    overlap is reused, and the halves of the Hamming window sum to 1.08."""

    def _compute(
        self, frames: torch.Tensor, noise: torch.Tensor, before: torch.Tensor, phase: torch.Tensor,
        held: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
        network, samples = self._network, len(self._fade_in)
        assert isinstance(network, HiFT)
        window = torch.hamming_window(2 * samples, periodic=False)
        source = network.source(frames, noise)
        source[:, : before.shape[1]] = before
        speech = network.decode(frames, source)
        if held.shape[1]:
            speech[:, :samples] = speech[:, :samples] * window[:samples] + held * window[samples:]
        return speech[:, :-samples], speech[:, -samples:], source[:, -samples:], phase


def stored_stream(network: HiFT, cases: dict[str, torch.Tensor]) -> UpstreamStream:
    check = Vocoder(network, SPEC).check
    return UpstreamStream(network, 8, stored_draws(cases), check, torch.zeros(0))


@pytest.mark.slow
def test_hift_protocol_of_stored_calls() -> None:
    network, cases = hift()
    stream = stored_stream(network, cases)
    mel = cases["stream.mel"].numpy()
    parts = [stream.push(mel[:, start : start + 20]) for start in range(0, 92, 20)]
    parts[-1] = np.concatenate((parts[-1], stream.finish()))
    for index, part in enumerate(parts):
        want = cases[f"stream.call{index}.wave"].numpy()
        assert part.shape == want.shape
        assert np.abs(part - want).max() <= 3e-3


@pytest.mark.slow
def test_codes_to_wave_through_the_chunked_stages() -> None:
    """As upstream's last call differs (full attention), only the samples before it can be compared."""
    (flow, flow_cases), (network, cases) = make_flow(), hift()
    stream = stored_stream(network, cases)
    codes = flow_cases["in.token"].numpy().astype(np.int64)
    mels = arrays_of(Token2Mel(flow, SPEC, steps=10, prompt=prompt_of(flow_cases, 10)).stream().push(codes))
    pcm = np.concatenate([stream.push(mel) for mel in mels])
    want = cases["e2e.wave"].numpy()
    assert len(pcm) == 34560
    assert np.abs(pcm - want[: len(pcm)]).max() <= 3e-3


@pytest.mark.slow
def test_captured_graphs_serve_every_stream_of_a_network() -> None:
    network, cases = hift()
    mel, calls = cases["stream.mel"].numpy(), EmulatedCalls()
    want = run(Vocoder(network, SPEC, seed=3).stream(), mel, [20])
    stage = Vocoder(network, SPEC, seed=3, graphed=GraphedFrames(calls, frozenset({20})))
    for _ in range(2):
        np.testing.assert_allclose(run(stage.stream(), mel, [20]), want, rtol=0, atol=1e-5)
    made = calls.num_captured
    assert made > 0
    other = hift()[0]
    run(Vocoder(other, SPEC, graphed=GraphedFrames(calls, frozenset({20}))).stream(), mel, [20])
    assert calls.num_captured == 2 * made


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[20], [3], [1], [9, 2, 40]])
def test_any_chunks_yield_every_sample_once_and_repeat(sizes: list[int]) -> None:
    network, cases = hift()
    stage, mel = Vocoder(network, SPEC, seed=3), cases["stream.mel"].numpy()
    stream = stage.stream()
    first, second = run(stream, mel, sizes), run(stream, mel, sizes)
    assert first.shape == (92 * 480,)
    assert np.abs(first).max() <= network.config.audio_limit + 1e-6
    assert np.array_equal(first, second)


class KnownNetwork:
    """A vocoder whose one-shot wave is known: band 0 of the mel is the fundamental, band 1 is added to the
    excitation. What a call says within a frame of its ends is off by `edge`, as where context is missing."""

    def __init__(self, edge: float = 0.0) -> None:
        self.config, self.edge = HiFTConfig(in_channels=80), edge
        self.harmonic = HarmonicSource(self.config)
        torch.nn.init.constant_(self.harmonic.l_linear.weight, 0.5)
        torch.nn.init.zeros_(self.harmonic.l_linear.bias)

    def continued_source(
        self, mel: torch.Tensor, noise: torch.Tensor, frame: int, phase: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        phases = self.harmonic.phases(mel[:, 0])
        if phase.shape[1]:
            phases = phases + (phase - phases[:, frame])[:, None]
        return self.harmonic(mel[:, 0], noise, phases), phases[:, -1]

    def decode(self, mel: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        level = torch.nn.functional.interpolate(mel[:, 1:2], scale_factor=480.0, mode="nearest")[:, 0]
        wave = source + level
        wave[:, :480] += self.edge
        wave[:, -480:] -= self.edge
        return wave

    @torch.inference_mode()
    def reference(self, mel: Mel) -> Pcm:
        frames = torch.as_tensor(mel)[None]
        source, _ = self.continued_source(frames, self.noise(frames.shape[2]), 0, torch.zeros(1, 0))
        return self.decode(frames, source)[0].numpy()

    def noise(self, frames: int) -> torch.Tensor:
        return torch.zeros((1, frames * self.config.hop, self.config.nb_harmonics + 1))

    def stream(self) -> HiFTStream:
        def start() -> DrawNoise:
            return self.noise

        return HiFTStream(self, 8, start, lambda mel: None, torch.zeros(0))


@pytest.mark.parametrize("samples", [1, 2, 7, 480, 3840, 10_001])
def test_weights_of_the_fade_add_up_to_one(samples: int) -> None:
    fade_in, fade_out = fade_weights(samples)
    assert fade_in.dtype == fade_out.dtype == torch.float32
    assert bool((fade_in + fade_out == 1.0).all())
    assert bool((fade_in.diff() >= 0).all())
    torch.testing.assert_close(fade_in, fade_out.flip(0), rtol=0, atol=1e-7)
    assert fade_in[0] <= 1.3 / samples**2 or samples == 1  # begins at the old samples, without a step


@pytest.mark.parametrize("sizes", [[20], [9, 2, 40]])
@pytest.mark.parametrize("wave", ["constant", "ramp"])
def test_a_known_wave_is_that_of_one_call(wave: str, sizes: list[int]) -> None:
    network, mel = KnownNetwork(), np.zeros((80, 92), np.float32)
    mel[1] = 0.7 if wave == "constant" else np.linspace(-0.9, 0.9, 92)
    got = run(network.stream(), mel, sizes)
    np.testing.assert_allclose(got, network.reference(mel), rtol=0, atol=1e-7)


@pytest.mark.parametrize("sizes", [[20], [9, 2, 40]])
def test_a_voiced_sound_continues_across_chunks(sizes: list[int]) -> None:
    """Nine harmonics of a gliding fundamental, with a pause. Only what a call makes of its last half frame,
    whose frequency it does not know, differs from one call, and is faded out by then."""
    network, mel = KnownNetwork(), np.zeros((80, 92), np.float32)
    mel[0] = 160.0 + 60.0 * np.sin(np.arange(92) / 9.0)
    mel[0, 33:41] = 0.0
    want, got = network.reference(mel), run(network.stream(), mel, sizes)
    error, steps = np.abs(got - want).reshape(-1, 240), np.abs(np.diff(want))
    assert error[0::2].max() <= 2e-6
    assert error[1::2].max() <= 4e-3
    assert np.abs(np.diff(got) - np.diff(want)).max() <= 0.02 * steps.max()


def test_what_lacks_context_leaves_no_step() -> None:
    """At both ends of a fade one side lacks its context and has weight 0."""
    mel = np.zeros((80, 92), np.float32)
    steps = np.abs(np.diff(run(KnownNetwork(edge=0.5).stream(), mel, [20])))
    seams = [call * 9600 - 3840 + offset for call in range(1, 4) for offset in (0, 3840)]
    assert max(steps[seam - 2 : seam + 2].max() for seam in seams) <= 1e-5


@pytest.mark.slow
def test_noise_follows_the_seed() -> None:
    network, cases = hift()
    mel = cases["stream.mel"].numpy()
    stage = Vocoder(network, SPEC, seed=3)
    assert run(stage.stream(), mel[:, :5], [5]).shape == (5 * 480,)
    assert run(stage.stream(), mel[:, :0], [5]).shape == (0,)
    assert np.array_equal(stage.vocode(mel), stage.vocode(mel))
    assert not np.array_equal(stage.vocode(mel), Vocoder(network, SPEC, seed=4).vocode(mel))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 1e-4), (torch.bfloat16, 5e-3)])
def test_lower_number_formats_keep_the_phase(dtype: torch.dtype, most: float) -> None:
    """A mel that is rounded before its fundamental is estimated would let the phases drift apart."""
    mel = np.random.default_rng(0).normal(-5.0, 2.0, (80, 60)).astype(np.float32)
    reference, lower = (Vocoder(hift()[0], SPEC, dtype=kind) for kind in (torch.float32, dtype))
    for wanted, got in (
        (reference.vocode(mel), lower.vocode(mel)),
        (run(reference.stream(), mel, [20]), run(lower.stream(), mel, [20])),
    ):
        assert np.square(got - wanted).mean() <= most * np.square(wanted).mean()
