"""The window of a package on a bare machine: it opens, hears a question, replies, shows its texts, closes.

In: the program and the language. Out: what was measured, and a screenshot. X server and PulseAudio daemon
(with null sinks) run outside of the bare root, which sees their sockets. Keys are pressed through XTEST, the
question is played into the virtual microphone. Main thread.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.doubles.pulse_server import PulseServer
from tests.doubles.x_server import XServer
from tests.tools.bare_root import HOME, BareRoot, Mount, unroutable
from tests.tools.checks import require
from tests.tools.screen_text import FOUND, match_texts
from tests.tools.window_start import mapped_titles, save_screen

ROOT = Path(__file__).resolve().parents[2]
QUESTION = ROOT / "assets" / "samples" / "03-three-plus-four.wav"
TEXTS = {
    "en": ("Hello there.", "Who are you?", "New conversation", "中文"),
    "zh_CN": ("你好", "你是谁？", "新对话", "静音"),
}
"""What the window shows in each language: labels and sample questions, in the font of the window."""
ABSENT = {"en": "Frogs jump high", "zh_CN": "青蛙"}
"""What it does not show, which must not be found."""
_LOG = HOME / ".local/state/moss-voice/log/moss-voice.log"
_TROUBLE = re.compile(
    r"^\S+(?: [\d:,]+)? (WARNING|ERROR|CRITICAL) (?!.*: under-runs \d).*$|^Traceback.*$", re.MULTILINE
)
"""Lines of the log that should not be there. Under-runs are a matter of the machine's speed."""
_SCREEN = "1500x950x24"
_X_SOCKETS = Path("/tmp/.X11-unix")
_PATIENCE_S = 120.0
_REPLY_S = 4.0
"""From the last code of the reply until it has been played."""


def hold_window(
    root: BareRoot, command: list[str], language: str, picture: Path, mounts: tuple[Mount, ...] = ()
) -> list[str]:
    """Open the window, ask it something and close it; returns what was measured. Raises CheckFailed."""
    root.inside(_LOG).unlink(missing_ok=True)
    server, sound = XServer(_SCREEN), PulseServer()
    sound.folder.chmod(0o711)
    server.start()
    sound.start()
    try:
        return _Visit(root, server, sound).hold(command, language, picture, mounts)
    finally:
        server.stop()
        sound.remove()


class _Visit:
    """A user at one screen with one sound card."""

    def __init__(self, root: BareRoot, server: XServer, sound: PulseServer) -> None:
        self._root, self._server, self._sound = root, server, sound
        self._connection = server.connect()
        self._connection.set_access_control(
            0
        )  # for the user of the bare machine, whom this one does not know
        self._connection.sync()

    def hold(self, command: list[str], language: str, picture: Path, mounts: tuple[Mount, ...]) -> list[str]:
        inside = Path("/run/sound")
        variables = {
            "DISPLAY": self._server.display,
            "PULSE_SERVER": f"unix:{inside / 'socket'}",
            "LANG": f"{language}.UTF-8" if language != "en" else "C.UTF-8",
        }
        shown = (*mounts, Mount(_X_SOCKETS, _X_SOCKETS), Mount(self._sound.folder, inside))
        counts = picture.with_suffix(".snmp")
        words = self._root.command(command, environment=variables, mounts=shown, counts=counts)
        began_s = time.monotonic()
        with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(words, stderr=errors) as process:
            try:
                self._wait(
                    process, lambda: "MOSS Voice" in " ".join(mapped_titles(self._connection)), "a window"
                )
                notes = [f"window after {time.monotonic() - began_s:.1f} s"]
                self._wait(process, lambda: "engine ready" in self._log(), "the engine")
                notes.append(self._ask(process))
                save_screen(self._connection, picture)
                self._press("Control_L", "q")
                status = process.wait(_PATIENCE_S)
            finally:
                process.kill()
            errors.seek(0)
            require(status == 0, f"exit status {status}: {errors.read()[-500:]}")
        attempts = unroutable(counts.read_text())
        counts.unlink()
        require(attempts == 0, f"{attempts} attempts to use the network")
        found = trouble(self._log())
        require(not found, f"{len(found)} lines of trouble in the log: {found[:3]}")
        notes.append(self._read(picture, language))
        return notes

    def _ask(self, process: subprocess.Popen[bytes]) -> str:
        """Start listening, say the question, hear the reply. Escape skips the guide of the first start."""
        self._press("Escape")
        # A key that comes while the guide closes is lost with it.
        self._wait(process, lambda: len([*mapped_titles(self._connection)]) == 1, "the end of the guide")
        self._press("Control_L", "space")
        self._wait(
            process, lambda: re.search(r"microphone: (?!closed)", self._log()) is not None, "a microphone"
        )
        with tempfile.TemporaryDirectory() as folder:
            heard = Path(folder) / "heard.wav"
            recorder = self._sound.record(heard)
            try:
                self._sound.speak(QUESTION).wait(_PATIENCE_S)
                self._wait(process, lambda: "turn 1 finished" in self._log(), "a reply")
                time.sleep(_REPLY_S)
            finally:
                recorder.terminate()
                recorder.wait(_PATIENCE_S)
            seconds = loud_seconds(heard)
        require(seconds > 0.5, f"only {seconds:.1f} s of the reply were heard")
        return f"{seconds:.1f} s of speech from the loudspeaker"

    def _press(self, *keys: str) -> None:
        """Press keys together, with the focus on the window; there is no window manager to give it."""
        for window in self._connection.screen().root.query_tree().children:
            if window.get_attributes().map_state:
                window.set_input_focus(0, 0)
        self._connection.sync()
        for is_down, order in ((True, keys), (False, keys[::-1])):
            for name in order:
                self._server.key(name, is_down=is_down)

    def _log(self) -> str:
        file = self._root.inside(_LOG)
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def _wait(self, process: subprocess.Popen[bytes], holds: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + _PATIENCE_S
        while not holds():
            require(process.poll() is None, f"it ended with status {process.poll()} before there was {what}")
            require(time.monotonic() < end_s, f"{what} did not come within {_PATIENCE_S:.0f} s")
            time.sleep(0.05)

    def _read(self, picture: Path, language: str) -> str:
        """Find the texts of the window in the picture, and only them."""
        scores = match_texts(
            picture, self._root.inside(Path("/usr/share/fonts")), (*TEXTS[language], ABSENT[language])
        )
        *found, absent = scores
        require(min(found) > FOUND > absent, f"texts match by {scores}")
        return f"{len(found)} texts read, the worst matches by {min(found):.2f}"


def trouble(log: str) -> list[str]:
    """The lines of a log that should not be there."""
    return [found[0] for found in _TROUBLE.finditer(log)]


def loud_seconds(wav: Path) -> float:
    """How long a recording is louder than -40 dBFS, in blocks of 20 ms."""
    with wave.open(str(wav)) as file:
        block = file.getframerate() // 50
        pcm = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768
    blocks = pcm[: len(pcm) // block * block].reshape(-1, block)
    return float((np.sqrt((blocks**2).mean(axis=1)) > 0.01).sum() / 50)
