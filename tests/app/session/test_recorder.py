"""Both sides on one clock, for any size and order of blocks."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from app.session.recorder import StereoRecorder
from engine_runtime.errors import ExportError

RATE = 8_000


def test_sides_are_aligned_and_padded(tmp_path: Path) -> None:
    recorder = StereoRecorder(tmp_path / "s.wav", RATE, RATE)
    user = np.linspace(0, 0.5, 3 * RATE).astype(np.float32)
    reply = np.linspace(0, -0.5, 2 * RATE).astype(np.float32)
    for start in range(0, len(user), 333):
        recorder.add_user(user[start : start + 333])
        recorder.add_reply(reply[start : start + 333])
    recorder.close()
    both, rate = soundfile.read(tmp_path / "s.wav", dtype="float32")
    assert rate == RATE
    assert np.abs(both[:, 0] - user).max() < 1e-4
    assert np.abs(both[: 2 * RATE, 1] - reply).max() < 1e-4
    assert not both[2 * RATE :, 1].any()


def test_the_users_side_is_resampled(tmp_path: Path) -> None:
    recorder = StereoRecorder(tmp_path / "s.wav", RATE, 2 * RATE)
    recorder.add_user(np.full(4 * RATE, 0.5, dtype=np.float32))
    recorder.close()
    both, _ = soundfile.read(tmp_path / "s.wav", dtype="float32")
    assert len(both) == pytest.approx(2 * RATE, abs=2)
    assert both[RATE, 0] == pytest.approx(0.5, abs=0.01)


def test_an_abandoned_record_leaves_no_file(tmp_path: Path) -> None:
    recorder = StereoRecorder(tmp_path / "s.wav", RATE, RATE)
    recorder.add_user(np.zeros(RATE, dtype=np.float32))
    recorder.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_reported_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = StereoRecorder(tmp_path / "s.wav", RATE, RATE)

    def full(content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Full:
        write = staticmethod(full)
        close = recorder._writer._file._file.close

    monkeypatch.setattr(recorder._writer._file, "_file", Full())
    second = np.zeros(RATE, dtype=np.float32)
    for _ in range(3):  # the conversation is not disturbed
        recorder.add_user(second)
        recorder.add_reply(second)
    with pytest.raises(ExportError, match="disk is full"):
        recorder.close()
    assert list(tmp_path.iterdir()) == []
