"""The shipped clips, and the computed coughs and clicks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app import paths
from app.audio.levels import rms
from app.duplex.clips import click, cough, load_clips
from app.duplex.room import RATE
from engine_runtime.errors import AudioInputError


def test_the_shipped_clips_hold_what_the_scenarios_need() -> None:
    clips = load_clips(paths.assets_dir() / "duplex")
    users = {clip.speaker for clip in clips if clip.kind == "long"}
    assert len(users) >= 4
    for kind in ("short", "interruption", "backchannel"):
        assert {clip.speaker for clip in clips if clip.kind == kind} == users
    bystanders = {clip.speaker for clip in clips if clip.kind == "not_directed"}
    assert bystanders
    assert not bystanders & users
    assert len({clip.speaker for clip in clips if clip.pauses_s}) >= 4
    for clip in clips:
        assert 0 <= clip.start_s < clip.end_s <= len(clip.pcm) / RATE + 1e-3
        assert all(clip.start_s + 0.3 < pause < clip.end_s - 0.2 for pause in clip.pauses_s), clip.text
        assert np.max(np.abs(clip.pcm)) == pytest.approx(0.6, abs=1e-3)


def test_a_pause_is_at_a_quiet_place() -> None:
    clips = [clip for clip in load_clips(paths.assets_dir() / "duplex") if clip.pauses_s]
    quieter = 0
    for clip in clips:
        at = round(clip.pauses_s[0] * RATE)
        quieter += rms(clip.pcm[at - 80 : at + 80]) < 0.5 * rms(clip.pcm)
    assert quieter > 0.6 * len(clips)


def test_missing_clips_are_an_error_for_the_user(tmp_path: Path) -> None:
    with pytest.raises(AudioInputError, match="Reinstall"):
        load_clips(tmp_path)


def test_coughs_and_clicks_are_short_and_differ() -> None:
    rng = np.random.default_rng(1)
    coughs, clicks = [cough(rng) for _ in range(8)], [click(rng) for _ in range(8)]
    assert {len(pcm) for pcm in coughs} != {len(coughs[0])}
    for pcm in coughs + clicks:
        assert pcm.dtype == np.float32
        assert np.max(np.abs(pcm)) == pytest.approx(0.6, rel=1e-3)
        assert len(pcm) < 0.8 * RATE
    assert np.array_equal(cough(np.random.default_rng(2)), cough(np.random.default_rng(2)))
