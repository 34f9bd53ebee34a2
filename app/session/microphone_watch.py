"""Detects an open microphone that delivers silence or repeatedly loses samples.

In: how long its samples have been zero (`SoundInput` turns what is not finite into zeros), and how many were
lost so far. Out: each notice once for each opening of the microphone. Dialog thread.
"""

from __future__ import annotations

from app.audio.streams import AudioInput

_SILENCE_S = 5.0
"""Digital silence: the quietest microphone has noise."""
_LOSSES = 5
_LOSSES_WITHIN_NS = 30_000_000_000


class MicrophoneWatch:
    """One microphone, from its opening on."""

    def __init__(self, microphone: AudioInput) -> None:
        self._microphone = microphone
        self._is_silence_told = self._is_loss_told = False
        self._dropped = microphone.dropped_samples
        self._losses: list[int] = []

    def notices(self, silent_s: float, now_ns: int) -> list[str]:
        """Messages for the user now; its samples have been zero for `silent_s`."""
        found = []
        if silent_s >= _SILENCE_S and not self._is_silence_told:
            self._is_silence_told = True
            found.append(
                "The microphone delivers silence. Check that it is not muted, or choose another one."
            )
        if self._microphone.dropped_samples != self._dropped:
            self._dropped = self._microphone.dropped_samples
            self._losses = [*(at for at in self._losses if now_ns - at < _LOSSES_WITHIN_NS), now_ns]
        if len(self._losses) >= _LOSSES and not self._is_loss_told:
            self._is_loss_told = True
            found.append("The microphone loses sound. Choose a higher device latency in the settings.")
        return found
