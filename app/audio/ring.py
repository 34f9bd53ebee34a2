"""Rings of samples between an audio callback and the dialog thread, for capture and for playback.

One producer and one consumer, each in its own thread, without a lock: only the producer advances `written`,
only the consumer advances `consumed`, and samples are copied before the counter that publishes them is
advanced. After construction only `read` allocates. The ring of the loudspeaker can also be paused, ducked
and discarded.
"""

from __future__ import annotations

import numpy as np

from engine_runtime.types import Pcm


class Ring:
    """Single-producer single-consumer ring of float32 samples with counters that never wrap."""

    __slots__ = ("_mask", "_samples", "capacity", "consumed", "dropped", "written")

    def __init__(self, capacity_samples: int) -> None:
        """Make a ring that holds at least `capacity_samples` (rounded up to a power of two)."""
        if capacity_samples < 1:
            raise ValueError(f"a ring needs room for at least one sample, got {capacity_samples}")
        # A power of two, so that a counter that never wraps becomes a place by one mask.
        self.capacity = 1 << (capacity_samples - 1).bit_length()
        self._mask = self.capacity - 1
        self._samples = np.zeros(self.capacity, dtype=np.float32)
        self.written = 0
        """Samples accepted so far; moved by the producer."""
        self.consumed = 0
        """Samples read or discarded so far; moved by the consumer."""
        self.dropped = 0
        """Samples that found no room; counted by the producer."""

    @property
    def available(self) -> int:
        """Samples that can be read now."""
        return self.written - self.consumed

    @property
    def free(self) -> int:
        """Samples that can be written now."""
        return self.capacity - (self.written - self.consumed)

    def write(self, block: Pcm) -> int:
        """Producer: append `block` [n]; samples that do not fit are dropped and counted. Returns the samples
        accepted."""
        count = min(len(block), self.free)
        start = self.written & self._mask
        first = min(count, self.capacity - start)
        self._samples[start : start + first] = block[:first]
        self._samples[: count - first] = block[first:count]
        # NOTE: last. This is what publishes the samples to the other thread; moved up, the consumer would
        # read old ones.
        self.written += count
        self.dropped += len(block) - count
        return count

    def read_into(self, out: Pcm) -> int:
        """Consumer: fill the front of `out` [n]; returns how many samples there were. The rest is not
        touched."""
        count = min(len(out), self.written - self.consumed)
        self._copy(out[:count], self.consumed)
        # NOTE: after the copy. Before it, the producer could overwrite what is still being copied.
        self.consumed += count
        return count

    def read(self, max_samples: int) -> Pcm:
        """Consumer: up to `max_samples` as a new array."""
        out = np.empty(min(max_samples, self.written - self.consumed), dtype=np.float32)
        return out[: self.read_into(out)]

    def recent(self, count: int) -> Pcm:
        """Producer: up to `count` samples that the consumer took last, as a new array."""
        end = self.consumed
        start = max(end - count, self.written - self.capacity, 0)
        out = np.empty(max(end - start, 0), dtype=np.float32)
        return np.take(self._samples, np.arange(start, end), mode="wrap", out=out)

    def _copy(self, out: Pcm, index: int) -> None:
        """Consumer: the samples from `index` on, without taking them."""
        start = index & self._mask
        first = min(len(out), self.capacity - start)
        out[:first] = self._samples[start : start + first]
        out[first:] = self._samples[: len(out) - first]


FADE_S = 0.01
"""Fade of a reply that is discarded, paused or resumed. The onsets of speech, which sound like no click, take
5 ms or longer."""


DUCK_DB = 15.0
"""A reply that is ducked is this much softer: beneath the voice of who speaks over it, and still heard."""
DUCK_S = 0.035
"""Length of both ramps. With a block of the device before it, a reply is ducked within 60 ms."""


class PlaybackRing(Ring):
    """A ring whose consumer fades: the reply in it can be discarded, paused and resumed, or ducked, without a
    click.

    The producer's wishes are plain values that the callback looks at once per block. A reply that is paused
    fades out, and none of the faded samples is taken from the ring. When it is resumed, the same samples fade
    in: each sounds twice, with gains that add up to one, and every other sample sounds once. So no sample is
    lost, and the transition falls into a single sound instead of between two. A reply that is ducked goes on,
    `DUCK_DB` softer.
    """

    __slots__ = (
        "_discard_to",
        "_duck",
        "_fade",
        "_fade_length",
        "_faded",
        "_gain",
        "_is_ducked",
        "_is_paused",
        "_lowered",
        "_risen",
        "ducked_at",
    )

    def __init__(self, capacity_samples: int, fade_samples: int, duck_samples: int = 1) -> None:
        """Make a ring as `Ring`, with fades of `fade_samples`; it is ducked over `duck_samples`."""
        super().__init__(capacity_samples)
        angles = (np.arange(fade_samples) + 0.5) / fade_samples * np.pi / 2
        self._fade = (np.cos(angles) ** 2).astype(np.float32)
        self._discard_to = 0
        self._is_paused = False
        self._is_ducked = False
        """All three written by the producer."""
        # Even in dB, which is how loudness is heard, and without a corner at either end.
        down = (1.0 - np.cos(np.arange(duck_samples + 1) / duck_samples * np.pi)) / 2.0
        self._duck = (10 ** (-DUCK_DB / 20 * down)).astype(np.float32)
        self._lowered = 0
        """Index in `_duck` of the present gain."""
        self.ducked_at: int | None = None
        """First sample that was ducked; None while the consumer is not asked to duck."""
        self._faded: int | None = None
        """Samples from `consumed` on that were faded out; None while the ring is played."""
        self._fade_length = 0
        """Length of that fade in samples; behind it there is silence."""
        self._risen = fade_samples
        """Samples before `consumed` that were faded in."""
        self._gain = 1.0
        """Gain of the latest block. Only the consumer writes these six."""

    @property
    def available(self) -> int:
        """Samples that can be read now, or when the ring is resumed."""
        return self.written - max(self.consumed, self._discard_to)

    @property
    def is_silent(self) -> bool:
        """Whether the consumer gets silence, or is fading to it, for another reason than an empty ring."""
        return self._faded is not None

    @property
    def loudness(self) -> float:
        """Factor of what the consumer hears: below 1 while ducked, 0 while paused."""
        return 0.0 if self.is_silent else float(self._duck[self._lowered])

    def discard(self) -> None:
        """Producer: discard everything written so far, after a fade. Ends a pause, and what is written from
        now on is not ducked."""
        # NOTE: before the other two, which `_look` reads first: in the other order the callback could see
        # neither pause nor discard and play a block of the discarded reply, or raise its volume.
        self._discard_to = self.written
        self._is_paused = self._is_ducked = False

    def pause(self) -> None:
        """Producer: fade to silence from the next block on, and keep the samples."""
        self._is_paused = True

    def duck(self) -> None:
        """Producer: lower the volume from the next block on; the samples are taken as before."""
        self._is_ducked = True

    def resume(self) -> None:
        """Producer: after `pause`, fade in from the next block on, at the sample where the fade to silence
        began; after `duck`, raise the volume again."""
        self._is_paused = self._is_ducked = False

    def rewind(self, count: int) -> None:
        """Consumer, while it takes nothing: have the last `count` samples again, faded in, as far as they are
        kept and were not discarded. So the next device plays what the one before had not played yet."""
        # Never back into a discarded reply, nor to samples that the producer has overwritten.
        oldest = max(self._discard_to, self.written - self.capacity)
        self.consumed = min(max(self.consumed - count, oldest), self.consumed)
        self._risen = 0

    def play_into(self, out: Pcm, gain: float = 1.0) -> int:
        """Consumer: fill `out` [n] with what is to be heard, silence where there is nothing. A new `gain` is
        reached at the end of the block. Returns how many samples were taken for it; they are at the front."""
        self._look()
        out.fill(0.0)
        count = 0
        if self._faded is not None:
            self._fade_out(out, self._faded)
        else:
            count = self.read_into(out)
            self._fade_in(out[:count])
        self._lower(out)
        self._amplify(out, gain)
        return count

    def _look(self) -> None:
        """Consumer: begin a fade to silence, or end it, as the producer has requested."""
        is_paused, is_ducked = self._is_paused, self._is_ducked
        discard_to = self._discard_to  # NOTE: read after these two, because `discard` writes it first.
        is_discarded = discard_to > self.consumed
        if is_ducked != (self.ducked_at is not None):
            self.ducked_at = self.consumed if is_ducked else None
        if self._faded is None:
            if is_paused or is_discarded:
                end = discard_to if is_discarded else self.written
                self._faded, self._fade_length = 0, min(len(self._fade), end - self.consumed)
        elif self._faded < self._fade_length:
            return
        elif is_discarded:
            self.consumed, self._risen = discard_to, len(self._fade)
            self._faded, self._fade_length = (0 if is_paused else None), 0
            self._lowered = 0  # nothing sounds, so no ramp is needed
        elif not is_paused:
            self._faded, self._risen = None, 0

    def _fade_out(self, out: Pcm, first: int) -> None:
        """The next samples of the fade to silence, which are not taken."""
        count = min(len(out), self._fade_length - first)
        block = out[:count]
        self._copy(block, self.consumed + first)
        if count:
            block *= self._fade[np.arange(first, first + count) * len(self._fade) // self._fade_length]
        rising = self._fade[::-1][self._risen + first :][:count]  # if it was still fading in
        block[: len(rising)] *= rising
        self._faded = first + count

    def _fade_in(self, block: Pcm) -> None:
        rising = self._fade[::-1][self._risen :][: len(block)]
        block[: len(rising)] *= rising
        self._risen += len(rising)

    def _lower(self, block: Pcm) -> None:
        """Follow the ramp up or down; a fade to silence keeps the volume that it began with."""
        last = len(self._duck) - 1
        goal = self._lowered
        if self._faded is None:
            goal = 0 if self.ducked_at is None else last
        if self._lowered != goal and len(block):
            step = 1 if goal else -1
            places = np.arange(1, len(block) + 1) * step + self._lowered
            np.clip(places, 0, last, out=places)
            block *= self._duck[places]
            self._lowered = int(places[-1])
        elif goal:
            block *= self._duck[goal]

    def _amplify(self, block: Pcm, gain: float) -> None:
        before, self._gain = self._gain, gain
        if before != gain:
            # A step of the gain within a sound is a click.
            block *= np.linspace(before, gain, len(block), dtype=np.float32)
        elif gain != 1.0:
            block *= np.float32(gain)
