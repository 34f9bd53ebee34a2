"""Detects an open microphone that delivers silence or repeatedly loses samples.

In: for how long it has had no sound (`SoundInput` turns what is not finite into zeros), and how many samples
were lost so far. Out: whether it is silent, and each notice once for each opening. Dialog thread.
"""

from __future__ import annotations

from app.audio.streams import AudioInput

_SILENCE_S = 5.0
"""Without any sound: the quietest microphone has noise."""
_LOSSES = 5
_LOSSES_WITHIN_NS = 30_000_000_000


class MicrophoneWatch:
    """One microphone, from its opening on."""

    def __init__(self, microphone: AudioInput) -> None:
        self._microphone = microphone
        self.is_silent = False
        """Whether it delivers silence now."""
        self._is_silence_told = self._is_loss_told = False
        self._dropped = microphone.dropped_samples
        self._losses: list[int] = []

    def notices(self, silent_s: float, now_ns: int, name: str) -> list[str]:
        """Messages for the user now; the microphone, which the user knows by `name`, has had no sound for
        `silent_s`."""
        found = []
        self.is_silent = silent_s >= _SILENCE_S
        if self.is_silent and not self._is_silence_told:
            self._is_silence_told = True
            found.append(
                f"The microphone {name} delivers silence. Check that it is not muted, or choose another one."
            )
        if self._microphone.dropped_samples != self._dropped:
            self._dropped = self._microphone.dropped_samples
            self._losses = [*(at for at in self._losses if now_ns - at < _LOSSES_WITHIN_NS), now_ns]
        if len(self._losses) >= _LOSSES and not self._is_loss_told:
            self._is_loss_told = True
            found.append(
                f"The microphone {name} loses sound. Choose a higher device latency in the settings."
            )
        return found
