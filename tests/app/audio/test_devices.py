"""Selection of a device by name, with various lists of devices."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from app.audio import devices
from app.audio.devices import Device, choose, divert_messages, list_devices
from engine_runtime.errors import AudioDeviceError, Problem


def device(index: int, name: str, is_default: bool = False, host_api: str = "ALSA") -> Device:
    return Device(index, name, host_api, 48_000, is_default)


LINUX = (
    device(0, "default", True),
    device(1, "USB Headset: Audio (hw:1,0)"),
    device(2, "pulse"),
    device(3, "pipewire"),
)


def test_linux_prefers_pulse() -> None:
    assert choose(LINUX, None, "microphone", platform="linux").name == "pulse"


def test_without_pulse_the_plugins_that_can_hang_come_last() -> None:
    rest = tuple(entry for entry in LINUX if entry.name != "pulse")
    assert choose(rest, None, "microphone", platform="linux").name.startswith("USB")
    only = (device(0, "pipewire"), device(1, "default", True))
    assert choose(only, None, "microphone", platform="linux").name == "pipewire"


def test_elsewhere_the_default_is_the_default() -> None:
    assert choose(LINUX, None, "microphone", platform="darwin").name == "default"
    assert choose((device(4, "a"), device(5, "b")), None, "microphone", platform="darwin").name == "a"


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_a_name_decides(platform: str) -> None:
    assert choose(LINUX, "pipewire", "microphone", platform=platform).index == 3
    assert choose(LINUX, "USB Headset", "microphone", platform=platform).index == 1


def test_a_name_that_is_gone_or_ambiguous_falls_back() -> None:
    assert choose(LINUX, "Old Headset", "microphone", platform="linux").name == "pulse"
    assert choose(LINUX, "p", "microphone", platform="linux").name == "pulse"


def test_no_device_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(AudioDeviceError, match="microphone"):
        choose((), None, "microphone")
    with pytest.raises(AudioDeviceError, match="because"):
        choose((), "any", "loudspeaker", Problem("because"))


def sound_system(entries: list[dict[str, object]], apis: list[dict[str, object]]) -> SimpleNamespace:
    return SimpleNamespace(query_devices=lambda: entries, query_hostapis=lambda: apis)


def entry(name: str, hostapi: int, inputs: int, outputs: int) -> dict[str, object]:
    return {
        "name": name,
        "hostapi": hostapi,
        "max_input_channels": inputs,
        "max_output_channels": outputs,
        "default_samplerate": 44_100.0,
    }


def test_both_sides_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    apis = [{"name": "ALSA", "default_input_device": 1, "default_output_device": 0}]
    entries = [entry("speakers", 0, 0, 2), entry("headset", 0, 1, 2)]
    monkeypatch.setattr(devices, "portaudio", lambda: sound_system(entries, apis))
    found = list_devices("linux")
    assert [(d.name, d.is_default) for d in found.inputs] == [("headset", True)]
    assert [(d.name, d.is_default) for d in found.outputs] == [("speakers", True), ("headset", False)]
    assert found.problem is None


def test_windows_lists_each_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    apis = [
        {"name": "MME", "default_input_device": 0, "default_output_device": -1},
        {"name": "Windows WASAPI", "default_input_device": 1, "default_output_device": -1},
    ]
    entries = [entry("mic", 0, 1, 0), entry("mic", 1, 1, 0)]
    monkeypatch.setattr(devices, "portaudio", lambda: sound_system(entries, apis))
    assert [d.host_api for d in list_devices("win32").inputs] == ["Windows WASAPI"]


def test_a_missing_library_is_a_reason_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "sounddevice":
                raise OSError("PortAudio library not found")

    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    found = list_devices()
    assert (found.inputs, found.outputs) == ((), ())
    assert "apt install libportaudio2" in str(found.problem)


def test_a_sound_system_that_fails_is_a_reason_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("Error querying device -1")

    monkeypatch.setattr(
        devices, "portaudio", lambda: SimpleNamespace(query_hostapis=fail, query_devices=fail)
    )
    assert "Error querying device -1" in str(list_devices().problem)


def test_messages_can_be_diverted(capfd: pytest.CaptureFixture[str]) -> None:
    os.write(2, b"before ")
    restore = divert_messages()
    os.write(2, b"meanwhile ")
    restore()
    os.write(2, b"after")
    assert capfd.readouterr().err == "before after"


@pytest.mark.slow
def test_a_process_can_end_without_closing_portaudio() -> None:
    if list_devices().problem:
        pytest.skip(str(list_devices().problem))
    code = """
import sounddevice
from app.audio.devices import leave_portaudio_behind
sounddevice._terminate = lambda: print("closed")
leave_portaudio_behind()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == ""


@pytest.mark.slow
def test_alsa_says_nothing_about_devices_it_cannot_find() -> None:
    code = """
import ctypes
from app.audio.devices import list_devices
list_devices()
try:
    alsa = ctypes.CDLL("libasound.so.2")
except OSError:
    print("no alsa")
else:
    handle = ctypes.c_void_p()
    print(alsa.snd_pcm_open(ctypes.byref(handle), b"no such device", 0, 0) < 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() in ("True", "no alsa")
    assert "ALSA" not in done.stderr
