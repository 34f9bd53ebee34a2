"""The devices of the sound server: as a double of pulsectl has them, and of a real PulseAudio daemon."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from app.audio.device_streams import SoundInput, SoundOutput
from app.audio.devices import Device, DeviceList, choose, find
from app.audio.sound_server import SoundServer, current_devices, routed_to
from engine_runtime.errors import AudioDeviceError
from tests.doubles.pulse_server import PulseServer

PORTAUDIO = DeviceList((), (Device(0, "pulse", "ALSA", 48_000, True),))


def entry(index: int, name: str, description: str, monitor_of: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(
        index=index,
        name=name,
        description=description,
        monitor_of_sink_name=monitor_of,
    )


class Server:
    """pulsectl.Pulse with two loudspeakers of one description, a microphone and the monitors."""

    is_away = False
    changed = threading.Event()
    sinks: tuple[SimpleNamespace, ...] = (
        entry(3, "usb", "Headset"),
        entry(7, "usb.2", "Headset"),
        entry(1, "auto_null", "Dummy Output"),
    )
    sources = (
        entry(2, "mic", "Built-in Audio"),
        entry(5, "usb.monitor", "Monitor of Headset", "usb"),
        entry(6, "auto_null.monitor", "Monitor of Dummy Output", "auto_null"),
    )

    def __init__(self, client_name: str, connect: bool) -> None:
        assert not connect

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing was opened."""

    def connect(self) -> None:
        if self.is_away:
            raise OSError("connection refused")

    def event_mask_set(self, *masks: str) -> None:
        assert {"sink", "source", "server"} <= set(masks)

    def event_callback_set(self, callback: Callable[[object], None]) -> None:
        self.callback = callback

    def event_listen(self, timeout: float) -> None:
        if self.changed.wait(timeout):
            self.changed.clear()
        if self.is_away:
            raise RuntimeError("disconnected")

    def server_info(self) -> SimpleNamespace:
        return SimpleNamespace(default_sink_name="usb.2", default_source_name="usb.monitor")

    def sink_list(self) -> list[SimpleNamespace]:
        return list(self.sinks)

    def source_list(self) -> list[SimpleNamespace]:
        return list(self.sources)

    def sink_input_list(self) -> list[SimpleNamespace]:
        other = SimpleNamespace(sink=3, proplist={"application.process.id": "1"})
        return [other, SimpleNamespace(sink=7, proplist={"application.process.id": str(os.getpid())})]

    def source_output_list(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(source=5, proplist={})]


@contextmanager
def following(server: SoundServer) -> Iterator[SoundServer]:
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def pulsectl(monkeypatch: pytest.MonkeyPatch) -> type[Server]:
    class Fresh(Server):
        changed = threading.Event()

    for name in ("PULSE_SINK", "PULSE_SOURCE"):
        monkeypatch.delenv(name, raising=False)
    module = SimpleNamespace(Pulse=Fresh, PulseLoopStop=InterruptedError, PulseError=OSError)
    monkeypatch.setitem(sys.modules, "pulsectl", module)
    monkeypatch.setattr("app.audio.sound_server.RETRY_S", 0.01)
    return Fresh


def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_every_device_has_its_name_and_its_description(pulsectl: type[Server]) -> None:
    with following(SoundServer(lambda: PORTAUDIO)) as server:
        found = server.devices()
    assert found.is_live
    assert [(device.name, device.description) for device in found.outputs] == [
        ("usb", "Headset (usb)"),
        ("usb.2", "Headset (usb.2)"),
    ]
    assert [(device.name, device.is_monitor) for device in found.inputs] == [
        ("mic", False),
        ("usb.monitor", True),
    ]
    assert (found.input_in_use, found.output_in_use) == ("", "usb.2")


@pytest.mark.slow
def test_a_monitor_is_used_by_name_only(pulsectl: type[Server]) -> None:
    with following(SoundServer(lambda: PORTAUDIO)) as server:
        inputs = server.devices().inputs
    assert choose(inputs, None, "microphone", platform="linux").name == "mic"
    assert choose(inputs, "usb.monitor", "microphone", platform="linux").name == "usb.monitor"
    with pytest.raises(AudioDeviceError, match="microphone"):
        choose(inputs[1:], None, "microphone", platform="linux")


def test_a_device_is_found_by_name_or_description() -> None:
    devices = tuple(
        Device(-1, name, "sound server", 48_000, False, text)
        for name, text in (("alsa.usb", "USB Headset"), ("alsa.pci", "Built-in"), ("Built-in", "Line"))
    )
    assert find(devices, "alsa.usb") is devices[0]
    assert find(devices, "USB") is devices[0]
    assert find(devices, "Built-in") is devices[2]  # the name counts more
    assert find(devices, "alsa") is None


@pytest.mark.slow
def test_the_environment_names_the_default(pulsectl: type[Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_SOURCE", "usb.monitor")
    with following(SoundServer(lambda: PORTAUDIO)) as server:
        inputs = server.devices().inputs
    assert choose(inputs, None, "microphone", platform="linux").name == "usb.monitor"


@pytest.mark.slow
def test_portaudio_lists_the_devices_while_there_is_no_server(pulsectl: type[Server]) -> None:
    pulsectl.is_away = True
    with following(SoundServer(lambda: PORTAUDIO)) as server:
        assert server.devices() is PORTAUDIO
        pulsectl.is_away = False
        until(lambda: server.devices().is_live)
        pulsectl.is_away = True
        until(lambda: not server.devices().is_live)


def test_devices_are_listed_once_without_a_thread(
    pulsectl: type[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.audio.sound_server.list_devices", lambda: PORTAUDIO)
    assert [device.name for device in current_devices().inputs] == ["mic", "usb.monitor"]
    pulsectl.is_away = True
    assert current_devices() is PORTAUDIO


@pytest.mark.slow
def test_changes_are_followed(pulsectl: type[Server]) -> None:
    with following(SoundServer(lambda: PORTAUDIO)) as server:
        assert len(server.devices().outputs) == 2
        pulsectl.sinks = Server.sinks[:1]
        pulsectl.changed.set()
        until(lambda: len(server.devices().outputs) == 1)


def test_without_pulsectl_portaudio_lists_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pulsectl", None)
    with following(SoundServer(lambda: PORTAUDIO)) as server:
        assert server.devices() is PORTAUDIO


def test_the_route_lasts_while_the_stream_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PULSE_SINK", raising=False)
    monkeypatch.setenv("PULSE_SOURCE", "before")
    device = Device(-1, "headset", "sound server", 48_000, False)
    with routed_to("output", device), routed_to("input", device):
        assert (os.environ["PULSE_SINK"], os.environ["PULSE_SOURCE"]) == ("headset", "headset")
    assert os.environ["PULSE_SOURCE"] == "before"
    assert "PULSE_SINK" not in os.environ


@pytest.mark.slow
@pytest.mark.pulse
def test_streams_are_opened_by_name_and_followed(pulse_server: PulseServer) -> None:
    second = pulse_server.add_sink("second", "Second loudspeaker")
    with following(SoundServer()) as server:
        microphone, loudspeaker = SoundInput(server.devices), SoundOutput(server.devices)
        plain = SoundOutput(server.devices)
        until(lambda: find(server.devices().outputs, "second") is not None)
        loudspeaker.open("Second loudspeaker", 0.04)
        microphone.open("second.monitor", 0.04)
        assert (microphone.name, loudspeaker.name) == ("second.monitor", "second")
        until(lambda: server.devices().input_in_use == "second.monitor")
        assert server.devices().output_in_use == "second"
        plain.open(None, 0.04)
        assert plain.name == "speaker"
        loudspeaker.close()
        until(lambda: server.devices().output_in_use == "speaker")
        pulse_server.remove_sink(second)
        until(lambda: server.devices().input_in_use == "microphone")  # moved by the server
        assert not microphone.is_lost()
        plain.close()
        microphone.close()
        until(lambda: server.devices().output_in_use == "")
