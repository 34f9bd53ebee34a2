"""How often a pause within a turn cuts the user off, against the wait at its end. Run by hand, not by pytest:

    python -m tests.tools.pause_bench [FOLDER] [--network] [--reply-ms N]

Without a folder: the sample questions; with one: its WAV files (any rate). Silence of four lengths is
inserted at their gaps (tests/tools/pause_corpus.py). Real VAD, real detector, the turn-taking of the program;
an answer takes two frames. One line for each time-out of silence alone, each eagerness, and the balanced one
with other thresholds and with another longest wait, all in the same scenes: first for a voice that is not
known yet, then for one that the ends of the next eight turns have calibrated (app/dialog/voice_calibration).
`--network` asks Smart Turn alone.

A turn is cut off if the first sample of a reply is heard before the user continues. A reply is heard
`--reply-ms` after its commit: 30 for one that is held ready, 150 for one that is made then (nano). A turn
that was committed but reopened in time is no cut-off; its share is in brackets. Intervals are Wilson's, for
95 %. The last column is the cut-offs at 0.3, 0.6 and 1.0 s together, and what silence alone cuts off with the
same mean wait.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np

from app.dialog.end_of_turn import POLICIES, EndOfTurnPolicy, log_odds, probability_of
from app.dialog.smart_turn import EndOfTurnDetector, SmartTurn
from app.dialog.turn_end import TurnEndDetector, head_file, load_head
from app.dialog.turn_events import TurnAction
from app.dialog.turn_taking import TurnTaking
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.vad import SileroVad
from app.dialog.voice_calibration import VoiceCalibration
from app.settings import Eagerness
from engine_runtime.types import Pcm
from tests.tools.pause_corpus import RATE, Utterance, recordings, samples

FRAME_MS = SileroVad.frame_samples * 1e3 / RATE
PAUSES_S = (0.3, 0.6, 1.0, 1.5)
TARGET_S = 1.0
"""Pauses up to here are those that a turn should survive."""
ANSWER_FRAMES = 2
CALIBRATING_TURNS = (0, 8)
TIME_OUTS_MS = (200, 320, 450, 640, 800, 960, 1_120, 1_300, 1_500)
LIKELY = (0.7, 0.8, 0.9, 0.97, 0.99)
UNLIKELY_MS = (800, 1_000, 1_400, 2_200)
_REST_S = 0.5
"""What is heard after a pause: enough to reopen the turn."""
_TAIL_S = 3.0


@dataclass
class Scene:
    """What the VAD made of some sound, and the detector's answers about it."""

    utterance: Utterance
    pcm: Pcm
    vad: list[float]
    pause_s: float | None
    """None: the whole utterance, which is finished."""


@dataclass(frozen=True)
class Outcome:
    """What became of one scene."""

    silence_ms: float
    """Endpointing of the last commit."""
    is_heard: bool
    is_reopened: bool


class Bench:
    """All scenes, and the answers so far."""

    def __init__(self, utterances: list[Utterance], detector: EndOfTurnDetector, reply_ms: float) -> None:
        self._detector = detector
        self._reply_ms = reply_ms
        self._answers: dict[tuple[str, int, int], float] = {}
        self.scenes = [scene for utterance in utterances for scene in _scenes(utterance)]
        self._ends = {
            scene.utterance.name: self._end(scene) for scene in self.scenes if scene.pause_s is None
        }
        """How finished each whole utterance sounds."""

    def line(self, name: str, settings: TurnTakingSettings, turns: int = 0) -> Line:
        """What becomes of all scenes with these settings, after so many calibrating turns."""
        whole = [self._hear(scene, settings, turns) for scene in self.scenes if scene.pause_s is None]
        paused = {
            pause_s: [self._hear(scene, settings, turns) for scene in self.scenes if scene.pause_s == pause_s]
            for pause_s in PAUSES_S
        }
        return Line(name, np.array([outcome.silence_ms for outcome in whole]), paused)

    def _end(self, scene: Scene) -> float | None:
        machine, start_ms, answer = TurnTaking(TurnTakingSettings(eagerness="off")), 0.0, None
        for frame, probability in enumerate(scene.vad):
            for event in machine.update(probability, frame * FRAME_MS, (frame + 1) * FRAME_MS):
                if event.action is TurnAction.OPEN:
                    start_ms = event.speech_start_ms
                elif event.action is TurnAction.PAUSE:
                    answer = self._ask(scene, start_ms, event.at_ms)
        return answer

    def _calibration(self, utterance: Utterance, turns: int) -> VoiceCalibration:
        """What the turns after this one teach."""
        calibration, names = VoiceCalibration(), list(self._ends)
        place = names.index(utterance.name)
        for name in (names[place + 1 :] + names[:place])[:turns]:
            calibration.commit(self._ends[name])
            calibration.confirm()
        return calibration

    def _hear(self, scene: Scene, settings: TurnTakingSettings, turns: int) -> Outcome:
        machine = TurnTaking(settings)
        machine.calibration = self._calibration(scene.utterance, turns)
        answer: tuple[float, float, float] | None = None
        heard_ms = np.inf
        start_ms = silence_ms = 0.0
        is_heard = is_reopened = False
        for frame, probability in enumerate(scene.vad):
            at_ms = frame * FRAME_MS
            if answer is not None and at_ms >= answer[0]:
                machine.rate_pause(*answer[1:])
                answer = None
            if at_ms >= heard_ms:
                machine.reply_heard()
                is_heard = True
            for event in machine.update(probability, at_ms, at_ms + FRAME_MS):
                if event.action is TurnAction.OPEN:
                    start_ms = event.speech_start_ms
                elif event.action is TurnAction.PAUSE and settings.policy is not None:
                    asked = self._ask(scene, start_ms, event.at_ms)
                    answer = (event.at_ms + (ANSWER_FRAMES - 1) * FRAME_MS, event.speech_end_ms, asked)
                elif event.action is TurnAction.COMMIT:
                    silence_ms, heard_ms = event.silence_ms, event.at_ms + self._reply_ms
                elif event.action in (TurnAction.REOPEN, TurnAction.BARGE_IN):
                    is_reopened |= event.action is TurnAction.REOPEN
                    heard_ms = np.inf
        return Outcome(silence_ms, is_heard, is_reopened and not is_heard)

    def _ask(self, scene: Scene, start_ms: float, at_ms: float) -> float:
        turn = scene.pcm[round(max(start_ms - 320, 0) * 16) : round(at_ms * 16)]
        key = (scene.utterance.name, len(turn), hash(turn[-RATE:].tobytes()))
        if key not in self._answers:
            self._answers[key] = self._detector.probability(turn)
        return self._answers[key]


@dataclass(frozen=True)
class Line:
    """The result of one way to decide."""

    name: str
    waits_ms: np.ndarray
    paused: dict[float, list[Outcome]]

    def __str__(self) -> str:
        p50, p95 = np.percentile(self.waits_ms, (50, 95))
        text = f"{self.name:<32}{p50:>6.0f}{self.mean_ms:>6.0f}{p95:>6.0f}"
        for outcomes in self.paused.values():
            low, high = _interval(sum(each.is_heard for each in outcomes), len(outcomes))
            cut, reopened = (
                np.mean([getattr(each, kind) for each in outcomes]) for kind in ("is_heard", "is_reopened")
            )
            text += f"{cut:>7.0%} {low:>3.0f}-{high:<3.0f}({reopened:>3.0%})"
        return text

    @property
    def mean_ms(self) -> float:
        """The mean wait at the end of a turn."""
        return float(self.waits_ms.mean())

    @property
    def cut(self) -> float:
        """Share of the pauses up to `TARGET_S` that cut the user off."""
        short = [outcome.is_heard for s, own in self.paused.items() if s <= TARGET_S for outcome in own]
        return float(np.mean(short))


def main(utterances: list[Utterance], detector: EndOfTurnDetector, reply_ms: float) -> None:
    """Print one line for each way to decide."""
    bench = Bench(utterances, detector, reply_ms)
    gaps = sum(len(utterance.gaps) for utterance in utterances)
    _say(f"{len(utterances)} turns, {gaps} gaps; cut off (and reopened in time) by length of the pause")
    pauses = "".join(f"{pause_s:>17.1f} s" for pause_s in PAUSES_S)
    _say(f"{'':<32}{'wait p50, mean, p95':>18}{pauses}{'<= 1 s':>8}{'silence':>9}")
    off = [
        bench.line(f"silence {ms} ms", TurnTakingSettings(eagerness="off", end_ms=ms)) for ms in TIME_OUTS_MS
    ]
    for line in off:
        _say(f"{line}{line.cut:>7.0%}")
    means, cuts = [line.mean_ms for line in off], [line.cut for line in off]
    for turns, (name, eagerness, policy) in product(CALIBRATING_TURNS, list(_policies())):
        with patch.dict(POLICIES, {eagerness: policy}):
            text = f"{name}, {turns} turns" if turns else name
            line = bench.line(text, TurnTakingSettings(eagerness=eagerness), turns)
        _say(f"{line}{line.cut:>7.0%}{np.interp(line.mean_ms, means, cuts):>9.0%}")


def _policies() -> Iterator[tuple[str, Eagerness, EndOfTurnPolicy]]:
    for eagerness, policy in POLICIES.items():
        if policy is not None:
            yield eagerness, eagerness, policy
    balanced = POLICIES["balanced"]
    assert balanced is not None
    for likely in LIKELY:
        shift = log_odds(likely) - log_odds(balanced.likely)
        unlikely = probability_of(log_odds(balanced.unlikely) + shift)
        policy = replace(balanced, likely=likely, unlikely=unlikely)
        yield f"likely from {likely}", "balanced", policy
    for ms in UNLIKELY_MS:
        yield f"unlikely after {ms} ms", "balanced", replace(balanced, unlikely_ms=ms)


def _scenes(utterance: Utterance) -> Iterator[Scene]:
    vad = SileroVad()
    whole = utterance.scene(len(utterance.pcm), _TAIL_S, 0.0)
    yield Scene(utterance, whole, _speech(vad, whole), None)
    for cut in utterance.gaps:
        for pause_s in PAUSES_S:
            pcm = utterance.scene(cut, pause_s, _REST_S)
            yield Scene(utterance, pcm, _speech(vad, pcm), pause_s)


def _speech(vad: SileroVad, pcm: Pcm) -> list[float]:
    vad.reset()
    size = vad.frame_samples
    return [vad.probability(pcm[first : first + size]) for first in range(0, len(pcm) - size + 1, size)]


def _interval(hits: int, count: int) -> tuple[float, float]:
    """Wilson's interval for 95 %, in percent."""
    z, share = 1.96, hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return 100 * max(middle - half, 0.0), 100 * min(middle + half, 1.0)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--reply-ms", type=float, default=30.0)
    options = parser.parse_args()
    network = SmartTurn()
    main(
        samples() if options.folder is None else list(recordings(options.folder)),
        network if options.network else TurnEndDetector(network, load_head(head_file())),
        options.reply_ms,
    )
