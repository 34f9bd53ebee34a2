"""The end of a turn by voice, of the same recordings in a session of the window and in one of the server."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import paths
from app.audio.resample import Resampler
from app.audio.wav import read_wav
from app.audio.wire_format import PCM16
from app.dialog.vad import SileroVad
from app.server.realtime_session import EngineFacts, RealtimeSession
from app.session.end_of_turn_worker import Pause, PauseRated
from app.session.headless import run_file
from app.session.session_settings import SessionSettings
from engine_runtime.types import Pcm
from tests.doubles.inline_engine import InlineEngine
from tests.doubles.scripted_detector import ScriptedDetector
from tests.doubles.scripted_engine import OUT_RATE, Script, ScriptedEngine

QUESTIONS = ("03-three-plus-four.wav", "06-capital-of-france.wav", "10-repeat.wav")
RATE = PCM16.sample_rate
BLOCK_S = 0.02
SEMANTIC = {"type": "semantic_vad"}


def silence_in_the_window(path: Path, script: Script, detector: ScriptedDetector) -> float:
    """Silence before the commit of a question, in ms."""
    report = run_file(
        lambda: ScriptedEngine(script),
        wav_in=path,
        settings=SessionSettings(speculate="on"),
        vad=SileroVad(),
        end_of_turn=lambda: detector,
    )
    (confirmed,) = [each for each in report["decisions"] if each["kind"] == "confirm"]
    return float(confirmed["silence_ms"])


def silence_in_the_server(path: Path, script: Script, detector: ScriptedDetector) -> float:
    """The same, with semantic turn detection."""
    events: list[dict[str, Any]] = []
    asked: list[Pause] = []
    engine, now_s = InlineEngine(ScriptedEngine(script)), 0.0
    session = RealtimeSession(
        "scripted",
        EngineFacts(16_000, OUT_RATE),
        engine,
        SileroVad(),
        events.append,
        lambda: now_s,
        ask_detector=asked.append,
    )
    engine.deliver = session.on_result
    send(session, "session.update", {"session": {"audio": {"input": {"turn_detection": SEMANTIC}}}})
    for block in blocks(path):
        send(session, "input_audio_buffer.append", {"audio": base64.b64encode(PCM16.encode(block)).decode()})
        now_s += BLOCK_S
        engine.work()
        while asked:
            pause = asked.pop()
            session.take_rating(PauseRated(pause, detector.probability(pause.pcm), 0, 0))
        if any(event["type"] == "input_audio_buffer.committed" for event in events):
            break
    (stopped,) = [event for event in events if event["type"] == "input_audio_buffer.speech_stopped"]
    tail_ms = SessionSettings().turn_taking.tail_ms
    return now_s * 1e3 - (stopped["audio_end_ms"] - tail_ms)


def send(session: RealtimeSession, kind: str, fields: dict[str, Any]) -> None:
    session.handle(json.dumps({"type": kind} | fields))


def blocks(path: Path) -> list[Pcm]:
    """The recording and 3 s of silence, as a client sends it."""
    pcm, rate = read_wav(path)
    resampler = Resampler(rate, RATE)
    sent = np.concatenate([resampler.push(pcm), resampler.finish(), np.zeros(3 * RATE, dtype=np.float32)])
    size = round(BLOCK_S * RATE)
    return [sent[start : start + size] for start in range(0, len(sent) - size, size)]


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize(
    ("predicted", "heard", "wait_ms"),
    [(0.98, 0.5, 224), (0.5, 0.99, 352), (0.02, 0.5, 2_200)],
    ids=["finished by its words", "finished by its sound", "unfinished"],
)
def test_server_and_window_wait_as_long(name: str, predicted: float, heard: float, wait_ms: int) -> None:
    script, path = Script(predictions=(predicted,), chunks=2), paths.assets_dir() / "samples" / name
    window_ms = silence_in_the_window(path, script, ScriptedDetector(heard))
    server_ms = silence_in_the_server(path, script, ScriptedDetector(heard))
    assert window_ms == pytest.approx(wait_ms, abs=33)
    assert server_ms == pytest.approx(window_ms, abs=50)
