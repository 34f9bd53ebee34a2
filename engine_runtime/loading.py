"""Stages: the networks of a bundle, loaded and wrapped in their streaming stages.

In: an open bundle. Out: everything that a turn needs, without state of a turn. The language model, and flow
and vocoder, run in the selected dtypes; the speech tokenizer stays in float32, because a rounded distance may
select another code. Called once, on the thread that will use the engine.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.random_weights import load_or_fill, random_source
from engine_runtime.bundle.weights import LoadProgress, Progress, Uninitialized
from engine_runtime.codec.execution_stream import HostExecution, NewExecutionStream
from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.loading import (
    chosen_codec,
    codec_bytes,
    load_speech_tokenizer,
    load_token2mel,
    load_vocoder,
)
from engine_runtime.codec.runtime import codec_runtime
from engine_runtime.codec.speech_decoder import ReplyVoice
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer, StreamPool
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.codec.voice.prompt import make_voice_prompt
from engine_runtime.codec.voice.recording import VoiceSource
from engine_runtime.cpu_threads import CpuThreads, torch_threads
from engine_runtime.cuda.availability import slow_note, why_plain_torch
from engine_runtime.errors import BundleError, Problem
from engine_runtime.executors.fused_weights import WeightSource
from engine_runtime.executors.torch.executor import TorchExecutor
from engine_runtime.hardware import usable_device
from engine_runtime.lm.block_manager import BlockManager
from engine_runtime.lm.chat_template import Prompt, TextTokenizer
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.sequence_runner import SequenceRunner
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.options import PREFILL_TOKENS, EngineOptions
from engine_runtime.quantization import FP8
from engine_runtime.tensorrt.checkpoint.quantized_network import load_paged
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint

if TYPE_CHECKING:
    from engine_runtime.tensorrt.llm.engine_directory import EngineDirectory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages shared by the turns of all conversations."""

    bundle: Bundle
    lm: PagedLM
    lm_config: MossLMConfig
    tokenizer: TextTokenizer
    prompt: Prompt
    speech_tokenizer: SpeechTokenizer
    token2mel: Token2Mel
    vocoder: Vocoder
    options: EngineOptions
    cpu_threads: CpuThreads
    new_execution_stream: NewExecutionStream = HostExecution
    notes: tuple[Problem, ...] = ()
    """Remarks on loading for the user, one line each."""
    load_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each part took to load, by its name."""
    sequences: SequenceRunner = field(init=False)
    streams: StreamPool = field(init=False)
    speaking: weakref.WeakSet[ReplyVoice] = field(init=False)
    """Replies whose codec has begun: a step does not have a GPU to itself then."""

    def __post_init__(self) -> None:
        special = self.bundle.lm.special_ids
        # the dataclass is frozen
        object.__setattr__(self, "sequences", SequenceRunner(self.lm, special, self.lm_config.text_vocab))
        object.__setattr__(self, "streams", StreamPool(self.speech_tokenizer))
        object.__setattr__(self, "speaking", weakref.WeakSet())

    @property
    def max_codes(self) -> int:
        """Maximum number of speech codes of a reply that the flow supports."""
        return (
            self.token2mel.config.max_frames // self.token2mel.frames_per_code - self.token2mel.prompt_codes
        )

    @property
    def kernel_paths(self) -> dict[str, str]:
        """On a GPU which kernels run, and why no faster ones do: in general and of the codec ("kernels"), of
        decode steps of one sequence ("decode_step") and of several ("batched_step"). Empty on a CPU."""
        device = usable_device(self.options.device)
        if device.type != "cuda":
            return {}
        from engine_runtime.executors.cuda.executor import CudaExecutor

        reason = why_plain_torch(self.options.kernels, device)
        found = {"kernels": "Triton" if reason is None else f"plain torch ({reason})"}
        if isinstance(self.lm.executor, CudaExecutor):
            return found | self.lm.executor.kernel_paths
        own = "TensorRT-LLM" if self.options.backend == "trtllm" else "plain torch (a quantized checkpoint)"
        return found | {"decode_step": own}

    @property
    def samples_per_code(self) -> int:
        """Reply samples per speech code."""
        return self.token2mel.frames_per_code * self.token2mel.mel.hop


def load_stages(
    bundle: Bundle,
    options: EngineOptions,
    *,
    voice: VoiceSource | None = None,
    lm: PagedLM | None = None,
    progress: Progress | None = None,
) -> Stages:
    """Load every network; `voice` replaces the bundle's own voice.

    `lm` is a loaded language model to use in place of the bundle's.

    Raises BundleError for weights that do not match the manifest, EngineError for a mismatched engine,
    AcceleratorError for a missing device, AudioInputError for an unusable voice recording.
    """
    device, bundle = usable_device(options.device), chosen_codec(bundle, options)
    runtime = codec_runtime(device, bundle.flow, options)
    lm_config = MossLMConfig.from_dict(bundle.lm.config)
    engine = None
    if options.backend == "trtllm" and lm is None:
        from engine_runtime.tensorrt.llm.loading import open_engine

        engine = open_engine(bundle, lm_config, device, options, codec_bytes(bundle, options))
    elif device.type == "cuda" and lm is None:
        from engine_runtime.executors.cuda.loading import check_memory  # not needed on the CPU

        check_memory(bundle.lm, lm_config, device, options, codec_bytes(bundle, options))
    tool_calls = bundle.card.tool_calls
    delimiters = () if tool_calls is None else (tool_calls.call_begin, tool_calls.call_end)
    tokenizer = TextTokenizer(bundle.text_tokenizer, bundle.lm.special_ids, lm_config.text_vocab, delimiters)
    lm_files = bundle.lm.weights if engine is None else (engine.plan,)
    files = (bundle.speech_encoder.weights, lm_files, bundle.flow.weights, bundle.vocoder.weights)
    loading = LoadProgress(files, progress)
    # First, to reject an unusable voice recording before the large weights are read.
    load_s: dict[str, float] = {}
    with _timed(load_s, "speech encoder"):
        speech_tokenizer = load_speech_tokenizer(bundle, device, options, loading)
    prompt = None if voice is None else make_voice_prompt(voice, bundle, speech_tokenizer)
    with _timed(load_s, "language model"):
        lm = lm or _load_lm(bundle, lm_config, device, options, loading, engine)
    if options.trt_codec:
        runtime.hold_graphs()  # otherwise captured torch work would be replayed in place of the engines
    with _timed(load_s, "flow"):
        token2mel = load_token2mel(bundle, device, options, runtime, prompt, loading)
    with _timed(load_s, "vocoder"):
        vocoder = load_vocoder(bundle, device, options, runtime, loading)
    slow = slow_note(options.kernels, device)
    notes = [] if slow is None else [slow]
    if options.trt_codec:
        from engine_runtime.tensorrt.codec.engines import codec_of, is_on_engines, use_engines

        loaded = codec_of(bundle, token2mel, vocoder, speech_tokenizer, options.random_weights)
        with _timed(load_s, "codec engines"):
            notes.append(use_engines(loaded, options.engine_cache, device))
        _log.warning("%s", notes[-1])
        if not is_on_engines(loaded):
            runtime.allow_graphs(options)
    return Stages(
        bundle=bundle,
        lm=lm,
        lm_config=lm_config,
        tokenizer=tokenizer,
        prompt=Prompt(tokenizer, bundle.lm.special_ids, bundle.lm.prompt, tool_calls),
        speech_tokenizer=speech_tokenizer,
        token2mel=token2mel,
        vocoder=vocoder,
        options=options,
        cpu_threads=torch_threads(on_cpu=device.type == "cpu"),
        new_execution_stream=runtime.new_execution_stream,
        notes=(*lm.notes, *notes),
        load_s=load_s,
    )


@contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Note how long a part takes to load."""
    began = time.perf_counter()
    yield
    seconds[part] = time.perf_counter() - began


def _load_lm(
    bundle: Bundle,
    config: MossLMConfig,
    device: torch.device,
    options: EngineOptions,
    loading: LoadProgress,
    engine: EngineDirectory | None,
) -> PagedLM:
    if engine is not None:
        from engine_runtime.tensorrt.llm.loading import load_engine

        report = loading.next((engine.plan,))
        lm = load_engine(engine, bundle, config, device, options)
        report(1.0)
        return lm
    section, dtype = bundle.lm, getattr(torch, options.lm_dtype)
    kv_blocks = options.kv_blocks or section.kv_blocks
    report = loading.next(section.weights)
    if bundle.lm.layout == "tensorrt-llm" and options.random_weights is None:
        checkpoint = _converted(bundle, config)
        if checkpoint.config.quantization.algorithm is not None:
            if (options.weight_format, options.kv_dtype) != ("native", "native"):
                raise BundleError(
                    "The language model of bundle {bundle} is quantized already.",
                    "Leave --weights and --kv at native.",
                    bundle=bundle.name,
                )
            return load_paged(
                checkpoint,
                section,
                config,
                device=device,
                dtype=dtype,
                num_blocks=kv_blocks,
                prefill_tokens=options.prefill_tokens,
            )
    if device.type == "cuda":
        from engine_runtime.executors.cuda.loading import load_lm

        source = lm_source(bundle, config, device, options, report)
        return load_lm(section, config, device, options, source)
    model = load_lm_weights(bundle, config, device, options, report)
    kv_dtype = FP8 if options.kv_dtype == "fp8" else dtype
    cache = KVCache(
        config, kv_blocks, section.tokens_per_block, dtype=dtype, kv_dtype=kv_dtype, device=device
    )
    executor = TorchExecutor(
        model,
        cache,
        max_seq_len=section.context_tokens,
        max_num_tokens=options.prefill_tokens or PREFILL_TOKENS,
        formats=options.formats,
    )
    return PagedLM(executor, cache, BlockManager(kv_blocks, section.tokens_per_block))


def lm_source(
    bundle: Bundle, config: MossLMConfig, device: torch.device, options: EngineOptions, progress: Progress
) -> WeightSource:
    """Returns each native tensor of the language model on request; `progress` follows one reading of all."""
    if options.random_weights is not None:
        return random_source(config, options.random_weights, getattr(torch, options.lm_dtype), device)
    if bundle.lm.layout == "tensorrt-llm":
        return _converted(bundle, config).weight_source(progress)
    from engine_runtime.executors.cuda.loading import stored_weights

    with torch.device("meta"), Uninitialized():
        model = MossLM(config)
    return stored_weights(bundle.lm, model, progress)


def load_lm_weights(
    bundle: Bundle,
    config: MossLMConfig,
    device: torch.device,
    options: EngineOptions,
    progress: Progress | None = None,
) -> MossLM:
    """The unfused language model with the bundle's weights."""
    with torch.device("meta"), Uninitialized():
        model = MossLM(config)
    dtype = getattr(torch, options.lm_dtype)
    if bundle.lm.layout == "tensorrt-llm" and options.random_weights is None:
        return _converted(bundle, config).language_model(
            config.modality_pad, dtype, device, progress=progress
        )
    load_or_fill(model, bundle.lm.weights, device, options, progress, dtype=dtype)
    return model.eval()


def _converted(bundle: Bundle, config: MossLMConfig) -> Checkpoint:
    """The language model of a bundle whose weights were converted for TensorRT-LLM."""
    checkpoint = Checkpoint.open(bundle.lm.weights[0].parent)
    checkpoint.require(config)
    return checkpoint
