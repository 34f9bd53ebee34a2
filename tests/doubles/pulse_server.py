"""A private PulseAudio daemon with null sinks: a sound card for tests on machines that have none."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

_SCRIPT = """\
load-module module-native-protocol-unix auth-anonymous=1 socket={socket}
load-module module-null-sink sink_name=speaker rate=48000 channels=2 norewinds=1
load-module module-null-sink sink_name=question rate=48000 channels=1 norewinds=1
load-module module-remap-source {microphone}
set-default-sink speaker
set-default-source microphone
"""

_MICROPHONE = ("source_name=microphone", "master=question.monitor")
_ONE_CLOCK_SCRIPT = """\
load-module module-native-protocol-unix auth-anonymous=1 socket={socket}
load-module module-null-sink sink_name=both rate=48000 channels=2 channel_map=aux0,aux1 norewinds=1
load-module module-remap-sink sink_name=speaker master=both channels=1 channel_map=mono \
master_channel_map=aux0 remix=no
load-module module-remap-sink sink_name=question master=both channels=1 channel_map=mono \
master_channel_map=aux1 remix=no
load-module module-remap-source source_name=microphone master=both.monitor channels=1 channel_map=mono \
master_channel_map=aux1 remix=no
set-default-sink speaker
set-default-source microphone
"""

_LOOP_SCRIPT = """\
load-module module-native-protocol-unix auth-anonymous=1 socket={socket}
load-module module-null-sink sink_name=speaker rate=48000 channels=1 norewinds=1
load-module module-remap-source source_name=microphone master=speaker.monitor
set-default-sink speaker
set-default-source microphone
"""


class PulseServer:
    """The daemon and what can be done to it. `speak` is heard by the microphone, `record` hears the
    loudspeaker. With `one_clock` both are channels of one sink, and `record_both` hears them in step. With
    `loop_loss_db` the microphone hears the loudspeaker alone, so much softer, on the same clock."""

    def __init__(self, *, one_clock: bool = False, loop_loss_db: float | None = None) -> None:
        self._loop_loss_db = loop_loss_db
        script = _SCRIPT if loop_loss_db is None else _LOOP_SCRIPT
        self._script = (_ONE_CLOCK_SCRIPT if one_clock else script).replace("\\\n", "")
        self.folder = Path(tempfile.mkdtemp(prefix="pulse-"))
        self.socket = self.folder / "socket"
        self.environment = {
            "XDG_RUNTIME_DIR": str(self.folder),
            "PULSE_SERVER": f"unix:{self.socket}",
            "PULSE_SINK": "speaker",
            "PULSE_SOURCE": "microphone",
            "PULSE_COOKIE": str(self.folder / "cookie"),
            "HOME": str(self.folder),
        }
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        script = self.folder / "start.pa"
        script.write_text(self._script.format(socket=self.socket, microphone=" ".join(_MICROPHONE)))
        self._daemon = subprocess.Popen(
            ["pulseaudio", "--daemonize=no", "-n", "-F", str(script), "--exit-idle-time=-1", "--realtime=no",
             "--high-priority=no", "--use-pid-file=no"],
            env=os.environ | self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(1_000):
            if self.socket.exists() and self._pactl("info").returncode == 0:
                if self._loop_loss_db is not None:
                    # A factor: PulseAudio takes a negative number of decibels for a change.
                    factor = f"{10 ** (-self._loop_loss_db / 20):.4f}"
                    self._pactl("set-source-volume", "microphone", factor).check_returncode()
                return
            time.sleep(0.05)
        raise RuntimeError("the PulseAudio daemon does not answer")

    def stop(self) -> None:
        """Kill the daemon, as a crash would."""
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait(60)
            self._daemon = None
        self.socket.unlink(missing_ok=True)

    def speak(self, wav: Path) -> subprocess.Popen[bytes]:
        """Play a file into the microphone."""
        return subprocess.Popen(["paplay", "--device=question", str(wav)], env=os.environ | self.environment)

    def record(self, wav: Path, sink: str = "speaker") -> subprocess.Popen[bytes]:
        """Record what a loudspeaker plays until the process is terminated."""
        command = ["parecord", f"--device={sink}.monitor", "--channels=1", "--rate=48000", "--format=s16le",
                   "--file-format=wav", "--latency-msec=50", str(wav)]  # fmt: skip
        environment = {name: value for name, value in self.environment.items() if name != "PULSE_SOURCE"}
        return subprocess.Popen(command, env=os.environ | environment)

    def record_both(self, raw: Path) -> subprocess.Popen[bytes]:
        """Record loudspeaker and microphone as 16-bit stereo until the process is terminated."""
        command = ["parecord", "--raw", "--device=both.monitor", "--channels=2", "--channel-map=aux0,aux1",
                   "--no-remix", "--no-remap", "--rate=48000", "--format=s16le", "--latency-msec=50",
                   str(raw)]  # fmt: skip
        environment = {name: value for name, value in self.environment.items() if name != "PULSE_SOURCE"}
        return subprocess.Popen(command, env=os.environ | environment)

    def hear_itself(self) -> None:
        """An open loudspeaker: from now on the microphone hears what is played."""
        loop = (
            "load-module",
            "module-loopback",
            "source=speaker.monitor",
            "sink=question",
            "latency_msec=60",
        )
        environment = {
            name: value
            for name, value in self.environment.items()
            if name not in ("PULSE_SINK", "PULSE_SOURCE")
        }
        subprocess.run(
            ["pactl", *loop], env=os.environ | environment, check=True, capture_output=True, timeout=60
        )

    def remove_microphone(self) -> None:
        """Unplug it."""
        self._pactl("unload-module", "module-remap-source").check_returncode()

    def add_microphone(self) -> None:
        """Plug it in again."""
        self._pactl("load-module", "module-remap-source", *_MICROPHONE).check_returncode()

    def add_sink(self, name: str, description: str) -> str:
        """Plug in another loudspeaker; returns what `remove_sink` takes."""
        properties = f"sink_properties=\"device.description='{description}'\""
        sink = ("module-null-sink", f"sink_name={name}", "norewinds=1", properties)
        loaded = self._pactl("load-module", *sink)
        loaded.check_returncode()
        return loaded.stdout.decode().strip()

    def remove_sink(self, module: str) -> None:
        """Unplug it."""
        self._pactl("unload-module", module).check_returncode()

    def remove(self) -> None:
        """Stop the daemon and remove its files."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _pactl(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["pactl", *arguments],
            env=os.environ | self.environment,
            capture_output=True,
            timeout=60,
            check=False,
        )
