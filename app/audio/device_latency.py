"""How far a sample is on its way between the callback and the air, as the sound system measures it.

In: for each block, the time that PortAudio gives for its first sample at the converter; it comes from the
sound server, for Bluetooth and remote devices too. Out: the latency, averaged over a second; the time of a
block that goes with it; and whether the device ran dry before the block, which PortAudio reports for some
gaps only. The latency that a stream reports when it is opened is the requested one. Written by PortAudio's
thread, read by any.
"""

from __future__ import annotations

_SMOOTHING = 0.01
"""A second's worth of blocks."""
_PLAUSIBLE_S = (-0.2, 3.0)
"""A monitor of a loudspeaker captures sound before it is in the air. Some drivers give no time at all, 0."""
_GAP_NS = 10_000_000
_GAP_BLOCKS = 3
"""Number of consecutive late blocks that make a gap: a single one is a wrong measurement."""


class DeviceLatency:
    """The latency of one stream, in seconds."""

    def __init__(self, reported_s: float = 0.0) -> None:
        """Start with what the stream reports."""
        self.mean_s = reported_s
        self._blocks = 0
        self._air_ns: int | None = None
        """When the latest block is in the air; None while that is not known."""
        self._expected_ns: int | None = None
        """When it would be in the air if it followed the block before without a gap."""
        self._late_blocks = 0

    def add(self, latency_s: float, now_ns: int) -> int:
        """A block whose latency is `latency_s` at `now_ns`, 0 if that is not known. Returns when it would be
        handed over if its latency was the mean: without the jitter of the callbacks, which come in bursts."""
        low, high = _PLAUSIBLE_S
        if not latency_s or not low < latency_s < high:
            self._air_ns = None
            return now_ns
        self._air_ns = now_ns + round(latency_s * 1e9)
        self._blocks += 1
        self.mean_s += max(_SMOOTHING, 1 / self._blocks) * (latency_s - self.mean_s)
        return self._air_ns - round(self.mean_s * 1e9)

    def ran_dry(self, block_ns: int) -> bool:
        """Whether the device was silent before the block of this length that was added last."""
        if self._air_ns is None:
            return False
        expected_ns = self._air_ns if self._expected_ns is None else self._expected_ns
        is_late = self._air_ns - expected_ns > _GAP_NS
        self._late_blocks = self._late_blocks + 1 if is_late else 0
        is_gap = self._late_blocks == _GAP_BLOCKS
        if is_gap:
            self._late_blocks = 0
        self._expected_ns = block_ns + (expected_ns if is_late and not is_gap else self._air_ns)
        return is_gap
