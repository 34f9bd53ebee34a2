"""The private PulseAudio daemon: sound in both directions, the environment as before at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from app.audio.levels import rms
from app.audio.wav import read_wav, write_wav
from app.duplex.null_sinks import NullSinks
from app.duplex.room import RATE, SPEAKER_RATE, EchoRoom
from engine_runtime.errors import AudioDeviceError
from engine_runtime.types import Pcm


@pytest.mark.slow
@pytest.mark.pulse
def test_sound_goes_both_ways(tmp_path: Path) -> None:
    if any(shutil.which(program) is None for program in ("pulseaudio", "pacat", "paplay", "parecord")):
        pytest.skip("PulseAudio is not installed (apt install pulseaudio pulseaudio-utils)")
    before = os.environ.get("PULSE_SERVER")
    tone = 0.3 * np.sin(np.arange(SPEAKER_RATE // 2) * 2 * np.pi * 440 / SPEAKER_RATE).astype(np.float32)
    write_wav(tmp_path / "reply.wav", tone, SPEAKER_RATE)
    heard: list[Pcm] = []
    room = EchoRoom(None, listener=heard.append)
    with NullSinks() as sinks:
        captured = tmp_path / "captured.wav"
        recorder = subprocess.Popen(["parecord", "--channels=1", "--rate=16000", str(captured)])
        room.open(None, 0.0)
        sinks.pump(room, time.perf_counter_ns())
        room.speak(np.full(RATE, 0.4, dtype=np.float32), after_s=0.5)
        player = subprocess.Popen(["paplay", str(tmp_path / "reply.wav")])
        give_up_s = time.monotonic() + 20
        while time.monotonic() < give_up_s:
            sinks.pump(room, time.perf_counter_ns())
            time.sleep(0.005)
            is_heard = sum(float(np.sum(pcm**2)) for pcm in heard) > 0.9 * float(np.sum(tone**2)) / 3
            if is_heard and captured.exists() and captured.stat().st_size > 3 * 2 * RATE:
                break
        player.wait(60)
        recorder.terminate()
        recorder.wait(60)
    assert os.environ.get("PULSE_SERVER") == before
    assert is_heard
    pcm, rate = read_wav(captured)
    assert rate == RATE
    assert np.max(np.abs(pcm)) == pytest.approx(0.4, abs=0.05)
    assert rms(pcm) > 0.1


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(AudioDeviceError, match="pulseaudio and pacat"):
        NullSinks()
