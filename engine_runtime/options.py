"""How an engine runs, apart from what it runs: device, number formats, sizes.

In: choices of the command line, the window or a program. Out: one frozen value that `Engine.load` takes. The
bundle says what the model is; everything here may differ from run to run. No torch, so that a command line
can be read before torch is loaded.
"""

from __future__ import annotations

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
"""Ten times as many as the released codec takes; what more of them would add is not heard."""


class OptionsError(MossVoiceError):
    """A choice that no engine can run with."""


@dataclass(frozen=True, slots=True)
class BlockFormats:
    """How each part of the language model is stored. By default only the trunk (the shared layers), which is
    five sixths of a step, is rounded."""

    trunk: WeightFormat = "native"
    tails: WeightFormat = "native"
    heads: WeightFormat = "native"

    @classmethod
    def rounded(cls, weight_format: WeightFormat, *, tails: bool) -> BlockFormats:
        """The trunk in a format, and both tails if `tails`."""
        return cls(weight_format, weight_format if tails else "native")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """None stands for what the bundle says."""

    device: str = "cpu"
    """Where the networks run: cpu, cuda or cuda:N."""
    dtype: Dtype | None = None
    """Number format of the language model in memory; None is bfloat16 on a GPU and float32 elsewhere."""
    kv_blocks: int | None = None
    """Blocks of the KV pool."""
    flow_steps: int | None = None
    """Euler steps of the flow per chunk."""
    weight_format: WeightFormat = "native"
    """How the shared layers of the language model are stored; heads and tables stay in `dtype`."""
    rounds_tails: bool = False
    """Whether the layers of both tails are stored so, too."""
    kv_dtype: KVDtype = "native"
    """How keys and values are stored; native is `dtype`."""
    kernels: Kernels = "auto"
    """What runs language model and codec on a GPU: Triton kernels, plain torch, or the former where they
    work. On a CPU all but torch let onnxruntime run the speech encoder where it can."""
    graphs: bool = True
    """Whether repeated work on a GPU is captured once as a CUDA graph."""
    gpu_memory_gb: float | None = None
    """The most memory that torch may take on the GPU, in GB of 10^9 bytes; None for all there is."""
    random_weights: int | None = None
    """Seed of random values for every network instead of the bundle's files, to measure speed and memory."""
    flow_schedule: FlowSchedule | None = None
    """Where in time those steps stand; None is cosine, upstream's and the reference."""
    codec_dtype: Dtype | None = None
    """Number format of the flow and the vocoder; None is float16 on a GPU and float32 elsewhere. What is
    delicate in them stays in float32."""
    trt_codec: bool = False
    """Whether flow, vocoder and speech encoder run on TensorRT engines where that can be."""
    engine_cache: Path | None = None
    """Folder in which those engines are kept once they are built; None keeps none."""

    exact_encoding: bool = False
    """Whether a spoken turn is encoded anew at its commit, where streamed codes are an estimate (bundles with
    "segment_max" normalization); what changes is prefilled again."""

    backend: Backend = "torch"
    """What runs the language model: torch with the bundle's weights, or a TensorRT-LLM engine."""
    engine: Path | None = None
    """Folder of that engine."""

    def __post_init__(self) -> None:
        if self.backend == "trtllm" and self.engine is None:
            raise EngineError(
                "No engine was named for the trtllm backend. Give its folder with --engine DIR; "
                "`moss-voice trt build` makes one."
            )
        if self.backend == "torch" and self.engine is not None:
            raise EngineError(f"The engine {self.engine} would not be used. Add --backend trtllm.")
        for name, least, most in (
            ("flow_steps", 1, MOST_FLOW_STEPS),
            ("kv_blocks", 1, None),
            ("gpu_memory_gb", 0.001, None),
            ("random_weights", 0, None),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value <= (inf if most is None else most):
                bounds = f"at least {least}" if most is None else f"{least} to {most}"
                raise OptionsError(f"{name} is {value}. Give {bounds}.")

    @property
    def formats(self) -> BlockFormats:
        """`weight_format`, for the parts that it concerns."""
        return BlockFormats.rounded(self.weight_format, tails=self.rounds_tails)

    @property
    def lm_dtype(self) -> Dtype:
        """`dtype`, or what suits the device: a GPU of 24 GB has no room for the released model in float32."""
        return self.dtype or ("bfloat16" if self.device.startswith("cuda") else "float32")

    @property
    def voice_dtype(self) -> Dtype:
        """`codec_dtype`, or what suits the device. float16 and not bfloat16: the values are small, and three
        more bits of each are heard."""
        return self.codec_dtype or ("float16" if self.device.startswith("cuda") else "float32")
