"""How an engine runs, apart from what it runs: device, number formats, sizes.

In: choices of the command line, the window or a program. Out: one frozen value that `Engine.load` takes. The
bundle says what the model is; everything here may differ from run to run. No torch, so that a command line
can be read before torch is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["float32", "bfloat16", "float16"]
FlowSchedule = Literal["cosine", "uniform", "quadratic"]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """None stands for what the bundle says."""

    device: str = "cpu"
    """Where the networks run: cpu, cuda or cuda:N."""
    dtype: Dtype = "float32"
    """Number format of the language model in memory."""
    kv_blocks: int | None = None
    """Blocks of the KV pool."""
    flow_steps: int | None = None
    """Euler steps of the flow per chunk."""
    flow_schedule: FlowSchedule = "cosine"
    """Where in time those steps stand; cosine is upstream's and the reference."""
    codec_dtype: Dtype = "float32"
    """Number format of the flow and the vocoder; what is delicate in them stays in float32."""
