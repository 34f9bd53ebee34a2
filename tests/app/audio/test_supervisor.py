"""Lost devices are closed, retried with growing pauses, and reported to the user once."""

from __future__ import annotations

import pytest

from app.audio.ring import Ring
from app.audio.supervisor import DeviceSupervisor
from engine_runtime.errors import AudioDeviceError

S = 1_000_000_000


class Device:
    """Both kinds of stream, under the control of the test."""

    def __init__(self, what: str, log: list[str]) -> None:
        self.what, self.log = what, log
        self.sample_rate = 48_000
        self.ring = Ring(16)
        self.name = ""
        self.latency_s = 0.0
        self.dropped_samples = 0
        self.is_expecting = False
        self.underruns = 0
        self.lost = False
        self.is_absent = False
        self.asked_for: list[str | None] = []

    def open(self, device: str | None, latency_s: float) -> None:
        self.asked_for.append(device)
        if self.is_absent:
            raise AudioDeviceError(f"No {self.what} was found. Connect one.")
        self.name = device or f"default {self.what}"
        self.lost = False
        self.log.append(f"open {self.what}")

    def close(self) -> None:
        self.name = ""
        self.log.append(f"close {self.what}")

    def service(self, now_ns: int) -> None:
        """Does nothing."""

    def is_lost(self) -> bool:
        return bool(self.name) and self.lost

    def sample_time_ns(self, index: float) -> int:
        return 0


class Rig:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.microphone = Device("microphone", self.log)
        self.loudspeaker = Device("loudspeaker", self.log)
        self.closes = True
        self.scan_error: Exception | None = None
        self.supervisor = DeviceSupervisor(
            self.microphone, self.loudspeaker, self.run_bounded, self.look_again
        )

    def run_bounded(self, action: object, limit_s: float) -> bool:
        assert limit_s <= 2.0
        if self.closes:
            action()  # type: ignore[operator]
        return self.closes

    def look_again(self) -> None:
        assert not self.microphone.name, "streams must be closed while devices are looked for"
        assert not self.loudspeaker.name
        self.log.append("scan")
        if self.scan_error is not None:
            raise self.scan_error

    def open(self) -> list[str]:
        notices = self.supervisor.open(0.04, input_device="mic", output_device=None, with_input=True)
        return [notice.message for notice in notices]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_both_sides_are_opened_by_name(rig: Rig) -> None:
    assert rig.open() == []
    assert rig.supervisor.is_input_open
    assert rig.supervisor.is_output_open
    assert rig.microphone.asked_for == ["mic"]
    assert rig.loudspeaker.asked_for == [None]
    assert rig.supervisor.service(0) == []
    rig.supervisor.close()
    assert not rig.supervisor.is_input_open


def test_only_the_loudspeaker(rig: Rig) -> None:
    rig.supervisor.open(0.04, input_device="mic", output_device="out", with_input=False)
    assert not rig.supervisor.is_input_open
    assert rig.loudspeaker.name == "out"


def test_a_missing_side_does_not_hinder_the_other(rig: Rig) -> None:
    rig.microphone.is_absent = True
    assert rig.open() == ["No microphone was found."]
    assert rig.supervisor.is_output_open
    assert not rig.supervisor.is_input_open


def test_a_lost_device_comes_back(rig: Rig) -> None:
    rig.open()
    rig.log.clear()
    rig.loudspeaker.lost = True
    (notice,) = rig.supervisor.service(10 * S)
    assert "default loudspeaker was lost" in notice.message
    assert notice.what_to_do
    assert rig.supervisor.service(10 * S + S // 4) == []
    (back,) = rig.supervisor.service(10 * S + S // 2)
    assert not back.is_error
    assert "mic" in back.message
    assert rig.log == [
        "close microphone", "close loudspeaker", "scan", "open loudspeaker", "open microphone"
    ]  # fmt: skip
    assert rig.microphone.asked_for == ["mic", "mic"]


def test_pauses_grow_and_the_user_is_notified_once(rig: Rig) -> None:
    rig.open()
    rig.microphone.lost = True
    rig.microphone.is_absent = True
    assert len(rig.supervisor.service(0)) == 1
    scans: list[float] = []
    for tenth in range(1, 200):
        known = rig.log.count("scan")
        assert rig.supervisor.service(tenth * S // 10) == []
        if rig.log.count("scan") > known:
            scans.append(tenth / 10)
    assert scans == [0.5, 1.5, 3.5, 8.5, 13.5, 18.5]
    rig.microphone.is_absent = False
    assert [notice.is_error for notice in rig.supervisor.service(30 * S)] == [False]


def test_a_sound_system_that_is_away_is_tried_again(rig: Rig) -> None:
    rig.open()
    rig.microphone.lost = True
    rig.scan_error = OSError("no server")
    rig.supervisor.service(0)
    assert rig.supervisor.service(S) == []
    rig.scan_error = None
    assert len(rig.supervisor.service(5 * S)) == 1


def test_a_sound_system_that_hangs_is_left_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("app.audio.supervisor.divert_messages", lambda: lambda: said.append("restored"))
    monkeypatch.setattr("app.audio.supervisor.leave_portaudio_behind", lambda: said.append("left"))
    rig.open()
    rig.closes = False
    rig.microphone.lost = True
    notices = rig.supervisor.service(0)
    assert any("does not respond" in notice.message and "Restart" in notice.what_to_do for notice in notices)
    assert rig.supervisor.service(100 * S) == []
    assert rig.supervisor.refresh() == []
    assert said == ["left"]
    assert "scan" not in rig.log


def test_refresh_reopens_what_was_open(rig: Rig) -> None:
    rig.open()
    assert rig.supervisor.refresh() == []
    assert rig.microphone.asked_for == ["mic", "mic"]
    rig.supervisor.close()
    rig.supervisor.refresh()
    assert not rig.supervisor.is_output_open


def test_close_ends_the_attempts(rig: Rig) -> None:
    rig.open()
    rig.microphone.lost = True
    rig.supervisor.service(0)
    rig.supervisor.close()
    assert rig.supervisor.service(60 * S) == []
    assert "scan" not in rig.log
