"""How the codec runs on a device: eagerly on a CPU; on CUDA with fixed buffers, captured, on its own stream.

In: the device, the bundle's flow and the options of the engine. Out: one `CodecRuntime` for loading flow and
vocoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from engine_runtime.bundle.sections import FlowSection
from engine_runtime.codec.execution_stream import HostExecution, NewExecutionStream, StreamExecution
from engine_runtime.codec.vocoder.stream import GraphedFrames
from engine_runtime.cuda.availability import uses_triton
from engine_runtime.cuda.gpu_memory import memory_of
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.options import EngineOptions

CACHE_SHARE = 10
"""Maximum share of the device's memory for the flow's caches."""
CACHE_SHARE_OF_MANY = 5
"""The same for several conversations at once."""
_RESERVE = 400_000_000
"""Bytes reserved for later allocations: the vocoder, captured graphs, activations. The released model takes
about 300 MB."""
VOCODER_BATCH_BYTES = 400_000_000
"""Bytes for chunks of several replies in one call of the vocoder. By the shapes of the released HiFT, the
values within a call of 16 replies take 250 MB, and the inputs of all captured calls 115 MB."""


@dataclass(frozen=True, slots=True)
class CodecRuntime:
    """Settings of flow, vocoder and replies."""

    new_execution_stream: NewExecutionStream = HostExecution
    calls: GraphedCalls | None = None
    graphed: GraphedFrames | None = None
    triton: bool = False
    cache_share: int = CACHE_SHARE
    reserve: int = _RESERVE
    keep_state: bool = False
    """Whether a vocoder may keep the state of its levels, which captures and engines do not support."""

    def cache_bytes(self) -> int | None:
        """Bytes for the flow's caches, which are allocated after the other large parts; None for dynamic
        caches."""
        if self.calls is None:
            return None
        free, total = memory_of(self.calls.device)
        return max(0, min(total // self.cache_share, free - self.reserve))

    def hold_graphs(self) -> None:
        """Stop capturing: an engine is a single launch, and its setup at the first run of a shape must not be
        captured in a CUDA graph."""
        if self.calls is not None:
            self.calls.is_capturing = False

    def allow_graphs(self, options: EngineOptions) -> None:
        """Resume capturing, if enabled by the options and a GPU is available."""
        if self.calls is not None:
            self.calls.is_capturing = options.graphs and self.calls.device.type == "cuda"


def codec_runtime(device: torch.device, flow: FlowSection, options: EngineOptions) -> CodecRuntime:
    """The runtime of a device."""
    if device.type != "cuda":
        return CodecRuntime(keep_state=device.type == "cpu")
    torch.backends.cudnn.allow_tf32 = False  # TF32 is on by default for convolutions; float32 must be exact
    # higher priority than the language model: the kernels are small, and playback waits for them
    stream = torch.cuda.Stream(device, priority=-1)
    calls = GraphedCalls(device, enabled=options.graphs, stream=stream)
    frames = {*packet_frames(flow), *(tail_frames(flow) if options.captures_batches else ())}
    return CodecRuntime(
        partial(StreamExecution, stream, torch.cuda.Stream(device)),
        calls,
        GraphedFrames(calls, frozenset(frames)),
        uses_triton(options.kernels, device),
        CACHE_SHARE if options.max_batch_size == 1 else CACHE_SHARE_OF_MANY,
        _RESERVE if most_replies(options) == 1 else _RESERVE + VOCODER_BATCH_BYTES,
    )


def most_replies(options: EngineOptions) -> int:
    """Replies that flow and vocoder speak at once, each by a stream. The engines of TensorRT run one at a
    time."""
    if options.trt_codec or options.max_batch_size == 1:
        return 1
    return max(2 * options.max_batch_size, options.conversations or 1)


def packet_frames(flow: FlowSection) -> list[int]:
    """Mel frames of the packets of a reply after a prompt of complete chunks, the last size twice."""
    chunk, rate = flow.chunk_codes, int(flow.config["upsample"])
    sizes = [-(-size // chunk) * chunk * rate for size in flow.packets]
    return [*sizes, sizes[-1], sizes[-1]]


def tail_frames(flow: FlowSection) -> list[int]:
    """Mel frames of all sizes that the last packet of a reply can have, the largest first."""
    rate = int(flow.config["upsample"])
    largest = max(packet_frames(flow)) // rate
    return [rate * codes for codes in range(largest, 0, -1)]
