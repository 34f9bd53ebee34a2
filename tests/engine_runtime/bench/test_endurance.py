"""Turns one after the other: what is counted, and what is refused."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_runtime.bench import endurance
from engine_runtime.bench.endurance import measure_endurance
from engine_runtime.bench.measuring import BenchError
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.codec.flow.static import StaticFlow
from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.loading import load_flow
from engine_runtime.engine import Engine
from engine_runtime.options import EngineOptions
from engine_runtime.table import Section
from engine_runtime.work import run_alone
from tests.engine_runtime.test_table import number

QUESTION = np.random.default_rng(0).normal(0, 0.1, 8000).astype(np.float32)


@pytest.fixture(scope="module")
def engine(random_bundle: Path) -> Engine:
    return Engine.load(Bundle.open(random_bundle))


@pytest.mark.slow
def test_conversations_are_held_and_every_block_comes_back(engine: Engine) -> None:
    seconds: list[float] = []
    section = measure_endurance(engine, QUESTION, 0.0, progress=seconds.append)
    first, last = section.rows[0], section.rows[-1]
    assert (first["turns"], last["turns"]) == (5, 10)
    assert number(last["speech_s"]) > number(first["speech_s"]) > 0
    assert {row["blocks_used"] for row in section.rows} == {0}
    assert number(last["host_mb"]) > 50
    assert "device_mb" not in last  # there is none on a CPU
    assert len(seconds) == 2
    assert any("turns" in line for line in section.lines())


def test_the_last_row_is_of_the_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(0, 7)  # s; so long takes a conversation
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(endurance, "_converse", lambda *_: (5, 800))
    section = measure_endurance(engine, QUESTION, 10.0)
    times = [row["at_s"] for row in section.rows]
    assert times == [7, 14, 126, 182, 245, 301, 364, 420, 483, 546, 602]
    assert section.rows[-1]["turns"] == 86 * 5


@pytest.mark.slow
def test_one_set_of_flow_buffers_serves_all_turns(engine: Engine) -> None:
    """Interrupted replies too, and without the garbage collector: on a GPU a second set may not fit."""
    bundle, options = engine.bundle, EngineOptions()
    flow, _ = load_flow(bundle, torch.device("cpu"), options)
    static = Token2Mel(flow, bundle.flow.mel, packet_codes=bundle.flow.packets, static_bytes=1 << 30)
    path = static.backend
    assert isinstance(path, StaticFlow)
    made = path.pool.held
    gc.collect()
    gc.disable()
    try:
        measure_endurance(Engine(replace(engine.stages, token2mel=static)), QUESTION, 0.0)
    finally:
        gc.enable()
    assert path.pool.held == made
    assert path.pool.taken == 0


@pytest.mark.slow
def test_a_block_that_stays_in_use_is_reported(engine: Engine) -> None:
    held = engine.new_conversation()
    turn = run_alone(engine.open_turn(held, 1))
    run_alone(turn.push(QUESTION))
    try:
        with pytest.raises(BenchError, match="KV blocks are still in use"):
            measure_endurance(engine, QUESTION, 0.0)
    finally:
        turn.cancel()


@pytest.mark.parametrize(("name", "allowed"), [("host_mb", 32.0), ("device_mb", 1.0)])
def test_memory_that_grows_is_reported(name: str, allowed: float) -> None:
    def rows(growth: float) -> Section:
        values = (500.0, 600.0, 600.0 + growth)  # the first one, before caches are full, does not count
        return Section("endurance", {}, [{name: value, "turns": 9} for value in values])

    endurance._check_growth(rows(allowed - 0.1))
    with pytest.raises(BenchError, match=rf"{name} grew by .* turns \(500, 600, 6\d\d\)"):
        endurance._check_growth(rows(allowed + 0.1))
