"""Picture of a real conversation for the README: window, session, engine, nano bundle, sound on null sinks.

    python -m tests.tools.live_picture FOLDER

Only the questions are scripted: samples go through the capture path, replies through the real output stream.
Needs pulseaudio. Writes window-light.png and window-dark.png.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from PySide6.QtCore import QSize

from app.session.commands import PlaySample
from tests.tools.live_window import ROOT, LiveWindow, sound_server

SAMPLES = ("01-hello", "03-three-plus-four", "04-and-plus-two", "05-after-monday")
TYPED = ("What colour is the sky?", "What is nine minus six?")


def hold_conversation(live: LiveWindow, folder: Path) -> None:
    """Ask the questions and take the pictures."""
    window = live.window
    for text in TYPED:
        window.composer.edit.setPlainText(text)
        live.ask(window.composer.submit)
        live.pause(0.6)
    for name in SAMPLES:
        sample = PlaySample(ROOT / "assets" / "samples" / f"{name}.wav")
        live.ask(partial(window.bridge.send, sample))
        live.pause(1.0)
    window.grab().save(str(folder / "window-light.png"))
    window.toggle_theme()
    live.pause(0.6)
    window.grab().save(str(folder / "window-dark.png"))


def main() -> None:
    """Start the sound server, then talk."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with sound_server():
        live = LiveWindow(QSize(1440, 920))
        try:
            hold_conversation(live, folder)
        finally:
            live.close()


if __name__ == "__main__":
    main()
