"""Loads a TensorRT-LLM engine as the language model of a bundle.

In: the folder of an engine, the bundle it has to belong to, the options. Out: a PagedLM over a
TrtllmExecutor. The weights are in the engine, so the bundle's own may be missing. A mismatched engine is
rejected before anything large is read, with all differences. Called once, on the thread that will use the
engine.
"""

from __future__ import annotations

import logging
from dataclasses import fields

import torch

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.cuda.gpu_memory import bound
from engine_runtime.errors import EngineError, Problem
from engine_runtime.hardware import AcceleratorError
from engine_runtime.lm.block_manager import BlockManager, Sequence
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.step import ExecutorLimits, ScheduledBatch, ScheduledSequence
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import EngineOptions
from engine_runtime.tensorrt.checkpoint.format import CheckpointConfig, lm_fingerprint
from engine_runtime.tensorrt.library import RuntimeLibrary, tensorrt
from engine_runtime.tensorrt.llm.contract import BUILD_ANEW, capacity_of, choose_contract
from engine_runtime.tensorrt.llm.engine_directory import EngineDirectory
from engine_runtime.tensorrt.llm.executor import ROWS_PER_GRAPH, TrtllmExecutor
from engine_runtime.tensorrt.llm.library import load_plugins
from engine_runtime.tensorrt.llm.session import EngineSession, Memory

_log = logging.getLogger(__name__)
_RESERVE = 1_500_000_000
"""Bytes for memory that an engine file does not state: activations, captured graphs, libraries."""


def open_engine(
    bundle: Bundle, config: MossLMConfig, device: torch.device, options: EngineOptions, codec_bytes: int
) -> EngineDirectory:
    """The engine named by the options. EngineError unless it fits this bundle and device, AcceleratorError if
    the GPU has too little memory for it plus `codec_bytes`."""
    assert options.engine is not None, "EngineOptions checks that"
    engine = EngineDirectory.open(options.engine)
    check_device(device)
    _check_options(engine, options)
    _check_build(engine)
    _check_sizes(engine, bundle, config)
    if options.random_weights is None:
        _check_weights(engine, bundle)
    _check_memory(engine, bundle, device, options, codec_bytes)
    return engine


def _check_memory(
    engine: EngineDirectory, bundle: Bundle, device: torch.device, options: EngineOptions, codec_bytes: int
) -> None:
    """Limit torch's share of the GPU memory, and raise AcceleratorError if the GPU has too little in
    total."""
    plan_bytes = engine.plan.stat().st_size
    kv_bytes = _num_blocks(engine, bundle, options) * engine.block_bytes
    limit_gb = options.gpu_memory_gb
    # TensorRT allocates the weights itself; torch gets the rest of the limit.
    rest_gb = None if limit_gb is None else max(limit_gb - plan_bytes / 1e9, 0.1)
    available = bound(device, rest_gb) + (0 if rest_gb is None else plan_bytes)
    step_bytes = _RESERVE + _batch_bytes(engine, options)
    needed = plan_bytes + kv_bytes + codec_bytes + step_bytes
    if needed > available:
        raise AcceleratorError(
            "The GPU has {available:.1f} GB for the model, but {needed:.1f} GB are needed: engine "
            "{plan_bytes:.1f}, keys and values {kv_bytes:.1f}, codec {codec_bytes:.1f}, activations and "
            "libraries {step_bytes:.1f}.",
            "Build an engine in 8 or 4 bits (`moss-voice trt quantize`), or free memory.",
            available=available / 1e9,
            needed=needed / 1e9,
            plan_bytes=plan_bytes / 1e9,
            kv_bytes=kv_bytes / 1e9,
            codec_bytes=codec_bytes / 1e9,
            step_bytes=step_bytes / 1e9,
        )


def load_session(engine: EngineDirectory, device: torch.device) -> tuple[EngineSession, Memory]:
    """The engine, and the allocator of its buffers. Errors as in `load_engine`."""
    load_plugins()
    memory = Memory(device)
    with torch.cuda.device(device if device.type == "cuda" else -1):
        return EngineSession(engine.plan, RuntimeLibrary(tensorrt(), is_rtx=False), memory), memory


def load_engine(
    engine: EngineDirectory,
    bundle: Bundle,
    config: MossLMConfig,
    device: torch.device,
    options: EngineOptions,
) -> PagedLM:
    """The language model behind its paged cache, decode steps captured.

    Raises EngineError if the libraries are missing or reject the engine.
    """
    session, memory = load_session(engine, device)
    _log.info(
        "engine %s: %s, loaded in %.1f s, %.2f GB, %.2f GB for activations",
        engine.path,
        engine.precision,
        session.load_s,
        engine.plan.stat().st_size / 1e9,
        session.engine.activation_bytes / 1e9,
    )
    choose_contract(session.tensors)  # before sizes are read from an unchecked tensor list
    capacity = capacity_of(session.tensors)
    num_blocks = _num_blocks(engine, bundle, options)
    cache = KVCache(
        config,
        num_blocks,
        engine.tokens_per_block,
        dtype=engine.model.torch_dtype,
        kv_dtype=engine.kv_dtype,
        device=device,
        keep_trunk=False,
        is_block_major=True,
    )
    most_rows = min(engine.max_num_tokens, engine.max_input_len, capacity.num_tokens)
    executor = TrtllmExecutor(
        session,
        config,
        cache,
        memory,
        max_seq_len=min(engine.max_seq_len, capacity.seq_len, bundle.lm.context_tokens),
        max_num_tokens=most_rows,
        max_batch_size=min(_batch_size(engine, options), capacity.batch_size, most_rows),
        uses_graphs=options.graphs,
    )
    paged = PagedLM(executor, cache, BlockManager(num_blocks, engine.tokens_per_block))
    notes = _notes(engine, bundle, executor.limits, options)
    if options.graphs and device.type == "cuda":
        capture_decode(paged)
        notes += [executor.note] if executor.note else []
    paged.notes = tuple(notes)
    return paged


def capture_decode(paged: PagedLM) -> None:
    """Run a decode step in every bucket of rows, so that no reply waits for a capture.

    NOTE: only while no sequence holds a block: the steps overwrite the cache.
    """
    for past in range(0, paged.max_tokens, ROWS_PER_GRAPH):
        sequence = Sequence(ids=[0] * past, text_computed=past, audio_computed=past, prompt_tokens=past)
        paged.blocks.reserve(sequence, 0, past + 1)
        row = ScheduledSequence([0], past, sequence.block_table, past, past, past, is_prefill=False)
        try:
            paged.executor.execute(ScheduledBatch((row,)))
        finally:
            paged.blocks.release(sequence)


def _num_blocks(engine: EngineDirectory, bundle: Bundle, options: EngineOptions) -> int:
    """Number of blocks of the engine's size for the rows of the bundle's KV pool."""
    rows = (options.kv_blocks or bundle.lm.kv_blocks) * bundle.lm.tokens_per_block
    return -(-rows // engine.tokens_per_block)


def _batch_size(engine: EngineDirectory, options: EngineOptions) -> int:
    """Sequences of a step: those that the engine was built for, as far as they are wanted."""
    return min(engine.max_batch_size, options.max_batch_size)


def _batch_bytes(engine: EngineDirectory, options: EngineOptions) -> int:
    """Device memory for outputs and inputs that grow with the sequences of a step: logits, cache_indirection,
    block tables."""
    per_sequence = engine.model.logits_bytes + 2 * torch.int32.itemsize * engine.max_seq_len
    return _batch_size(engine, options) * per_sequence


def _notes(
    engine: EngineDirectory, bundle: Bundle, limits: ExecutorLimits, options: EngineOptions
) -> list[Problem]:
    """Differences from the bundle and from what is wanted, and unknown properties."""
    notes = []
    if limits.max_batch_size < options.max_batch_size:
        notes.append(
            Problem(
                "A step of the engine takes {taken} of the up to {wanted} conversations; the others take "
                "turns.",
                "Build it with a larger --max-batch-size for more.",
                taken=limits.max_batch_size,
                wanted=options.max_batch_size,
            )
        )
    max_seq_len = limits.max_seq_len
    if max_seq_len < bundle.lm.context_tokens:
        notes.append(
            Problem(
                "The engine holds conversations of {max_seq_len} tokens, but bundle {bundle} allows "
                "{allowed}.",
                "Build it with a larger max_seq_len for longer ones.",
                max_seq_len=max_seq_len,
                bundle=bundle.name,
                allowed=bundle.lm.context_tokens,
            )
        )
    if engine.lm_fingerprint is None:
        notes.append(
            Problem(
                "The weights of {plan} are not recorded; `moss-voice trt verify` compares its outputs with "
                "bundle {bundle}.",
                plan=engine.plan,
                bundle=bundle.name,
            )
        )
    return notes


def check_device(device: torch.device) -> None:
    """EngineError unless an engine can run there."""
    if device.type != "cuda":
        raise EngineError(
            "A TensorRT-LLM engine runs on an NVIDIA GPU only.",
            "Add --device cuda, or leave out --backend trtllm.",
        )


def _check_options(engine: EngineDirectory, options: EngineOptions) -> None:
    """Reject options that are fixed when an engine is built."""
    built = {
        f"--weights {options.weight_format}": options.weight_format != "native",
        "--tails": options.rounds_tails,
        f"--kv {options.kv_dtype}": options.kv_dtype != "native",
        f"--dtype {options.dtype}": options.dtype not in (None, engine.model.dtype),
        f"--prefill-tokens {options.prefill_tokens}": options.prefill_tokens
        not in (None, engine.max_num_tokens),
    }
    if chosen := [option for option, is_chosen in built.items() if is_chosen]:
        raise EngineError(
            "{chosen} cannot be set for an engine; this one has {precision}, and {max_num_tokens} tokens "
            "a call.",
            "Remove it from the command line, or build another engine.",
            chosen=" and ".join(chosen),
            precision=engine.precision,
            max_num_tokens=engine.max_num_tokens,
        )


def _check_build(engine: EngineDirectory) -> None:
    """Check the build settings that our runtime requires."""
    quantization = engine.model.quantization
    needed = {
        "a paged KV cache": engine.has_paged_kv_cache,
        "packed input (remove_input_padding)": engine.removes_input_padding,
        # without it a prefill silently ignores cached rows
        "attention to the cache in a prefill (use_paged_context_fmha)": engine.has_paged_context_fmha,
        # the library disables that attention itself for int8 or int4 weights
        "FP8 products, which keys and values in FP8 go with": quantization.kv_cache is None
        or quantization.algorithm == "FP8",
    }
    if missing := [what for what, is_there in needed.items() if not is_there]:
        raise EngineError(
            "{path} was built without {missing}.",
            BUILD_ANEW,
            path=engine.path,
            missing=" and without ".join(missing),
        )


def _check_sizes(engine: EngineDirectory, bundle: Bundle, config: MossLMConfig) -> None:
    built = engine.model
    wanted = CheckpointConfig.of(config, built.dtype, built.max_position_embeddings)
    differing = [
        f"{field.name} is {getattr(built, field.name)} in the engine and {getattr(wanted, field.name)} in "
        "the bundle"
        for field in fields(CheckpointConfig)
        if field.name != "quantization" and getattr(built, field.name) != getattr(wanted, field.name)
    ]
    if differing:
        raise EngineError(
            "{path} does not fit bundle {bundle}: {differing}.",
            "Use the engine and the bundle of one model.",
            path=engine.path,
            bundle=bundle.name,
            differing="; ".join(differing),
        )


def _check_weights(engine: EngineDirectory, bundle: Bundle) -> None:
    if engine.lm_fingerprint not in (None, lm_fingerprint(bundle)):
        made_of = engine.bundle_name or "another one"
        raise EngineError(
            "{path} was built from other weights (of bundle {made_of}) than bundle {bundle} has.",
            "Convert and build that bundle, or use the one that the engine was built from.",
            path=engine.path,
            made_of=made_of,
            bundle=bundle.name,
        )
