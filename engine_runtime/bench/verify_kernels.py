"""Every kernel path that runs on this machine, compared with plain torch on the same weights.

In: a loaded engine, spoken questions. Out: a `Verdict`. The reference of the language model is the executor
in plain torch, which on a GPU shares the weights that are loaded, so that no second model has to fit. Decode
steps start from the reference's own keys and values: an error of one path does not hide in, or hide, that of
another. The reference of the codec is the codec in plain torch and float32. Engine thread.

An error is the norm of the difference over that of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from engine_runtime.bench.verdict import Check, Verdict, VerifyError
from engine_runtime.bench.verify_encoder import LEAST_CODES
from engine_runtime.bundle.weights import LoadProgress
from engine_runtime.codec.loading import load_speech_tokenizer, load_token2mel, load_vocoder
from engine_runtime.codec.runtime import CodecRuntime
from engine_runtime.executors.cuda.executor import CudaExecutor
from engine_runtime.executors.cuda.prefill import has_fp8_matmul
from engine_runtime.executors.cuda.weights import Network, build_network
from engine_runtime.executors.torch.executor import TorchExecutor
from engine_runtime.lm.block_manager import BlockManager, Sequence
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM, StepRequest
from engine_runtime.lm.step import StepOutput
from engine_runtime.loading import load_lm_weights
from engine_runtime.types import Codes, Mel, Modality, Pcm
from engine_runtime.work import run_alone

if TYPE_CHECKING:
    from engine_runtime.codec.vocoder.vocoder import Vocoder
    from engine_runtime.engine import Engine

TOKENS_PER_REPLY = 32
MOST_REPLIES = 8
"""Questions that are asked, and sequences of a batched step, at most."""
MOST_ERROR = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.06}
"""Largest error of logits, keys and values, by the dtype of the model: rounding in another order through all
layers."""
MOST_ERROR_OF_FP8_CACHE = 0.1
"""Where keys and values are kept in fp8: a value at the border of two steps may fall to either side."""
MOST_ERROR_OF_FP8_PRODUCTS = 0.15
"""Largest error of a prefill that multiplies activations rounded to fp8: a cosine of 0.99."""
MOST_MEL = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
"""Mean absolute difference of natural-log mels, by the dtype of the codec."""
MOST_SPECTRUM = {torch.float32: 0.01, torch.float16: 0.05, torch.bfloat16: 0.2}
"""Error of the magnitudes of the vocoder's spectrum. Not of its samples: the phase of HiFT's sines is
free."""
_FFT, _HOP = 1024, 256
Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class ForcedReply:
    """A conversation: the merged ids of all rows, those before `start` as a prompt, and the reply's codes."""

    ids: list[int]
    start: int
    codes: Codes


def verify_kernels(
    engine: Engine, questions: Mapping[str, Pcm], progress: Progress = lambda share: None
) -> Verdict:
    """Compare over spoken questions at the engine's input rate. Raises VerifyError without questions, and for
    an engine whose language model does not run in torch."""
    if not questions:
        raise VerifyError("No questions to compare with.", "Pass a folder of recordings with --wavs DIR.")
    chosen = dict(list(questions.items())[:MOST_REPLIES])
    replies = [_forced_reply(engine, pcm) for pcm in chosen.values()]
    progress(0.3)
    reference = plain_language_model(engine, replies)
    verdict = Verdict()
    verdict.checks += compare_language_models(engine.stages.lm, reference, replies, *_limits(engine))
    del reference
    progress(0.7)
    verdict.checks += _codec(engine, chosen, [reply.codes for reply in replies])
    progress(1.0)
    return verdict


def _limits(engine: Engine) -> tuple[float, float]:
    """Largest errors of decode steps and of prefills."""
    options, device = engine.stages.options, engine.stages.lm.cache.pool.device
    dtype: torch.dtype = getattr(torch, options.lm_dtype)
    limit = MOST_ERROR[dtype]
    if options.kv_dtype == "fp8":
        limit = max(limit, MOST_ERROR_OF_FP8_CACHE)
    if options.weight_format == "fp8" and has_fp8_matmul(device, dtype):
        return limit, MOST_ERROR_OF_FP8_PRODUCTS
    return limit, limit


def _forced_reply(engine: Engine, question: Pcm) -> ForcedReply:
    """The question with the engine's own reply of TOKENS_PER_REPLY codes, also of random weights."""
    conversation, sampling = engine.new_conversation(), engine.bundle.lm.sampling_speech.seeded()
    params = replace(sampling, do_sample=True, min_new=TOKENS_PER_REPLY + 1, max_new=TOKENS_PER_REPLY)
    turn = run_alone(engine.open_turn(conversation, 1))
    run_alone(turn.push(question))
    for _ in run_alone(turn.commit(Modality.SPEECH, params)):
        pass
    exchange, prompt = conversation.exchanges[-1], engine.stages.prompt
    rows = [*prompt.system(Modality.SPEECH), *exchange.user, *exchange.reply]
    start = len(rows) - len(exchange.reply) + len(prompt.open_reply(Modality.SPEECH))
    ids = engine.stages.sequences.merged_ids(rows)
    first_code = engine.stages.lm_config.text_vocab
    codes = [token - first_code for token in ids[start:] if token >= first_code]
    engine.end_conversation(conversation)
    size = engine.stages.token2mel.config.vocab_size
    return ForcedReply(ids, start, np.array([code for code in codes if code < size], dtype=np.int64))


def plain_language_model(engine: Engine, replies: SequenceOf[ForcedReply]) -> PagedLM:
    """The language model of the engine in plain torch, with a cache for the replies."""
    stages = engine.stages
    config, theirs, section = stages.lm_config, stages.lm.cache, engine.bundle.lm
    size = theirs.tokens_per_block
    num_blocks = 1 + sum(-(-len(reply.ids) // size) for reply in replies)
    cache = KVCache(
        config,
        num_blocks,
        size,
        dtype=theirs.trunk.dtype,
        kv_dtype=theirs.pool.dtype,
        device=theirs.pool.device,
    )
    executor = CudaExecutor(
        _network(engine),
        cache,
        max_seq_len=section.context_tokens,
        uses_triton=False,
        uses_graphs=False,
        multiplies_fp8=False,
    )
    return PagedLM(executor, cache, BlockManager(num_blocks, size))


def _network(engine: Engine) -> Network:
    """The weights that the engine has loaded, or on a CPU, whose executor has a form of its own, again."""
    stages = engine.stages
    executor, options = stages.lm.executor, stages.options
    if isinstance(executor, CudaExecutor):
        return executor.network
    if not isinstance(executor, TorchExecutor) or stages.bundle.lm.layout != "released":
        raise VerifyError(
            "Only the kernels of the torch backend with a bundle's own weights can be compared.",
            "Leave out --backend, and name the bundle that a checkpoint was converted from; `moss-voice "
            "trt verify` compares engines.",
        )
    device = stages.lm.cache.pool.device
    model = load_lm_weights(stages.bundle, stages.lm_config, device, options)
    return build_network(
        stages.lm_config,
        model.state_dict().__getitem__,
        formats=options.formats,
        dtype=getattr(torch, options.lm_dtype),
        device=device,
        max_seq_len=stages.bundle.lm.context_tokens,
    )


def compare_language_models(
    tested: PagedLM,
    reference: PagedLM,
    replies: SequenceOf[ForcedReply],
    most_error: float,
    most_error_of_prefill: float,
) -> list[Check]:
    """Prefill, and decode steps by each path: of one sequence with the GPU to itself, of one beside other
    work, and of several sequences."""
    taught = [_teach(reference, reply) for reply in replies]
    checks = _prefill(tested, reference, taught).checks("prefill", most_error_of_prefill)
    for name, is_exclusive in (("decode alone", True), ("decode beside other work", False)):
        errors = _Errors()
        for reply in taught:
            _decode(tested, reference, [reply], errors, is_exclusive)
        checks += errors.checks(name, most_error)
    together = min(tested.executor.limits.max_batch_size, len(taught))
    if together > 1:
        errors = _Errors()
        _decode(tested, reference, taught[:together], errors, is_exclusive=False)
        checks += errors.checks(f"decode of {together}", most_error)
    return checks


@dataclass(slots=True)
class _Taught:
    """A reply as the reference ran it: its cache holds the rows before `sequence`'s end."""

    reply: ForcedReply
    sequence: Sequence
    logits: list[StepOutput]
    """After the prompt, then after each row of the reply."""


def _teach(reference: PagedLM, reply: ForcedReply) -> _Taught:
    sequence = Sequence()
    logits = [reference.prefill(sequence, reply.ids[: reply.start])]
    logits += [reference.decode(sequence, token) for token in reply.ids[reply.start :]]
    return _Taught(reply, sequence, logits)


class _Errors:
    """The largest errors of one path."""

    def __init__(self) -> None:
        self._logits = {"text": 0.0, "audio": 0.0}
        self._same = {"text": list[bool](), "audio": list[bool]()}
        self._layers: dict[int, float] = {}
        self._calls = 0

    def add_logits(self, wanted: StepOutput, found: StepOutput) -> None:
        """Add the errors of one call."""
        self._calls += 1
        pairs = {
            "text": (wanted.text_logits, found.text_logits),
            "audio": (wanted.audio_logits, found.audio_logits),
        }
        for head, (one, other) in pairs.items():
            assert one is not None, "both tails run"
            assert other is not None, "both tails run"
            self._logits[head] = max(self._logits[head], _error(one, other))
            self._same[head].append(bool(one.argmax() == other.argmax()))

    def add_cache(self, wanted: Tensor, found: Tensor) -> None:
        """Keys and values [rows, layers, ...]."""
        for layer in range(wanted.shape[1]):
            error = _error(wanted[:, layer], found[:, layer])
            self._layers[layer] = max(self._layers.get(layer, 0.0), error)

    def checks(self, path: str, limit: float) -> list[Check]:
        """The checks of this path, with its limit."""
        rows = [
            Check(f"{path}: {head} logits, error", error, limit, self._calls, is_least=False)
            for head, error in self._logits.items()
        ]
        worst = max(self._layers, key=lambda layer: self._layers[layer])
        over = [layer for layer, error in sorted(self._layers.items()) if not error <= limit]
        where = f"layer {worst}" + (f", over the limit from layer {over[0]} on" if over else "")
        rows.append(
            Check(
                f"{path}: keys and values, error ({where})",
                self._layers[worst],
                limit,
                len(self._layers),
                is_least=False,
            )
        )
        for head, same in self._same.items():
            rows.append(Check(f"{path}: {head} top-1", sum(same) / len(same), None, len(same)))
        return rows


def _prefill(tested: PagedLM, reference: PagedLM, taught: SequenceOf[_Taught]) -> _Errors:
    errors = _Errors()
    for one in taught:
        sequence, start = Sequence(), one.reply.start
        errors.add_logits(one.logits[0], tested.prefill(sequence, one.reply.ids[:start]))
        errors.add_cache(
            _rows(reference.cache, one.sequence, 0, start), _rows(tested.cache, sequence, 0, start)
        )
        tested.blocks.release(sequence)
    return errors


def _decode(
    tested: PagedLM, reference: PagedLM, taught: SequenceOf[_Taught], errors: _Errors, is_exclusive: bool
) -> None:
    """Run the replies in batched steps, from the reference's cache of the prompts."""
    sequences = [_copied_prompt(tested, reference, one) for one in taught]
    for row in range(TOKENS_PER_REPLY):
        due = [number for number, one in enumerate(taught) if one.reply.start + row < len(one.reply.ids)]
        requests = [
            StepRequest(sequences[n], [taught[n].reply.ids[taught[n].reply.start + row]]) for n in due
        ]
        if not requests:
            break
        outputs = tested.step(requests, exclusive_gpu=is_exclusive)
        for number, output in zip(due, outputs, strict=True):
            errors.add_logits(taught[number].logits[1 + row], output)
    for sequence, one in zip(sequences, taught, strict=True):
        rows = one.reply.start, sequence.num_tokens
        errors.add_cache(_rows(reference.cache, one.sequence, *rows), _rows(tested.cache, sequence, *rows))
        tested.blocks.release(sequence)


def _copied_prompt(tested: PagedLM, reference: PagedLM, one: _Taught) -> Sequence:
    """A sequence of `tested` with the reference's keys and values of the prompt."""
    sequence = Sequence()
    tested.prefill(sequence, one.reply.ids[: one.reply.start])
    with torch.inference_mode():
        for target, source in zip(sequence.block_table, one.sequence.block_table, strict=False):
            tested.cache.pool[target] = reference.cache.pool[source]
            tested.cache.trunk[target] = reference.cache.trunk[source]
    return sequence


def _rows(cache: KVCache, sequence: Sequence, first: int, end: int) -> Tensor:
    """Keys and values of some rows of a sequence. [rows, layers, 2, kv_heads, head_dim], float32"""
    table, pool = torch.tensor(sequence.block_table, device=cache.pool.device), cache.pool
    is_fp8 = pool.element_size() == 1  # which torch does not index on every device
    found = pool.view(torch.uint8)[table].view(pool.dtype) if is_fp8 else pool[table]
    blocks = found.float()  # [blocks, layers, 2, kv_heads, tokens, head_dim]
    return blocks.permute(0, 4, 1, 2, 3, 5).flatten(0, 1)[first:end]


def _error(wanted: Tensor, found: Tensor) -> float:
    """Infinite where a value is not finite: NaN would get lost in the largest of several."""
    difference = (found.double() - wanted.double()).norm()
    error = float(difference / wanted.double().norm().clamp_min(1e-12))
    return error if isfinite(error) else inf


def _codec(engine: Engine, questions: Mapping[str, Pcm], replies: SequenceOf[Codes]) -> Iterator[Check]:
    """Speech encoder, flow and vocoder against those in plain torch and float32."""
    stages, bundle = engine.stages, engine.bundle
    device, dtype = stages.lm.cache.pool.device, getattr(torch, stages.options.voice_dtype)
    options = replace(
        stages.options,
        kernels="torch",
        graphs=False,
        codec_dtype="float32",
        trt_codec=False,
        max_batch_size=1,
        captures_batches=False,
    )
    loading = LoadProgress(
        (bundle.speech_encoder.weights, bundle.flow.weights, bundle.vocoder.weights), lambda share: None
    )
    tokenizer = load_speech_tokenizer(bundle, device, options, loading)
    same = [stages.speech_tokenizer.encode(pcm) == tokenizer.encode(pcm) for pcm in questions.values()]
    codes = np.concatenate(same)
    yield Check("speech encoder: equal codes", float(codes.mean()), LEAST_CODES, codes.size)
    prompt = stages.token2mel.prompt
    token2mel = load_token2mel(bundle, device, options, CodecRuntime(), prompt, loading)
    mels = [(token2mel.convert(reply), stages.token2mel.convert(reply)) for reply in replies if reply.size]
    distance = np.concatenate([np.abs(one - other).mean(axis=0) for one, other in mels])
    yield Check("flow: mel distance", float(distance.mean()), MOST_MEL[dtype], distance.size, is_least=False)
    vocoder = load_vocoder(bundle, device, options, CodecRuntime(), loading)
    packet = max(bundle.flow.packets) * stages.token2mel.frames_per_code
    errors = [
        _error(_spectrum(_streamed(vocoder, mel, packet)), _spectrum(_streamed(stages.vocoder, mel, packet)))
        for mel, _ in mels
    ]
    frames = sum(mel.shape[1] for mel, _ in mels)
    yield Check("vocoder: spectrum, error", max(errors), MOST_SPECTRUM[dtype], frames, is_least=False)


def _streamed(vocoder: Vocoder, mel: Mel, packet: int) -> Pcm:
    """The sound of a mel in packets of so many frames, as a reply makes it."""
    stream = vocoder.stream()
    parts = [stream.push(mel[:, first : first + packet]) for first in range(0, mel.shape[1], packet)]
    pcm: Pcm = np.concatenate([*parts, stream.finish()])
    return pcm


def _spectrum(pcm: Pcm) -> Tensor:
    """Magnitudes. [_FFT / 2 + 1, frames]"""
    return torch.stft(
        torch.from_numpy(pcm), _FFT, _HOP, window=torch.hann_window(_FFT), return_complex=True
    ).abs()
