"""Voice recording: selects the part of the user's recording that becomes the voice prompt.

In: mono PCM at any rate, and a bundle. Out: its speech, truncated to complete chunks of the flow, or an error
with the reason why it cannot be used. Numpy only, so that a recording can be checked before anything is
loaded. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np

from engine_runtime.bundle.bundle import Bundle, VoiceSection
from engine_runtime.errors import AudioInputError, BundleError
from engine_runtime.types import Pcm

SEARCHED_S = 60.0
"""Length of the beginning of a recording that is searched for speech; the rest need not be read."""
_SILENCE_RMS = 0.003
"""About -50 dB of full scale: quieter than any speech, louder than the noise of a decent microphone."""
_FRAME_S = 0.02


@dataclass(frozen=True, slots=True)
class VoiceSource:
    """Speech of the voice, and the cache folder for its prompt, if any."""

    pcm: Pcm
    sample_rate: int
    cache: Path | None = None


def voice_section(bundle: Bundle) -> VoiceSection:
    """The bundle's section on voices. BundleError for a bundle with a fixed voice."""
    if bundle.voice is None:
        raise BundleError(
            "Bundle {bundle} has no speaker encoder, so it has one voice only.",
            "Choose no voice, or use a bundle whose voice can be chosen.",
            bundle=bundle.name,
        )
    return bundle.voice


def cut_speech(source: VoiceSource, bundle: Bundle) -> Pcm:
    """The speech that becomes the prompt: complete chunks, no silence at the ends.

    Raises BundleError for a bundle without a speaker encoder, AudioInputError for a recording that is silent
    or too short.
    """
    section, rate = voice_section(bundle), source.sample_rate
    pcm = _without_silence(source.pcm, rate)
    chunk_s = bundle.flow.chunk_codes * bundle.samples_per_code / bundle.flow.mel.sample_rate
    # Limits in chunks; the slack covers rounding in quotients such as 3.2 / 0.4.
    least = ceil(section.least_s / chunk_s - 1e-6)
    most = max(least, int(section.most_s / chunk_s + 1e-6))
    chunks = min(most, int(pcm.size / rate / chunk_s + 1e-6))
    if pcm.size == 0:
        raise AudioInputError(
            "The recording of the voice is silent.", "Record it again, or choose another one."
        )
    if chunks < least:
        raise AudioInputError(
            "The recording of the voice holds {size:.1f} s of speech, and at least {least:.1f} s are needed.",
            "Choose a longer one.",
            size=pcm.size / rate,
            least=least * chunk_s,
        )
    return pcm[: round(chunks * chunk_s * rate)]


def _without_silence(pcm: Pcm, rate: int) -> Pcm:
    """From the first to the last frame that is not silent; empty if all are silent."""
    width = max(1, round(_FRAME_S * rate))
    frames = np.pad(pcm, (0, -pcm.size % width)).reshape(-1, width)
    loud = np.flatnonzero(np.sqrt(np.square(frames, dtype=np.float64).mean(axis=1)) > _SILENCE_RMS)
    return pcm[loud[0] * width : (loud[-1] + 1) * width] if loud.size else pcm[:0]
