"""Tells the user's voice from the assistant's own, heard back through the loudspeaker.

In: for every VAD frame, the level of the microphone and the level of what was played meanwhile. Out: whether
the microphone may be hearing only the loudspeaker. No echo is removed: the guard learns how loud the
loudspeaker comes back (nothing with a headset, a lot on a laptop), and asks of an interruption to be clearly
louder. Dialog thread.
"""

from __future__ import annotations

from collections import deque

_MIC_FRAMES = 10
_PLAYED_FRAMES = 16
"""Longer than the microphone's window by the delay that an echo may have (6 frames of 32 ms)."""
_AUDIBLE = 0.003
"""What is played below this level (-50 dBFS) makes no echo worth the name."""
_MARGIN = 2.0
"""The user has to be twice as loud as the echo (6 dB)."""
_FIRST_COUPLING = 2.0
"""Before anything was learnt (half a second of the first reply), a loud echo is expected."""
_FALL = 0.1
_RISE = 0.05
_RISE_ABOVE_MARGIN = 0.01
"""Parts by which the estimate follows; above the margin it is probably the user who speaks."""


class EchoGuard:
    """Follows the ratio of the loudest moments of microphone and loudspeaker."""

    def __init__(self) -> None:
        self._mic: deque[float] = deque(maxlen=_MIC_FRAMES)
        self._played: deque[float] = deque(maxlen=_PLAYED_FRAMES)
        self.coupling = _FIRST_COUPLING
        """Learnt ratio of microphone to loudspeaker level."""

    def update(self, mic_level: float, played_level: float) -> bool:
        """RMS levels of the next frame; returns whether the microphone may hear nothing but an echo."""
        self._mic.append(mic_level)
        self._played.append(played_level)
        played = max(self._played)
        if played < _AUDIBLE:
            return False
        ratio = max(self._mic) / played
        is_echo = ratio < _MARGIN * self.coupling
        if ratio < self.coupling:
            part = _FALL
        else:
            part = _RISE if is_echo else _RISE_ABOVE_MARGIN
        self.coupling += part * (ratio - self.coupling)
        return is_echo
