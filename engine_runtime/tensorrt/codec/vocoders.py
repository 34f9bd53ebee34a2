"""The vocoders as graphs: BigVGAN on a window of mel, HiFT between excitation and spectrum.

In: a vocoder's network. Out: its graphs, and replacements of the network for streams. BigVGAN has two graphs,
for the first window of a reply, at the start of the signal, and for later ones; the last window of a reply,
which is short and of any size, stays in torch. Of HiFT the excitation (a running sum in float64), both
Fourier transforms and the cross-fade stay in torch; the graph holds all layers of the decoder. Windows of
sizes without an engine also run in torch. Runs in the thread of its caller.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine_runtime.codec.graph import Axis, Graph, GraphTensor, Runner, packet_axis
from engine_runtime.codec.vocoder.bigvgan_stream import BigVGANWindows
from engine_runtime.models.hift import HiFT, HiFTConfig


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
        """See `BigVGANWindows`."""
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
        """See `HiFT.spectrum`."""
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
        """See `HiFT`."""
        inputs = (mel, self._network.excitation(source).to(mel.dtype))
        if not self._graph.fits(inputs):
            return self._network.decode(mel, source)
        (spectrum,) = self._runner(*inputs)
        return self._network.wave(spectrum)
