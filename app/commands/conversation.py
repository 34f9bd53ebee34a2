"""A headless conversation of the shipped sample questions, for the demo and the real-time measurement."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from app import paths
from app.audio.resample import Resampler
from app.audio.wav import WavWriter, read_wav
from app.main import engine_factory, load_turn_end_detector
from app.progress import progress_bar
from app.session.headless import run_file
from app.session.session_settings import SessionSettings
from app.settings import StartSettings
from engine_runtime.bench.measuring import Summary, summarize, summary_section
from engine_runtime.errors import AudioInputError
from engine_runtime.table import Section
from engine_runtime.timing import TimingEvent
from engine_runtime.types import Pcm

_PAUSE_S = 3.0
"""Silence after each question: longer than any endpointing, so that every question is a turn."""
_REALTIME_TERMS = {
    "endpointing_ms": "last speech sample to the commit",
    "voice_to_voice_ms": "last speech sample to the first sample of the reply",
    "playback_hold_ms": "first sample ready and turn confirmed to the start of playback",
}
_SHARE_OF_QUESTIONS = 0.6
"""Rough share of a conversation. The rest of the time the file waits while a reply is made and played."""


def hold_sample_conversation(
    settings: StartSettings,
    folder: Path,
    *,
    minutes: float = 0.0,
    realtime: bool = False,
    timings: list[TimingEvent] | None = None,
) -> dict[str, Any]:
    """Ask the sample questions, all of them once or for at least `minutes`, and return the report.

    Writes questions.wav, reply.wav, session.wav and trace.json into `folder`. `timings` gets every timing
    event.
    """

    def load() -> Any:
        engine = engine_factory(settings)()
        if timings is not None:
            engine.timing.subscribe(timings.append)
        return engine

    questions = folder / "questions.wav"
    write_questions(questions, minutes * 60)
    with progress_bar("talk") as progress:
        return run_file(
            load,
            wav_in=questions,
            settings=SessionSettings.of(settings),
            end_of_turn=load_turn_end_detector,
            out=folder / "reply.wav",
            record=folder / "session.wav",
            trace=folder / "trace.json",
            realtime=realtime,
            progress=progress,
        )


def converse(settings: StartSettings, minutes: float) -> dict[str, Any]:
    """Talk for about this many minutes in real time and count late audio."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="moss-voice-") as folder:
        result = hold_sample_conversation(
            settings, Path(folder), minutes=minutes * _SHARE_OF_QUESTIONS, realtime=True
        )
    spoken = [turn for turn in result["turns"] if turn["reply"]["modality"] == "speech"]
    timings = [turn["timings"] for turn in spoken if turn["timings"]["voice_to_voice_ms"] is not None]
    return {
        "minutes": (time.monotonic() - began) / 60,
        "turns": len(result["turns"]),
        "reply_s": sum(turn["reply"]["audio_s"] for turn in spoken),
        "underruns": result["underruns"],
        "endpointing_ms": asdict(summarize([timing["endpointing_ms"] for timing in timings])),
        "voice_to_voice_ms": asdict(summarize([timing["voice_to_voice_ms"] for timing in timings])),
        "playback_hold_ms": asdict(summarize([timing["playback_hold_ms"] for timing in timings])),
        "playback_hold_reasons": dict(Counter(timing["playback_hold_reason"] for timing in timings)),
    }


def realtime_section(realtime: dict[str, Any]) -> Section:
    """Result of `converse`, as a table."""
    summaries = {name: Summary(**realtime[name]) for name in _REALTIME_TERMS}
    section = summary_section("conversation in real time", summaries, _REALTIME_TERMS)
    reasons = ", ".join(f"{reason} {count}" for reason, count in realtime["playback_hold_reasons"].items())
    section.note = (
        f"{realtime['minutes']:.1f} minutes, {realtime['turns']} turns, {realtime['reply_s']:.0f} s of "
        f"replies, {realtime['underruns']} under-runs; reasons of the hold: {reasons}"
    )
    return section


def write_questions(file: Path, at_least_s: float = 0.0) -> None:
    """The sample questions with pauses between them, repeated until the file is long enough."""
    samples = paths.sample_questions()
    if not samples:
        raise AudioInputError(
            "There are no sample questions in {folder}.", folder=paths.assets_dir() / "samples"
        )
    rate = read_wav(samples[0])[1]
    spoken = [_at_rate(sample, rate) for sample in samples]
    pause: Pcm = np.zeros(round(_PAUSE_S * rate), np.float32)
    with WavWriter(file, rate) as writer:
        writer.write(pause)
        while True:
            for question in spoken:
                writer.write(question)
                writer.write(pause)
            if writer.frames >= at_least_s * rate:
                return


def _at_rate(file: Path, rate: int) -> Pcm:
    pcm, own = read_wav(file)
    resampler = Resampler(own, rate)
    return np.concatenate([resampler.push(pcm), resampler.finish()])
