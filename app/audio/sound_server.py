"""The sound server (PulseAudio, or PipeWire in its place): its devices by name, and where our streams are.

In: events of the server. Out: a `DeviceList` that follows the system, without PortAudio. `run` is the body of
a thread of its own; `devices` may be called in any thread and does not talk to the server.

PortAudio's ALSA side shows all devices of the server as one, `pulse`. `routed_to` names the device for the
stream that is being opened: libpulse reads PULSE_SINK and PULSE_SOURCE when the ALSA plugin connects, which
it does once per stream. Moving a running stream instead would make the server remember that device for every
program that uses the plugin. pulsectl lists the devices and reports changes, of PipeWire as well; without it,
or without a server, PortAudio's list is used.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from app.audio.devices import Device, DeviceList, list_devices

Side = Literal["input", "output"]

_VARIABLES: dict[Side, str] = {"input": "PULSE_SOURCE", "output": "PULSE_SINK"}
_DUMMY = "auto_null"
"""The dummy sink that the server creates while there is no other."""
RATE_HZ = 48_000
"""The server converts to that of the device. pulsectl's `sample_spec` must not be read: it refers to memory
that libpulse has freed by then."""
RETRY_S = 0.5
_LISTEN_S = 0.2
"""How long a stopped thread may keep waiting for events."""
_FIRST_ANSWER_S = 1.0
_log = logging.getLogger(__name__)


@contextmanager
def routed_to(side: Side, device: Device) -> Iterator[None]:
    """Streams opened meanwhile on the server's PortAudio device go to `device`. Dialog thread: the
    environment belongs to the process, so only one stream may be opened at a time."""
    variable = _VARIABLES[side]
    before = os.environ.get(variable)
    os.environ[variable] = device.name
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


class SoundServer:
    """Follows the devices of the server that libpulse connects to by default."""

    def __init__(self, portaudio_devices: Callable[[], DeviceList] = list_devices) -> None:
        self._portaudio_devices = portaudio_devices
        self._found: DeviceList | None = None
        """Devices of the server; None while there is no server."""
        self._has_answered = threading.Event()
        self._stopping = threading.Event()

    def devices(self) -> DeviceList:
        """The devices of the server, or those of PortAudio while there is none. Waits up to a second for the
        first answer."""
        self._has_answered.wait(_FIRST_ANSWER_S)
        return self._found or self._portaudio_devices()

    def close(self) -> None:
        """End `run`."""
        self._stopping.set()

    def run(self) -> None:
        """Body of the thread: follow the server until `close`, also through restarts of it."""
        pulsectl = _pulsectl()
        while pulsectl is not None and not self._stopping.is_set():
            try:
                with pulsectl.Pulse("MOSS Voice devices", connect=False) as server:
                    server.connect()
                    self._follow(server, pulsectl)
            except Exception as error:  # of several kinds, when the server is not there or goes
                _log.debug("no sound server: %s", error)
            self._found = None
            self._has_answered.set()
            self._stopping.wait(RETRY_S)
        self._has_answered.set()
        self._stopping.wait()

    def _follow(self, server: Any, pulsectl: Any) -> None:
        has_changed = threading.Event()

        def stop_listening(_event: object) -> None:
            has_changed.set()
            raise pulsectl.PulseLoopStop

        server.event_mask_set("server", "sink", "source", "sink_input", "source_output")
        server.event_callback_set(stop_listening)
        while not self._stopping.is_set():
            has_changed.clear()
            if (found := _ask(server)) != self._found:
                self._found = found
            self._has_answered.set()
            if not has_changed.is_set():  # events also come while the server is asked
                server.event_listen(timeout=_LISTEN_S)


def current_devices() -> DeviceList:
    """What `SoundServer.devices` would say now, without a thread."""
    pulsectl = _pulsectl()
    if pulsectl is not None:
        with suppress(pulsectl.PulseError), pulsectl.Pulse("MOSS Voice devices", connect=False) as server:
            server.connect()
            return _ask(server)
    return list_devices()


def _pulsectl() -> Any:
    """The module; None where it or libpulse is missing."""
    try:
        import pulsectl
    except (ImportError, OSError) as error:
        _log.info("sound devices are listed by PortAudio: %s", error)
        return None
    return pulsectl


def _ask(server: Any) -> DeviceList:
    """The devices of the server and where it has the streams of this process."""
    asked = server.server_info()
    sources = [source for source in server.source_list() if source.monitor_of_sink_name != _DUMMY]
    sinks = [sink for sink in server.sink_list() if sink.name != _DUMMY]
    inputs = _list(sources, os.environ.get("PULSE_SOURCE"), asked.default_source_name)
    outputs = _list(sinks, os.environ.get("PULSE_SINK"), asked.default_sink_name)
    captures = [stream.source for stream in server.source_output_list() if _is_ours(stream)]
    playbacks = [stream.sink for stream in server.sink_input_list() if _is_ours(stream)]
    return DeviceList(
        inputs,
        outputs,
        input_in_use=next((source.name for source in sources if source.index in captures), ""),
        output_in_use=next((sink.name for sink in sinks if sink.index in playbacks), ""),
        is_live=True,
    )


def _list(entries: list[Any], by_environment: str | None, default: str) -> tuple[Device, ...]:
    """Devices of one side; two with the same description are distinguished by their names."""
    counts = Counter(entry.description for entry in entries)
    return tuple(
        Device(
            -1,
            entry.name,
            "sound server",
            RATE_HZ,
            entry.name == (by_environment or default),
            entry.description if counts[entry.description] == 1 else f"{entry.description} ({entry.name})",
            bool(getattr(entry, "monitor_of_sink_name", None)) and entry.name != by_environment,
        )
        for entry in entries
    )


def _is_ours(stream: Any) -> bool:
    return bool(stream.proplist.get("application.process.id") == str(os.getpid()))
