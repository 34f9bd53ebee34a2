"""The session with a real engine of random networks, from file to file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from app.audio.wav import read_wav, write_wav
from app.session.headless import run_file
from app.session.session_settings import SessionSettings
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.types import Modality

QUESTION = Path(__file__).parents[2] / "data" / "speech" / "question.wav"


@pytest.fixture
def load(random_bundle: Path) -> Callable[[], Engine]:
    def load_engine() -> Engine:
        return Engine.load(Bundle.open(random_bundle))

    return load_engine


@pytest.mark.slow
def test_a_recording_is_answered_turn_by_turn(load: Callable[[], Engine], tmp_path: Path) -> None:
    pcm, rate = read_wav(QUESTION)
    pause = np.zeros(rate, dtype=np.float32)
    write_wav(tmp_path / "two.wav", np.concatenate([pause, pcm, pause, pcm]), rate)
    document = run_file(
        load, wav_in=tmp_path / "two.wav", out=tmp_path / "a.wav", settings=SessionSettings(seed=1)
    )
    first, second = document["turns"]
    seconds = len(pcm) / rate
    assert first["user"]["start_s"] == pytest.approx(1.2, abs=0.15)
    assert first["user"]["end_s"] == pytest.approx(1.0 + seconds - 0.15, abs=0.2)
    assert second["user"]["start_s"] - first["user"]["start_s"] == pytest.approx(1.0 + seconds, abs=0.05)
    # Pre-roll, speech and tail at the encoder's 12.5 codes a second.
    spoken_s = first["user"]["end_s"] - first["user"]["start_s"]
    assert first["user"]["codes"] == pytest.approx((spoken_s + 0.32 + 0.16) * 12.5, abs=2)
    reply_s = 0.0
    for turn in document["turns"]:
        assert turn["reply"]["codes"] > 0
        assert turn["reply"]["audio_s"] == pytest.approx(turn["reply"]["codes"] * 0.08, abs=0.08)
        assert turn["timings"]["tokens_at_commit"] < turn["timings"]["prefill_tokens"]
        missing = [name for name, value in turn["timings"].items() if value is None]
        assert missing == [], missing
        assert turn["timings"]["voice_to_voice_ms"] > turn["timings"]["ttfa_ms"]
        reply_s += turn["reply"]["audio_s"]
    reply, rate = soundfile.read(tmp_path / "a.wav")
    assert len(reply) / rate == pytest.approx(reply_s + 0.5, abs=0.01)


@pytest.mark.slow
def test_the_same_seed_yields_the_same_reply(load: Callable[[], Engine], tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav"):
        run_file(load, text="what is two plus three", settings=SessionSettings(seed=5), out=tmp_path / name)
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


@pytest.mark.slow
def test_a_text_reply_has_no_sound(load: Callable[[], Engine]) -> None:
    settings = SessionSettings(reply=Modality.TEXT, seed=2)
    (turn,) = run_file(load, wav_in=QUESTION, settings=settings)["turns"]
    assert turn["reply"]["modality"] == "text"
    assert turn["reply"]["codes"] == 0
    assert turn["reply"]["audio_s"] == 0.0
    assert turn["timings"]["vocoder_ms"] is None
