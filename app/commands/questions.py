"""Questions for measurements: sound files at the rate of an engine, and lines of text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from app import paths
from app.audio.resample import Resampler
from app.audio.wav import SUFFIXES, check_wav, read_wav
from engine_runtime.errors import AudioInputError

if TYPE_CHECKING:
    from engine_runtime.types import Pcm

MAX_SECONDS = 30


def read_question(path: Path, rate: int) -> Pcm:
    """Mono samples of a sound file at `rate`. Raises AudioInputError."""
    pcm, wav_rate = read_wav(path, max_seconds=MAX_SECONDS)
    resampler = Resampler(wav_rate, rate, "HQ")
    converted: Pcm = np.concatenate([resampler.push(pcm), resampler.finish()])
    return converted


def check_question(path: Path | None) -> Path:
    """The recording, or the first shipped question, checked before a model is loaded. Raises AudioInputError
    if it cannot be used."""
    chosen = path or sample_paths()[0]
    check_wav(chosen, MAX_SECONDS)
    return chosen


def question_paths(folder: Path | None) -> list[Path]:
    """The recordings of a folder, or the shipped questions. Raises AudioInputError if there are none, or if
    one cannot be used.
    """
    found = sample_paths() if folder is None else _folder_paths(folder)
    for path in found:
        check_wav(path, MAX_SECONDS)
    return found


def read_questions(folder: Path | None, rate: int) -> dict[str, Pcm]:
    """The same recordings by name, as returned by `read_question`."""
    return {path.name: read_question(path, rate) for path in question_paths(folder)}


def read_texts(file: Path) -> list[str]:
    """The non-empty lines of a file. AudioInputError if there are none."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise AudioInputError(
            "{file} cannot be read: {error}.",
            "Give a text file, one question a line.",
            file=file,
            error=error,
        ) from error
    if not any(lines):
        raise AudioInputError("{file} holds no text.", "Give a text file, one question a line.", file=file)
    return [line for line in lines if line]


def sample_paths() -> list[Path]:
    """The shipped questions. Raises AudioInputError if there are none."""
    samples = paths.sample_questions()
    if not samples:
        raise AudioInputError(
            "There are no sample questions in {folder}.",
            "Specify a recording.",
            folder=paths.assets_dir(),
        )
    return samples


def _folder_paths(folder: Path) -> list[Path]:
    """The recordings of a folder, by name. Raises AudioInputError if there are none."""
    found = sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise AudioInputError(
            "There is no WAV or FLAC file in {folder}.", "Specify a folder with recordings.", folder=folder
        )
    return found
