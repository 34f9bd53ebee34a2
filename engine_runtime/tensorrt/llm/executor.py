"""TrtllmExecutor: the forward step as a TensorRT-LLM engine runs it, on a GPU.

In: a ScheduledBatch (lm/step.py) of at most as many sequences as the engine was built for, which
step_tensors.py turns into the tensors of an engine: prefills first, without padding. Out: logits of the last
row of each sequence, in host memory. The reference implementation is executors/torch/executor.py, with the
same pool. The engine computes both tails at every step, so none is skipped.

Decode steps of one sequence are captured as CUDA graphs, one for each 256 rows of cache. A graph fixes the
host values at capture; so the number of cached rows is set to the maximum of its bucket, from which kernels
derive their grid sizes, while they read the true length on the device. The library's own C++ runtime rounds
in the same way. Each graph has its own context, which is not modified afterwards. Steps of several sequences
are not captured: each number of them would need as many graphs again. Engine thread; inference only.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import torch
from torch import Tensor

from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.errors import EngineError, ExecutorError, Problem
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.step import BatchCheck, ReplySampling, ScheduledBatch, StepOutput, check_logits
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.tensorrt.engine import ExecutionContext
from engine_runtime.tensorrt.llm.contract import BUILD_ANEW, check_tensors, choose_contract, profile_for
from engine_runtime.tensorrt.llm.session import EngineInputs, EngineOutputs, EngineSession, Memory, bind
from engine_runtime.tensorrt.llm.step_check import StepMemory, check_step
from engine_runtime.tensorrt.llm.step_tensors import (
    GENERATION,
    StepInputBuilder,
    StepTensors,
    packing_order,
    step_spec,
)

_log = logging.getLogger(__name__)
ROWS_PER_GRAPH = 256
"""Rows of cache that a captured decode step covers."""


class EngineStream:
    """The CUDA stream of an engine, and the device time of the work on it.

    TensorRT requires a non-default stream; events measure a step only on the stream that it runs on. Without
    a GPU work runs synchronously and is not measured.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._events = (
            [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self.stream is not None else []
        )
        self._is_measured = False

    @property
    def handle(self) -> int:
        """The raw stream handle for TensorRT."""
        return 0 if self.stream is None else int(self.stream.cuda_stream)

    @property
    def last_ms(self) -> float | None:
        """Device time of the last measured work in milliseconds, after `working`; None without a GPU, or if
        the work failed."""
        return self._events[0].elapsed_time(self._events[1]) if self._is_measured else None

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Make this stream current, ordered after earlier work; synchronizes at the end."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            try:
                yield
            finally:
                self.stream.synchronize()

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Inside `working`: measure the work enqueued here."""
        self._is_measured = False
        if not self._events:
            yield
            return
        self._events[0].record(self.stream)
        yield
        self._events[1].record(self.stream)
        self._is_measured = True


class TrtllmExecutor:
    """Runs steps of one engine over one KV pool.

    Args:
        session: the engine; closed with the executor.
        config: sizes of the language model that the engine was built from.
        cache: the pool, in the engine's dtype for keys and values.
        memory: allocator of a step's buffers.
        max_seq_len: rows of the longest sequence.
        max_num_tokens: rows of the longest single call, all sequences together.
        max_batch_size: sequences of a call.
        uses_graphs: capture decode steps.
        calls: captures them; None for CUDA graphs on the executor's own stream.

    Raises EngineError if the engine's tensors do not match such a step.
    """

    supports_deferred_tails = False
    can_sample = False

    num_tensors: int
    """Inputs and outputs of the engine."""

    def __init__(
        self,
        session: EngineSession,
        config: MossLMConfig,
        cache: KVCache,
        memory: Memory,
        *,
        max_seq_len: int,
        max_num_tokens: int,
        max_batch_size: int = 1,
        uses_graphs: bool = True,
        calls: GraphedCalls | None = None,
    ) -> None:
        self.device = torch.device("cpu")  # the device of the logits
        self.cache = cache
        self.limits = cache.limits(config, max_seq_len, max_num_tokens, max_batch_size)
        self._check = BatchCheck(self.limits, can_sample=self.can_sample)
        self.contract = choose_contract(session.tensors)
        self.requires_block_aligned_prefill = self.contract.requires_block_aligned_prefill
        self._widths = {"logits": config.text_vocab, "audio_logits": config.audio_vocab}
        check_tensors(session.tensors, self.contract, self.limits, self._widths)
        if self.requires_block_aligned_prefill and max_num_tokens < cache.tokens_per_block:
            raise EngineError(
                "The engine takes {max_num_tokens} tokens at once, fewer than a block of "
                "{tokens_per_block}, from whose start it must continue.",
                BUILD_ANEW,
                max_num_tokens=max_num_tokens,
                tokens_per_block=cache.tokens_per_block,
            )
        self._spec, self._known = step_spec(self.limits), StepMemory()
        self._builder = StepInputBuilder(self.limits, cache)
        self._session: EngineSession | None = session
        self.num_tensors = len(session.tensors)
        self._stream = EngineStream(memory.device)
        self._inputs = EngineInputs(self.contract, self.limits, memory)
        dtypes = {tensor.name: tensor.dtype for tensor in session.tensors if tensor.dtype is not None}
        self._outputs = EngineOutputs(self._widths, dtypes, memory, max_batch_size)
        self._contexts: dict[int, ExecutionContext] = {}
        self.note: Problem | None = None
        """Why decode steps are not captured although enabled, or None."""
        calls = calls or GraphedCalls(memory.device, enabled=uses_graphs, stream=self._stream.stream)
        self._calls = calls if calls.is_capturing else None
        self._captured: dict[int, ExecutionContext] = {}
        """Contexts of captured decode steps, by their bucket of rows."""

    @property
    def last_step_ms(self) -> float | None:
        """Device time of the engine's last step in milliseconds; None without a GPU."""
        return self._stream.last_ms

    @property
    def num_graphs(self) -> int:
        """Number of captured decode steps."""
        return len(self._captured)

    @torch.inference_mode()
    def execute(self, batch: ScheduledBatch) -> list[StepOutput]:
        """Run a step; one output for each sequence, in the order of the batch."""
        self._check(batch)
        for scheduled in batch.sequences:
            if min(scheduled.text_computed, scheduled.audio_computed) < scheduled.first_position:
                raise ExecutorError(
                    "text_computed, audio_computed: an engine cannot fill positions of a skipped tail"
                )
        order = packing_order(batch.sequences)
        logits = self.run(self._builder.fill([batch.sequences[index] for index in order]))
        outputs: dict[int, StepOutput] = {}
        for place, index in enumerate(order):
            tails = batch.sequences[index].tails
            outputs[index] = StepOutput(
                logits["logits"][place] if tails.text else None,
                logits["audio_logits"][place] if tails.audio else None,
            )
        return [outputs[index] for index in range(len(order))]

    def run(self, tensors: StepTensors) -> dict[str, Tensor]:
        """Run the engine on the tensors of a step; returns `logits` [sequences, text_vocab] and
        `audio_logits` [sequences, audio_vocab] in float32. Raises ExecutorError if a tensor does not match
        its declaration."""
        if self._session is None:
            raise ExecutorError("The engine is closed.", "Load it again.")
        lengths = check_step(self._spec, self.limits, tensors, self._known)
        if tensors["host_kv_cache_pool_pointers"].tolist() != [[self.cache.pool.data_ptr(), 0]]:
            raise ExecutorError(
                "host_kv_cache_pool_pointers: expected the address of this executor's pool and no second pool"
            )
        try:
            with self._stream.working():
                self._inputs.write(tensors)
                self._inputs.send()
                self._outputs.spoil(len(lengths))
                with self._stream.timed():
                    if self._calls is not None and tensors["host_request_types"].tolist() == [GENERATION]:
                        self._replay(self._calls, lengths[0].past)
                    else:
                        self._launch(sum(one.num_new for one in lengths), len(lengths))
                self._outputs.fetch(len(lengths))
        except torch.OutOfMemoryError:  # the loader explains what would fit
            raise
        except RuntimeError as error:  # torch reports CUDA errors like this
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise ExecutorError(
                "The GPU failed in a step ({reason}).", "Restart the program.", reason=reason
            ) from error
        outputs = self._outputs.values(len(lengths))
        for name, width in self._widths.items():
            for logits in outputs[name]:
                check_logits(name, logits, width)
        return outputs

    def is_in_flight(self, reply: ReplySampling) -> bool:
        """Steps do not overlap: each begins with ids that are sampled from logits on the host."""
        return False

    def close(self) -> None:
        """Release the engine and its memory; the pool belongs to the caller. No step can be run
        afterwards."""
        if self._session is None:
            return
        if self._stream.stream is not None:
            self._stream.stream.synchronize()
        self._calls = None  # captured graphs refer to their contexts, and these to the engine
        self._captured.clear()
        self._contexts.clear()
        self._session.close()
        self._session = None

    def _launch(self, rows: int, sequences: int) -> None:
        """Run the step without a graph."""
        profile = self._profile(rows)
        if profile not in self._contexts:
            self._contexts[profile] = self._new_context(rows)
        context = self._contexts[profile]
        bind(context, self._inputs.bindings(), self._outputs.bindings(sequences))
        context.enqueue(self._stream.handle)

    def _replay(self, calls: GraphedCalls, past: int) -> None:
        """Run the decode step that was written as a captured one, which the first use of its bucket captures;
        if that fails, run this step and later ones without graphs."""
        bucket = past // ROWS_PER_GRAPH
        try:
            context = self._captured.get(bucket) or self._bound_context(bucket)
            calls.run(bucket, lambda: context.enqueue(self._stream.handle))
            self._captured[bucket] = context
        except (RuntimeError, ExecutorError) as error:
            self.note = Problem(
                "Decode steps of this engine cannot be captured as CUDA graphs ({reason}).",
                "They run without graphs from now on, as with --no-graphs.",
                reason=str(error).rstrip("."),
            )
            _log.warning("%s", self.note)
            self._calls = None
            self._captured.clear()
            self._inputs.set_past(past)
            self._outputs.spoil(1)  # the attempt may have written to them
            self._launch(1, 1)

    def _bound_context(self, bucket: int) -> ExecutionContext:
        context = self._new_context(1)
        self._inputs.set_past(min((bucket + 1) * ROWS_PER_GRAPH, self.limits.max_seq_len - 1))
        bind(context, self._inputs.bindings(), self._outputs.bindings(1))
        return context

    def _profile(self, rows: int) -> int:
        assert self._session is not None
        return profile_for(self._session.tensors, rows)

    def _new_context(self, rows: int) -> ExecutionContext:
        assert self._session is not None
        return self._session.new_context(self._profile(rows), self._stream.handle)
