"""A simulated conversation with a scripted engine and the real voice activity detection."""

from __future__ import annotations

import numpy as np
import pytest
from typing_extensions import override

from app import paths
from app.audio.echo_cancellation import AudioProcessing
from app.duplex.builtin import Counts, draw_scenarios
from app.duplex.clips import load_clips
from app.duplex.measures import judge
from app.duplex.room import RATE
from app.duplex.segments import find_segments
from app.duplex.simulator import DuplexRecord, SimulationError, simulate
from app.session.clocks import VirtualClock
from app.session.session_settings import SessionSettings
from engine_runtime.engine import BlockStats
from engine_runtime.errors import MossVoiceError
from tests.doubles.scripted_engine import Script, ScriptedEngine

pytestmark = pytest.mark.slow


class PooledEngine(ScriptedEngine):
    """An engine whose KV pool has `used_blocks` all the time."""

    used_blocks = 0

    @property
    @override
    def stats(self) -> BlockStats:
        """That pool."""
        return BlockStats(total=self.used_blocks, used=self.used_blocks, free=0, cached=0)


def hold(engine: ScriptedEngine, counts: Counts) -> DuplexRecord:
    clock = engine.clock = VirtualClock()
    # A short word over a reply is known by what it says, and there is no detector here to say it.
    clips = [
        clip
        for clip in load_clips(paths.assets_dir() / "duplex")
        if clip.kind != "interruption" or clip.end_s - clip.start_s > 1.0
    ]
    (scenario,) = draw_scenarios(clips, ["interruptions"], 3, counts={"interruptions": counts}, users=1)
    # To the echo monitor, the engine's tone is in whatever is said.
    settings = SessionSettings(audio_processing=AudioProcessing("off"))
    return simulate(scenario, engine, settings, clock)


def test_both_channels_are_recorded_and_agree_with_the_annotations() -> None:
    engine = PooledEngine(Script(chunks=10))
    found = hold(engine, Counts(turns=1, interruptions=1))
    assert not engine.is_closed
    assert [segment.kind for segment in found.segments].count("interruption") == 1
    assert len(found.user) == len(found.assistant)
    for segment in found.segments:
        spoken = found.user[round(segment.start_s * RATE) : round(segment.end_s * RATE)]
        assert np.max(np.abs(spoken)) > 0.1
    outcomes = judge(found.segments, find_segments(found.assistant, RATE))
    assert all(turn.is_answered for turn in outcomes.turns)
    assert outcomes.interruptions[0].is_yielded
    kinds = [event.attributes["kind"] for event in found.decisions]
    assert kinds.count("confirm") == len(found.committed) == 4
    assert "cut" in kinds
    assert found.blocks_lost == 0
    assert found.errors == []
    # By the session's own timing a reply starts when the record says so.
    late_s = [event.duration_ms / 1e3 for event in found.timings if event.name == "voice_to_voice"]
    assert late_s[0] == pytest.approx(outcomes.turns[0].latency_s, abs=0.1)


def test_lost_blocks_are_reported() -> None:
    engine = PooledEngine()
    engine.used_blocks = 3
    assert hold(engine, Counts(turns=0)).blocks_lost == 3


def test_an_engine_that_cannot_be_warmed_up_is_an_error() -> None:
    engine = PooledEngine()

    def fail() -> None:
        raise MossVoiceError("The GPU is full.", "Free some memory.")

    engine.warm_up = fail  # type: ignore[method-assign]
    with pytest.raises(SimulationError, match="The GPU is full"):
        hold(engine, Counts(turns=0))
