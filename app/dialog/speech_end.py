"""Where speech ends in the sound: the VAD finds that a few frames late, because its network has a memory.

In: the sound of a turn with the pause after it, and the end that the VAD found. Out: the end of the last
10 ms that stand out from the pause. Latencies count from there; turn-taking goes by the VAD. Pure.
"""

from __future__ import annotations

import numpy as np

from engine_runtime.types import Pcm

_WINDOWS_PER_S = 100
_RANGE = 0.01
"""40 dB below the loudest window of the turn: quieter sound is not speech."""
_OVER_PAUSE = 2.0
"""6 dB above the noise of the pause: quieter sound does not stand out."""
_LATEST_S = 0.3
"""How long the VAD may be late: Silero is 34 to 90 ms late on the sample questions."""


def speech_end(pcm: Pcm, sample_rate: int, vad_end: int) -> int:
    """Index in `pcm` [n] after the last sample of speech; `vad_end` if nothing stands out before it."""
    size = sample_rate // _WINDOWS_PER_S
    pause = pcm[vad_end:]
    spoken = pcm[vad_end % size : vad_end].reshape(-1, size)
    if not len(spoken):
        return vad_end
    levels = np.sqrt(np.mean(np.square(spoken), axis=1))
    noise = float(np.sqrt(np.mean(np.square(pause)))) if len(pause) else 0.0
    latest = levels[-round(_LATEST_S * _WINDOWS_PER_S) :]
    loud = np.flatnonzero(latest > max(_RANGE * float(levels.max()), _OVER_PAUSE * noise))
    return vad_end - (len(latest) - 1 - int(loud[-1])) * size if len(loud) else vad_end
