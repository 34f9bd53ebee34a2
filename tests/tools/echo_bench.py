"""What echo cancellation removes and what it costs. Run by hand, not by pytest:

    python -m tests.tools.echo_bench [--library livekit]

The first line is the start of the library: the time until its first processor, the memory that it adds, its
threads. The sample questions are the replies. Each row is a room: echo return loss and delay, drift of the
microphone's clock; then what was measured of it, the echo return loss enhancement from the third second on,
the share of frames that the VAD takes for speech before and after, and the CPU time for 10 ms of sound (5th
percentile and median): all of the processing, and the library alone in the same run. The last rows: no echo;
the option off; with noise suppression and gain control.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import psutil

from app.audio.echo_cancellation import AudioProcessing
from app.audio.echo_libraries import DEFAULT_LIBRARY, FrameProcessor, make_processor
from app.audio.levels import dbfs, rms
from app.audio.resample import Resampler
from app.audio.wav import read_wav
from app.dialog.vad import SileroVad
from app.duplex.room import RATE, SPEAKER_RATE, EchoRoom
from app.settings import EchoLibrary
from engine_runtime.types import Pcm
from tests.tools.echo_scene import Scene

_STRETCH = 30
_SAMPLES = Path(__file__).parents[2] / "assets" / "samples"
_HEADER = (
    "echo dB  delay ms  drift ppm  state       ERL dB  delay ms  ERLE dB  VAD before  after"
    "  p5 ms/10 ms  p50  library p5  p50"
)


class TimedLibrary:
    """Adds up the processor time of the echo canceller itself."""

    def __init__(self, canceller: FrameProcessor | None) -> None:
        self.cpu_s = 0.0
        self._canceller = canceller

    def process(self, near: Pcm, far: Pcm | None = None) -> Pcm:
        assert self._canceller is not None
        began = time.thread_time()
        processed = self._canceller.process(near, far)
        self.cpu_s += time.thread_time() - began
        return processed


def main() -> None:
    """Print one row per room."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=get_args(EchoLibrary), default=DEFAULT_LIBRARY)
    library = parser.parse_args().library
    _measure_start(library)
    replies = np.concatenate([_spoken(file) for file in sorted(_SAMPLES.glob("*.wav"))])
    sys.stdout.write(_HEADER + "\n")
    automatic = AudioProcessing(library=library)
    for loss_db in (6, 12, 20):
        for delay_ms in (50, 100, 250):
            for skew_ppm in (0, 300):
                _measure(EchoRoom(loss_db, delay_ms, skew_ppm), automatic, replies, loss_db, skew_ppm)
    headphones = EchoRoom(12, 100)
    headphones.echo_gain = 0.0
    _measure(headphones, automatic, replies, float("inf"), 0)
    _measure(EchoRoom(12, 100), replace(automatic, echo_cancellation="off"), replies, 12, 0)
    options = replace(automatic, noise_suppression=True, gain_control=True)
    _measure(EchoRoom(12, 100), options, replies, 12, 0)


def _measure_start(library: EchoLibrary) -> None:
    process = psutil.Process()
    memory, threads, began = process.memory_info().rss, process.num_threads(), time.perf_counter()
    make_processor(library, echo_cancellation=True, noise_suppression=False, gain_control=False)
    seconds = time.perf_counter() - began
    memory = process.memory_info().rss - memory
    sys.stdout.write(
        f"{library}: started in {seconds * 1e3:.0f} ms, {memory / 1e6:.1f} MB of memory, "
        f"{process.num_threads() - threads} threads\n"
    )


def _spoken(file: Path) -> Pcm:
    pcm, rate = read_wav(file)
    resampler = Resampler(rate, SPEAKER_RATE)
    return np.concatenate([resampler.push(pcm), resampler.finish()])


def _measure(room: EchoRoom, options: AudioProcessing, replies: Pcm, loss_db: float, skew_ppm: float) -> None:
    scene = Scene(room, options)
    times: list[tuple[float, float]] = []
    process, library = scene.processor.process, TimedLibrary(scene.processor._canceller)
    if options.echo_cancellation != "off":
        scene.processor._canceller = library

    def timed(*arguments: object) -> Pcm:
        began, before = time.thread_time(), library.cpu_s
        processed = process(*arguments)  # type: ignore[arg-type]
        times.append((time.thread_time() - began, library.cpu_s - before))
        return processed

    scene.processor.process = timed  # type: ignore[method-assign]
    captured, processed = scene.run(len(replies) / SPEAKER_RATE, replies)
    settled = slice(3 * RATE, None)
    echo = scene.processor.measurement
    first = int(np.argmax(np.abs(room.response) > 0))
    values = (
        f"{-loss_db:7.0f}",
        f"{first * 1000 / RATE:8.0f}",
        f"{skew_ppm:8.0f}",
        f"{echo.state:10}",
        f"{echo.erl_db or float('nan'):6.1f}",
        f"{echo.delay_ms or float('nan'):8.0f}",
        f"{dbfs(rms(captured[settled])) - dbfs(rms(processed[settled])):7.1f}",
        f"{_speech_share(captured):9.1%}",
        f"{_speech_share(processed):7.1%}",
        *(f"{each:7.3f}" for each in _cost_ms(times)),
    )
    sys.stdout.write("  ".join(values) + "\n")


def _cost_ms(times: list[tuple[float, float]]) -> list[float]:
    """The 5th percentile and the median over stretches of 300 ms, of all and of the library: the echo is
    looked for in some calls only, and a call that another program disturbs takes several times as long."""
    whole = len(times) // _STRETCH * _STRETCH
    stretches = np.reshape(times[:whole], (-1, _STRETCH, 2)).mean(axis=1)
    return [float(each) for each in np.percentile(stretches, (5, 50), axis=0).T.ravel() * 1e3]


def _speech_share(pcm: Pcm) -> float:
    vad = SileroVad()
    size = vad.frame_samples
    frames = [pcm[start : start + size] for start in range(0, len(pcm) - size + 1, size)]
    return float(np.mean([vad.probability(np.ascontiguousarray(frame)) > 0.5 for frame in frames]))


if __name__ == "__main__":
    main()
