"""GPU memory requirements of a configuration, computed from shapes, and the check that the GPU has as much.

In: the sizes of the network, the options, the size of the codec's weights. Out: bytes, or an AcceleratorError
with the requirements of each weight format. Called once, before loading; and after an out-of-memory error of
torch, to report what would fit.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import TypeVar, get_args

import torch

from engine_runtime.bundle.bundle import LMSection
from engine_runtime.cuda.graphs import padded_size
from engine_runtime.hardware import AcceleratorError
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import PREFILL_TOKENS, BlockFormats, EngineOptions, WeightFormat
from engine_runtime.quantization import bytes_of

T = TypeVar("T")

BATCH_SPLITS = 4
"""Most parts that the inputs of a product are split into, in a step of several sequences."""
BATCH_SPLIT_ROWS = 256
"""Cached rows of a partition of their attention, at least."""
BATCH_PLAN_BYTES = 128
"""Bytes of a plan for a group and partition, in the trunk or in a tail."""
_RESERVE = 1_350_000_000
"""Bytes for memory not derived from shapes: the encoder's stream, activations, captured graphs,
fragmentation. Measured for the released shape on an H200, by lowering the memory limit step by step."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Memory demand, apart from the weight format. Element sizes in bytes."""

    config: MossLMConfig
    native_bytes: int
    kv_bytes: int
    kv_rows: int
    codec_bytes: int
    rounds_tails: bool = False
    multiplies_fp8: bool = False
    """Whether fp8 weights are multiplied directly, without a buffer for dequantized weights."""
    reserve: int = _RESERVE
    """Bytes for what does not depend on shapes."""
    max_batch_size: int = 1
    max_seq_len: int = 0
    """Rows of the longest sequence; counts where a step runs several."""
    prefill_bytes: int = 0
    """Bytes of activations of a prefill call beyond those in `reserve`."""

    @property
    def bytes_per_row(self) -> int:
        """Bytes of a row in the KV cache, with the trunk's output that is kept beside keys and values."""
        config = self.config
        per_row = config.num_layers * 2 * config.num_key_value_heads * config.head_dim * self.kv_bytes
        return per_row + config.hidden_size * self.native_bytes

    def bytes(self, weight_format: WeightFormat) -> int:
        """Total bytes with the trunk in this format."""
        config, native = self.config, self.native_bytes

        def layer(stored: WeightFormat) -> int:
            return sum(bytes_of(shape, stored, native) for shape in layer_shapes(config))

        formats = BlockFormats.rounded(weight_format, tails=self.rounds_tails)
        trunk = config.shared_layers * layer(formats.trunk)
        tails = (config.text_layers + config.audio_layers) * layer(formats.tails)
        tables = 2 * (config.text_vocab + config.audio_vocab) * config.hidden_size * native
        kv = self.kv_rows * self.bytes_per_row
        largest = max(rows * columns for rows, columns in layer_shapes(config)) * native
        is_kept = weight_format == "native" or (weight_format == "fp8" and self.multiplies_fp8)
        scratch = 0 if is_kept else largest
        batch = 0
        if self.max_batch_size > 1:
            batch = batch_bytes(config, batch_rows(self.max_batch_size), self.max_seq_len, native)
        prefill = self.prefill_bytes
        return trunk + tails + tables + kv + scratch + batch + prefill + self.codec_bytes + self.reserve


def demand_of(
    section: LMSection,
    config: MossLMConfig,
    options: EngineOptions,
    codec_bytes: int,
    *,
    multiplies_fp8: bool = False,
) -> Demand:
    """Demand of a language model with these options, plus a codec of `codec_bytes`."""
    native = getattr(torch, options.lm_dtype).itemsize
    more_tokens = max((options.prefill_tokens or 0) - PREFILL_TOKENS, 0)
    return Demand(
        config=config,
        native_bytes=native,
        kv_bytes=1 if options.kv_dtype == "fp8" else native,
        kv_rows=(options.kv_blocks or section.kv_blocks) * section.tokens_per_block,
        codec_bytes=codec_bytes,
        rounds_tails=options.rounds_tails,
        multiplies_fp8=multiplies_fp8,
        max_batch_size=options.max_batch_size,
        max_seq_len=section.context_tokens,
        prefill_bytes=more_tokens * _activation_bytes(config, native),
    )


def batch_rows(max_batch_size: int) -> int:
    """Rows of the largest forward for steps of this many sequences, a power of two. Up to 16 rows a product
    takes the same time, and for more than 64 the weights are no longer the larger part of it."""
    return min(64, max(16, padded_size(max_batch_size)))


def batch_bytes(config: MossLMConfig, rows: int, max_seq_len: int, native_bytes: int) -> int:
    """Bytes of the buffers of steps of several sequences (executors/cuda/batched_backend.py,
    batch_sampler.py), rounded up: logits and seen ids, partial sums of products and of attention, how it is
    planned, activations."""
    heads, dim = config.num_attention_heads, config.head_dim
    qkv = (heads + 2 * config.num_key_value_heads) * dim
    partitions = 1 << (-(-max_seq_len // BATCH_SPLIT_ROWS) - 1).bit_length()
    attention = partitions * (heads * (dim + 2) * 4 + 3 * BATCH_PLAN_BYTES)
    sums = BATCH_SPLITS * (qkv + config.hidden_size) * 4
    activations = _activation_bytes(config, native_bytes)
    sampling = (config.text_vocab + config.audio_vocab) * (4 + 3) + 2048
    return rows * (attention + sums + activations + sampling)


def _activation_bytes(config: MossLMConfig, native_bytes: int) -> int:
    """Bytes of the values of a layer for one row."""
    wide = 3 * config.num_attention_heads * config.head_dim
    return (4 * config.hidden_size + wide + 2 * config.intermediate_size) * native_bytes


def layer_shapes(config: MossLMConfig) -> tuple[tuple[int, int], ...]:
    """(out, in) of the matrices of one layer: qkv, o, gate_up, down."""
    wide = config.num_attention_heads * config.head_dim
    qkv = wide + 2 * config.num_key_value_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    return (qkv, hidden), (hidden, wide), (2 * inner, hidden), (hidden, inner)


def require(demand: Demand, weight_format: WeightFormat, available: int) -> None:
    """Raise AcceleratorError if the GPU has too little memory; it suggests the first configuration that fits,
    preferably with the same weight format."""
    if demand.bytes(weight_format) <= available:
        return
    smaller = replace(demand, rounds_tails=True, kv_bytes=1)
    needs: dict[str, int] = {}
    for form in get_args(WeightFormat):
        needs[form] = demand.bytes(form)
        if smaller.bytes(form) < needs[form]:
            needs[form + (" --kv fp8" if form == "native" else " --tails --kv fp8")] = smaller.bytes(form)
    # Round up so that the reported size is sufficient.
    needed = {choice: f"{ceil(need / 1e8) / 10:.1f} GB" for choice, need in needs.items()}
    table = ", ".join(f"{choice} {need}" for choice, need in needed.items())
    fitting = [choice for choice, need in needs.items() if need <= available]
    advice = (
        f"Use --weights {max(fitting, key=lambda choice: choice.startswith(weight_format))}."
        if fitting
        else "None of them fits: free memory, use fewer KV blocks or --conversations, or another device."
    )
    raise AcceleratorError(
        "The GPU has {available:.1f} GB for the model, and --weights {weight_format} needs {needed}.",
        "{advice} (Total memory needs: {table}.)",
        available=available / 1e9,
        weight_format=weight_format,
        needed=needed[weight_format],
        advice=advice,
        table=table,
    )


def explain_out_of_memory(run: Callable[[], T], section: LMSection, options: EngineOptions) -> T:
    """Return the result of `run`; AcceleratorError, with smaller alternatives, if the GPU or the computer
    runs out of memory.

    That error keeps no reference to the memory of `run`, so that a smaller configuration can be tried.
    """
    try:
        return run()
    except torch.OutOfMemoryError as error:
        explained = too_little_memory(error, section, options)
    except RuntimeError as error:  # torch has no exception class for host memory
        if "DefaultCPUAllocator: can't allocate memory" not in str(error):
            raise
        kv_blocks = options.kv_blocks or section.kv_blocks
        explained = AcceleratorError(
            "This computer has too little memory for the model with {kv_blocks:,} KV blocks.",
            "Close other programs, or lower kv_blocks in the bundle.toml.",
            kv_blocks=kv_blocks,
        )
    gc.collect()
    torch.cuda.empty_cache()
    raise explained


def too_little_memory(
    error: torch.OutOfMemoryError, section: LMSection, options: EngineOptions
) -> AcceleratorError:
    """The user-facing error in its place."""
    # The first two sentences; the rest is the state of torch's allocator.
    reason = ". ".join(str(error).split(". ")[:2]).rstrip(".")
    if options.engine is not None:
        return AcceleratorError(
            "The GPU has too little memory for this engine ({reason}).",
            "Build one in 8 or 4 bits (`moss-voice trt quantize`), use --codec-dtype float16, or free "
            "memory.",
            reason=reason,
        )
    demand = demand_of(section, MossLMConfig.from_dict(section.config), options, codec_bytes=0)
    needs = {form: demand.bytes(form) for form in get_args(WeightFormat)}
    saved = {form: needs[options.weight_format] - need for form, need in needs.items()}
    smaller = [f"{form} {bytes_ / 1e9:.1f} GB" for form, bytes_ in saved.items() if bytes_ > 0]
    saved_by_tails = needs[options.weight_format] - replace(demand, rounds_tails=True).bytes(
        options.weight_format
    )
    advice = "No weight format is smaller: use --kv fp8 or --codec-dtype float16, or free memory."
    if smaller:
        advice = f"Use --weights with a smaller format (it saves: {', '.join(smaller)})."
    if saved_by_tails > 0:
        advice += f" --tails saves {saved_by_tails / 1e9:.1f} GB."
    return AcceleratorError(
        "The GPU has too little memory with --weights {weight_format} ({reason}).",
        "{remedy}",
        weight_format=options.weight_format,
        reason=reason,
        remedy=advice,
    )


def bound(device: torch.device, gpu_memory_gb: float | None) -> int:
    """Limit torch to `gpu_memory_gb` (None: no limit); returns the bytes available now.

    Frees the remains of an earlier engine first, whose parts form reference cycles.
    """
    gc.collect()
    torch.cuda.empty_cache()
    index = _index(device)
    free, total = torch.cuda.mem_get_info(device)
    if gpu_memory_gb is None:
        torch.cuda.set_per_process_memory_fraction(1.0, index)  # an earlier engine may have set a limit
        return free
    limit = int(gpu_memory_gb * 1e9)
    if limit <= 0:
        raise AcceleratorError(
            "--gpu-memory-gb {size} leaves no memory.",
            "Give the size in GB.",
            size=gpu_memory_gb,
        )
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), index)
    return min(free, limit)


def memory_of(device: torch.device) -> tuple[int, int]:
    """Bytes that torch can still allocate on this GPU at once, and its total, within the limit. Frees torch's
    cached memory first."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    allowed = int(total * torch.cuda.get_per_process_memory_fraction(_index(device)))
    return max(0, min(free, allowed - torch.cuda.memory_reserved(device))), allowed


def _index(device: torch.device) -> int:
    """Index of the GPU; the memory-fraction calls do not accept plain "cuda"."""
    return torch.cuda.current_device() if device.index is None else device.index
