"""How often a pause within a question cuts the user off, by eagerness. Run by hand, not by pytest:

    python -m tests.tools.pause_bench [FOLDER]

Without a folder: the sample questions, with silence inserted at each of their word gaps. With one: its WAV
files (any rate), with silence inserted at up to two of their natural gaps, at least 50 ms long. Real VAD,
real Smart Turn, the turn-taking of the program; an answer takes two frames, and a reply is heard 150 ms after
the commit. A turn is cut off if its reply is heard before the user continues, and reopened if it was
committed but the user was in time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np

from app import paths
from app.audio.resample import Resampler
from app.audio.wav import read_wav
from app.dialog.smart_turn import SmartTurn
from app.dialog.turn_events import TurnAction
from app.dialog.turn_taking import TurnTaking
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.vad import SileroVad
from app.settings import Eagerness
from engine_runtime.types import Pcm

RATE = 16_000
FRAME_MS = SileroVad.frame_samples * 1e3 / RATE
PAUSES_S = (0.3, 0.6, 1.0)
WORD_ENDS_S = {
    "01-hello": (0.62,),
    "02-who-are-you": (0.44,),
    "03-three-plus-four": (0.72, 1.02, 1.30),
    "04-and-plus-two": (0.75,),
    "05-after-monday": (0.56, 0.85, 1.16),
    "06-capital-of-france": (0.63, 0.71, 1.26, 1.33),
    "07-opposite-of-hot": (0.62, 0.79, 1.24, 1.33),
    "08-colour-of-grass": (0.91, 1.06),
    "09-count-down": (0.63, 0.80, 1.00, 1.30, 1.38),
    "10-repeat": (0.83, 1.15, 1.45, 2.01),
    "11-joke": (0.68, 0.72),
}
"""By flite's own segment times; words that end within 0.3 s of the start are left out."""
_NOISE = 5e-4
"""-66 dBFS instead of digital silence."""
_ANSWER_MS = 64.0
_REPLY_MS = 150.0


@dataclass(frozen=True)
class Outcome:
    """What became of one question."""

    silence_ms: float
    """Endpointing of the last commit."""
    is_cut: bool
    is_reopened: bool


class Listener:
    """VAD, detector and turn-taking, without a session."""

    def __init__(self) -> None:
        self._vad = SileroVad()
        self._detector = SmartTurn()

    def rate(self, pcm: Pcm, end: int, rng: np.random.Generator) -> float:
        """What the detector answers about the question up to sample `end`, at a first pause."""
        pause = np.zeros(round(TurnTakingSettings().pause_ms * RATE / 1e3))
        turn = np.concatenate([pcm[:end], pause])
        return self._detector.probability(_over_noise(rng, turn))

    def hear(self, pcm: Pcm, eagerness: Eagerness) -> Outcome:
        """One question, with enough silence around it."""
        machine = TurnTaking(TurnTakingSettings(eagerness=eagerness))
        self._vad.reset()
        answer: tuple[float, float, float] | None = None
        heard_ms = np.inf
        start_ms = silence_ms = 0.0
        is_cut = is_reopened = False
        for first in range(0, len(pcm) - self._vad.frame_samples + 1, self._vad.frame_samples):
            frame = pcm[first : first + self._vad.frame_samples]
            at_ms = first * 1e3 / RATE
            if answer is not None and at_ms >= answer[0]:
                machine.rate_pause(*answer[1:])
                answer = None
            if at_ms >= heard_ms:
                machine.reply_heard()
            for event in machine.update(self._vad.probability(frame), at_ms, at_ms + FRAME_MS):
                if event.action is TurnAction.OPEN:
                    start_ms = event.speech_start_ms
                elif event.action is TurnAction.PAUSE and machine.settings.policy is not None:
                    turn = pcm[round(max(start_ms - 320, 0) * 16) : round(event.at_ms * 16)]
                    asked = self._detector.probability(turn)
                    answer = (event.at_ms + _ANSWER_MS, event.speech_end_ms, asked)
                elif event.action is TurnAction.COMMIT:
                    silence_ms, heard_ms = event.silence_ms, event.at_ms + _REPLY_MS
                elif event.action in (TurnAction.REOPEN, TurnAction.BARGE_IN):
                    is_reopened |= event.action is TurnAction.REOPEN
                    is_cut |= event.action is TurnAction.BARGE_IN
                    heard_ms = np.inf
        return Outcome(silence_ms, is_cut, is_reopened and not is_cut)


def main(folder: Path | None) -> None:
    """Print one line for each eagerness."""
    questions = dict(_samples() if folder is None else _recordings(folder))
    listener, rng = Listener(), np.random.default_rng(0)
    cuts = sum(len(ends) for _, ends in questions.values())
    finished: list[float] = []
    cut: list[list[float]] = []
    for name, (pcm, ends) in questions.items():
        finished.append(listener.rate(pcm, int(np.flatnonzero(np.abs(pcm) > 0.01)[-1]) + 1, rng))
        cut.append([listener.rate(pcm, end, rng) for end in ends])
        if folder is None:
            _say(f"{name:<24}{finished[-1]:.2f}   cut: {' '.join(f'{each:.2f}' for each in cut[-1])}")
    right = np.mean(np.array(finished) >= 0.5), np.mean(np.concatenate(cut) < 0.5)
    _say(f"at a probability of 0.5: {right[0]:.0%} of the finished and {right[1]:.0%} of the cut ones right")
    pauses = "".join(f"{pause_s:>14.1f} s" for pause_s in PAUSES_S)
    _say(f"{len(questions)} questions, {cuts} gaps; cut off (and reopened in time) by length of the pause")
    _say(f"{'eagerness':<12}{'endpointing p50, mean, p95':>28}{pauses}")
    for eagerness in get_args(Eagerness):
        whole = [listener.hear(_quiet(rng, pcm), eagerness).silence_ms for pcm, _ in questions.values()]
        p50, p95 = np.percentile(whole, (50, 95))
        line = f"{eagerness:<12}{p50:>13.0f}{np.mean(whole):>6.0f}{p95:>6.0f} ms"
        for pause_s in PAUSES_S:
            outcomes = [
                listener.hear(_quiet(rng, pcm, end, pause_s), eagerness)
                for pcm, ends in questions.values()
                for end in ends
            ]
            cut_off = np.mean([outcome.is_cut for outcome in outcomes])
            reopened = np.mean([outcome.is_reopened for outcome in outcomes])
            line += f"{cut_off:>9.0%} ({reopened:>3.0%})"
        _say(line)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _quiet(rng: np.random.Generator, pcm: Pcm, cut: int = 0, pause_s: float = 0.0) -> Pcm:
    """A question over faint noise, half a second before and three after it, and a pause at sample `cut`."""
    parts = [np.zeros(RATE // 2), pcm[:cut], np.zeros(round(pause_s * RATE)), pcm[cut:], np.zeros(3 * RATE)]
    return _over_noise(rng, np.concatenate(parts))


def _over_noise(rng: np.random.Generator, pcm: Pcm) -> Pcm:
    return (pcm + _NOISE * rng.standard_normal(len(pcm))).astype(np.float32)


def _samples() -> Iterator[tuple[str, tuple[Pcm, list[int]]]]:
    for file in paths.sample_questions():
        yield file.stem, (_read(file), [round(end * RATE) for end in WORD_ENDS_S[file.stem]])


def _recordings(folder: Path) -> Iterator[tuple[str, tuple[Pcm, list[int]]]]:
    for file in sorted(folder.glob("*.wav")):
        pcm = _read(file)
        if gaps := _gaps(pcm):
            yield file.stem, (pcm, gaps)


def _gaps(pcm: Pcm) -> list[int]:
    """Middles of the first two gaps of 50 ms or more with speech of 0.4 s before and 0.3 s after them."""
    hop = RATE // 100
    level = np.sqrt((pcm[: len(pcm) // hop * hop].reshape(-1, hop) ** 2).mean(axis=1))
    is_loud = level > 0.06 * np.percentile(level, 95)
    loud = np.flatnonzero(is_loud)
    edges = [
        (int(before), int(after))
        for before, after in pairwise(loud)
        if after - before > 5 and before - loud[0] > 40 and loud[-1] - after > 30
    ]
    return [(before + after) // 2 * hop for before, after in edges[:2]]


def _read(file: Path) -> Pcm:
    pcm, rate = read_wav(file)
    resampler = Resampler(rate, RATE)
    return np.concatenate([resampler.push(pcm), resampler.finish()])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    main(parser.parse_args().folder)
