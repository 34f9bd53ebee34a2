"""Run-time options of an engine: device, dtypes, sizes.

In: options of the command line, the window or a program. Out: one frozen value for `Engine.load`. The bundle
describes the model; everything here may differ from run to run. No torch import, so that a command line is
parsed before torch is loaded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Literal

from engine_runtime.errors import EngineError, MossVoiceError

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


class OptionsError(MossVoiceError):
    """An invalid option."""


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
    """None selects the bundle's value."""

    device: str = "cpu"
    """Device of the networks: cpu, cuda or cuda:N."""
    dtype: Dtype | None = None
    """Dtype of the language model; None is bfloat16 on a GPU and float32 elsewhere."""
    kv_blocks: int | None = None
    """Number of blocks of the KV pool; None is the bundle's, or enough for `conversations`."""
    conversations: int | None = None
    """Conversations that GPU memory is divided among; of several, the KV pool holds the whole context, unless
    `kv_blocks` is given. None is as many as fit on a GPU, or else into the bundle's pool."""
    context_rows: int | None = None
    """Rows of a conversation at most, if the bundle allows more; older exchanges are dropped."""
    flow_steps: int | None = None
    """Euler steps of the flow per chunk."""
    prefill_tokens: int | None = None
    """New tokens of a prefill call at most: a longer prompt is prefilled in chunks, between which other
    conversations get their steps. None is 512; a TensorRT-LLM engine has the limit that it was built with."""
    weight_format: WeightFormat = "native"
    """Weight format of the shared layers of the language model; heads and tables stay in `dtype`."""
    rounds_tails: bool = False
    """Whether the layers of both tails also use that format."""
    kv_dtype: KVDtype = "native"
    """Format of keys and values; native is `dtype`."""
    kernels: Kernels = "auto"
    """Backend of language model and codec on a GPU: Triton kernels, plain torch, or auto (Triton if it
    works). On a CPU every value except torch runs the speech encoder on onnxruntime if possible."""
    graphs: bool = True
    """Whether repeated work on a GPU is captured once as a CUDA graph."""
    gpu_memory_gb: float | None = None
    """Limit of torch's GPU memory in GB of 10^9 bytes; None for no limit."""
    max_batch_size: int = 1
    """Sequences that a GPU runs in one step of the language model, at most; buffers for them are allocated at
    load. The CPU needs none and takes more. A TensorRT-LLM engine takes no more than it was built for."""
    captures_batches: bool = False
    """Whether steps of every batch size are captured as CUDA graphs at load, rather than each at its first
    use."""
    random_weights: int | None = None
    """Seed of random weights for every network in place of the bundle's files, to measure speed and
    memory."""
    flow_schedule: FlowSchedule | None = None
    """Time schedule of the Euler steps; None is cosine, as upstream and in the reference."""
    codec_dtype: Dtype | None = None
    """Dtype of flow and vocoder; None is float16 on a GPU and float32 elsewhere. Numerically sensitive parts
    stay in float32."""
    trt_codec: bool = False
    """Whether flow, vocoder and speech encoder run on TensorRT engines if possible."""
    engine_cache: Path | None = None
    """Cache folder of those engines; None disables the cache."""

    vocoder: Path | None = None
    """File of a vocoder in place of the bundle's (`bundle/vocoder_file.py`)."""
    exact_encoding: bool = False
    """Whether a spoken turn is encoded again at its commit if streamed codes are an estimate (bundles with
    "segment_max" normalization); changed rows are prefilled again."""

    backend: Backend = "torch"
    """Backend of the language model: torch with the bundle's weights, or a TensorRT-LLM engine."""
    engine: Path | None = None
    """Folder of that engine."""

    compute_capability: str | None = None
    """The highest compute capability to select kernels for, such as "8.9": a newer GPU then runs the kernels
    of an older one (see `hardware.limit_capability`). None is that of the GPU."""

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
        for name, least, most in (
            ("flow_steps", 1, MOST_FLOW_STEPS),
            ("prefill_tokens", LEAST_PREFILL_TOKENS, None),
            ("kv_blocks", 1, None),
            ("conversations", 1, None),
            ("context_rows", LEAST_CONTEXT_ROWS, None),
            ("max_batch_size", 1, None),
            ("gpu_memory_gb", 0.001, None),
            ("random_weights", 0, None),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value <= (inf if most is None else most):
                bounds = f"at least {least}" if most is None else f"{least} to {most}"
                raise OptionsError(
                    "{name} is {value}.", "Give {bounds}.", name=name, value=value, bounds=bounds
                )

    @property
    def serves_several(self) -> bool:
        """Whether the engine is one for several conversations, and makes at the start what they share."""
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
