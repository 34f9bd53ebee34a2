"""How the codec runs on a device: as it is on a CPU; on CUDA with fixed buffers, as captured graphs, on a
stream of its own.

In: the device, the bundle's flow and the options of the engine. Out: one `CodecRuntime` that the loading of
flow and vocoder reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from engine_runtime.bundle.sections import FlowSection
from engine_runtime.codec.execution_stream import HostExecution, NewExecutionStream, StreamExecution
from engine_runtime.codec.graphed import GraphedFrames
from engine_runtime.cuda.availability import uses_triton
from engine_runtime.cuda.gpu_memory import memory_of
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.options import EngineOptions

CACHE_SHARE = 10
"""The flow's caches get at most this part of the device's memory."""
_RESERVE = 400_000_000
"""Bytes that they leave for what comes after them: the vocoder, captured graphs, activations. The
released model takes some 300 MB."""


@dataclass(frozen=True, slots=True)
class CodecRuntime:
    """What flow, vocoder and replies need to know."""

    new_execution_stream: NewExecutionStream = HostExecution
    calls: GraphedCalls | None = None
    graphed: GraphedFrames | None = None
    triton: bool = False
    keep_state: bool = False
    """Whether a vocoder may keep the state of its levels, which no capture or engine can."""

    def cache_bytes(self) -> int | None:
        """Bytes for the flow's caches, when it is loaded last of the large parts; None where they grow."""
        if self.calls is None:
            return None
        free, total = memory_of(self.calls.device)
        return max(0, min(total // CACHE_SHARE, free - _RESERVE))

    def hold_graphs(self) -> None:
        """Run everything as it is from now on: an engine is launched with one call, and what it changes at
        its first run of a shape must not be part of a CUDA graph."""
        if self.calls is not None:
            self.calls.is_capturing = False

    def allow_graphs(self, options: EngineOptions) -> None:
        """Capture again, if the options want it and a GPU is there."""
        if self.calls is not None:
            self.calls.is_capturing = options.graphs and self.calls.device.type == "cuda"


def codec_runtime(device: torch.device, flow: FlowSection, options: EngineOptions) -> CodecRuntime:
    """The runtime of a device."""
    if device.type != "cuda":
        return CodecRuntime(keep_state=device.type == "cpu")
    torch.backends.cudnn.allow_tf32 = False  # on by default for convolutions; float32 shall mean float32
    # a higher priority than the language model's: its kernels are small, and what is heard waits for them
    stream = torch.cuda.Stream(device, priority=-1)
    calls = GraphedCalls(device, enabled=options.graphs, stream=stream)
    frames = frozenset(packet_frames(flow))
    return CodecRuntime(
        partial(StreamExecution, stream),
        calls,
        GraphedFrames(calls, frames),
        uses_triton(options.kernels, device),
    )


def packet_frames(flow: FlowSection) -> list[int]:
    """Mel frames of the packets of a reply to a prompt of whole chunks, the last size twice."""
    chunk, rate = flow.chunk_codes, int(flow.config["upsample"])
    sizes = [-(-size // chunk) * chunk * rate for size in flow.packets]
    return [*sizes, sizes[-1], sizes[-1]]
