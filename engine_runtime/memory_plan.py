"""Which devices of this machine could hold a model, how much memory each weight format takes there, and how
many conversations fit.

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
from engine_runtime.codec.runtime import CACHE_SHARE_OF_MANY
from engine_runtime.codec.speech_tokenizer.encoder_pool import split_bytes, stream_bytes
from engine_runtime.cuda.gpu_memory import bound, demand_of, memory_of
from engine_runtime.hardware import processor, usable_device
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.models.whisper_vq import WhisperVQConfig
from engine_runtime.options import EngineOptions, WeightFormat

_PROGRAM_BYTES = 600_000_000
"""Main memory of the program without weights and caches: the peak of `moss-voice demo` minus nano."""
LATER_BYTES = 4_000_000_000
"""GPU memory for what is allocated after the speech encoder's caches: activations and captured graphs of
encoder, flow and vocoder. The released model takes 2 GB for 64 conversations."""


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
    from engine_runtime.executors.cuda.loading import gpu_demand  # not needed on the CPU

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


def fitting_conversations(bundle: Bundle, options: EngineOptions) -> int | None:
    """Conversations with their whole context that fit on the GPU at once, at most two for each sequence of a
    step, since users speak half of the time. None if fewer than two fit, or the engine is not one for
    several on a GPU."""
    if not options.serves_several or options.backend != "torch":
        return None
    device = usable_device(options.device)
    if device.type != "cuda":
        return None
    from engine_runtime.executors.cuda.loading import gpu_demand  # not needed on the CPU

    config = MossLMConfig.from_dict(bundle.lm.config)
    encoder = WhisperVQConfig.from_dict(bundle.speech_encoder.config)
    chosen = replace(options, conversations=1, kv_blocks=bundle.lm.context_blocks)
    one = gpu_demand(bundle.lm, config, device, chosen, codec_bytes(bundle, chosen))
    two = replace(one, kv_rows=2 * one.kv_rows, codec_bytes=one.codec_bytes + stream_bytes(encoder))
    needed, with_another = (demand.bytes(options.weight_format) for demand in (one, two))
    free = bound(device, options.gpu_memory_gb)
    _, total = memory_of(device)
    room = free - total // CACHE_SHARE_OF_MANY - split_bytes(encoder) - LATER_BYTES
    fitting = min(2 * options.max_batch_size, 1 + (room - needed) // (with_another - needed))
    return fitting if fitting > 1 else None
