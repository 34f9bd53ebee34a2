"""CudaExecutor: the forward step on a GPU, decode as captured graphs, prefill through cuBLAS and SDPA.

In: the named tensors of lm/executor.py, in host memory; changed values go to the device in one copy. Out:
logits in host memory, or the next ids, sampled on the device (`forward_and_sample`), so that each step
returns one small copy. The reference implementation is executors/torch/executor.py, with which it shares the
KV pool's layout, the step checks, and deferred tails. Engine thread; inference only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.errors import ExecutorError
from engine_runtime.executors.cuda.decode_step import (
    GRAPHED_ROWS,
    DecodeStep,
    RowsShape,
    StepShape,
    bucket_of,
)
from engine_runtime.executors.cuda.inputs import SamplingInputs, StepInputs
from engine_runtime.executors.cuda.operations import Operations, TorchOperations
from engine_runtime.executors.cuda.prefill import (
    Prefill,
    RowOperations,
    Span,
    TorchRowOperations,
    has_fp8_matmul,
)
from engine_runtime.executors.cuda.sampler import (
    AUDIO,
    AUDIO_MAGNITUDE,
    SUBTITLE,
    TEXT,
    TEXT_MAGNITUDE,
    DeviceSampler,
)
from engine_runtime.executors.cuda.weights import Network, Tail
from engine_runtime.lm.executor import GENERATION, StepTensors, step_spec
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.sampling_metadata import SampledIds, SamplingMetadata
from engine_runtime.lm.step import Tails
from engine_runtime.lm.step_check import StepLengths, StepMemory, check_magnitude, check_outputs, check_step

if TYPE_CHECKING:
    from engine_runtime.executors.cuda.triton_operations import ConfigKey, KernelConfig


_log = logging.getLogger(__name__)

_Parts = tuple[Operations, RowOperations, DeviceSampler]


class CudaExecutor:
    """Runs steps of one network over one KV pool; also on a CPU, where tests compare it with the reference.

    Args:
        network: weights on the device.
        cache: the pool, on the same device.
        max_seq_len: rows of the longest sequence.
        max_num_tokens: rows of the longest single call.
        uses_triton: run the kernels of cuda/kernels; otherwise the same operations in plain torch.
        launches: autotuned kernel configurations (executors/cuda/autotune.py); None = defaults.
        uses_graphs: capture each shape of a decode step once.
        multiplies_fp8: whether prefill multiplies fp8 weights without dequantization; None = if the GPU
            supports it.
        uses_persistent_kernel: run a step in one launch while it has the GPU exclusively, if GPU and sizes
            support it.
        graphed_rows: whether small prefills are padded to a captured size; None = only with graphs and
            kernels.
    """

    supports_deferred_tails = True
    can_sample = True
    requires_block_aligned_prefill = False

    def __init__(
        self,
        network: Network,
        cache: KVCache,
        *,
        max_seq_len: int,
        max_num_tokens: int = 512,
        uses_triton: bool = False,
        launches: Mapping[ConfigKey, KernelConfig] | None = None,
        uses_graphs: bool = True,
        multiplies_fp8: bool | None = None,
        uses_persistent_kernel: bool = False,
        graphed_rows: bool | None = None,
    ) -> None:
        config, dtype = network.config, cache.trunk.dtype
        self._device = cache.pool.device
        self.device = torch.device("cpu")  # the device of a step's tensors
        self.network, self.cache = network, cache
        self.limits = cache.limits(config, max_seq_len, max_num_tokens)
        self._spec, self._memory = step_spec(self.limits), StepMemory()
        if multiplies_fp8 is None:
            multiplies_fp8 = has_fp8_matmul(self._device, dtype)
        with torch.inference_mode():
            inputs = StepInputs(self.limits.max_blocks, self._device, _taking() if uses_triton else None)
            # The plain operations dequantize every quantized matrix.
            room = network.largest_dense(multiplies_fp8=uses_triton and multiplies_fp8)
            scratch = torch.empty(room, dtype=dtype, device=self._device)
            if uses_triton:
                operations, rows, sampler = _kernels(network, cache, inputs, launches)
            else:
                operations, rows, sampler = _plain(network, cache, inputs, scratch)
            self._inputs, self._sampler = inputs, sampler
            self._step = DecodeStep(network, cache, inputs, operations, sampler)
            if uses_persistent_kernel:
                reason = self._step.use_persistent_kernel(network, cache, inputs)
                if reason is not None:
                    _log.info("Decode steps run as separate kernels, not as the persistent one: %s", reason)
            self._prefill = Prefill(network, cache, inputs, rows, scratch, has_fp8_matmul=multiplies_fp8)
        self._graphs = GraphedCalls(self._device, enabled=uses_graphs)
        # NOTE: only the kernels support padding rows.
        captures_rows = uses_triton and self._graphs.is_capturing if graphed_rows is None else graphed_rows
        self._graphed_rows = tuple(GRAPHED_ROWS) if captures_rows else ()

    @torch.inference_mode()
    def capture(self, shapes: Iterable[StepShape]) -> None:
        """Capture decode steps of these shapes in every length bucket, so that no reply waits for a capture.

        NOTE: only while no sequence holds a block: the steps write to the first block.
        """
        buckets = {bucket_of(rows, self.limits.max_seq_len) for rows in range(1, self.limits.max_seq_len + 1)}
        self._inputs.wait()
        self._inputs.set_row(0, 0, 0)
        self._inputs.send(with_table=False)
        shapes = list(shapes)
        # While the user speaks, rows are prefilled with both tails; on commit, with the tails of the first
        # step.
        tails = {(True, True), *((shape.text, shape.audio) for shape in shapes)}
        for shape in shapes if self._step.persistent is not None else ():
            self._capture_or_run(replace(shape, is_persistent=True))
        for bucket in sorted(buckets):
            for shape in shapes:
                self._capture_or_run(replace(shape, bucket=bucket))
            for size, (text, audio) in product(self._graphed_rows, sorted(tails)):
                ids = torch.zeros(size, dtype=torch.int64)
                self._capture_or_run_rows(RowsShape(size, bucket, text, audio), ids, 0, min(size, bucket))
        self._inputs.note_use()

    def _capture_or_run(self, shape: StepShape) -> None:
        self._graphs.run(shape, lambda: self._step.run(shape))

    @property
    def num_captured(self) -> int:
        """Number of captured step shapes."""
        return self._graphs.num_captured

    def weight_bytes(self, tails: Tails) -> int:
        """Bytes of weights that one decode step with these tails reads."""
        return self.network.step_bytes(text=tails.text, audio=tails.audio)

    @torch.inference_mode()
    def forward(self, tensors: StepTensors) -> dict[str, Tensor]:
        """See lm/executor.py."""
        lengths = self._check(tensors)
        shape = StepShape(0, lengths.text_start < lengths.total, lengths.audio_start < lengths.total)
        self._run(tensors, lengths, shape, exclusive_gpu=False)
        outputs = {}
        if shape.text:
            outputs["logits"] = self._step.text_logits.to("cpu", copy=True)
        if shape.audio:
            outputs["audio_logits"] = self._step.audio_logits.to("cpu", copy=True)
        widths = {"logits": self.limits.text_vocab, "audio_logits": self.limits.audio_vocab}
        check_outputs(outputs, {name: widths[name] for name in outputs})
        return outputs

    @torch.inference_mode()
    def forward_and_sample(self, tensors: StepTensors, request: SamplingMetadata) -> SampledIds:
        """See lm/executor.py."""
        lengths = self._check(tensors)
        self._sampler.begin(request)
        params = request.params
        self._inputs.set_sampling(
            SamplingInputs(
                seen_text=request.last_text,
                seen_audio=request.last_audio,
                forbid_eosp=request.forbid_eosp,
                top_k=params.top_k,
                top_p=params.top_p,
                temperature=params.temperature,
                penalty=params.repetition_penalty,
                draw_text=request.draw_text,
                draw_audio=request.draw_audio,
            )
        )
        runs_text = lengths.text_start < lengths.total
        shape = StepShape(
            0,
            runs_text,
            lengths.audio_start < lengths.total,
            samples=True,
            do_sample=params.do_sample,
            subtitle=runs_text and request.wants_subtitle,
        )
        self._run(tensors, lengths, shape, exclusive_gpu=request.exclusive_gpu)
        found = self._sampler.read()
        if shape.text:
            check_magnitude("logits", found[TEXT_MAGNITUDE])
        if shape.audio:
            check_magnitude("audio_logits", found[AUDIO_MAGNITUDE])
        return SampledIds(
            int(found[TEXT]) if shape.text else None,
            int(found[AUDIO]) if shape.audio else None,
            int(found[SUBTITLE]) if shape.subtitle else None,
        )

    def close(self) -> None:
        """Drop the captured graphs; the rest is freed with the executor."""
        self._graphs.clear()

    def _check(self, tensors: StepTensors) -> StepLengths:
        lengths = check_step(self._spec, self.limits, tensors, self._memory)
        self._inputs.wait()
        if tensors["host_kv_cache_pool_pointers"].tolist()[0][0] != self.cache.pool.data_ptr():
            raise ExecutorError("host_kv_cache_pool_pointers: not the address of this executor's pool")
        return lengths

    def _run(
        self, tensors: StepTensors, lengths: StepLengths, shape: StepShape, *, exclusive_gpu: bool
    ) -> None:
        """Run the rows; logits of the wanted tails (and the sampled ids) are in their buffers afterwards.
        `exclusive_gpu`: see SamplingMetadata."""
        size, past = self.limits.tokens_per_block, lengths.past
        offsets = tensors["host_kv_cache_block_offsets"][0, 0, 0]
        ids = tensors["input_ids"]
        block = int(offsets[past // size]) // (2 * self.limits.num_layers)
        is_new_table = self._inputs.set_table(offsets)
        self._inputs.set_row(int(ids[0]), past, block * size + past % size)
        is_step = int(tensors["host_request_types"]) == GENERATION
        self._inputs.send(with_table=is_new_table, for_step=is_step)
        if is_step:
            for tail, start in self._starts(lengths):
                if start < past:
                    self._fill(tail, start, past)
            if exclusive_gpu and self._step.persistent is not None:
                shape = replace(shape, is_persistent=True)
            else:
                shape = replace(shape, bucket=bucket_of(lengths.total, self.limits.max_seq_len))
            self._capture_or_run(shape)
            if not (shape.text or shape.audio):
                self._inputs.note_use()  # no caller waits for a result
            return
        self._run_rows(ids.long(), lengths, shape)
        if shape.samples:
            self._graphs.run(shape, lambda: self._step.sample(shape))

    def _run_rows(self, ids: Tensor, lengths: StepLengths, shape: StepShape) -> None:
        past, count = lengths.past, ids.shape[0]
        for tail, start in self._starts(lengths):
            if start < past:
                self._fill(tail, start, past)
        size = self._graphed_size(count)
        if size is None:
            span = self._prefill.span(past, count)
            self._rows(ids.to(self._device), span, text=shape.text, audio=shape.audio)
            return
        is_full_chunk = count == self.limits.max_num_tokens and past % count == 0
        bucket = lengths.total if is_full_chunk else bucket_of(lengths.total, self.limits.max_seq_len)
        filled = torch.zeros(size, dtype=torch.int64)
        filled[:count] = ids
        rows = RowsShape(size, bucket, shape.text, shape.audio, is_full_chunk)
        self._capture_or_run_rows(rows, filled, past, count)

    def _graphed_size(self, count: int) -> int | None:
        """The captured size to which `count` rows are padded; full chunks of a long prompt have their own
        size, captured at first use."""
        if self._graphed_rows and count == self.limits.max_num_tokens:
            return count
        return next((size for size in self._graphed_rows if count <= size), None)

    def _capture_or_run_rows(self, shape: RowsShape, ids: Tensor, past: int, count: int) -> None:
        def run(ids: Tensor, where: Tensor) -> None:
            if shape.is_full_chunk:
                span = self._prefill.span(shape.bucket - shape.size, shape.size)
            else:
                span = self._prefill.graphed_span(where, shape.size, shape.bucket)
            self._rows(ids, span, text=shape.text, audio=shape.audio)

        self._graphs.run(shape, run, ids, torch.tensor([past, count]))

    def _rows(self, ids: Tensor, span: Span, *, text: bool, audio: bool) -> None:
        x = self._prefill.trunk(ids, span, keep=not (text and audio))
        tails = (
            (self.network.text, text, self._step.text_logits),
            (self.network.audio, audio, self._step.audio_logits),
        )
        for tail, runs, buffer in tails:
            if runs:
                logits = self._prefill.tail(tail, x, span, wants_logits=True)
                assert logits is not None, tail.output
                buffer.copy_(logits)

    def _starts(self, lengths: StepLengths) -> list[tuple[Tail, int]]:
        """The tails to run, each with its first row."""
        starts = ((self.network.text, lengths.text_start), (self.network.audio, lengths.audio_start))
        return [(tail, start) for tail, start in starts if start < lengths.total]

    def _fill(self, tail: Tail, first: int, end: int) -> None:
        """Write the deferred K/V of a tail from kept trunk outputs, in as few calls as memory allows."""
        chunk = self.limits.max_num_tokens
        for start in range(first, end, chunk):
            stop = min(start + chunk, end)
            span = self._prefill.span(start, stop - start)
            self._prefill.tail(tail, self._prefill.kept(span), span, wants_logits=False)


def _taking() -> Callable[[Tensor, Tensor], None]:
    """The kernel that copies a step's inputs to the device. Imported here, since only this backend needs
    Triton."""
    from engine_runtime.executors.cuda.triton_operations import take_inputs

    return take_inputs


def _plain(network: Network, cache: KVCache, inputs: StepInputs, scratch: Tensor) -> _Parts:
    """The operations between the matrix products, in plain torch."""
    return (
        TorchOperations(network, cache, inputs, scratch),
        TorchRowOperations(network, cache, inputs),
        DeviceSampler(network.config.text_vocab, network.config.audio_vocab, inputs, cache.pool.device),
    )


def _kernels(
    network: Network, cache: KVCache, inputs: StepInputs, launches: Mapping[ConfigKey, KernelConfig] | None
) -> _Parts:
    """The same operations as Triton kernels. For the import see `_taking`."""
    from engine_runtime.executors.cuda.triton_operations import TritonOperations
    from engine_runtime.executors.cuda.triton_prefill import TritonRowOperations
    from engine_runtime.executors.cuda.triton_sampler import TritonSampler

    return (
        TritonOperations(network, cache, inputs, launches=dict(launches or {})),
        TritonRowOperations(network, cache, inputs),
        TritonSampler(network.config.text_vocab, network.config.audio_vocab, inputs, cache.pool.device),
    )
