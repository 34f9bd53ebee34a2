"""Lists the sound devices, and finds one by name.

In: the name from the settings, or None. Out: a PortAudio device. Works without any device and without the
PortAudio library (empty lists and a reason). Dialog thread; `rescan` needs all streams closed.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from engine_runtime.errors import AudioDeviceError, Problem

Direction = Literal["microphone", "loudspeaker"]
KINDS: dict[Direction, Problem] = {
    "microphone": Problem("microphone"),
    "loudspeaker": Problem("loudspeaker"),
}
"""What messages call a device of each direction; they are translated there."""
SERVER_DEVICE = "pulse"
"""PortAudio's name of the sound server. Preferred on Linux: it ends cleanly when the server dies, where
PipeWire's own ALSA plugin can hang PortAudio for ever."""
_AVOIDED_ON_LINUX = ("pipewire", "default", "sysdefault", "dmix")
_WINDOWS_HOST_API = "Windows WASAPI"
"""Windows lists each device once per host API; the others are slower or cannot share the device."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Device:
    """One side (input or output) of a sound device."""

    index: int
    """Index in PortAudio's list; -1 for a device of the sound server, opened through `SERVER_DEVICE`."""
    name: str
    host_api: str
    sample_rate: int
    is_default: bool
    description: str = ""
    """What the system calls it; "" if that is the name."""
    is_monitor: bool = False
    """Whether it captures what a loudspeaker plays: used only if requested by name."""

    @property
    def is_of_server(self) -> bool:
        """Whether the sound server connects it by its name."""
        return self.index < 0


@dataclass(frozen=True, slots=True)
class DeviceList:
    """Devices that can be used; `problem` is the reason if there are none."""

    inputs: tuple[Device, ...]
    outputs: tuple[Device, ...]
    problem: Problem | None = None
    input_in_use: str = ""
    """Where the sound server has our capture stream, "" if that is not known; it may move streams."""
    output_in_use: str = ""
    is_live: bool = False
    """Whether the list follows the system by itself; otherwise only `rescan` finds changes."""


def no_answer(error: Exception) -> Problem:
    """What the user is told about an error of the sound system."""
    return Problem("The sound system does not answer ({error}).", "Check that it runs.", error=error)


def portaudio() -> Any:
    """The sounddevice module; AudioDeviceError if its PortAudio library is missing."""
    _quieten_alsa()
    try:
        import sounddevice
    except OSError as error:
        raise AudioDeviceError(
            "Sound cannot be used: the PortAudio library is missing.",
            "On Debian or Ubuntu install it with: apt install libportaudio2 libasound2-plugins",
        ) from error
    return sounddevice


@cache
def _quieten_alsa() -> None:
    """Keep the ALSA library from writing to stderr (under-runs, which are counted here, and every device that
    it cannot find on a machine without sound), unless the program is to log in detail."""
    if not sys.platform.startswith("linux") or _log.isEnabledFor(logging.DEBUG):
        return
    try:
        # Its error handler is called from real-time threads with a string first: strlen takes that and does
        # no harm, where a Python function would wait for the interpreter.
        harmless = ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p)
        ctypes.CDLL("libasound.so.2").snd_lib_error_set_handler(harmless)
    except (OSError, AttributeError):
        _log.info("the ALSA library is not there")


def list_devices(platform: str = sys.platform) -> DeviceList:
    """Devices as PortAudio saw them at its start or last `rescan`."""
    try:
        sounddevice = portaudio()
        apis = sounddevice.query_hostapis()
        found = sounddevice.query_devices()
    except AudioDeviceError as error:
        return DeviceList((), (), error.problem)
    except Exception as error:  # PortAudioError: the type exists only where the library does
        return DeviceList((), (), no_answer(error))
    inputs: list[Device] = []
    outputs: list[Device] = []
    for index, entry in enumerate(found):
        api = apis[entry["hostapi"]]
        for side, direction in ((inputs, "input"), (outputs, "output")):
            if entry[f"max_{direction}_channels"] > 0:
                is_default = api[f"default_{direction}_device"] == index
                rate = int(entry["default_samplerate"])
                side.append(Device(index, entry["name"], api["name"], rate, is_default))
    if platform == "win32":
        inputs = [device for device in inputs if device.host_api == _WINDOWS_HOST_API] or inputs
        outputs = [device for device in outputs if device.host_api == _WINDOWS_HOST_API] or outputs
    return DeviceList(tuple(inputs), tuple(outputs))


def choose(
    devices: tuple[Device, ...],
    wanted: str | None,
    what: Direction,
    problem: Problem | None = None,
    platform: str = sys.platform,
) -> Device:
    """The device named `wanted`, or else the best default. `what` is "microphone" or "loudspeaker" (for the
    error).

    On Linux the default is `pulse`, then what PortAudio calls default unless that is one of the plugins that
    can hang.
    """
    if wanted is not None and (named := find(devices, wanted)) is not None:
        return named
    usable = [device for device in devices if not device.is_monitor]
    if not usable:
        if problem is not None:
            raise AudioDeviceError.from_problem(problem)
        raise AudioDeviceError(
            "No {kind} was found.", "Connect one; it is used as soon as it is found.", kind=KINDS[what]
        )
    if platform.startswith("linux"):
        return min(usable, key=_linux_rank)
    return next((device for device in usable if device.is_default), usable[0])


def find(devices: tuple[Device, ...], wanted: str) -> Device | None:
    """The device of this name, or else the only one of this description, or else the only one of which either
    starts so."""
    for fits in (
        lambda device: device.name == wanted,
        lambda device: device.description == wanted,
        lambda device: device.name.startswith(wanted) or device.description.startswith(wanted),
    ):
        found = [device for device in devices if fits(device)]
        if len(found) == 1:
            return found[0]
    return None


def _linux_rank(device: Device) -> tuple[int, int]:
    if device.name == SERVER_DEVICE:
        return (0, device.index)
    if device.name in _AVOIDED_ON_LINUX:
        return (3, device.index)
    return (1 if device.is_default else 2, device.index)


def rescan() -> None:
    """Restart PortAudio, the only way to make it look for devices. All streams must be closed."""
    sounddevice = portaudio()
    sounddevice._terminate()
    sounddevice._initialize()


def leave_portaudio_behind() -> None:
    """Let the process end without closing PortAudio, which would wait forever for a hanging stream."""
    sounddevice = sys.modules.get("sounddevice")
    if sounddevice is not None:
        atexit.unregister(sounddevice._exit_handler)


def divert_messages() -> Callable[[], None]:
    """Discard the output of native code on stderr until the returned function is called.

    A PortAudio thread whose sound server died can write the same message for ever, a hundred megabytes a
    second.
    """
    try:
        saved = os.dup(2)
        nowhere = os.open(os.devnull, os.O_WRONLY)
    except OSError:  # no stderr, as in a windowed program on Windows
        return lambda: None
    os.dup2(nowhere, 2)
    os.close(nowhere)

    def restore() -> None:
        os.dup2(saved, 2)
        os.close(saved)

    return restore
