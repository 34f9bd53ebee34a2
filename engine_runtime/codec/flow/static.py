"""The flow packet by packet on static buffers, so that a CUDA graph can capture a complete packet.

In: codes. Out: mel of a packet of several chunks: encoder and all Euler steps in one captured call.
Positions, validity and noise are computed on the device from two numbers (start of the packet, end of the
codes), and caches and convolution rows are updated in place. No value is read back to the host, so packets
run asynchronously. On a CPU the same code runs eagerly; `DynamicFlow` is the reference implementation, equal
within rounding until the cache is full (flow/ring_cache.py describes what is kept then).

A stream holds a slot (a set of buffers) of a pool with one budget for all streams, until it is collected. If
the budget allows two ample slots, two are created and warmed up at the start, so that the second of two
concurrent replies is as fast as the first; further slots are created on demand within the budget. Beyond it,
streams share slots, whose graphs are captured already: what a stream has in its slot is copied aside before
the packet of another one, and back before its next packet. Runs in the thread of its caller; on CUDA all
streams must be used from one CUDA stream at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod

import torch
from torch import Tensor

from engine_runtime.codec.flow.encoder import FlowEncoderState, RunBlocks
from engine_runtime.codec.flow.estimator import PAST, EstimatorState, cache_shape
from engine_runtime.codec.flow.parts import FlowParts
from engine_runtime.codec.flow.ring_cache import RingCache
from engine_runtime.codec.flow.slot_pool import SlotPool
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.errors import BundleError, FlowCacheError
from engine_runtime.models.flow import FlowConfig
from engine_runtime.models.flow.cfm import check_frames
from engine_runtime.types import Codes
from engine_runtime.work import SingleWork

FIRST_BUCKET = 64
"""Codes of the smallest bucket; each further bucket is twice as large."""

AMPLE_CODES = 256
"""Codes of a reply, after the voice prompt, that a slot must hold before the budget is divided among two
replies: usually one reply is active."""

_OTHER_ROWS = 3
"""Number of leading rows of a slot that do not belong to an Euler step."""


@dataclass(slots=True)
class Slot:
    """The buffers of one stream. `rows` are the convolution rows of both states, `behind_prompt` their values
    at the start of a reply."""

    index: int
    steps: int
    encoder: FlowEncoderState
    estimator: EstimatorState
    rows: list[Tensor]
    behind_prompt: list[Tensor] = field(default_factory=list)
    resident: weakref.ref[StaticState] | None = None
    """The stream whose values the buffers hold."""
    streams: weakref.WeakSet[StaticState] = field(default_factory=weakref.WeakSet)
    """Streams that use the slot."""


@dataclass(slots=True)
class Parked:
    """What a stream had in its slot: the rows, and for each cache its slots after the prompt in parts, each
    with its start. `end` is the number of codes in them."""

    rows: list[Tensor]
    parts: list[list[tuple[int, Tensor]]]
    end: int


@dataclass(slots=True, weakref_slot=True, eq=False)
class StaticState:
    """State of a stream besides its slot."""

    slot: Slot
    position: int
    waiting: list[int] = field(default_factory=list)
    """Codes from `position` on."""
    parked: Parked | None = None
    """Its values while another stream has the slot, up to a position."""


class StaticFlow:
    """Implements `FlowBackend`.

    `packets` are the packet sizes in codes with a separate capture (rounded up to chunks, as far as the
    caches can hold them); `budget` is the total size in bytes of the caches of all streams, `steps` the usual
    number of Euler steps, for which it is divided; `triton` runs the estimator with Triton kernels. Raises
    BundleError if the prompt does not fit.
    """

    def __init__(
        self,
        parts: FlowParts,
        packets: Sequence[int],
        budget: int,
        steps: int,
        calls: GraphedCalls | None = None,
        *,
        triton: bool = False,
    ) -> None:
        config = parts.config
        chunk, prompt = config.chunk_codes, len(parts.prompt_codes)
        self._parts = parts
        self._calls = GraphedCalls(parts.device, enabled=False) if calls is None else calls
        self._run_blocks: RunBlocks | None = None
        self._sample = parts.estimator.sample
        if triton and config.chunk_frames >= PAST:
            from engine_runtime.codec.flow.triton_encoder import run_blocks
            from engine_runtime.codec.flow.triton_estimator import TritonEstimator

            self._run_blocks = run_blocks
            self._sample = TritonEstimator(parts.estimator).sample
        self._wanted_shapes = sorted({chunk, *(-(-size // chunk) * chunk for size in packets)})
        self._budget = budget
        self.prompt_done = max(prompt - config.look_ahead_codes, 0) // chunk * chunk
        """Codes of the prompt with complete look-ahead; their keys and values stay in the caches."""
        self._notes = parts.prompt_mel.new_zeros((prompt * config.upsample + 1, config.n_mels))
        self._notes[:-1] = parts.prompt_mel[0]
        self._count = 0
        self._slots: list[Slot] = []
        self._model: dict[int, Slot] = {}
        """A slot for a number of steps, from which further slots copy the prompt."""
        self._divide(steps)

    def _division(self, steps: int) -> tuple[list[int], int, int]:
        """How the budget is divided for a number of steps: `shapes`, `prepared_slots` and `cache_codes`.
        Raises BundleError if it is too small."""
        config, prompt = self._parts.config, len(self._parts.prompt_codes)
        shapes = list(self._wanted_shapes)
        most = config.max_frames // config.upsample + shapes[-1]
        all_codes = self._budget // self._bytes_per_code(steps)
        ample = min(most, max(prompt + AMPLE_CODES, least_codes(prompt, shapes[-1])))
        slots = 2 if all_codes >= 2 * ample else 1
        codes = min(all_codes // slots, most)
        # Large packets are split into several calls if memory is short.
        while len(shapes) > 1 and codes < least_codes(prompt, shapes[-1]):
            shapes.pop()
        least = least_codes(prompt, shapes[-1])
        if codes < least:
            raise BundleError(
                "a voice prompt of {prompt} codes needs a flow cache of at least {least} codes, and there "
                "is memory for {codes}; use a smaller weight format, --kv fp8, fewer flow steps, "
                "--codec-dtype float16, a shorter voice prompt or more GPU memory",
                prompt=prompt,
                least=least,
                codes=codes,
            )
        return shapes, slots, codes

    def _divide(self, steps: int) -> None:
        """Create the slots for a number of steps, when there are none."""
        self._steps = steps
        shapes, prepared_slots, cache_codes = self._division(steps)
        self.shapes = shapes
        """Codes of a packet, ascending."""
        self.prepared_slots = prepared_slots
        """Number of slots created and warmed up before the first reply."""
        self.cache_codes = cache_codes
        """Capacity of a stream's caches in codes, prompt included."""
        encoder, rate = self._parts.encoder, self._parts.config.upsample
        for block in encoder.blocks:
            block.reach(cache_codes)
        for block in encoder.up_blocks:
            block.reach(cache_codes * rate)
        self.pool: SlotPool[Slot] = SlotPool(
            self._budget,
            size_of=lambda steps: self.cache_codes * self._bytes_per_code(steps),
            make=self._new_slot,
            drop=self._drop_slot,
        )
        self.pool.reserve(steps, prepared_slots)

    def check_steps(self, steps: int) -> None:
        try:
            self._division(steps)
        except BundleError:
            raise FlowCacheError(
                "The flow's caches are too small for {steps} flow steps.",
                "Choose fewer, or half precision for the codec.",
                steps=steps,
            ) from None

    def use_steps(self, steps: int) -> None:
        """Graphs and slots of the other numbers are dropped first, for their memory. Only packets that
        begin a reply are captured at once; later ones have time for it, because the listener is behind."""
        self.check_steps(steps)
        if any(slot.streams for slot in self._slots):
            raise FlowCacheError("The flow steps cannot change during a reply.", "Wait until it has ended.")
        before = self._steps
        self._drop_slots()
        try:
            self._divide(steps)
        except torch.OutOfMemoryError:
            pass  # leaving the block frees what the frames of the error hold
        else:
            self._run_shapes(steps, [self._bucket(self.prompt_done + self.shapes[0])])
            return
        self._drop_slots()
        self._divide(before)
        raise FlowCacheError(
            "The GPU has too little free memory for {steps} flow steps.",
            "Choose fewer, or free memory.",
            steps=steps,
        )

    def _drop_slots(self) -> None:
        for slot in list(self._slots):
            self._drop_slot(slot)
        self.pool.clear()

    @torch.inference_mode()
    def start(self, steps: int) -> StaticState:
        """Raises FlowCacheError if active streams with other numbers of steps leave too
        little memory for a slot."""
        slot = self._idle_slot(steps)
        shared = slot or self._shared_slot(steps)
        state = StaticState(shared, self.prompt_done * self._parts.config.upsample)
        state.waiting = self._parts.prompt_codes[self.prompt_done :].tolist()
        shared.streams.add(state)
        if slot is not None:
            self.pool.lend(steps, slot, state)
        return state

    def _idle_slot(self, steps: int) -> Slot | None:
        """A slot that no stream holds; None if streams have to share."""
        try:
            return self.pool.take(steps)
        except FlowCacheError:
            if not any(slot.steps == steps for slot in self._slots):
                raise
            return None

    def _shared_slot(self, steps: int) -> Slot:
        slots = [slot for slot in self._slots if slot.steps == steps]
        return min(slots, key=lambda slot: len(slot.streams))

    def _enter(self, state: StaticState) -> None:
        """Make the buffers of the slot hold the values of this stream."""
        slot = state.slot
        resident = None if slot.resident is None else slot.resident()
        if resident is state:
            return
        if resident is not None:
            self._park(resident)
        if state.parked is None:
            torch._foreach_copy_(slot.rows, slot.behind_prompt)
        else:
            torch._foreach_copy_(slot.rows, state.parked.rows)
            for ring, parts in zip(_rings(slot), state.parked.parts, strict=True):
                for start, kept in parts:
                    ring.put_back(start, kept)
        slot.resident = weakref.ref(state)

    def _park(self, state: StaticState) -> None:
        """Park what the stream has computed since it was parked last."""
        rings, rate = _rings(state.slot), self._parts.config.upsample
        before = state.parked or Parked([], [[] for _ in rings], self.prompt_done)
        end = state.position // rate
        parts = []
        for ring, kept, per_code in zip(rings, before.parts, (1, rate, rate), strict=True):
            if end > self.cache_codes:  # the ring has wrapped: any slot may have changed
                start, stop, kept = self.prompt_done * per_code, ring.capacity, []
            else:
                start, stop = before.end * per_code, end * per_code
            parts.append([*kept, (start, ring.kept(start, stop))] if stop > start else kept)
        state.parked = Parked([row.clone() for row in state.slot.rows], parts, end)

    def push(self, state: StaticState, codes: Codes) -> None:
        state.waiting.extend(codes.tolist())

    def ready(self, state: StaticState, packet_end: int, finishing: bool) -> int:
        return self._parts.codes_ready(state, self.shapes, packet_end, finishing)

    def work(self, state: StaticState, count: int) -> SingleWork[Tensor]:
        return SingleWork("flow", partial(self.advance, state, count))

    @torch.inference_mode()
    def advance(self, state: StaticState, count: int) -> Tensor:
        """A count without a capture is padded, and must be the last of the stream."""
        self._enter(state)
        config = self._parts.config
        shape = min(size for size in self.shapes if size >= count)
        start = state.position // config.upsample
        check_frames(state.position + count * config.upsample, config)
        window = state.waiting[: shape + config.look_ahead_codes]
        filled = window + [0] * (shape + config.look_ahead_codes - len(window))
        numbers = torch.tensor([start, start + len(window), *filled], dtype=torch.int64)
        mel = self._packet(state.slot, shape, self._bucket(start + shape), numbers)
        del state.waiting[:count]
        state.position += count * config.upsample
        return mel[:, : count * config.upsample].clone()

    def buckets(self) -> list[int]:
        """Codes of each bucket; the last is the full cache."""
        sizes = [FIRST_BUCKET]
        while sizes[-1] < self.cache_codes:
            sizes.append(2 * sizes[-1])
        return [*sizes[:-1], self.cache_codes]

    def warm_up(self, steps: int) -> None:
        """Run every shape in every bucket of the existing slots once, so that no reply waits for a
        capture."""
        self._run_shapes(steps, self.buckets())

    @torch.inference_mode()
    def _run_shapes(self, steps: int, buckets: Sequence[int]) -> None:
        look_ahead = self._parts.config.look_ahead_codes
        for state in [self.start(steps) for _ in range(self.prepared_slots)]:
            for bucket in buckets:
                for shape in self.shapes:
                    if shape <= bucket - self.prompt_done:
                        start = max(bucket - shape, self.prompt_done)
                        numbers = [start, start + shape + look_ahead, *[0] * (shape + look_ahead)]
                        self._packet(state.slot, shape, bucket, torch.tensor(numbers, dtype=torch.int64))

    def _bucket(self, end: int) -> int:
        return next((size for size in self.buckets() if size >= end), self.cache_codes)

    def _packet(self, slot: Slot, shape: int, bucket: int, numbers: Tensor) -> Tensor:
        return self._calls.run(
            (self, slot.index, shape, bucket),
            lambda given: self._compute(slot, shape, bucket, given),
            numbers,
            changes=slot.rows,
            kind=(shape, bucket),
        )

    def _compute(self, slot: Slot, shape: int, bucket: int, numbers: Tensor) -> Tensor:
        """Mel [1, shape * upsample, n_mels] of a packet. `numbers`: its start and the end of the available
        codes, in codes and prompt included, then its codes with their look-ahead."""
        parts, rate = self._parts, self._parts.config.upsample
        start, end, codes = numbers[0], numbers[1], numbers[2:]
        encoder, estimator = slot.encoder, slot.estimator
        assert isinstance(encoder.codes, RingCache)
        assert isinstance(encoder.frames, RingCache)
        assert isinstance(estimator.cache, RingCache)
        encoder.codes.place(start, end, shape, bucket)
        encoder.frames.place(start * rate, end * rate, shape * rate, bucket * rate)
        estimator.cache.place_as(encoder.frames)
        ahead = parts.encoder.embedded(codes)
        is_there = start + torch.arange(codes.shape[0], device=codes.device) < end
        ahead = ahead * is_there[None, :, None].to(ahead.dtype)
        mu = parts.encoder.encode_ahead(encoder, ahead, self._run_blocks)
        frames = start * rate + torch.arange(shape * rate, device=codes.device)
        noise = parts.noise[frames.clamp(max=len(parts.noise) - 1)]
        cond = self._notes[frames.clamp(max=len(self._notes) - 1)]
        mel = self._sample(estimator, noise[None], mu, parts.speaker, cond[None])
        rows = _rows(encoder, estimator)
        # separate calls, because foreach copies are fused only for tensors of the same layout
        torch._foreach_copy_(slot.rows[:_OTHER_ROWS], rows[:_OTHER_ROWS])
        torch._foreach_copy_(slot.rows[_OTHER_ROWS:], rows[_OTHER_ROWS:])
        _put_rows(encoder, estimator, slot.rows)
        return mel

    def _bytes_per_code(self, steps: int) -> int:
        estimator, parts = self._parts.estimator, self._parts
        return bytes_per_code(parts.config, steps, estimator.cfg_rate, estimator.pack.dtype)

    @torch.inference_mode()
    def _new_slot(self, steps: int) -> Slot:
        """New buffers that hold the prompt."""
        parts, config = self._parts, self._parts.config
        pack, chunk = parts.encoder.pack, config.chunk_codes
        head_dim = config.encoder_dim // config.encoder_heads

        def ring(lead: tuple[int, ...], head_dim: int, rate: int) -> RingCache:
            shape = (*lead, self.cache_codes * rate, head_dim)
            return RingCache(shape, self.prompt_done * rate, chunk * rate, pack.dtype, pack.device)

        encoder = parts.encoder.new_state()
        encoder.codes = ring((config.encoder_blocks, 2, 1, config.encoder_heads), head_dim, 1)
        encoder.frames = ring(
            (config.encoder_up_blocks, 2, 1, config.encoder_heads), head_dim, config.upsample
        )
        shape = parts.estimator.cache_shape(steps, 0)
        estimator = parts.estimator.new_state(steps, ring(shape[:4], shape[5], config.upsample))
        rows = [row.clone() for row in _rows(encoder, estimator)]
        slot = Slot(self._count, steps, encoder, estimator, rows)
        self._count += 1
        self._slots.append(slot)
        _put_rows(encoder, estimator, slot.rows)
        if (model := self._model.setdefault(steps, slot)) is not slot:
            for own, other in zip(_rings(slot), _rings(model), strict=True):
                own.take_prompt_of(other)
            slot.behind_prompt = model.behind_prompt
            return slot
        state = StaticState(slot, 0, parts.prompt_codes.tolist())
        slot.resident = weakref.ref(state)
        with parts.estimator.without_engine():  # which is built for the packets of replies
            while missing := self.prompt_done - state.position // config.upsample:
                self.advance(state, max(size for size in self.shapes if size <= missing))
        slot.behind_prompt = [row.clone() for row in slot.rows]
        return slot

    def _drop_slot(self, slot: Slot) -> None:
        """Free a slot: its captured graphs, and with them its buffers."""
        self._slots = [known for known in self._slots if known is not slot]
        self._calls.forget(lambda key: isinstance(key, tuple) and key[:2] == (self, slot.index))
        if self._model.get(slot.steps) is slot:
            del self._model[slot.steps]


def bytes_per_code(config: FlowConfig, steps: int, cfg_rate: float, dtype: torch.dtype) -> int:
    """Bytes of the caches per code."""
    estimator = prod(cache_shape(config, cfg_rate, steps, config.upsample))
    encoder = 2 * config.encoder_dim * (config.encoder_blocks + config.encoder_up_blocks * config.upsample)
    return (estimator + encoder) * dtype.itemsize


def least_codes(prompt: int, packet: int) -> int:
    """Minimum capacity of the caches in codes, for packets of this size after the prompt."""
    return prompt + 2 * packet


def _rings(slot: Slot) -> list[RingCache]:
    """The caches of a slot, in a fixed order."""
    rings = (slot.encoder.codes, slot.encoder.frames, slot.estimator.cache)
    return [ring for ring in rings if isinstance(ring, RingCache)]


def _rows(encoder: FlowEncoderState, estimator: EstimatorState) -> list[Tensor]:
    """The convolution rows of both states, in a fixed order."""
    return [
        encoder.ahead, encoder.before_up, estimator.condition, *(row for step in estimator.rows for row in
        step)
    ]  # fmt: skip


def _put_rows(encoder: FlowEncoderState, estimator: EstimatorState, rows: list[Tensor]) -> None:
    """Set the rows of the states; the inverse of `_rows`."""
    encoder.ahead, encoder.before_up, estimator.condition, *others = rows
    each = len(others) // len(estimator.rows)
    estimator.rows[:] = [others[first : first + each] for first in range(0, len(others), each)]
