"""Run-time options of an engine: device, dtypes, sizes.

In: options of the command line, the window or a program. Out: one frozen value for `Engine.load`. The bundle
describes the model; everything here may differ from run to run. No torch import, so that a command line is
parsed before torch is loaded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine_runtime.errors import EngineError
from engine_runtime.setting import OptionsError, check, setting

Dtype = Literal["float32", "bfloat16", "float16"]
WeightFormat = Literal["native", "fp8", "int8", "int4"]
KVDtype = Literal["native", "fp8"]
Kernels = Literal["auto", "torch", "triton"]
FlowSchedule = Literal["cosine", "uniform", "quadratic"]
Backend = Literal["torch", "trtllm"]

MOST_FLOW_STEPS = 100
"""Ten times the steps of the released codec; more steps make no audible difference."""
CAPABILITY = re.compile(r"(8|9|[1-9][0-9])\.[0-9]")
"""A compute capability from 8.0 on, the oldest one with bfloat16."""
PREFILL_TOKENS = 512
"""Most tokens of a prefill call, unless the options say otherwise."""
LEAST_PREFILL_TOKENS = 64
"""The number of sequences of the largest step, which has the same limit."""
LEAST_CONTEXT_ROWS = 256
"""A question and a reply of a few seconds each."""
LARGEST_SEED = 2**63 - 1
"""Largest seed that torch's generators take."""
DEVICE_HELP = "cpu, cuda or cuda:N (default: cpu)"


@dataclass(frozen=True, slots=True)
class BlockFormats:
    """Weight format of each part of the language model. By default only the trunk (the shared layers), five
    sixths of a step, is quantized."""

    trunk: WeightFormat = "native"
    tails: WeightFormat = "native"
    heads: WeightFormat = "native"

    @classmethod
    def rounded(cls, weight_format: WeightFormat, *, tails: bool) -> BlockFormats:
        """The trunk in a format, and both tails if `tails`."""
        return cls(weight_format, weight_format if tails else "native")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of an engine. None selects the bundle's value."""

    device: str = setting("cpu", option="--device", help=DEVICE_HELP)
    """Device of the networks: cpu, cuda or cuda:N."""
    dtype: Dtype | None = setting(
        None,
        option="--dtype",
        help="dtype of the language model (default: float32, bfloat16 on a GPU)",
    )
    flow_steps: int | None = setting(
        None,
        least=1,
        most=MOST_FLOW_STEPS,
        option="--flow-steps",
        metavar="N",
        help="steps of the flow per chunk (default: the bundle's; 10 is the released codec's reference, "
        "5 to 8 are faster)",
    )
    flow_schedule: FlowSchedule | None = setting(
        None,
        option="--flow-schedule",
        help="time schedule of those steps (default: cosine, the reference)",
    )
    codec_dtype: Dtype | None = setting(
        None,
        option="--codec-dtype",
        help="dtype of flow and vocoder (default: float32, float16 on a GPU)",
    )
    """Numerically sensitive parts stay in float32."""
    vocoder: Path | None = setting(
        None,
        option="--vocoder",
        metavar="FILE",
        help="speak through this vocoder in place of the bundle's: a BigVGAN that was trained on the mel of "
        "the bundle (assets/training/README.md)",
    )
    trt_codec: bool = setting(
        False,
        option="--trt-codec",
        help="run flow, vocoder and speech encoder on TensorRT engines, built at the first start (see "
        "`moss-voice trt codec`); falls back to torch if they cannot be built",
    )
    exact_encoding: bool = setting(
        False,
        option="--exact-encoding",
        help="encode a spoken turn once more when it ends, normalized by its loudest part, and prefill what "
        "changed (default: use the streamed codes)",
    )
    """For bundles with "segment_max" normalization."""
    weight_format: WeightFormat = setting(
        "native",
        option="--weights",
        help="weight format of the shared layers of the language model (default: native, that of --dtype)",
    )
    """Heads and tables stay in `dtype`."""
    rounds_tails: bool = setting(
        False,
        option="--tails",
        help="also use the format of --weights for the layers of both tails",
    )
    kv_dtype: KVDtype = setting(
        "native",
        option="--kv",
        help="format of the KV cache (default: native, that of --dtype)",
    )
    prefill_tokens: int | None = setting(
        None,
        least=LEAST_PREFILL_TOKENS,
        option="--prefill-tokens",
        metavar="N",
        help="tokens of one prefill call at most; a longer prompt is prefilled in chunks. Fewer let other "
        f"conversations wait less, more take less time and more memory (default: {PREFILL_TOKENS})",
    )
    """A TensorRT-LLM engine has the limit that it was built with."""
    kernels: Kernels = setting(
        "auto",
        option="--kernels",
        help="kernels of language model and codec on a GPU (default: auto, Triton if available); with "
        "torch, the speech encoder does not use onnxruntime on a CPU",
    )
    compute_capability: str | None = setting(
        None,
        option="--compute-capability",
        metavar="X.Y",
        help="run the kernels of this compute capability on a newer GPU: 8.9 for those of an RTX 4090; with "
        "`trt codec`, build for it (default: that of the GPU)",
    )
    """The highest that kernels are chosen for (`hardware.limit_capability`); None for that of the GPU."""
    graphs: bool = setting(
        True,
        option="--no-graphs",
        help="launch each kernel separately on a GPU instead of replaying CUDA graphs",
    )
    gpu_memory_gb: float | None = setting(
        None,
        least=0.001,
        option="--gpu-memory-gb",
        metavar="GB",
        help="limit of the GPU memory to use (default: all of it)",
    )
    """Limit of torch's GPU memory in GB of 10^9 bytes."""
    backend: Backend = setting(
        "torch",
        option="--backend",
        help="run the language model in torch, or as a TensorRT-LLM engine (default: torch)",
    )
    engine: Path | None = setting(
        None,
        option="--engine",
        metavar="DIR",
        help="folder of that engine, created by `moss-voice trt build`",
    )
    random_weights: int | None = setting(
        None,
        least=0,
        most=LARGEST_SEED,
        option="--random-weights",
        metavar="SEED",
        help="random values in every network instead of the bundle's files, to measure speed and memory",
    )
    kv_blocks: int | None = setting(
        None,
        least=1,
        option="--kv-blocks",
        metavar="N",
        help="blocks of the KV cache, for all conversations together (default: enough for --conversations)",
    )
    """None is the bundle's, or enough for `conversations`."""
    context_tokens: int | None = setting(
        None,
        least=LEAST_CONTEXT_ROWS,
        option="--context-tokens",
        metavar="N",
        help="tokens that a conversation remembers, about 80 ms of speech each, so that more "
        "conversations fit into the KV cache (default and maximum: the bundle's)",
    )
    """Older exchanges are dropped."""
    conversations: int | None = setting(None, least=1)
    """Conversations that GPU memory is divided among; of several, the KV pool holds the whole context, unless
    `kv_blocks` is given. None is as many as fit on a GPU, or else into the bundle's pool."""
    max_batch_size: int = setting(1, least=1)
    """Sequences that a GPU runs in one step of the language model, at most; buffers for them are allocated at
    load. The CPU needs none and takes more. A TensorRT-LLM engine takes no more than it was built for."""
    captures_batches: bool = False
    """Whether steps of every batch size are captured as CUDA graphs at load, rather than each at its first
    use."""
    engine_cache: Path | None = None
    """Cache folder of the codec's TensorRT engines; None disables the cache."""

    def __post_init__(self) -> None:
        if self.backend == "trtllm" and self.engine is None:
            raise EngineError(
                "No engine was named for the trtllm backend.",
                "Give its folder with --engine DIR; `moss-voice trt build` creates one.",
            )
        if self.backend == "torch" and self.engine is not None:
            raise EngineError(
                "The engine {engine} would not be used.", "Add --backend trtllm.", engine=self.engine
            )
        if self.compute_capability is not None and not CAPABILITY.fullmatch(self.compute_capability):
            raise OptionsError(
                "compute_capability is {compute_capability}.",
                "Give one from 8.0 on, such as 8.9.",
                compute_capability=self.compute_capability,
            )
        check(self)

    @property
    def serves_several(self) -> bool:
        """Whether the engine serves several conversations and allocates at the start what they share."""
        return self.captures_batches and self.max_batch_size > 1

    @property
    def formats(self) -> BlockFormats:
        """`weight_format` for each part that it applies to."""
        return BlockFormats.rounded(self.weight_format, tails=self.rounds_tails)

    @property
    def lm_dtype(self) -> Dtype:
        """`dtype`, or the default of the device: the released model in float32 exceeds a GPU of 24 GB."""
        return self.dtype or ("bfloat16" if self.device.startswith("cuda") else "float32")

    @property
    def voice_dtype(self) -> Dtype:
        """`codec_dtype`, or the default of the device. float16 rather than bfloat16: the values are small,
        and three more mantissa bits are audible."""
        return self.codec_dtype or ("float16" if self.device.startswith("cuda") else "float32")
