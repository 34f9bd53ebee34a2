"""What echo cancellation removes and what it costs. Run by hand, not by pytest:

    python -m tests.tools.echo_bench [--library livekit]

The sample questions are the replies. Each row is a room: echo return loss and delay, drift of the
microphone's clock. The last rows: no echo; the option off; with noise suppression and gain control.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import psutil

from app.audio.echo_cancellation import AudioProcessing
from app.audio.echo_libraries import DEFAULT_LIBRARY, FrameProcessor, make_processor
from app.audio.levels import dbfs, rms
from app.audio.playback_reference import ReceivedAt
from app.audio.resample import Resampler
from app.audio.wav import read_wav
from app.dialog.vad import SileroVad
from app.duplex.room import RATE, SPEAKER_RATE, EchoRoom
from app.settings import EchoLibrary
from engine_runtime.table import Cell, Section
from engine_runtime.types import Pcm
from tests.tools.echo_scene import Scene
from tests.tools.tool_report import parse, tool_report

_STRETCH = 30
_SAMPLES = Path(__file__).parents[2] / "assets" / "samples"
_START_COLUMNS = {
    "library": "of the echo canceller",
    "start_ms": "until its first processor is there",
    "memory_mb": "that this adds",
    "threads": "that this adds",
}
_COLUMNS = {
    "case": "what is unlike the program's own settings",
    "echo_db": "level of the echo at the microphone; - with headphones",
    "delay_ms": "of the echo",
    "drift_ppm": "of the microphone's clock",
    "state": "what the canceller knows of the echo in the end",
    "erl_db": "echo return loss as measured",
    "found_ms": "delay as measured",
    "erle_db": "echo return loss enhancement from the third second on",
    "vad_before": "frames that the VAD takes for speech as captured, percent",
    "vad_after": "the same after cancellation",
    "cpu_ms_p5": "processor time for 10 ms of sound, 5th percentile over stretches of 300 ms",
    "cpu_ms": "the same, median",
    "library_ms_p5": "the library's part of it, 5th percentile",
    "library_ms": "the same, median",
}


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
    """Report one row for each room."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=get_args(EchoLibrary), default=DEFAULT_LIBRARY)
    arguments = parse(parser)
    library: EchoLibrary = arguments.library
    replies = np.concatenate([_spoken(file) for file in sorted(_SAMPLES.glob("*.wav"))])
    automatic = AudioProcessing(library=library)
    section = Section("rooms", _COLUMNS)
    with tool_report("echo_bench", arguments) as report:
        report.add(_start_section(library))
        for loss_db, delay_ms, skew_ppm in product((6, 12, 20), (50, 100, 250), (0, 300)):
            room = EchoRoom(loss_db, delay_ms, skew_ppm)
            section.rows.append(_measure(room, automatic, replies, loss_db, skew_ppm))
        headphones = EchoRoom(12, 100)
        headphones.echo_gain = 0.0
        off = replace(automatic, echo_cancellation="off")
        more = replace(automatic, noise_suppression=True, gain_control=True)
        cases: list[tuple[EchoRoom, AudioProcessing, int | None, str]] = [
            (headphones, automatic, None, "headphones"),
            (EchoRoom(12, 100), off, 12, "no cancellation"),
            (EchoRoom(12, 100), more, 12, "noise suppression, gain control"),
        ]
        for room, options, loss, case in cases:
            section.rows.append(_measure(room, options, replies, loss, 0) | {"case": case})
        report.add(section)


def _start_section(library: EchoLibrary) -> Section:
    process = psutil.Process()
    memory, threads, began = process.memory_info().rss, process.num_threads(), time.perf_counter()
    make_processor(library, echo_cancellation=True, noise_suppression=False, gain_control=False)
    row: dict[str, Cell] = {
        "library": library,
        "start_ms": (time.perf_counter() - began) * 1e3,
        "memory_mb": (process.memory_info().rss - memory) / 1e6,
        "threads": process.num_threads() - threads,
    }
    return Section("start", _START_COLUMNS, [row])


def _spoken(file: Path) -> Pcm:
    pcm, rate = read_wav(file)
    resampler = Resampler(rate, SPEAKER_RATE)
    return np.concatenate([resampler.push(pcm), resampler.finish()])


def _measure(
    room: EchoRoom, options: AudioProcessing, replies: Pcm, loss_db: float | None, skew_ppm: int
) -> dict[str, Cell]:
    scene = Scene(room, options)
    times: list[tuple[float, float]] = []
    process, library = scene.processor.process, TimedLibrary(scene.processor._canceller)
    if options.echo_cancellation != "off":
        scene.processor._canceller = library

    def timed(pcm: Pcm, received_at: ReceivedAt) -> Pcm:
        began, before = time.thread_time(), library.cpu_s
        processed = process(pcm, received_at)
        times.append((time.thread_time() - began, library.cpu_s - before))
        return processed

    scene.processor.process = timed  # type: ignore[method-assign]
    captured, processed = scene.run(len(replies) / SPEAKER_RATE, replies)
    settled = slice(3 * RATE, None)
    echo = scene.processor.measurement
    first = int(np.argmax(np.abs(room.response) > 0))
    costs = zip(("cpu_ms_p5", "cpu_ms", "library_ms_p5", "library_ms"), _cost_ms(times), strict=True)
    return {
        "case": "as it is",
        "echo_db": None if loss_db is None else -loss_db,
        "delay_ms": first * 1000 / RATE,
        "drift_ppm": skew_ppm,
        "state": echo.state,
        "erl_db": echo.erl_db,
        "found_ms": echo.delay_ms,
        "erle_db": dbfs(rms(captured[settled])) - dbfs(rms(processed[settled])),
        "vad_before": 100 * _speech_share(captured),
        "vad_after": 100 * _speech_share(processed),
        **dict(costs),
    }


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
