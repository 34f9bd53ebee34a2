"""The audio formats of the Realtime protocol: PCM16, usually at 24 kHz, and G.711 mu-law and A-law at 8 kHz.

In: bytes of the wire, or samples at the rate of the format. Out: the other. A byte or sample stands for
itself, so blocks of any length may be converted apart. Pure; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_runtime.types import Pcm

_PCM_RATE, _TELEPHONE_RATE = 24_000, 8_000
_STEP = np.float32(1 / 32_768)


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """One format, by the name of the protocol. Mono."""

    type: str
    sample_rate: int
    sample_bytes: int

    def document(self) -> dict[str, Any]:
        """The form of the protocol: PCM names its rate, the others have only one."""
        return {"type": self.type} | ({"rate": self.sample_rate} if self.type == PCM16.type else {})

    def decode(self, data: bytes) -> Pcm:
        """Bytes of whole samples to samples [n]."""
        if self.type == PCM16.type:
            return np.frombuffer(data, dtype="<i2") * _STEP
        return _decoded(self.type)[np.frombuffer(data, dtype=np.uint8)] * _STEP

    def encode(self, pcm: Pcm) -> bytes:
        """Samples [n] to bytes; what is beyond full scale is clipped."""
        return self.encode16(pcm16(pcm))

    def encode16(self, samples: NDArray[np.int16]) -> bytes:
        """The same for 16-bit samples [n]."""
        if self.type == PCM16.type:
            return bytes(samples.astype("<i2", copy=False).tobytes())
        return bytes(_codes(self.type)[samples.astype(np.int32) + 32_768].tobytes())


PCM16 = AudioFormat("audio/pcm", _PCM_RATE, 2)
PCMU = AudioFormat("audio/pcmu", _TELEPHONE_RATE, 1)
PCMA = AudioFormat("audio/pcma", _TELEPHONE_RATE, 1)
FORMATS = {known.type: known for known in (PCM16, PCMU, PCMA)}


def pcm_at(sample_rate: int) -> AudioFormat:
    """PCM16 at another rate: some servers use 16 kHz."""
    return AudioFormat(PCM16.type, sample_rate, PCM16.sample_bytes)


def pcm16(pcm: Pcm) -> NDArray[np.int16]:
    """Samples of any shape as 16-bit ones; what is beyond full scale is clipped."""
    samples: NDArray[np.int16] = np.clip(np.rint(pcm * 32_768.0), -32_768, 32_767).astype(np.int16)
    return samples


@cache
def _decoded(kind: str) -> NDArray[np.int16]:
    """The sample of each of the 256 codes (ITU-T G.711), 16 bit."""
    code = np.arange(256)
    if kind == PCMU.type:
        code = code ^ 0xFF
        exponent, mantissa = (code >> 4) & 7, code & 15
        magnitude = (((mantissa << 3) + 0x84) << exponent) - 0x84
        return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)
    code = code ^ 0x55
    exponent, mantissa = (code >> 4) & 7, code & 15
    magnitude = np.where(
        exponent == 0, (mantissa << 4) + 8, ((mantissa << 4) + 0x108) << (exponent - 1).clip(0)
    )
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


@cache
def _codes(kind: str) -> NDArray[np.uint8]:
    """The code whose sample is nearest to each of the 65,536 samples, from -32,768 on."""
    decoded = _decoded(kind).astype(np.int32)
    order = np.argsort(decoded, kind="stable")
    levels = decoded[order]
    between = (levels[1:] + levels[:-1]) / 2
    nearest = np.searchsorted(between, np.arange(-32_768, 32_768))
    return order[nearest].astype(np.uint8)
