"""A PulseAudio daemon of our own with null sinks: the simulated user talks through it to a session with real
sound devices, in real time.

`NullSinks` sets the environment, so that libpulse finds this daemon, before the session opens a device.
`pump` carries sound between the daemon and the room: what the loudspeaker plays is heard, what the microphone
would capture is played into it. The thread of its caller, every few milliseconds.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

import numpy as np

from app.audio.devices import rescan
from app.duplex.room import RATE, SPEAKER_RATE, EchoRoom
from engine_runtime.errors import AudioDeviceError

_SCRIPT = """\
load-module module-native-protocol-unix auth-anonymous=1 socket={socket}
load-module module-null-sink sink_name=speaker rate=48000 channels=1 norewinds=1
load-module module-null-sink sink_name=user rate=48000 channels=1 norewinds=1
load-module module-remap-source source_name=microphone master=user.monitor
set-default-sink speaker
set-default-source microphone
"""
_DAEMON = (
    "pulseaudio --daemonize=no -n --exit-idle-time=-1 --realtime=no --high-priority=no --use-pid-file=no"
)
_PROGRAMS = ("pulseaudio", "pacat")
_START_S = 5.0
_LATENCY = "--latency-msec=20"
_RAW = ("--raw", "--format=float32le", "--channels=1", _LATENCY)
_READ_BYTES = 1 << 16


def check_programs() -> None:
    """AudioDeviceError if PulseAudio is not installed."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        raise AudioDeviceError(
            "{missing} cannot be found.",
            "Install PulseAudio with its utilities, or leave out --duplex-realtime.",
            missing=" and ".join(missing),
        )


class NullSinks:
    """A running daemon. Use it as a context manager."""

    def __init__(self) -> None:
        """AudioDeviceError if PulseAudio is not installed."""
        check_programs()
        self._folder = Path(tempfile.mkdtemp(prefix="moss-voice-pulse-"))
        self._before: dict[str, str | None] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._rest = b""

    def __enter__(self) -> NullSinks:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the daemon and undo the environment."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._processes.clear()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(self._folder, ignore_errors=True)

    def pump(self, room: EchoRoom, now_ns: int) -> None:
        """Feed what was played into the room, and play what its microphone captured up to `now_ns`. Sound
        from before the microphone was opened is not heard."""
        _, speaker, user = self._processes
        if speaker.stdout is None or user.stdin is None:
            raise ValueError("the sinks are not open")
        is_readable = bool(select.select([speaker.stdout], [], [], 0)[0])
        played = self._rest + (os.read(speaker.stdout.fileno(), _READ_BYTES) if is_readable else b"")
        whole = len(played) // 4 * 4
        self._rest = played[whole:]
        if whole and room.name:
            room.hear(np.frombuffer(played[:whole], dtype="<f4"))
        room.service(now_ns)
        captured = room.ring.read(room.ring.available)
        if len(captured):
            user.stdin.write(captured.astype("<f4").tobytes())
            user.stdin.flush()

    def _start(self) -> None:
        socket, script = self._folder / "socket", self._folder / "start.pa"
        script.write_text(_SCRIPT.format(socket=socket), encoding="utf-8")
        self._set("XDG_RUNTIME_DIR", str(self._folder))
        self._set("PULSE_SERVER", f"unix:{socket}")
        self._open([*_DAEMON.split(), "-F", str(script)])
        give_up_s = time.monotonic() + _START_S
        while not socket.exists():
            if time.monotonic() > give_up_s or self._processes[0].poll() is not None:
                raise AudioDeviceError("The PulseAudio daemon does not start.", "Check its installation.")
            time.sleep(0.02)
        time.sleep(0.2)  # for the modules that are loaded after the socket
        self._open(["pacat", "--record", "--device=speaker.monitor", f"--rate={SPEAKER_RATE}", *_RAW])
        self._open(["pacat", "--playback", "--device=user", f"--rate={RATE}", *_RAW])
        rescan()

    def _set(self, name: str, value: str) -> None:
        self._before[name] = os.environ.get(name)
        os.environ[name] = value

    def _open(self, command: list[str]) -> None:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._processes.append(process)
