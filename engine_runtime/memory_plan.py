"""Which devices of this machine could hold a model, and how much memory each weight format takes there.

In: a bundle, whose weight files are not needed. Out: plain values, computed from shapes; nothing is loaded.
CUDA is initialized if this build of torch can use a GPU. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

import psutil
import torch

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.codec.loading import codec_bytes
from engine_runtime.cuda.gpu_memory import demand_of
from engine_runtime.executors.cuda.loading import gpu_demand
from engine_runtime.hardware import processor
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import EngineOptions, WeightFormat

_PROGRAM_BYTES = 600_000_000
"""Main memory that the program takes apart from weights and caches: the peak of `moss-voice demo`, less
nano."""


@dataclass(frozen=True, slots=True)
class FormatNeed:
    """Bytes that a model takes with its weights in a format. `saves_memory`: both tails in that format, too,
    and keys and values in fp8."""

    weights: WeightFormat
    saves_memory: bool
    bytes: int


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """A device, its memory in bytes, and what a model would take of it. The processor has one format."""

    name: str
    description: str
    total_bytes: int
    free_bytes: int
    needs: tuple[FormatNeed, ...]


def plan_devices(bundle: Bundle) -> list[DevicePlan]:
    """The processor, then each GPU that torch can use."""
    config = MossLMConfig.from_dict(bundle.lm.config)
    plans = [_plan_of_processor(bundle, config)]
    if torch.cuda.is_available():
        plans += [_plan_of_gpu(bundle, config, index) for index in range(torch.cuda.device_count())]
    return plans


def _plan_of_processor(bundle: Bundle, config: MossLMConfig) -> DevicePlan:
    options, memory = EngineOptions(), psutil.virtual_memory()
    demand = demand_of(bundle.lm, config, options, codec_bytes(bundle, options))
    needs = (FormatNeed("native", False, replace(demand, reserve=_PROGRAM_BYTES).bytes("native")),)
    return DevicePlan("cpu", processor(), memory.total, memory.available, needs)


def _plan_of_gpu(bundle: Bundle, config: MossLMConfig, index: int) -> DevicePlan:
    options = EngineOptions(device=f"cuda:{index}")
    device = torch.device(options.device)
    plain = gpu_demand(bundle.lm, config, device, options, codec_bytes(bundle, options))
    smaller = replace(plain, rounds_tails=True, kv_bytes=1)
    needs = tuple(
        FormatNeed(weights, saves_memory, demand.bytes(weights))
        for saves_memory, demand in ((False, plain), (True, smaller))
        for weights in get_args(WeightFormat)
    )
    free, total = torch.cuda.mem_get_info(device)
    return DevicePlan(options.device, torch.cuda.get_device_name(device), total, free, needs)
