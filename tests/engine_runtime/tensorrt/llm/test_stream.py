"""The stream of an engine: times are measured on it, and earlier work is waited for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine_runtime.tensorrt.llm.executor import EngineStream


def test_without_a_gpu_work_is_done_at_once_and_not_measured() -> None:
    stream, done = EngineStream(torch.device("cpu")), []
    with stream.working(), stream.timed():
        done.append(1)
    assert done == [1]
    assert (stream.handle, stream.last_ms) == (0, None)


class FakeStream:
    def __init__(self, log: list[str], name: str) -> None:
        self.cuda_stream, self.device, self._log, self._name = 77, "cuda:0", log, name

    def wait_stream(self, other: FakeStream) -> None:
        self._log.append(f"{self._name} waits for {other._name}")

    def synchronize(self) -> None:
        self._log.append(f"{self._name} done")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """CUDA as far as a stream of it goes; what happened in which order."""
    log: list[str] = []
    own, default = FakeStream(log, "own"), FakeStream(log, "default")

    class FakeEvent:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: FakeStream) -> None:
            log.append(f"event on {stream._name}")

        def elapsed_time(self, end: Any) -> float:
            assert log[-1] == "own done", "the time is asked for before the work is done"
            return 12.5

    @contextlib.contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        log.append(f"on {stream._name}")
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: own)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: default)
    monkeypatch.setattr(torch.cuda, "stream", on)
    return log


def test_events_are_recorded_on_the_stream_that_works(log: list[str]) -> None:
    """On another stream they would measure nothing of the step."""
    stream = EngineStream(torch.device("cuda"))
    assert stream.handle == 77
    with stream.working():
        log.append("copy")
        with stream.timed():
            log.append("step")
    wanted = ["own waits for default", "on own", "copy", "event on own", "step", "event on own", "own done"]
    assert log == wanted
    assert stream.last_ms == 12.5


def test_a_step_that_failed_has_no_time(log: list[str]) -> None:
    stream = EngineStream(torch.device("cuda"))
    with stream.working(), stream.timed():
        pass

    def fail() -> None:
        with stream.working(), stream.timed():
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert stream.last_ms is None
    assert log[-1] == "own done"
