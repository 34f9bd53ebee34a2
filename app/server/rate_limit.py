"""How fast a client may send: a token bucket. The clock is passed in. Event loop."""

from __future__ import annotations

_BYTES_OF_A_UNIT = 4_096
PER_S = 1_000.0
"""An event costs one unit, and one more for each 4,096 bytes. Live audio in blocks of 20 ms takes 50 a second
and a recording that is sent at once is accepted about twenty times as fast as it plays."""
BURST = 2_000.0


class RateLimit:
    """Limits one connection. The reader waits, and with it the client by the flow control of TCP: nothing is
    dropped."""

    def __init__(self, now_s: float, per_s: float = PER_S, burst: float = BURST) -> None:
        self._per_s, self._burst = per_s, burst
        self._left, self._at_s = burst, now_s

    def wait_s(self, num_bytes: int, now_s: float) -> float:
        """Take a message of this size; returns the seconds to wait before the next one is read."""
        refilled = self._left + (now_s - self._at_s) * self._per_s
        self._left = min(refilled, self._burst) - 1.0 - num_bytes / _BYTES_OF_A_UNIT
        self._at_s = now_s
        return max(-self._left / self._per_s, 0.0)
