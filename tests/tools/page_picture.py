"""Pictures of the page in the browser, in a conversation with nano: for SERVE.md, and to look at.

    python -m tests.tools.page_picture FOLDER

In: samples, which the microphone of headless Chromium plays; a typed question, whose reply is stopped. Out:
page-light.png and page-dark.png (1280x720), phone-light.png and phone-dark.png (390x844).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile

from tests.app.server.test_run import served
from tests.tools.browser import browser

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ("03-three-plus-four", "04-and-plus-two", "06-capital-of-france", "05-after-monday")
BEFORE_S, PAUSE_S = 15.0, 6.0
TYPED = "Count down from nine to five."
IS_QUIET = "document.getElementById('state').textContent === 'Listening'"


def write_microphone(file: Path) -> float:
    """Write the questions with time for a reply before each; returns the length in seconds."""
    parts: list[np.ndarray] = [np.zeros(round(BEFORE_S * 16_000), np.float32)]
    for name in SAMPLES:
        pcm, rate = soundfile.read(ROOT / "assets" / "samples" / f"{name}.wav", dtype="float32")
        parts += [pcm, np.zeros(round(PAUSE_S * rate), np.float32)]
    whole = np.concatenate(parts)
    soundfile.write(file, np.concatenate([whole, np.zeros(120 * rate, np.float32)]), rate, subtype="PCM_16")
    return len(whole) / rate


def main() -> int:
    """Hold the conversation and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--transcribe", metavar="DIR", help="a Whisper model, for captions of the questions")
    arguments = parser.parse_args()
    folder = arguments.folder
    options = ["--transcribe", arguments.transcribe] if arguments.transcribe else []
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        microphone = Path(profile) / "microphone.wav"
        seconds = write_microphone(microphone)
        with (
            served(ROOT, "--conversations", "2", *options) as (address, _),
            browser(Path(profile), microphone) as page,
        ):
            page.show(1280, 720, "light")
            page.open(f"http://{address}/")
            page.click("#start")
            page.until(IS_QUIET)
            page.value(f"document.getElementById('text').value = {TYPED!r}")
            page.click("#typed button")
            page.until("document.getElementById('state').textContent === 'Speaking'")
            time.sleep(1.0)
            page.key("keyDown", "Escape", "Escape")
            time.sleep(seconds)
            page.until(IS_QUIET)
            if options:
                page.until("document.querySelectorAll('.spoken').length === 0")
            for name, width, height in (("page", 1280, 720), ("phone", 390, 844)):
                for scheme in ("light", "dark"):
                    page.show(width, height, scheme, is_phone=name == "phone")
                    page.picture(folder / f"{name}-{scheme}.png", is_whole=name == "phone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
