"""The comparison of server and window: what is measured on each way, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from app import paths
from app.main import engine_source
from app.settings import StartSettings
from engine_runtime.bench.measuring import BenchError
from tests.doubles.realtime_server import RealtimeServer
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.tools.server_against_window import (
    CLIENT,
    ENDPOINTING,
    SEMANTIC_VAD,
    VOICE_TO_VOICE,
    WINDOW,
    Figures,
    Window,
    alternated,
    compared,
    median_interval,
    semantic_turn,
)

QUESTION = paths.assets_dir() / "samples" / "03-three-plus-four.wav"
SCRIPT = Script(chunks=1)
LEAST_MS = 100
"""No turn ends sooner."""


@pytest.mark.slow
def test_every_way_gives_its_figures() -> None:
    with RealtimeServer(SCRIPT) as server:
        for source in (
            lambda: nullcontext(ScriptedEngine(SCRIPT)),
            engine_source(StartSettings(server=server.url)),
        ):
            window = Window(source)
            try:
                figures = window.turn(QUESTION)
            finally:
                window.close()
            assert min(figures[ENDPOINTING], figures[VOICE_TO_VOICE]) > LEAST_MS
        assert semantic_turn(server.url, QUESTION)[ENDPOINTING] > LEAST_MS


@pytest.mark.slow
def test_a_reply_that_fails_has_no_figures() -> None:
    window = Window(lambda: nullcontext(ScriptedEngine(Script(fail_on="reply", chunks=2))))
    try:
        with pytest.raises(BenchError, match="out of order"):
            window.turn(QUESTION)
    finally:
        window.close()


def test_ways_alternate_and_every_turn_is_taken_on_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    taken: list[str] = []

    def way(name: str, ms: float) -> tuple[str, Callable[[Path], Figures]]:
        def turn(recording: Path) -> Figures:
            taken.append(f"{name} {recording}")
            return {VOICE_TO_VOICE: ms}

        return name, turn

    found = alternated(dict([way("a", 1.0), way("b", 2.0)]), [Path("x"), Path("y")], rounds=2)
    assert taken == ["a x", "b x", "b y", "a y"] * 2
    assert found == {"a": [{VOICE_TO_VOICE: 1.0}] * 4, "b": [{VOICE_TO_VOICE: 2.0}] * 4}


@pytest.mark.parametrize(
    ("figure", "other", "more_ms", "verdict"),
    [
        (VOICE_TO_VOICE, CLIENT, 60.0, "within 60 ms"),
        (VOICE_TO_VOICE, CLIENT, 61.0, "above 60 ms"),
        (ENDPOINTING, SEMANTIC_VAD, 50.0, "within 50 ms"),
        (ENDPOINTING, SEMANTIC_VAD, 51.0, "above 50 ms"),
    ],
)
def test_differences_are_of_pairs(figure: str, other: str, more_ms: float, verdict: str) -> None:
    times = [300.0, 500.0, 310.0, 900.0]
    found = {WINDOW: [{figure: ms} for ms in times], other: [{figure: ms + more_ms} for ms in times]}
    section, median = compared(figure, found, other, [Path("x.wav"), Path("y.wav")])
    assert median == more_ms
    assert f"{more_ms:+.1f} ms (95 % interval {more_ms:+.1f} to {more_ms:+.1f}), {verdict}" in section.note
    assert f"x {more_ms:+.0f}, y {more_ms:+.0f}" in section.note
    assert [row["p50"] for row in section.rows] == [405.0, 405.0 + more_ms]


def test_the_interval_of_a_median_is_that_of_its_ranks() -> None:
    assert median_interval([5.0]) == (5.0, 5.0)
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_interval([float(n) for n in range(30)]) == (9.0, 20.0)
