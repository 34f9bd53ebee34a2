"""The packages that echo cancellation can use, behind one interface; both wrap WebRTC's audio processing.

In: captured and played 16 kHz sound, in whole frames of 10 ms. Out: as many samples, processed. Neither needs
a server, and nothing leaves the machine. Dialog thread.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Protocol

import numpy as np

from app.audio.playback_reference import FRAME_SAMPLES, RATE_HZ
from app.audio.wire_format import pcm16
from app.settings import EchoLibrary
from engine_runtime.types import Pcm

DEFAULT_LIBRARY: EchoLibrary = "pywebrtc"
"""The other one cancels equally well, starts later and takes more memory (tests/tools/echo_bench.py)."""
PACKAGES: dict[EchoLibrary, str] = {"pywebrtc": "pywebrtc-audio", "livekit": "livekit"}
"""Names of the package registry."""
MODULES: dict[EchoLibrary, str] = {"pywebrtc": "pywebrtc_audio", "livekit": "livekit.rtc"}


class FrameProcessor(Protocol):
    """One processor with state, for one stream of captured sound."""

    def process(self, near: Pcm, far: Pcm | None = None) -> Pcm:
        """Process captured samples [n]; `far` [n] is what was played meanwhile, None without echo
        cancellation. n is a multiple of `FRAME_SAMPLES`."""


def is_installed(library: EchoLibrary) -> bool:
    """Whether the package is there, without loading it."""
    return importlib.util.find_spec(MODULES[library].partition(".")[0]) is not None


def make_processor(
    library: EchoLibrary, *, echo_cancellation: bool, noise_suppression: bool, gain_control: bool
) -> FrameProcessor:
    """A new processor. ImportError if the package is missing or damaged."""
    module = importlib.import_module(MODULES[library])
    options = {
        "echo_cancellation": echo_cancellation,
        "noise_suppression": noise_suppression,
        "auto_gain_control": gain_control,
        "high_pass_filter": echo_cancellation,
    }
    if library == "livekit":
        return _LiveKitProcessor(module, options)
    processor: FrameProcessor = module.AudioProcessor(RATE_HZ, **options)
    return processor


class _LiveKitProcessor:
    """LiveKit's AudioProcessingModule, which takes 16-bit frames of 10 ms, one at a time.

    Its native library runs threads of its own, which sleep meanwhile; rooms and servers are not touched.
    """

    def __init__(self, rtc: Any, options: dict[str, bool]) -> None:
        self._rtc = rtc
        self._module = rtc.AudioProcessingModule(**options)

    def process(self, near: Pcm, far: Pcm | None = None) -> Pcm:
        out = np.empty_like(near)
        for start in range(0, len(near), FRAME_SAMPLES):
            part = slice(start, start + FRAME_SAMPLES)
            if far is not None:
                self._module.process_reverse_stream(self._frame(far[part]))
                self._module.set_stream_delay_ms(0)  # the reference is aligned already
            frame = self._frame(near[part])
            self._module.process_stream(frame)
            out[part] = np.frombuffer(frame.data, dtype=np.int16) / np.float32(32_768)
        return out

    def _frame(self, pcm: Pcm) -> Any:
        return self._rtc.AudioFrame(bytearray(pcm16(pcm).tobytes()), RATE_HZ, 1, len(pcm))
