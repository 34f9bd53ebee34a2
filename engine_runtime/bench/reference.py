"""The reference of a comparison: the native weights in plain modules, one layer on the device at a time.

In: the weights of a language model on disk (or random ones), and conversations as merged ids. Out: logits of
both heads at the wanted rows. There is no KV cache: the rows of a conversation go through a layer together,
the conversations one after the other, so that each weight is read once, however many rows there are. The
device holds the largest layer or table, the hidden states of all rows and the logits of one conversation: a
few GB where the whole model takes 18. The result is that of the whole network, bit for bit in the same dtype.
Engine thread.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_runtime.bench.teacher_forcing import (
    HEADS,
    TOKENS_PER_REPLY,
    Agreement,
    Dialog,
    Head,
    Lesson,
    Recorded,
    record,
    teach,
)
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.weights import Uninitialized
from engine_runtime.cuda.gpu_memory import explain_out_of_memory, memory_of
from engine_runtime.executors.fused_weights import WeightSource
from engine_runtime.hardware import AcceleratorError, usable_device
from engine_runtime.loading import lm_source
from engine_runtime.models.moss_lm import Layer, MossLM, MossLMConfig, RMSNorm, rotary_tables
from engine_runtime.options import Dtype, EngineOptions

if TYPE_CHECKING:
    from engine_runtime.engine import Engine

_ACTIVATIONS = 1_000_000_000
"""Bytes for hidden states, attention and logits of some thousand rows of the released model in float32."""


LayersOf = Literal["plain", "transformers"]


class Layers(Protocol):
    """How a layer is built and run: as this program's plain network, or as transformers does it."""

    @property
    def described(self) -> str:
        """The implementation of the layers, for reports."""

    def new(self, index: int) -> nn.Module:
        """The layer without weights, on the current device."""

    def run(self, layer: nn.Module, x: Tensor) -> Tensor:
        """[1, L, H] -> [1, L, H], causal, from position 0."""


@dataclass(frozen=True, slots=True)
class PlainLayers:
    """The layers of models/moss_lm.py."""

    config: MossLMConfig
    described: str = "the plain network"

    def new(self, index: int) -> nn.Module:
        return Layer(self.config)

    def run(self, layer: nn.Module, x: Tensor) -> Tensor:
        cos, sin = rotary_tables(self.config, torch.arange(x.shape[1], device=x.device))
        out: Tensor = layer(x, cos, sin, None)
        return out


class LayerwiseReference:
    """The reference, computed one layer at a time.

    Args:
        source: native weights by their state-dict names; each is asked for once.
        dtype: of the computation. In float32 the reference has no rounding error of its own to speak of.
    """

    def __init__(
        self,
        config: MossLMConfig,
        source: WeightSource,
        layers: Layers,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self._config, self._source, self._layers = config, source, layers
        self._dtype, self.device = dtype, torch.device(device)

    @torch.inference_mode()
    def logits(
        self, sequences: Sequence[list[int]], rows: Sequence[list[int]]
    ) -> Iterator[tuple[Head, int, Tensor]]:
        """For each head and each sequence of merged ids: the head, the number of the sequence, and the logits
        [len(rows), vocabulary] in float32 after these rows of it."""
        config = self._config
        hidden = self._run("shared_block", 0, config.shared_layers, self._embedded(sequences))
        first = config.shared_layers
        for head, count in zip(HEADS, (config.text_layers, config.audio_layers), strict=True):
            tail = self._run(f"{head}_block", first, count, hidden)
            first += count
            norm = self._filled(RMSNorm(config.hidden_size, config.rms_norm_eps), f"model.{head}_norm.")
            weight = self._tensor(f"{head}_lm_head.weight")
            for index, (x, wanted) in enumerate(zip(tail, rows, strict=True)):
                yield head, index, F.linear(norm(x[0, wanted]), weight).float()
            del weight  # before the other tail is read

    def _embedded(self, sequences: Sequence[list[int]]) -> list[Tensor]:
        """[1, L, H] of each sequence; of the tables only these rows are moved to the device."""
        limit = self._config.text_vocab
        ids = [torch.tensor(sequence) for sequence in sequences]
        hidden = [
            torch.empty(1, len(one), self._config.hidden_size, dtype=self._dtype, device=self.device)
            for one in ids
        ]
        for name, start in (("model.embed_tokens.weight", 0), ("model.audio_embed.weight", limit)):
            table = self._source(name).detach()
            for one, x in zip(ids, hidden, strict=True):
                places = ((one >= limit) == (start == limit)).nonzero()[:, 0]
                found = table[(one[places] - start).to(table.device)]
                x[0, places.to(self.device)] = found.to(self.device, self._dtype)
            del table
        return hidden

    def _run(self, block: str, first: int, count: int, hidden: list[Tensor]) -> list[Tensor]:
        for index in range(count):
            with torch.device("meta"), Uninitialized():
                layer = self._layers.new(first + index)
            self._filled(layer, f"model.{block}.layers.{index}.")
            hidden = [self._layers.run(layer, x) for x in hidden]
            del layer  # before the next one is read
        return hidden

    def _filled(self, module: nn.Module, prefix: str) -> nn.Module:
        weights = {name: self._tensor(prefix + name) for name in module.state_dict()}
        module.load_state_dict(weights, strict=True, assign=True)
        return module.eval()

    def _tensor(self, name: str) -> Tensor:
        # A copy, so that the source, which may be a mapped file, is not kept.
        return self._source(name).detach().to(self.device, self._dtype, copy=True)


OpenReference = Callable[[], tuple[LayerwiseReference, str]]
"""Called once the tested engine is closed, because it looks at the free memory. Returns the reference, and
how it is computed, in words."""


def needed_bytes(config: MossLMConfig, dtype: torch.dtype) -> int:
    """Bytes of a device that a layer-by-layer reference takes: its largest part, also as it is stored, and
    activations."""
    with torch.device("meta"), Uninitialized():
        layer = Layer(config)
    largest = max(
        sum(parameter.numel() for parameter in layer.parameters()),
        config.text_vocab * config.hidden_size,
        config.audio_vocab * config.hidden_size,
    )
    return int(largest * (dtype.itemsize + 2)) + _ACTIVATIONS


def whole_bytes(config: MossLMConfig, dtype: torch.dtype, rows: int) -> int:
    """Bytes of the whole model in this dtype, with so many cached rows: its embeddings are there twice."""
    with torch.device("meta"), Uninitialized():
        weights = sum(tensor.numel() for tensor in MossLM(config).state_dict().values())
    tables = (config.text_vocab + config.audio_vocab) * config.hidden_size
    cache = rows * config.num_layers * 2 * config.num_key_value_heads * config.head_dim
    return int((weights + tables + cache) * dtype.itemsize) + _ACTIVATIONS


def free_bytes(device: torch.device) -> int:
    """Bytes that can be allocated on a device now, after what an earlier engine left is freed; on a GPU
    within the limit of --gpu-memory-gb."""
    gc.unfreeze()  # parts of an engine form reference cycles, and a benchmark freezes them
    gc.collect()
    if device.type == "cuda":
        return memory_of(device)[0]
    return int(psutil.virtual_memory().available)


@dataclass(frozen=True, slots=True)
class ReferenceOptions:
    """How the reference is computed."""

    layers: LayersOf = "plain"
    dtype: Dtype = "float32"
    device: str | None = None
    """None is the device of the tested engine if it has room, or else the CPU."""


def reference_of(bundle: Bundle, tested: EngineOptions, options: ReferenceOptions) -> OpenReference:
    """The reference of a bundle, or of the random weights of `tested`.

    Raises BundleError for weights that do not match or are quantized, AcceleratorError for a missing device,
    and ComparisonError without transformers if its layers are wanted.
    """
    config, device = MossLMConfig.from_dict(bundle.lm.config), usable_device(tested.device)
    if options.device is not None:
        usable_device(options.device)
    if options.layers == "transformers":
        from engine_runtime.bench.transformers_reference import require_transformers

        require_transformers()
    # Random weights depend on the kind of device: they are made on that of the tested engine.
    source = lm_source(bundle, config, device, tested, lambda share: None)
    return lambda: open_reference(config, source, device, options)


def open_reference(
    config: MossLMConfig,
    source: WeightSource,
    device: torch.device,
    options: ReferenceOptions = ReferenceOptions(),
) -> tuple[LayerwiseReference, str]:
    """The reference of these weights, as of an OpenReference; `device` is that of the tested engine."""
    dtype: torch.dtype = getattr(torch, options.dtype)
    need, reason = needed_bytes(config, dtype), ""
    free = free_bytes(device)
    if options.device is not None:
        device = usable_device(options.device)
    elif device.type == "cuda" and free < need:
        device, reason = torch.device("cpu"), f" (the GPU has {free / 1e9:.1f} GB free)"
    layers: Layers = PlainLayers(config)
    if options.layers == "transformers":
        from engine_runtime.bench.transformers_reference import TransformersLayers

        layers = TransformersLayers(config, device)
    described = (
        f"{layers.described} in {options.dtype}, one layer at a time on {device}{reason}, "
        f"at most {need / 1e9:.1f} GB"
    )
    return LayerwiseReference(config, source, layers, dtype=dtype, device=device), described


def compare_with_reference(
    load: Callable[[], Engine],
    open_reference: OpenReference,
    asked: Sequence[Dialog],
    *,
    rows_per_reply: int = TOKENS_PER_REPLY,
    run: Callable[[Engine, Sequence[Lesson]], Iterable[Recorded]] = record,
) -> tuple[Agreement, str]:
    """Let an engine hold conversations, close it, and compare its logits with those of the reference. Returns
    the agreement, and how the reference was computed. Raises VerifyError if the engine has no reply, and
    AcceleratorError if the GPU has too little memory for what is compared."""
    engine = load()

    def compared(engine: Engine) -> tuple[Sequence[Lesson], Agreement]:
        lessons = teach(engine, asked, rows_per_reply)
        return lessons, Agreement(lessons, run(engine, lessons))

    try:
        section, options = engine.bundle.lm, engine.stages.options
        lessons, agreement = explain_out_of_memory(partial(compared, engine), section, options)
    finally:
        engine.close()
    del engine
    gc.collect()  # turns and conversations form reference cycles, and a GPU may not hold more
    note = agree(agreement, lessons, open_reference)
    questions, answered = sum(len(dialog.questions) for dialog in asked), sum(one.turns for one in lessons)
    return agreement, f"{note}; {answered} of {questions} questions got a reply"


def agree(agreement: Agreement, lessons: Sequence[Lesson], open_reference: OpenReference) -> str:
    """Compare what was recorded of an engine, which is closed, with the reference. Returns how that was
    computed. Raises AcceleratorError if the GPU has too little memory."""
    reference, described = open_reference()
    is_on_gpu = reference.device.type == "cuda"
    if is_on_gpu:
        torch.cuda.reset_peak_memory_stats(reference.device)
    sequences, rows = [lesson.ids for lesson in lessons], [lesson.rows for lesson in lessons]
    try:
        for head, index, logits in reference.logits(sequences, rows):
            agreement.add(head, index, logits)
    except torch.OutOfMemoryError as error:
        raise AcceleratorError(
            "The GPU has too little memory for the reference ({described}).",
            "Add --reference-device cpu, which takes main memory instead, or ask less with --wavs DIR.",
            described=described,
        ) from error
    if is_on_gpu:
        described += f", measured {torch.cuda.max_memory_allocated(reference.device) / 1e9:.1f} GB"
    return f"reference: {described}"
