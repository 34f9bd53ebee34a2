from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine_runtime.bench import codec
from engine_runtime.bench.codec import CodecBench, Packet, packets_of
from engine_runtime.bench.measuring import BenchError
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.codec.flow.token2mel import Token2Mel, Token2MelStream, arrays_of
from engine_runtime.engine import Engine
from engine_runtime.options import EngineOptions
from engine_runtime.types import Codes
from engine_runtime.work import Task
from tests.engine_runtime.test_table import number

POLICY = (5, 5, 10, 15)


@pytest.fixture(scope="module")
def engine(random_bundle: Path) -> Iterator[Engine]:
    bundle = Bundle.open(random_bundle)
    flow = replace(bundle.flow, packet_codes=POLICY)
    engine = Engine.load(replace(bundle, flow=flow), EngineOptions(random_weights=0))
    yield engine
    engine.close()


def test_packets_say_how_many_codes_they_need(engine: Engine) -> None:
    stage = engine.stages.token2mel
    packets = packets_of(stage, 6)
    assert stage.look_ahead_codes == 3
    assert packets[:2] == [Packet("first", 5, slice(0, 8)), Packet("later", 5, slice(8, 13))]
    assert [packet.codes for packet in packets] == [5, 5, 10, 15, 15, 15]
    stream, codes = stage.stream(), np.arange(packets[-1].fed.stop) % 7
    for packet in packets:
        fed = codes[packet.fed]
        assert arrays_of(stream.push(fed[:-1])) == []
        (mel,) = arrays_of(stream.push(fed[-1:]))
        assert mel.shape[1] == packet.codes * stage.frames_per_code


@pytest.mark.slow
def test_a_row_for_each_size_of_packet(engine: Engine) -> None:
    bench = CodecBench(engine.stages, repeats=2)
    flow, vocoder = bench.flow(), bench.vocoder()
    kinds = [("first", 5), ("later", 5), ("later", 10), ("later", 15)]
    steps = [engine.stages.token2mel.steps, 10, 5]
    assert [(row["steps"], row["packet"], row["codes"]) for row in flow.rows] == [
        (count, *kind) for count in steps for kind in kinds
    ]
    assert [(row["packet"], row["codes"]) for row in vocoder.rows] == kinds
    assert [row["audio_ms"] for row in flow.rows[:4]] == [400, 400, 800, 1200]
    later = [row["audio_ms"] for row in vocoder.rows[1:]]
    assert later == [400, 800, 1200]
    assert all(0 < number(row["ms"]) <= number(row["ms_p95"]) for row in flow.rows + vocoder.rows)


def test_a_packet_counts_all_of_its_work(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = CodecBench(engine.stages, repeats=1)
    path = engine.stages.token2mel.backend
    clock, advance = [0.0], path.advance

    def slow(state: Any, count: int) -> torch.Tensor:
        clock[0] += 1
        return advance(state, count)

    monkeypatch.setattr(path, "advance", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    # caches that grow are worked on a chunk at a time; the first packet has what is left of the voice prompt
    monkeypatch.setattr(codec, "OTHER_STEPS", ())
    assert [row["ms"] for row in bench.flow().rows] == [2000, 1000, 2000, 3000]


def test_steps_that_do_not_fit_lose_no_others(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Token2Mel.stream

    def short(stage: Token2Mel, n_steps: int | None = None) -> Token2MelStream:
        if n_steps not in (None, stage.steps):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return stream(stage, n_steps)

    monkeypatch.setattr(Token2Mel, "stream", short)
    section = CodecBench(engine.stages, repeats=1).flow()
    assert {row["steps"] for row in section.rows} == {engine.stages.token2mel.steps}
    assert "5 steps not measured" in section.note


@pytest.mark.slow
def test_no_time_for_a_codec_that_is_stuck(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    bands = engine.stages.token2mel.mel.n_mels
    with pytest.raises(BenchError, match="is constant"):
        codec._check_mel([np.zeros((bands, 20), np.float32)], bands, [20])
    with pytest.raises(BenchError, match="9 codes"):
        codec._check_codes(np.zeros(9, np.int64), 9)
    with pytest.raises(BenchError, match="2 codes"):
        codec._check_codes(np.arange(2), 3)
    monkeypatch.setattr(type(engine.stages.vocoder.stream()), "finish", lambda _: np.zeros(1, np.float32))
    with pytest.raises(BenchError, match="samples where"):
        CodecBench(engine.stages, repeats=1).vocoder()


def test_no_time_for_packets_that_are_missing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    stream_class = type(engine.stages.token2mel.stream())
    push = stream_class.push

    def late(stream: Token2MelStream, codes: Codes) -> Task[list[torch.Tensor]]:
        return push(stream, codes[:-1])

    monkeypatch.setattr(stream_class, "push", late)
    with pytest.raises(BenchError, match=r"packets of \[.*\] frames where \["):
        CodecBench(engine.stages, repeats=1).flow()
