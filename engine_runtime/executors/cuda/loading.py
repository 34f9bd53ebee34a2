"""Loads the language model onto a GPU: checks memory, then fuses and quantizes the weights while reading.

In: the bundle's section, the options, a source of tensors. Out: a PagedLM over a CudaExecutor. Called once,
on the thread that will use the engine.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
from torch import Tensor, nn

from engine_runtime.bundle.bundle import LMSection
from engine_runtime.bundle.weights import Progress, TensorReader, find_tensors
from engine_runtime.cuda.availability import uses_triton
from engine_runtime.cuda.gpu_memory import Demand, bound, demand_of, require
from engine_runtime.executors.cuda.decode_backend import StepShape
from engine_runtime.executors.cuda.executor import CudaExecutor
from engine_runtime.executors.cuda.prefill import has_fp8_matmul
from engine_runtime.executors.cuda.weights import build_network
from engine_runtime.executors.fused_weights import WeightSource
from engine_runtime.lm.block_manager import BlockManager
from engine_runtime.lm.generation import Mode
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.step import can_sample_on_device
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import PREFILL_TOKENS, EngineOptions
from engine_runtime.quantization import FP8


def check_memory(
    section: LMSection, config: MossLMConfig, device: torch.device, options: EngineOptions, codec_bytes: int
) -> None:
    """Limit torch's share of the GPU memory, and raise AcceleratorError if it is too small. Called before
    loading."""
    demand = gpu_demand(section, config, device, options, codec_bytes)
    require(demand, options.weight_format, bound(device, options.gpu_memory_gb))


def gpu_demand(
    section: LMSection, config: MossLMConfig, device: torch.device, options: EngineOptions, codec_bytes: int
) -> Demand:
    """The memory demand on this GPU."""
    dtype: torch.dtype = getattr(torch, options.lm_dtype)
    multiplies_fp8 = uses_triton(options.kernels, device) and has_fp8_matmul(device, dtype)
    return demand_of(section, config, options, codec_bytes, multiplies_fp8=multiplies_fp8)


def stored_weights(section: LMSection, model: nn.Module, progress: Progress) -> WeightSource:
    """The tensors of the bundle's files, read one by one; `model` (on the meta device) declares names and
    shapes.

    Raises BundleError at once for names and shapes that do not match. `progress` reports the reading.
    """
    sizes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    read = TensorReader(find_tensors(section.weights, sizes))
    total, done = sum(map(prod, sizes.values())), 0

    def source(name: str) -> Tensor:
        nonlocal done
        done += prod(sizes[name])
        progress(done / total)
        return read(name)

    return source


def load_lm(
    section: LMSection,
    config: MossLMConfig,
    device: torch.device,
    options: EngineOptions,
    source: WeightSource,
) -> PagedLM:
    """The language model behind its paged cache, on `device`.

    Raises AcceleratorError if explicitly requested kernels cannot run.
    """
    dtype: torch.dtype = getattr(torch, options.lm_dtype)
    kv_blocks = options.kv_blocks or section.kv_blocks
    has_kernels = uses_triton(options.kernels, device)
    network = build_network(
        config,
        source,
        formats=options.formats,
        dtype=dtype,
        device=device,
        max_seq_len=section.context_tokens,
    )
    if device.type == "cuda":
        torch.cuda.empty_cache()  # memory of quantizing the largest weights
    kv_dtype = FP8 if options.kv_dtype == "fp8" else dtype
    cache = KVCache(
        config, kv_blocks, section.tokens_per_block, dtype=dtype, kv_dtype=kv_dtype, device=device
    )
    kernel_configs = None
    if has_kernels and device.type == "cuda":
        from engine_runtime.executors.cuda.autotune import autotuned_configs  # needs Triton

        with torch.inference_mode(), torch.cuda.device(device):
            kernel_configs = autotuned_configs(network)
    executor = CudaExecutor(
        network,
        cache,
        max_seq_len=section.context_tokens,
        max_num_tokens=options.prefill_tokens or PREFILL_TOKENS,
        uses_triton=has_kernels,
        kernel_configs=kernel_configs,
        uses_graphs=options.graphs,
        uses_persistent_kernel=options.kernels != "torch",
        max_batch_size=options.max_batch_size,
    )
    if options.graphs and device.type == "cuda":
        executor.capture(shapes_of_replies(section), with_batches=options.captures_batches)
    return PagedLM(executor, cache, BlockManager(kv_blocks, section.tokens_per_block))


def shapes_of_replies(section: LMSection) -> set[StepShape]:
    """The decode step shapes of replies with the bundle's own sampling parameters (without buckets)."""
    shapes = set()
    for params, modality in (
        (section.sampling_speech, Mode.AUDIO),
        (section.sampling_text, Mode.TEXT),
    ):
        is_audio = modality is Mode.AUDIO
        samples = can_sample_on_device(params)
        shape = StepShape(
            bucket=0,
            text=section.subtitles or not is_audio,
            audio=is_audio or params.repetition_penalty != 1.0,
            samples=samples,
            do_sample=samples and params.do_sample,
            subtitle=samples and is_audio and section.subtitles,
        )
        shapes.add(shape)
        if section.declining is not None:  # how sure the first tokens are is read from their logits
            shapes.add(replace(shape, samples=False, do_sample=False, subtitle=False))
    return shapes
