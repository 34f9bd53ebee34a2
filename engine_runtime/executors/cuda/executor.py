"""CudaExecutor: the forward step on a GPU, decode as captured graphs, prefill through cuBLAS and SDPA.

In: a ScheduledBatch (lm/step.py); changed values go to the device in one copy. Out: logits in host memory or,
where sampling is requested, the next ids, sampled on the device, so that each step returns one small copy.
With kernels, several sequences run together (batched_steps.py); otherwise one after the other. The reference
implementation is executors/torch/executor.py, with which it shares the KV pool's layout, the checks, and
deferred tails. Engine thread; inference only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.executors.cuda.backends import (
    batched_steps,
    persistent_backends,
    taking,
    triton_backend,
)
from engine_runtime.executors.cuda.decode_backend import DecodeBackend, DecodeOutputs, StepShape, bucket_of
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.prefill import (
    GRAPHED_ROWS,
    Prefill,
    RowOperations,
    RowSpan,
    RowsShape,
    TorchRowOperations,
    has_fp8_matmul,
)
from engine_runtime.executors.cuda.sampler import sampled_output
from engine_runtime.executors.cuda.torch_backend import TorchBackend
from engine_runtime.executors.cuda.weights import Network, Tail
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.step import (
    BatchCheck,
    ReplySampling,
    ScheduledBatch,
    ScheduledSequence,
    StepOutput,
    Tails,
    logits_output,
)
from engine_runtime.options import PREFILL_TOKENS

if TYPE_CHECKING:
    from engine_runtime.executors.cuda.batched_steps import BatchedSteps
    from engine_runtime.executors.cuda.triton_linear import ConfigKey, KernelConfig


class CudaExecutor:
    """Runs steps of one network over one KV pool; also on a CPU, where tests compare it with the reference.

    Args:
        network: weights on the device.
        cache: the pool, on the same device.
        max_seq_len: rows of the longest sequence.
        max_num_tokens: rows of the longest single call.
        uses_triton: run the kernels of cuda/kernels; otherwise the same operations in plain torch.
        kernel_configs: autotuned kernel configurations (executors/cuda/autotune.py); None = defaults.
        uses_graphs: capture each shape of a decode step once.
        multiplies_fp8: whether prefill multiplies fp8 weights without dequantization; None = if the GPU
            supports it.
        uses_persistent_kernel: run a step in one launch while it has the GPU exclusively, if GPU and sizes
            support it.
        graphed_rows: whether small prefills are padded to a captured size; None = only with graphs and
            kernels.
        max_batch_size: sequences of a step.
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
        max_num_tokens: int = PREFILL_TOKENS,
        uses_triton: bool = False,
        kernel_configs: Mapping[ConfigKey, KernelConfig] | None = None,
        uses_graphs: bool = True,
        multiplies_fp8: bool | None = None,
        uses_persistent_kernel: bool = False,
        graphed_rows: bool | None = None,
        max_batch_size: int = 1,
    ) -> None:
        config, dtype = network.config, cache.trunk.dtype
        self._device = cache.pool.device
        self.device = torch.device("cpu")  # the device of the logits
        self.network, self.cache = network, cache
        self.limits = cache.limits(config, max_seq_len, max_num_tokens, max_batch_size)
        self._check = BatchCheck(self.limits, can_sample=self.can_sample)
        if multiplies_fp8 is None:
            multiplies_fp8 = has_fp8_matmul(self._device, dtype)
        with torch.inference_mode():
            inputs = StepInputs(self.limits.max_blocks, self._device, taking() if uses_triton else None)
            # The plain operations dequantize every quantized matrix.
            room = network.largest_dense(multiplies_fp8=uses_triton and multiplies_fp8)
            scratch = torch.empty(room, dtype=dtype, device=self._device)
            self._inputs, self._outputs = inputs, DecodeOutputs.of(config, cache)
            backend: DecodeBackend
            rows: RowOperations
            if uses_triton:
                backend, rows = triton_backend(network, cache, inputs, self._outputs, kernel_configs)
            else:
                backend = TorchBackend(network, cache, inputs, self._outputs, scratch)
                rows = TorchRowOperations(network, cache, inputs)
            self._sampler = backend.sampler
            self._backends = [backend]
            """Decode backends in order of preference."""
            self._no_persistent = "--kernels torch"
            """Why the persistent kernel does not run, "" if it does."""
            if uses_persistent_kernel:
                first, self._no_persistent = persistent_backends(
                    network, cache, inputs, self._outputs, backend
                )
                self._backends[:0] = first
            self._prefill = Prefill(network, cache, inputs, rows, scratch, has_fp8_matmul=multiplies_fp8)
        self._graphs = GraphedCalls(self._device, enabled=uses_graphs)
        self.batched: BatchedSteps | None = None
        """Steps of several sequences by kernels; None without them."""
        if uses_triton and max_batch_size > 1:
            self.batched = batched_steps(network, cache, self.limits, self._graphs)
        # NOTE: only the kernels support padding rows.
        captures_rows = uses_triton and self._graphs.is_capturing if graphed_rows is None else graphed_rows
        self._graphed_rows = tuple(GRAPHED_ROWS) if captures_rows else ()

    @torch.inference_mode()
    def capture(self, shapes: Iterable[StepShape], *, with_batches: bool = False) -> None:
        """Capture decode steps of these shapes in every length bucket, so that no reply waits for a capture;
        with `with_batches` also those of several sequences, in every size.

        NOTE: only while no sequence holds a block: the steps write to the first block.
        """
        longest = self.limits.max_seq_len
        buckets = sorted({bucket_of(rows, longest) for rows in range(1, longest + 1)})
        self._inputs.wait()
        self._inputs.set_row(0, 0, 0)
        self._inputs.send(with_table=False)
        shapes = list(shapes)
        # While the user speaks, rows are prefilled with both tails; on commit, with the tails of the first
        # step.
        tails = {(True, True), *((shape.text, shape.audio) for shape in shapes)}
        for backend in self._backends:
            for bucket, shape in product(buckets if backend.has_buckets else [0], shapes):
                self._capture_or_run(backend, replace(shape, bucket=bucket))
        for bucket, size, (text, audio) in product(buckets, self._graphed_rows, sorted(tails)):
            ids = torch.zeros(size, dtype=torch.int64)
            self._capture_or_run_rows(RowsShape(size, bucket, text, audio), ids, 0, min(size, bucket))
        self._inputs.note_use()
        if with_batches and self.batched is not None:
            self.batched.capture(shapes, buckets)

    def _capture_or_run(self, backend: DecodeBackend, shape: StepShape) -> None:
        self._graphs.run((backend.name, shape), lambda: backend.run(shape))

    @property
    def num_captured(self) -> int:
        """Number of captured step shapes."""
        return self._graphs.num_captured

    @property
    def kernel_paths(self) -> dict[str, str]:
        """The backend of a decode step of one sequence and of several, and why nothing faster runs."""
        separate = "plain torch" if isinstance(self._backends[-1], TorchBackend) else "Triton kernels"
        found = {
            "decode_step": f"{separate} (not the persistent kernel: {self._no_persistent})"
            if self._no_persistent
            else f"persistent kernel; beside the codec {separate}"
        }
        if self.batched is not None:
            found["batched_step"] = self.batched.backend.kernel_path
        elif self.limits.max_batch_size > 1:
            found["batched_step"] = f"one sequence after the other, {separate}"
        return found

    def weight_bytes(self, tails: Tails) -> int:
        """Bytes of weights that one decode step with these tails reads."""
        return self.network.step_bytes(text=tails.text, audio=tails.audio)

    @torch.inference_mode()
    def execute(self, batch: ScheduledBatch) -> list[StepOutput]:
        self._check(batch)
        sequences = batch.sequences
        if self.batched is not None:
            # Also for a single sequence: of the replies in flight all others may have ended meanwhile.
            taken = self.batched.take(sequences)
            if taken is not None:
                return taken
        if self.batched is None or len(sequences) == 1:
            return [self._execute(scheduled, batch.exclusive_gpu) for scheduled in sequences]
        return self._execute_together(self.batched, sequences)

    def _execute_together(
        self, batched: BatchedSteps, sequences: tuple[ScheduledSequence, ...]
    ) -> list[StepOutput]:
        """Run the sequences in as few forwards as possible."""
        outputs: dict[int, StepOutput] = {}
        forwards = batched.plan(sequences)
        for indices in forwards:
            if len(indices) == 1:
                outputs[indices[0]] = self._execute(sequences[indices[0]], exclusive_gpu=False)
                continue
            together = [sequences[index] for index in indices]
            for scheduled in together:
                self._fill_tails(scheduled)
                if scheduled.sampling is not None:
                    # Each sampler keeps the seen ids of a reply on the device. Where a reply changes over,
                    # the copy of the other one is out of date.
                    self._sampler.forget(scheduled.sampling.reply)
            made = batched.run(together, looks_ahead=len(forwards) == 1)
            outputs |= zip(indices, made, strict=True)
        return [outputs[index] for index in range(len(sequences))]

    def _fill_tails(self, scheduled: ScheduledSequence) -> None:
        """Fill the tails that a step is going to read."""
        past = scheduled.first_position
        late = [(tail, written) for tail, written in self._tails_to_run(scheduled) if written < past]
        if not late:
            return
        self._inputs.wait()
        is_new_table = self._inputs.set_table(scheduled.block_table, self.cache.block_stride)
        self._inputs.send(with_table=is_new_table)
        for tail, written in late:
            self._fill(tail, written, past)

    def _execute(self, scheduled: ScheduledSequence, exclusive_gpu: bool) -> StepOutput:
        """Run one sequence alone."""
        tails, sampling = scheduled.tails, scheduled.sampling
        self._inputs.wait()
        shape = StepShape(0, tails.text, tails.audio)
        if sampling is not None:
            self._sampler.set(sampling)
            if self.batched is not None:
                self.batched.forget(sampling.reply)
            shape = replace(
                shape,
                samples=True,
                do_sample=sampling.reply.params.do_sample,
                subtitle=tails.text and sampling.wants_subtitle,
            )
        # NOTE: after `wait` above: the step before may still read the pinned buffers.
        is_new_table = self._inputs.set_table(scheduled.block_table, self.cache.block_stride)
        past, size = scheduled.first_position, self.limits.tokens_per_block
        trunk_row = scheduled.block_table[past // size] * size + past % size
        self._inputs.set_row(scheduled.token_ids[0], past, trunk_row)
        self._inputs.send(with_table=is_new_table, for_step=not scheduled.is_prefill)
        for tail, written in self._tails_to_run(scheduled):
            if written < past:
                self._fill(tail, written, past)
        if not scheduled.is_prefill:
            self._run_step(scheduled, shape, exclusive_gpu)
        else:
            self._run_rows(scheduled, shape)
            if shape.samples:
                self._graphs.run(("sample", shape), lambda: self._backends[0].sample(shape))
        if not scheduled.wants_output:
            self._inputs.note_use()
            return StepOutput(None, None)
        if sampling is None:
            return self._logits(tails)
        return sampled_output(self._sampler.read(), tails, wants_subtitle=sampling.wants_subtitle)

    def is_in_flight(self, reply: ReplySampling) -> bool:
        return self.batched is not None and self.batched.is_in_flight(reply)

    def close(self) -> None:
        """Drop the captured graphs; the rest is freed with the executor."""
        if self.batched is not None:
            self.batched.close()
        self._graphs.clear()

    def _run_step(self, scheduled: ScheduledSequence, shape: StepShape, exclusive_gpu: bool) -> None:
        """Run a decode step; logits of the wanted tails (and the sampled ids) are in their buffers
        afterwards."""
        usable = (backend for backend in self._backends if exclusive_gpu or not backend.needs_exclusive_gpu)
        backend = next(usable)
        if backend.has_buckets:
            shape = replace(shape, bucket=bucket_of(scheduled.num_tokens, self.limits.max_seq_len))
        self._capture_or_run(backend, shape)
        if not (shape.text or shape.audio):
            self._inputs.note_use()  # no caller waits for a result

    def _logits(self, tails: Tails) -> StepOutput:
        """Copies of the logits in host memory."""
        text = self._outputs.text_logits[0].to("cpu", copy=True) if tails.text else None
        audio = self._outputs.audio_logits[0].to("cpu", copy=True) if tails.audio else None
        return logits_output(text, audio, self.limits)

    def _run_rows(self, scheduled: ScheduledSequence, shape: StepShape) -> None:
        """Run the rows of a prefill."""
        past, count, total = scheduled.first_position, len(scheduled.token_ids), scheduled.num_tokens
        ids = torch.tensor(scheduled.token_ids)
        size = self._graphed_size(count)
        if size is None:
            span = self._prefill.span(past, count)
            self._rows(ids.to(self._device), span, text=shape.text, audio=shape.audio)
            return
        is_full_chunk = count == self.limits.max_num_tokens and past % count == 0
        bucket = total if is_full_chunk else bucket_of(total, self.limits.max_seq_len)
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

    def _rows(self, ids: Tensor, span: RowSpan, *, text: bool, audio: bool) -> None:
        x = self._prefill.trunk(ids, span, keep=not (text and audio))
        tails = (
            (self.network.text, text, self._outputs.text_logits),
            (self.network.audio, audio, self._outputs.audio_logits),
        )
        for tail, runs, buffer in tails:
            if runs:
                logits = self._prefill.tail(tail, x, span, wants_logits=True)
                assert logits is not None, tail.output
                buffer.copy_(logits)

    def _tails_to_run(self, scheduled: ScheduledSequence) -> list[tuple[Tail, int]]:
        """The tails to run, each with its number of written rows."""
        tails = (
            (self.network.text, scheduled.tails.text, scheduled.text_computed),
            (self.network.audio, scheduled.tails.audio, scheduled.audio_computed),
        )
        return [(tail, rows) for tail, runs, rows in tails if runs]

    def _fill(self, tail: Tail, first: int, end: int) -> None:
        """Write the deferred K/V of a tail from kept trunk outputs, in as few calls as memory allows."""
        chunk = self.limits.max_num_tokens
        for start in range(first, end, chunk):
            stop = min(start + chunk, end)
            span = self._prefill.span(start, stop - start)
            self._prefill.tail(tail, self._prefill.kept(span), span, wants_logits=False)
