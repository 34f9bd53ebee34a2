"""Lost devices are replaced and taken back by name, retried with growing pauses, and reported once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.audio.devices import Device, DeviceList
from app.audio.ring import PlaybackRing, Ring
from app.audio.streams import PlayedTap
from app.audio.supervisor import DeviceSupervisor
from engine_runtime.errors import AudioDeviceError

S = 1_000_000_000


def listed(*names: str) -> tuple[Device, ...]:
    """Devices of a sound server; the first one is the default."""
    return tuple(
        Device(-1, name, "sound server", 48_000, number == 0, f"The {name}")
        for number, name in enumerate(names)
    )


PLAIN = DeviceList(listed("built-in", "mic"), listed("speaker", "headset"))
SERVER = replace(PLAIN, is_live=True)


class Stream:
    """What both kinds of stream have, under the control of the test."""

    def __init__(self, what: str, log: list[str]) -> None:
        self.what, self.log = what, log
        self.sample_rate = 48_000
        self.name = ""
        self.latency_s = 0.0
        self.dropped_samples = 0
        self.lost = False
        self.is_absent = False
        self.asked_for: list[str | None] = []
        self.gone: tuple[str | None, ...] = (None,)
        self.name_of_default = f"default {what}"

    def open(self, device: str | None, latency_s: float) -> None:
        self.asked_for.append(device)
        if self.is_absent:
            raise AudioDeviceError("No {what} was found.", "Connect one.", what=self.what)
        self.name = self.name_of_default if device is None or device in self.gone else device
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


class Microphone(Stream):
    ring = Ring(16)


class Loudspeaker(Stream):
    ring = PlaybackRing(16, 1)
    gain = 1.0
    is_expecting = False
    underruns = 0
    played = recorded = PlayedTap(48_000)

    def heard_until(self, now_ns: int) -> int | None:
        return None


class Rig:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.microphone = Microphone("microphone", self.log)
        self.loudspeaker = Loudspeaker("loudspeaker", self.log)
        self.closes = True
        self.devices = PLAIN
        self.scan_error: Exception | None = None
        self.supervisor = DeviceSupervisor(
            self.microphone, self.loudspeaker, self.run_bounded, self.look_again, lambda: self.devices
        )

    def run_bounded(self, action: object, limit_s: float) -> bool:
        assert limit_s <= 5.0
        if self.closes:
            action()  # type: ignore[operator]
        return self.closes

    def look_again(self) -> None:
        assert not self.microphone.name, "streams must be closed while devices are looked for"
        assert not self.loudspeaker.name
        self.log.append("scan")
        if self.scan_error is not None:
            raise self.scan_error

    def open(self, output: str | None = None) -> list[str]:
        notices = self.supervisor.open(0.04, input_device="mic", output_device=output, with_input=True)
        return [notice.problem.what_is_wrong for notice in notices]

    def follow(self, devices: DeviceList) -> list[str]:
        self.devices = devices
        return [notice.problem.what_is_wrong for notice in self.supervisor.follow(devices)]


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
    assert "default loudspeaker was lost" in notice.problem.what_is_wrong
    assert notice.problem.what_to_do
    assert rig.supervisor.service(10 * S + S // 4) == []
    (back,) = rig.supervisor.service(10 * S + S // 2)
    assert not back.is_error
    assert "mic" in back.problem.what_is_wrong
    assert rig.log == [
        "close loudspeaker", "close microphone", "scan", "open loudspeaker", "open microphone"
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
    assert any(
        "does not respond" in notice.problem.what_is_wrong and "Restart" in notice.problem.what_to_do
        for notice in notices
    )
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


def test_another_loudspeaker_leaves_the_microphone_alone(rig: Rig) -> None:
    rig.open()
    rig.log.clear()
    changes = rig.supervisor.input_changes
    assert rig.open("headset") == []
    assert rig.log == ["close loudspeaker", "open loudspeaker"]
    assert rig.open("headset") == []
    assert len(rig.log) == 2
    assert rig.supervisor.input_changes == changes
    rig.supervisor.open(0.08, input_device="mic", output_device="headset", with_input=True)
    assert rig.supervisor.input_changes > changes


def test_the_device_that_is_missing_at_the_start_is_taken_when_it_comes(rig: Rig) -> None:
    rig.microphone.is_absent = True
    rig.devices = replace(SERVER, inputs=())
    assert rig.open() == ["No microphone was found."]
    assert rig.supervisor.service(0) == []
    rig.microphone.is_absent = False
    assert rig.follow(SERVER) == []
    assert rig.supervisor.is_input_open
    assert "scan" not in rig.log


def test_without_a_server_the_missing_device_is_looked_for_between_turns(rig: Rig) -> None:
    rig.microphone.is_absent = True
    rig.open()
    rig.microphone.is_absent = False
    rig.supervisor.service(0, is_idle=False)
    rig.loudspeaker.log.clear()
    for tenth in range(1, 30):
        rig.supervisor.service(tenth * S // 10, is_idle=False)
    assert "close loudspeaker" not in rig.log
    for tenth in range(30, 100):
        rig.supervisor.service(tenth * S // 10, is_idle=True)
    assert rig.supervisor.is_input_open
    assert rig.supervisor.is_output_open


def test_a_device_that_goes_is_replaced_and_taken_back_by_its_name(rig: Rig) -> None:
    rig.devices = SERVER
    rig.open("headset")
    rig.log.clear()
    unplugged = replace(SERVER, outputs=listed("speaker"), output_in_use="speaker")
    (gone,) = rig.follow(unplugged)
    assert gone == "The loudspeaker The headset is not connected; The speaker is used instead."
    assert rig.follow(replace(unplugged, input_in_use="mic")) == []  # told once
    assert rig.log == ["close loudspeaker", "open loudspeaker"]
    rig.log.clear()
    (back,) = rig.follow(SERVER)
    assert back == "The loudspeaker The headset is back."
    assert rig.log == ["close loudspeaker", "open loudspeaker"]
    assert rig.loudspeaker.asked_for[-1] == "headset"
    assert rig.follow(replace(SERVER, output_in_use="headset")) == []


def test_a_stream_that_ends_with_its_device_is_opened_on_the_default_at_once(rig: Rig) -> None:
    rig.devices = SERVER
    rig.open("headset")
    rig.log.clear()
    rig.devices = replace(SERVER, outputs=listed("speaker"))
    rig.loudspeaker.lost = True
    rig.loudspeaker.gone, rig.loudspeaker.name_of_default = ("headset",), "speaker"
    (notice,) = rig.supervisor.service(0)
    assert not notice.is_error
    assert "headset is not connected; The speaker is used instead" in notice.problem.what_is_wrong
    assert rig.supervisor.service(S) == []
    assert rig.log == ["close loudspeaker", "open loudspeaker"]  # and the microphone went on


def test_a_stream_that_a_server_cannot_open_again_is_lost_within_a_second(rig: Rig) -> None:
    rig.devices = SERVER
    rig.open("headset")
    rig.loudspeaker.lost = rig.loudspeaker.is_absent = True
    assert rig.supervisor.service(0) == []
    (lost,) = rig.supervisor.service(S // 5)
    assert lost.problem.what_is_wrong == "The sound device The headset was lost."
    assert rig.supervisor.is_input_open
    rig.loudspeaker.is_absent = False
    (back,) = rig.supervisor.service(S * 7 // 10)
    assert back.problem.what_is_wrong == "Sound is back: The headset."


def test_a_stream_that_ends_before_the_list_says_so_is_no_loss(rig: Rig) -> None:
    rig.devices = SERVER
    rig.open("headset")
    rig.loudspeaker.lost = rig.loudspeaker.is_absent = True
    assert rig.supervisor.service(0) == []
    rig.loudspeaker.is_absent = False
    rig.loudspeaker.gone, rig.loudspeaker.name_of_default = ("headset",), "speaker"
    (notice,) = rig.follow(replace(SERVER, outputs=listed("speaker")))
    assert "The speaker is used instead" in notice
    assert rig.supervisor.service(S) == []


def test_the_last_loudspeaker_is_lost_even_if_the_server_makes_one_up(rig: Rig) -> None:
    rig.devices = SERVER
    rig.open()
    rig.loudspeaker.is_absent = True
    (lost,) = rig.follow(replace(SERVER, outputs=()))
    assert "default loudspeaker was lost" in lost
    assert not rig.supervisor.is_output_open
    rig.loudspeaker.is_absent = False
    rig.follow(SERVER)
    assert rig.supervisor.is_output_open


def test_a_device_that_hangs_while_it_opens(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.audio.supervisor.leave_portaudio_behind", lambda: None)
    rig.closes = False
    (hangs,) = rig.open()
    assert hangs == "The sound system does not respond and cannot be closed."
    assert rig.supervisor.service(100 * S) == []


def test_nothing_is_looked_for_while_devices_are_wanted(rig: Rig) -> None:
    rig.supervisor.look_around()
    assert rig.log == ["scan"]
    rig.open()
    rig.supervisor.look_around()
    assert rig.log.count("scan") == 1
