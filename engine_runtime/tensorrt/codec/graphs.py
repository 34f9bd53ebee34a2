"""The flow's estimator and the vocoders as graphs, and what a stream uses in their place.

In: the networks of loaded stages. Out: their graphs, and replacements that run them with a `Runner`.

Of the estimator the graph is one Euler step on one packet. The rows of the causal convolutions, the keys and
values of the past and the mask are inputs, the new ones outputs, so a stream does not change: its caches
remain in its `RingCache`. The convolution of the inputs that are constant over the Euler steps, the guidance
and the step itself stay in torch, the last two in float32.

BigVGAN has two graphs, for the first window of a reply, at the start of the signal, and for later ones; the
last window of a reply, which is short and of any size, stays in torch. Of HiFT the excitation (a running sum
in float64), both Fourier transforms and the cross-fade stay in torch; the graph holds all layers of the
decoder. Windows of sizes without an engine also run in torch. Runs in the thread of its caller.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine_runtime.codec.flow.estimator import EstimatorState, EstimatorSteps
from engine_runtime.codec.flow.ring_cache import RingCache
from engine_runtime.codec.graph import Axis, Graph, GraphTensor, Runner, attend, packet_axis
from engine_runtime.codec.vocoder.bigvgan_stream import BigVGANWindows
from engine_runtime.errors import ExecutorError
from engine_runtime.models.hift import HiFT, HiFTConfig

USUAL_PAST_CODES = 128
"""Past length for which an engine is optimized: a voice prompt and a reply of a few seconds."""


class GivenPast:
    """Keys and values [layers, 2, B, H, P, d] of all layers; implements `Attending` and collects the new
    ones."""

    def __init__(self, past: Tensor, mask: Tensor) -> None:
        self._past, self._mask = past, mask
        self._new: list[Tensor] = []

    def attend(self, layer: int, query: Tensor, kv: Tensor) -> Tensor:
        """Attend over the past and new keys and values of a layer; layers are called in order."""
        self._new.append(kv)
        past = self._past[layer]
        return attend(query, (past[0], past[1]), (kv[0], kv[1]), self._mask)

    def collected(self) -> Tensor:
        """The new keys and values [layers, 2, B, H, n, d]."""
        return torch.stack(self._new)


class EstimatorStep(nn.Module):
    """The velocity of one Euler step, with all state as arguments."""

    def __init__(self, steps: EstimatorSteps) -> None:
        super().__init__()
        self._steps = steps

    def forward(
        self,
        x: Tensor,
        convolved: Tensor,
        skipped: Tensor,
        time: Tensor,
        mask: Tensor,
        past: Tensor,
        *rows: Tensor,
    ) -> tuple[Tensor, ...]:
        """Velocity [B, n, n_mels], new keys and values, new rows. See `estimator_graph` for the shapes."""
        cache, replaced = GivenPast(past, mask), list(rows)
        velocity = self._steps.velocity_at(time.unbind(0), replaced, cache, 0, x, convolved, skipped)
        return velocity, cache.collected(), *replaced


def estimator_graph(steps: EstimatorSteps, packet_codes: list[int]) -> Graph:
    """The graph of an estimator for packets of these sizes, which are complete chunks."""
    config, dtype, rate = steps.config, steps.pack.dtype, steps.config.upsample
    frames = Axis("frames", *packet_axis([size * rate for size in packet_codes]))
    most = config.max_frames + frames.most
    past = Axis("past", rate, min(USUAL_PAST_CODES * rate, most), most)
    batch, levels = steps.batch, len(steps.levels)
    kv = (steps.blocks, 2, batch, config.heads)
    rows = [tuple(row.shape) for row in steps.new_state(1).rows[0]]

    def spec(name: str, *shape: int | Axis) -> GraphTensor:
        return GraphTensor(name, shape, dtype)

    return Graph(
        "estimator",
        EstimatorStep(steps),
        inputs=(
            spec("x", 1, frames, config.n_mels),
            spec("convolved", batch, frames, config.channels),
            spec("skipped", batch, frames, config.channels),
            spec("time", levels, config.channels),
            GraphTensor("mask", (frames, past + frames), dtype),
            spec("past", *kv, past, config.head_dim),
            *(spec(f"rows_{index}", *shape) for index, shape in enumerate(rows)),
        ),
        outputs=(
            spec("velocity", batch, frames, config.n_mels),
            spec("new", *kv, frames, config.head_dim),
            *(spec(f"new_rows_{index}", *shape) for index, shape in enumerate(rows)),
        ),
        device=steps.pack.device,
        example_values={"mask": torch.zeros},
    )


class EngineEstimator:
    """Implements `Velocity` with a runner of `estimator_graph`, for static caches."""

    def __init__(self, steps: EstimatorSteps, runner: Runner) -> None:
        self._runner, self._blocks = runner, steps.blocks

    def __call__(
        self, state: EstimatorState, step: int, x: Tensor, convolved: Tensor, skipped: Tensor
    ) -> Tensor:
        """Velocity of one Euler step; the new keys, values and rows go to the state."""
        cache, first = state.cache, step * self._blocks
        if not isinstance(cache, RingCache):
            raise ExecutorError("An engine of the flow needs static caches.", "Use --device cuda.")
        velocity, new, *rows = self._runner(
            x,
            convolved,
            skipped,
            torch.stack([table[step] for table in state.schedule.times]),
            cache.mask_over_past_and_new(),
            cache.past(first, self._blocks),
            *state.rows[step],
        )
        cache.put_layers(first, new)
        state.rows[step] = rows
        return velocity


class BigVGANWindow(nn.Module):
    """A window before the end of the signal: samples of all frames between its contexts."""

    def __init__(
        self, windows: BigVGANWindows, context: tuple[int, int], at_start: bool, frames: int
    ) -> None:
        """`frames` is the length of one such window. The crops on both sides depend on the contexts only, not
        on the frames between them."""
        super().__init__()
        left, right = context
        self._windows = windows
        self.cuts = windows.cuts(frames, 0 if at_start else left, frames - right, at_start, False)

    def forward(self, mel: Tensor) -> tuple[Tensor]:
        """[1, n_mels, frames] -> [samples]."""
        return (self._windows.run(mel, self.cuts),)


def bigvgan_graphs(
    windows: BigVGANWindows, n_mels: int, context: tuple[int, int], packet_frames: list[int], like: Tensor
) -> tuple[Graph, Graph]:
    """The graphs for the first window of a reply and for later ones, for packets of these sizes."""
    left, right = context

    def graph(name: str, at_start: bool) -> Graph:
        least, usual, most = packet_axis(packet_frames, 0 if at_start else left + right)
        # a window contains the start of the reply until more frames than the left context are done
        least, most = max(least, right + 1), most + (left + right if at_start else 0)
        frames = Axis("frames", least, max(usual, least), most)
        module = BigVGANWindow(windows, context, at_start, frames.usual)
        samples = (frames + (-right if at_start else -left - right)) * windows.hop
        return Graph(
            name,
            module,
            inputs=(GraphTensor("mel", (1, n_mels, frames), like.dtype),),
            outputs=(GraphTensor("samples", (samples,), like.dtype),),
            device=like.device,
        )

    return graph("vocoder_start", True), graph("vocoder", False)


class EngineWindows:
    """Implements `BigVGANWindows` with runners of its graphs for windows that they support."""

    def __init__(
        self,
        windows: BigVGANWindows,
        context: tuple[int, int],
        start: tuple[Graph, Runner],
        later: tuple[Graph, Runner],
    ) -> None:
        self._windows, self._context, self._start, self._later = windows, context, start, later
        self.hop = windows.hop

    @torch.inference_mode()
    def __call__(self, mel: Tensor, first: int, end: int, at_start: bool, at_end: bool) -> Tensor:
        """Samples of the frames [first, end) of a window [1, n_mels, frames]."""
        left, right = self._context
        graph, runner = self._start if at_start else self._later
        is_theirs = not at_end and end == mel.shape[2] - right and (at_start or first == left)
        if not (is_theirs and graph.fits((mel,))):
            return self._windows(mel, first, end, at_start, at_end)
        (samples,) = runner(mel)
        return samples[first * self.hop :] if at_start else samples


class HiFTDecoder(nn.Module):
    """The layers of HiFT between excitation and spectrum."""

    def __init__(self, network: HiFT) -> None:
        super().__init__()
        self.network = network

    def forward(self, mel: Tensor, excitation: Tensor) -> tuple[Tensor]:
        """Spectrum [1, bins, columns] of mel and excitation."""
        return (self.network.spectrum(mel, excitation),)


def hift_graph(network: HiFT, overlap: int, packet_frames: list[int], like: Tensor) -> Graph:
    """The graph of a HiFT for packets of these sizes, alone or after the frames of the overlap."""
    config = network.config
    (least, _, _), (_, usual, most) = packet_axis(packet_frames), packet_axis(packet_frames, overlap)
    frames = Axis("frames", least, usual, most)
    columns = config.hop // config.hop_len * frames + 1
    bins = config.n_fft + 2
    return Graph(
        "vocoder",
        HiFTDecoder(network),
        inputs=(
            GraphTensor("mel", (1, config.in_channels, frames), like.dtype),
            GraphTensor("excitation", (1, bins, columns), like.dtype),
        ),
        outputs=(GraphTensor("spectrum", (1, bins, columns), like.dtype),),
        device=like.device,
    )


class EngineHiFT:
    """Implements the `HiFT` interface of a stream, with a runner of its graph for supported sizes."""

    def __init__(self, network: HiFT, graph: Graph, runner: Runner) -> None:
        self._network, self._graph, self._runner = network, graph, runner
        self.config: HiFTConfig = network.config
        self.continued_source = network.continued_source

    def decode(self, mel: Tensor, source: Tensor) -> Tensor:
        """Samples of a window of mel with its source signal."""
        inputs = (mel, self._network.excitation(source).to(mel.dtype))
        if not self._graph.fits(inputs):
            return self._network.decode(mel, source)
        (spectrum,) = self._runner(*inputs)
        return self._network.wave(spectrum)
