"""The flow packet by packet for several streams at once: equal packets of all in one captured call.

In: codes of many streams. Out: mel of a packet of each. Keys and values of all streams are in pages of one
chunk, in common buffers with one budget; all share the pages of the voice prompt. A stream's convolution
rows are in a slot. A packet of B streams (padded to a power of two) gathers these rows, runs encoder and
Euler steps with the kernels of a single stream, and puts the rows back. `StaticFlow` is the reference
implementation, equal within rounding.

If the pages are used up, those of some streams are copied to host memory (page_pool.py). Needs Triton. Runs
in the thread of its caller; on CUDA all packets must run on one CUDA stream.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import cast

import psutil
import torch
from torch import Tensor
from torch.nn import functional as F

from engine_runtime.codec.flow.encoder import FlowEncoderState
from engine_runtime.codec.flow.estimator import EstimatorState
from engine_runtime.codec.flow.page_pool import HostPages, PagePool, Pages
from engine_runtime.codec.flow.paged_cache import PagedCache
from engine_runtime.codec.flow.parts import FlowParts
from engine_runtime.codec.flow.ring_cache import RingCache
from engine_runtime.codec.flow.static import bytes_per_code, least_codes
from engine_runtime.codec.flow.triton_encoder import run_blocks
from engine_runtime.codec.flow.triton_estimator import TritonEstimator
from engine_runtime.cuda.graphs import GraphedCalls, padded_size
from engine_runtime.errors import BundleError, FlowCacheError
from engine_runtime.models.flow.cfm import check_frames
from engine_runtime.types import Codes
from engine_runtime.work import Stage, Work

FIRST_BUCKET = 16
"""Pages of the smallest bucket; each further bucket is twice as large."""
_HOST_SHARE = 4
"""The pages in host memory that are allocated at the start take at most this part of what is free there."""
MOST_STREAMS = 16
"""Streams of one call: more take proportionally longer."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class PagedState:
    """State of a stream besides its pages."""

    held: Pages
    position: int
    waiting: list[int] = field(default_factory=list)
    """Codes from `position` on."""


@dataclass(frozen=True, slots=True, eq=False)
class PacketWork(Work[Tensor]):
    """The next packet of a stream; its result is the mel."""

    flow: PagedFlow
    state: PagedState
    count: int

    @property
    def stage(self) -> Stage:
        return "flow"

    @property
    def batch_key(self) -> Hashable:
        return "flow", id(self.flow), self.flow.shape_of(self.count)

    @property
    def is_ready(self) -> bool:
        """While the device computes packets and has the next ones, more of them gather."""
        return self.flow.takes_more

    def waits_for_memory(self, beside: Sequence[PacketWork] = ()) -> bool:
        return self.flow.is_short((self.state, self.count), [(work.state, work.count) for work in beside])

    def fits(self, batch: Sequence[PacketWork]) -> bool:
        return len(batch) < self.flow.most_streams

    def run(self) -> Tensor:
        return self.flow.advance(self.state, self.count)

    def run_together(self, batch: Sequence[PacketWork]) -> list[Tensor]:
        return self.flow.advance_together([(work.state, work.count) for work in batch])


class PagedFlow:
    """Implements `FlowBackend`. Arguments as those of `StaticFlow`; `streams` is the number of streams at
    most. Raises BundleError if the prompt does not fit."""

    def __init__(
        self,
        parts: FlowParts,
        packets: Sequence[int],
        budget: int,
        steps: int,
        calls: GraphedCalls | None,
        streams: int,
    ) -> None:
        config, chunk, prompt = parts.config, parts.config.chunk_codes, len(parts.prompt_codes)
        self._parts, self._steps, self._chunk = parts, steps, chunk
        self._calls = GraphedCalls(parts.device, enabled=False) if calls is None else calls
        self._sample = TritonEstimator(parts.estimator).sample
        self.most_streams = min(MOST_STREAMS, padded_size(streams))
        """Streams of one call."""
        self.shapes = sorted({chunk, *(-(-size // chunk) * chunk for size in packets)})
        self.prompt_done = max(prompt - config.look_ahead_codes, 0) // chunk * chunk
        estimator = parts.estimator
        per_code = bytes_per_code(config, steps, estimator.cfg_rate, estimator.pack.dtype)
        self.num_pages = budget // (per_code * chunk)
        most = config.max_frames // config.upsample // chunk + self.shapes[-1] // chunk
        self.stream_pages = min(most, self.num_pages // 2)
        """Most pages of a stream, prompt included."""
        needed = -(-least_codes(prompt, self.shapes[-1]) // chunk)
        if self.stream_pages < needed:
            raise BundleError(
                "a voice prompt of {prompt} codes needs flow caches of {needed} pages, and there is "
                "memory for {num_pages}; use fewer conversations at once, fewer flow steps, a shorter "
                "voice prompt or more GPU memory",
                prompt=prompt,
                needed=2 * needed,
                num_pages=self.num_pages,
            )
        self._notes = parts.prompt_mel.new_zeros((prompt * config.upsample + 1, config.n_mels))
        self._notes[:-1] = parts.prompt_mel[0]
        for block in parts.encoder.blocks:
            block.reach(self.stream_pages * chunk)
        for block in parts.encoder.up_blocks:
            block.reach(self.stream_pages * chunk * config.upsample)
        self._spare_slot = streams
        self._free_slots = list(range(streams))
        self._launched: deque[torch.cuda.Event] = deque(maxlen=2)
        """Events at the ends of the last two calls."""
        with torch.inference_mode():
            self._make_caches(streams + 1)
            host = HostPages(self._caches, self._num_host_pages(per_code * chunk))
            self.pool = PagePool(self.num_pages, host)
            self._spare_page = self.pool.reserve()
            self._prompt_pages: list[int] = []
            self._run_prompt()

    def check_steps(self, steps: int) -> None:
        """All streams have the number of steps that the caches were made for."""
        if steps != self._steps:
            raise FlowCacheError(
                "An engine for several conversations runs {steps} flow steps, not {wanted}.",
                "Set --flow-steps.",
                steps=self._steps,
                wanted=steps,
            )

    def use_steps(self, steps: int) -> None:
        self.check_steps(steps)

    def start(self, steps: int) -> PagedState:
        """Raises FlowCacheError beyond the number of streams, or for other steps."""
        self.check_steps(steps)
        if not self._free_slots:
            raise FlowCacheError(
                "The flow runs {most} replies at once.",
                "Wait until one of them has ended.",
                most=self._spare_slot,
            )
        held = self.pool.open(self._free_slots.pop())
        state = PagedState(held, self.prompt_done * self._parts.config.upsample)
        weakref.finalize(state, self._give_back, held).atexit = False
        state.waiting = self._parts.prompt_codes[self.prompt_done :].tolist()
        with torch.inference_mode():
            for rows, start in zip(self._rows, self._start_rows, strict=True):
                rows[:, :, held.slot] = start
        return state

    def push(self, state: PagedState, codes: Codes) -> None:
        state.waiting.extend(codes.tolist())

    def ready(self, state: PagedState, packet_end: int, finishing: bool) -> int:
        return self._parts.codes_ready(state, self.shapes, packet_end, finishing)

    def work(self, state: PagedState, count: int) -> PacketWork:
        return PacketWork(self, state, count)

    def advance(self, state: PagedState, count: int) -> Tensor:
        return self.advance_together([(state, count)])[0]

    @torch.inference_mode()
    def advance_together(self, packets: Sequence[tuple[PagedState, int]]) -> list[Tensor]:
        """`advance` for streams whose packets have the same shape."""
        config, rate = self._parts.config, self._parts.config.upsample
        (shape,) = {self.shape_of(count) for _, count in packets}
        busy = [state for state, _ in packets]
        held = [state.held for state in busy]
        for state, count in packets:
            check_frames(state.position + count * rate, config)
            self.pool.take(state.held, self._pages_for(state, shape), held)
        end = max(state.position // rate for state in busy) + shape
        bucket = next((size for size in self.buckets() if size * self._chunk >= end), self.stream_pages)
        numbers = [self._numbers(state, shape, bucket) for state in busy]
        size = padded_size(len(packets))
        numbers += [self._padding(shape, bucket)] * (size - len(packets))
        mel = self._packet(shape, bucket, torch.tensor(numbers, dtype=torch.int64))
        self._note_launch()
        found = []
        for place, (state, count) in enumerate(packets):
            del state.waiting[:count]
            state.position += count * rate
            # Cloned: the captured packet returns its own buffer, which the next call overwrites while the
            # vocoder may still read it.
            found.append(mel[place : place + 1, : count * rate].clone())
        return found

    def shape_of(self, count: int) -> int:
        """The captured packet that holds `count` codes."""
        return min(size for size in self.shapes if size >= count)

    def is_short(self, packet: tuple[PagedState, int], beside: Sequence[tuple[PagedState, int]] = ()) -> bool:
        """Whether streams that began earlier hold the pages that a packet needs, beside those of a call."""
        (own, *others) = [
            (state.held, self._pages_for(state, self.shape_of(count))) for state, count in (packet, *beside)
        ]
        return self.pool.is_short(*own, others)

    @property
    def takes_more(self) -> bool:
        """Whether at most one call is still being computed. Another may wait behind it: the device goes on
        while the host waits for a decode step."""
        return len(self._launched) < 2 or bool(self._launched[0].query())

    def buckets(self) -> list[int]:
        """Pages of each bucket; the last is the most that a stream can have."""
        sizes = [FIRST_BUCKET]
        while sizes[-1] < self.stream_pages:
            sizes.append(2 * sizes[-1])
        return [*sizes[:-1], self.stream_pages]

    @torch.inference_mode()
    def warm_up(self, steps: int) -> None:
        """Run every shape in every bucket and number of streams once, in the spare slot."""
        size = self.most_streams
        while size:
            for bucket in self.buckets():
                for shape in self.shapes:
                    if self.prompt_done + shape <= bucket * self._chunk:
                        self._packet(shape, bucket, torch.tensor([self._padding(shape, bucket)] * size))
            size //= 2

    def _numbers(self, state: PagedState, shape: int, bucket: int) -> list[int]:
        """Start, end, slot, codes with their look-ahead, and page table of a stream."""
        wanted = shape + self._parts.config.look_ahead_codes
        start, window = state.position // self._parts.config.upsample, state.waiting[:wanted]
        pages = [*self._prompt_pages, *state.held.pages][:bucket]
        # Padding codes are masked by `end` in `_compute`: their embedding must not reach the look-ahead
        # convolution.
        filled = [*window, *[0] * (wanted - len(window))]
        table = [*pages, *[self._spare_page] * (bucket - len(pages))]
        return [start, start + len(window), state.held.slot, *filled, *table]

    def _padding(self, shape: int, bucket: int) -> list[int]:
        codes = [0] * (shape + self._parts.config.look_ahead_codes)
        return [self.prompt_done, self.prompt_done, self._spare_slot, *codes, *[self._spare_page] * bucket]

    def _packet(self, shape: int, bucket: int, numbers: Tensor) -> Tensor:
        return self._calls.run(
            (self, len(numbers), shape, bucket),
            lambda given: self._compute(shape, bucket, given),
            numbers,
            changes=self._rows,
        )

    def _compute(self, shape: int, bucket: int, numbers: Tensor) -> Tensor:
        """Mel [streams, shape * upsample, n_mels]; `numbers` as in `_numbers`, a row for each stream."""
        parts, rate = self._parts, self._parts.config.upsample
        wanted = shape + parts.config.look_ahead_codes
        start, end, slots = numbers[:, 0], numbers[:, 1], numbers[:, 2]
        codes, table = numbers[:, 3 : 3 + wanted], numbers[:, 3 + wanted :]
        self._codes.place(start, end, table, shape, bucket * self._chunk)
        self._frames.place(start * rate, end * rate, table, shape * rate, bucket * self._chunk * rate)
        self._mel_cache.place_as(self._frames)
        rows = [row.index_select(2, slots).flatten(1, 2) for row in self._rows]  # [steps, halves * B, 2, C]
        encoder, estimator = self._states(rows)
        ahead = parts.encoder.embed(F.embedding(codes, parts.encoder.embedding))
        is_there = start[:, None] + torch.arange(wanted, device=codes.device) < end[:, None]
        mu = parts.encoder.encode_ahead(encoder, ahead * is_there[:, :, None].to(ahead.dtype), run_blocks)
        frames = start[:, None] * rate + torch.arange(shape * rate, device=codes.device)
        noise = parts.noise[frames.clamp(max=len(parts.noise) - 1)]
        cond = self._notes[frames.clamp(max=len(self._notes) - 1)]
        mel = self._sample(estimator, noise, mu, parts.speaker, cond)
        for kept, new in zip(self._rows, _rows_of(encoder, estimator), strict=True):
            kept.index_copy_(2, slots, new.reshape(*kept.shape[:2], len(slots), *kept.shape[3:]))
        return mel

    def _states(self, rows: list[Tensor]) -> tuple[FlowEncoderState, EstimatorState]:
        """The states of the streams of a packet, with their rows."""
        # the blocks take either cache
        codes, frames, mel = (cast(RingCache, one) for one in (self._codes, self._frames, self._mel_cache))
        ahead, before_up, condition, *others = rows
        encoder = FlowEncoderState(ahead[0, :, :0], ahead[0], before_up[0], codes, frames)
        by_step = [[row[step] for row in others] for step in range(self._steps)]
        schedule = self._parts.estimator.schedule(self._steps)
        return encoder, EstimatorState(schedule, condition[0], by_step, mel)

    def _make_caches(self, slots: int) -> None:
        parts, config, chunk = self._parts, self._parts.config, self._chunk
        pack, rate, fixed = parts.encoder.pack, config.upsample, self.prompt_done
        like, head_dim = (
            torch.zeros(0, dtype=pack.dtype, device=pack.device),
            config.encoder_dim // config.encoder_heads,
        )

        def cache(lead: tuple[int, ...], head_dim: int, rate: int) -> PagedCache:
            shape = (*lead, self.num_pages * chunk * rate, head_dim)
            return PagedCache(shape, fixed * rate, chunk * rate, self.stream_pages * chunk * rate, like)

        heads = config.encoder_heads
        self._codes = cache((config.encoder_blocks, 2, 1, heads), head_dim, 1)
        self._frames = cache((config.encoder_up_blocks, 2, 1, heads), head_dim, rate)
        shape = parts.estimator.cache_shape(self._steps, 0)
        self._mel_cache = cache(shape[:4], shape[5], rate)
        empty = parts.encoder.new_state()
        estimator = parts.estimator.new_state(self._steps, cast(RingCache, self._mel_cache))
        # [steps, halves, slots, 2, C]: of the encoder and the condition there is one step
        self._rows = [row[:, :, None].repeat(1, 1, slots, 1, 1) for row in _rows_of(empty, estimator)]

    def _run_prompt(self) -> None:
        """Compute the voice prompt into its pages, and its rows into the spare slot, from which replies
        start."""
        for row in self._rows:
            row[:, :, self._spare_slot] = 0
        prompt = PagedState(self.pool.open(self._spare_slot), 0, self._parts.prompt_codes.tolist())
        while missing := self.prompt_done - prompt.position // self._parts.config.upsample:
            self.advance(prompt, max(size for size in self.shapes if size <= missing))
        self._prompt_pages = self.pool.keep(prompt.held)
        self._start_rows = [row[:, :, self._spare_slot].clone() for row in self._rows]

    def _pages_for(self, state: PagedState, shape: int) -> int:
        """Pages that a stream holds after its next packet, without those of the prompt."""
        end = state.position // self._parts.config.upsample + shape
        most = self.stream_pages - len(self._prompt_pages)
        return min(-(-end // self._chunk) - len(self._prompt_pages), most)

    def _num_host_pages(self, page_bytes: int) -> int:
        """Pages of host memory to allocate at the start, for a GPU."""
        if self._parts.device.type != "cuda":
            return 0
        available: int = psutil.virtual_memory().available
        return min(self.num_pages, available // _HOST_SHARE // page_bytes)

    @property
    def _caches(self) -> tuple[PagedCache, ...]:
        return self._codes, self._frames, self._mel_cache

    def _give_back(self, held: Pages) -> None:
        self._free_slots.append(held.slot)
        self.pool.close(held)

    def _note_launch(self) -> None:
        if self._parts.device.type == "cuda":
            end = torch.cuda.Event()
            end.record()
            self._launched.append(end)


def _rows_of(encoder: FlowEncoderState, estimator: EstimatorState) -> list[Tensor]:
    """The convolution rows of both states [steps, rows, 2, C], in a fixed order."""
    by_step = (torch.stack(rows) for rows in zip(*estimator.rows, strict=True))
    return [encoder.ahead[None], encoder.before_up[None], estimator.condition[None], *by_step]
