"""Fixtures of the application's tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.doubles.pulse_server import PulseServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real sound streams run in real time, which a busy machine disturbs: two more tries."""
    for item in items:
        if item.get_closest_marker("pulse"):
            item.add_marker(pytest.mark.flaky(reruns=2))


@pytest.fixture
def pulse_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PulseServer]:
    """A running sound server of its own that PortAudio sees; skipped where PulseAudio is not installed."""
    for program in ("pulseaudio", "pactl", "paplay", "parecord"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (apt install pulseaudio pulseaudio-utils)")
    from app.audio.devices import list_devices, rescan
    from engine_runtime.errors import AudioDeviceError

    server = PulseServer()
    for name, value in server.environment.items():
        if name != "HOME":
            monkeypatch.setenv(name, value)
    try:
        server.start()
        try:
            rescan()
        except AudioDeviceError as error:
            pytest.skip(str(error))
        if not any(device.name == "pulse" for device in list_devices().inputs):
            pytest.skip("ALSA has no pulse plugin (apt install libasound2-plugins)")
        yield server
    finally:
        server.remove()
        monkeypatch.undo()
        rescan()
