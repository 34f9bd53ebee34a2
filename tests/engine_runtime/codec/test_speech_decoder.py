"""The speech of a reply concurrent with the language model: asynchronous against synchronous execution."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.codec.execution_stream import (
    HostCopy,
    HostExecution,
    HostSpan,
    NewExecutionStream,
    StreamExecution,
)
from engine_runtime.codec.speech_decoder import ReplyVoice
from engine_runtime.engine import Engine
from engine_runtime.errors import ExecutorError
from engine_runtime.options import EngineOptions
from engine_runtime.timing import TimingBus, TimingEvent
from engine_runtime.types import Modality, ReplyAudio, ReplyDone, ReplyText
from engine_runtime.work import run_alone

QUESTION = np.random.default_rng(1).normal(0.0, 0.1, 16_000).astype(np.float32)


@dataclass
class LateDevice:
    """Results are ready only after `patience` polls, in order."""

    patience: int
    waits: int = 0
    pending: deque[LateCopy] = field(default_factory=deque)

    def execution_stream(self, clock_ns: Callable[[], int]) -> LateExecution:
        return LateExecution(self)


@dataclass
class LateCopy:
    device: LateDevice
    given: torch.Tensor
    asked: int = 0

    def is_here(self) -> bool:
        self.asked += 1
        return self.asked > self.device.patience

    def value(self) -> np.ndarray:
        assert self.device.pending.popleft() is self, "taken out of order"
        if self.asked <= self.device.patience:
            self.device.waits += 1
        return self.given.numpy()


class LateExecution:
    """Counts its stages as time, so that its durations on the bus differ from those of the host."""

    def __init__(self, device: LateDevice) -> None:
        self._device, self._stages = device, 0

    @contextmanager
    def stage(self) -> Iterator[HostSpan]:
        self._stages += 1
        yield HostSpan(1_000 * self._stages, 77)

    def current(self) -> AbstractContextManager[object]:
        return nullcontext()

    def fetch(self, tensor: torch.Tensor) -> LateCopy:
        pending_copy = LateCopy(self._device, tensor.clone())
        self._device.pending.append(pending_copy)
        return pending_copy


@pytest.fixture(scope="module")
def engine(random_bundle: Path) -> Engine:
    return Engine.load(Bundle.open(random_bundle))


def reply(
    engine: Engine, new_execution_stream: NewExecutionStream, codes: int = 24
) -> tuple[list[Any], list[TimingEvent]]:
    """Events of one reply and what the bus said."""
    bus = TimingBus()
    heard: list[TimingEvent] = []
    bus.subscribe(heard.append)
    other = Engine(replace(engine.stages, new_execution_stream=new_execution_stream), bus)
    turn = run_alone(other.open_turn(other.new_conversation(), 1))
    run_alone(turn.push(QUESTION))
    params = replace(engine.bundle.lm.sampling_speech, min_new=codes, max_new=codes)
    return list(run_alone(turn.commit(Modality.SPEECH, params))), heard


def pcm_of(events: list[Any]) -> np.ndarray:
    return np.concatenate([event.pcm for event in events if isinstance(event, ReplyAudio)])


@pytest.mark.slow
@pytest.mark.parametrize("patience", [0, 1, 4, 1_000])
def test_a_late_device_says_the_same(engine: Engine, patience: int) -> None:
    want, want_heard = reply(engine, HostExecution)
    device = LateDevice(patience)
    events, heard = reply(engine, device.execution_stream)
    assert not device.pending
    assert (device.waits > 0) == (patience > 0)
    np.testing.assert_array_equal(pcm_of(events), pcm_of(want))
    assert events[-1] == want[-1]
    assert [event.chunk_index for event in events if isinstance(event, ReplyAudio)] == list(
        range(sum(isinstance(event, ReplyAudio) for event in want))
    )

    def texts(found: list[Any]) -> str:
        return "".join(event.text for event in found if isinstance(event, ReplyText))

    assert texts(events) == texts(want)
    for name in ("token2mel", "vocoder"):
        mine, theirs = ([event for event in found if event.name == name] for found in (heard, want_heard))
        assert [event.attributes for event in mine] == [event.attributes for event in theirs]
        # On the clock of the execution stream, not of the host.
        assert all(0 < event.duration_ns <= 77 for event in mine)


@pytest.mark.slow
def test_decode_steps_go_on_while_a_chunk_is_made_but_for_the_first(engine: Engine) -> None:
    steps_before: dict[str, list[int]] = {}
    for name, execution_stream in (("host", HostExecution), ("late", LateDevice(4).execution_stream)):
        _, heard = reply(engine, execution_stream)
        names = [event.name for event in heard]
        chunks = [index for index, name in enumerate(names) if name == "vocoder"]
        steps_before[name] = [names[:index].count("step") for index in chunks]
    assert steps_before["late"][0] == steps_before["host"][0]  # the user waits for it
    assert steps_before["late"][1] == steps_before["host"][1] + 4


def test_a_reply_that_is_dropped_while_speech_is_on_its_way(engine: Engine) -> None:
    other = Engine(replace(engine.stages, new_execution_stream=LateDevice(1_000).execution_stream))
    conversation = other.new_conversation()
    turn = run_alone(other.open_turn(conversation, 1))
    run_alone(turn.push(QUESTION))
    events = run_alone(turn.commit(Modality.SPEECH))
    first = next(events)
    turn.cancel()
    rest = list(events)
    assert isinstance(first, ReplyAudio)
    assert isinstance(rest[-1], ReplyDone)
    assert rest[-1].finish_reason == "cancelled"
    assert len(conversation.exchanges) == 1  # returned PCM was reported


def test_samples_that_are_not_finite_are_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = engine.stages

    class BrokenExecution(HostExecution):
        def fetch(self, tensor: torch.Tensor) -> HostCopy:
            return HostCopy(np.full(tensor.shape, np.nan, dtype=np.float32))

    voice = ReplyVoice(stages.token2mel, stages.vocoder, TimingBus(), 1, BrokenExecution)
    for code in range(7):
        assert run_alone(voice.push(code)) == []
    with pytest.raises(ExecutorError, match="--codec-dtype float32"):
        run_alone(voice.push(7))  # the last look-ahead of the first chunk


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_codec_options_reach_the_stages(random_bundle: Path, dtype: Any) -> None:
    options = EngineOptions(codec_dtype=dtype, flow_schedule="quadratic", flow_steps=3)
    lower = Engine.load(Bundle.open(random_bundle), options)
    span = lower.stages.token2mel.estimator.schedule(3).span
    assert [round(t, 4) for t, _ in span] == [0.0, 0.1111, 0.4444]
    assert lower.stages.vocoder.like.dtype == getattr(torch, dtype)
    events, _ = reply(lower, HostExecution)
    assert np.isfinite(pcm_of(events)).all()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_streams_equal_one_thing_after_the_other_on_cuda(random_bundle: Path) -> None:
    on_device = Engine.load(Bundle.open(random_bundle), EngineOptions(device="cuda"))
    on_device.warm_up()
    sequential, _ = reply(on_device, HostExecution, codes=90)
    for _ in range(3):
        overlapped, heard = reply(on_device, on_device.stages.new_execution_stream, codes=90)
        np.testing.assert_allclose(pcm_of(overlapped), pcm_of(sequential), atol=1e-5)
        times = [event for event in heard if event.name == "token2mel"]
        assert all(0 < event.duration_ms < 5_000 for event in times)
        assert [event.start_ns for event in times] == sorted(event.start_ns for event in times)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_stream_lane_times_the_device_and_not_the_host() -> None:
    bus = TimingBus()
    execution_stream = StreamExecution(torch.cuda.Stream(), torch.cuda.Stream(), bus.clock_ns)
    execution_stream.fetch(torch.ones(5, device="cuda")).value()  # the first call loads the kernels
    began = bus.clock_ns()
    with execution_stream.stage() as span:
        torch.cuda._sleep(100_000_000)
        pending_copy = execution_stream.fetch(torch.ones(5, device="cuda"))
    enqueued = bus.clock_ns() - began
    assert not pending_copy.is_here()
    assert pending_copy.value().tolist() == [1.0] * 5
    start_ns, duration_ns = span.times()
    assert duration_ns > 2 * enqueued
    assert abs(start_ns - began) < duration_ns
