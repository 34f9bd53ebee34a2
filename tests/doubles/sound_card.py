"""Takes the place of sounddevice and of its clock: a test calls the callbacks and lets time pass."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from app.audio.device_streams import BLOCK_FRAMES, DEVICE_RATE_HZ, SoundInput, SoundOutput
from app.audio.devices import Device, DeviceList
from engine_runtime.types import Pcm

AnyStream = TypeVar("AnyStream", SoundInput, SoundOutput)


class SoundCard:
    """One device that captures and plays, for one open stream at a time.

    Attributes:
        rate: the only sample rate that it can be opened with.
        latency_s: what its streams report when they are opened.
        now_ns: the time, which the test sets.
        before_close: called while a stream closes, when its callback may still come.
    """

    PortAudioError = OSError

    def __init__(self) -> None:
        self.rate = DEVICE_RATE_HZ
        self.latency_s = 0.0
        self.now_ns = 1_000_000_000
        self.before_close: Callable[[], object] = lambda: None
        self._callback: Callable[..., None] | None = None

    def perf_counter_ns(self) -> int:
        """The clock of the callbacks."""
        return self.now_ns

    def InputStream(self, **options: Any) -> _Stream:
        """A capture stream, as sounddevice makes it."""
        return self._stream(**options)

    def OutputStream(self, **options: Any) -> _Stream:
        """A playback stream, likewise."""
        return self._stream(**options)

    def _stream(self, *, samplerate: int, callback: Callable[..., None], **_: Any) -> _Stream:
        if samplerate != self.rate:
            raise self.PortAudioError("Invalid sample rate")
        self._callback = callback
        return _Stream(self)

    def replace_sounddevice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let streams use this card and its time."""
        monkeypatch.setattr("app.audio.device_streams.portaudio", lambda: self)
        monkeypatch.setattr("app.audio.device_streams.time", self)

    def opened(self, kind: type[AnyStream]) -> AnyStream:
        """A new stream on this card."""
        stream = kind(self.devices)
        stream.open(None, 0.04)
        return stream

    def devices(self) -> DeviceList:
        """The card as the only device."""
        device = Device(0, "card", "ALSA", self.rate, is_default=True)
        return DeviceList((device,), (device,))

    def record(self, block: NDArray[np.float32], *, has_lost: bool = False) -> None:
        """The device captured `block` [frames, 1], after samples that were lost."""
        self._call(block, 0.0, SimpleNamespace(input_overflow=has_lost, output_underflow=False))

    def play(self, channels: int = 1, *, dac_s: float = 0.0, ran_dry: bool = False) -> NDArray[np.float32]:
        """The block [BLOCK_FRAMES, channels] that the device gets next; it is at the converter at `dac_s`, 0
        if the driver does not know that."""
        block = np.ones((BLOCK_FRAMES, channels), dtype=np.float32)
        self._call(block, dac_s, SimpleNamespace(input_overflow=False, output_underflow=ran_dry))
        return block

    def _call(self, block: NDArray[np.float32], dac_s: float, status: SimpleNamespace) -> None:
        assert self._callback is not None, "no stream was opened"
        times = SimpleNamespace(inputBufferAdcTime=0.0, outputBufferDacTime=dac_s)
        self._callback(block, len(block), times, status)


class AudibleOutput(SoundOutput):
    """A loudspeaker on a card of its own, which plays at the pace of `service`. Keeps what was in the air:
    what the device still holds when it is closed was not."""

    def __init__(self, latency_s: float) -> None:
        self.card = SoundCard()
        self.card.latency_s = latency_s
        super().__init__(self.card.devices)
        self.air: list[Pcm] = []
        self.is_pulled = False
        self._given: list[Pcm] = []
        """What the device was given since it was opened."""
        self._opened_ns = 0

    def open(self, device: str | None, latency_s: float) -> None:
        super().open(device, latency_s)
        self.is_pulled, self._opened_ns = False, self.card.now_ns

    def close(self) -> None:
        if self._given:
            aired_s = (self.card.now_ns - self._opened_ns) / 1e9 - self.card.latency_s
            self.air.append(np.concatenate(self._given)[: max(round(aired_s * self.sample_rate), 0)])
            self._given = []
        super().close()

    def is_lost(self) -> bool:
        return bool(self.name) and self.is_pulled

    def service(self, now_ns: int) -> None:
        """Ask for the blocks that are due: each is played from when it is asked for."""
        block_ns = BLOCK_FRAMES * 1_000_000_000 // self.sample_rate
        while self.name and self._opened_ns + (len(self._given) + 1) * block_ns <= now_ns:
            self.card.now_ns = self._opened_ns + len(self._given) * block_ns
            self._given.append(self.card.play()[:, 0])
        self.card.now_ns = now_ns
        super().service(now_ns)


class _Stream:
    def __init__(self, card: SoundCard) -> None:
        self._card = card
        self.latency = card.latency_s

    @property
    def time(self) -> float:
        return self._card.now_ns / 1e9

    def start(self) -> None:
        """The test calls the callback."""

    def close(self, ignore_errors: bool = True) -> None:
        self._card.before_close()
