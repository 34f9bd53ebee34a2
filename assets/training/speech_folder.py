"""A folder of recordings as training data: WAV and FLAC files of any rate -> samples at the codec's rate.

In: a folder, searched through, and a folder to write to. Out: random segments. The samples are written to
one file once, which is mapped and not read, so that there may be more of them than memory. One piece of
HELD_OUT is never trained but written as a WAV file of its own, to be judged and listened to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from app.audio.wav import SUFFIXES, WavReader, write_wav
from engine_runtime.codec.resample import resample
from engine_runtime.errors import AudioInputError, MossVoiceError
from engine_runtime.types import Pcm

PIECE_S = 20  # of a recording, at most; a longer one is cut
LEAST_S = 0.5  # of a piece
PAUSE_S = 0.2  # between two pieces
HELD_OUT = 50  # one piece of so many
MOST_HELD_OUT = 64


class SpeechFolder:
    """Recordings, prepared in `work` unless that was done before."""

    def __init__(self, folder: Path, work: Path, rate: int) -> None:
        """Raises MossVoiceError for a folder without enough speech."""
        self.held_out = work / "held_out"
        listed, samples = work / "speech.json", work / "speech.int16"
        files = sorted(
            file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file()
        )
        if not files:
            raise MossVoiceError(
                "There is no WAV or FLAC file in {folder}.",
                "Give a folder with recordings of speech.",
                folder=folder,
            )
        found = {"rate": rate, "files": [[str(file), file.stat().st_size] for file in files]}
        if not listed.is_file() or json.loads(listed.read_text()) != found:
            print(f"preparing {len(files)} recordings", flush=True)
            self._prepare(files, samples, rate)
            listed.write_text(json.dumps(found))
        self._samples: NDArray[np.int16] = np.memmap(samples, np.int16, mode="r")
        self.hours = len(self._samples) / rate / 3600

    def _prepare(self, files: list[Path], samples: Path, rate: int) -> None:
        self.held_out.mkdir(parents=True, exist_ok=True)
        for old in self.held_out.glob("*.wav"):
            old.unlink()
        pause = np.zeros(round(PAUSE_S * rate), np.int16)
        kept = trained = 0
        with samples.open("wb") as out:
            for index, piece in enumerate(_pieces(files, rate)):
                if index % HELD_OUT == 0 and kept < MOST_HELD_OUT:
                    write_wav(self.held_out / f"{kept:03}.wav", piece, rate)
                    kept += 1
                else:
                    out.write(np.rint(piece.clip(-1, 1) * 32767).astype(np.int16).tobytes())
                    out.write(pause.tobytes())
                    trained += 1
        if not trained:
            raise MossVoiceError(
                "There are fewer than two recordings of {least_s} s in {parent}.",
                "One is held out to judge the vocoder by. Add some.",
                least_s=LEAST_S,
                parent=files[0].parent,
            )

    def batch(self, rng: np.random.Generator, size: int, samples: int) -> Tensor:
        """Segments [size, samples] int16 from random places."""
        last = len(self._samples) - samples
        if last < 0:
            raise MossVoiceError(
                "All the speech is shorter than a segment of {samples} samples.",
                "Give more recordings.",
                samples=samples,
            )
        starts = rng.integers(0, last + 1, size)
        return torch.from_numpy(np.stack([self._samples[start : start + samples] for start in starts]))


def _pieces(files: list[Path], rate: int) -> Iterator[Pcm]:
    """The recordings at this rate; files that cannot be read are named and left out."""
    for file in files:
        try:
            with WavReader(file) as reader:
                found = reader.sample_rate
                for block in reader.blocks(PIECE_S * found):
                    if len(block) >= LEAST_S * found:
                        yield resample(block, found, rate)
        except AudioInputError as error:
            print(f"left out: {error}", flush=True)
