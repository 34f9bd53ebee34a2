"""How often a pause within a turn cuts the user off, against the wait at its end. Run by hand, not by pytest:

    python -m tests.tools.pause_bench [FOLDER] [--network] [--answer-ms N] [--reply-ms N]
        [--bundle DIR [--predict-ms N]]

Without a folder: the sample questions; with one: its WAV files (any rate). Silence of four lengths is
inserted at their gaps (tests/tools/pause_corpus.py). Real VAD, real detector, which answers after
`--answer-ms`, the turn-taking of the program. One line for each time-out of silence alone, each eagerness,
and the balanced one with other thresholds and with another longest wait, all in the same scenes: first for a
voice that is not known yet, then for one that the ends of the next eight turns have calibrated
(app/dialog/voice_calibration).
`--network` asks Smart Turn alone. With `--bundle` the lines "+ model" follow: the language model of a bundle
that detects the end of turns is asked, too (app/dialog/turn_end_fusion.py), with the eagerness levels and,
for the balanced one, other thresholds. It answers `--predict-ms` after the speculative reply was begun.

A turn is cut off if the first sample of a reply is heard before the user continues. A reply is heard
`--reply-ms` after its commit: 30 for one that is held ready, 150 for one that is made then (nano). A turn
that was committed but reopened in time is no cut-off; its share is in brackets. Intervals are Wilson's, for
95 %. The last column is the cut-offs at 0.3, 0.6 and 1.0 s together, and what silence alone cuts off with the
same mean wait.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np

from app.dialog.end_of_turn import POLICIES, EndOfTurnPolicy, log_odds, probability_of
from app.dialog.smart_turn import EndOfTurnDetector, SmartTurn
from app.dialog.turn_end import TurnEndDetector, head_file, load_head
from app.dialog.turn_end_fusion import TurnEndFusion
from app.dialog.turn_events import TurnAction, TurnEvent
from app.dialog.turn_taking import TurnTaking
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.voice_calibration import VoiceCalibration
from app.settings import Eagerness
from tests.tools.pause_corpus import RATE, Utterance, recordings, samples
from tests.tools.pause_prediction import LanguageModel
from tests.tools.pause_scenes import FRAME_MS, PAUSES_S, Scene, pauses_of, scenes_of

TARGET_S = 1.0
"""Pauses up to here are those that a turn should survive."""
CALIBRATING_TURNS = (0, 8)
TIME_OUTS_MS = (200, 320, 450, 640, 800, 960, 1_120, 1_300, 1_500)
LIKELY = (0.7, 0.8, 0.9, 0.97, 0.99)
UNLIKELY_MS = (800, 1_000, 1_400, 2_200)
AGREED_MS = (160, 192, 256, 288, 352)
FUSIONS = (
    *(TurnEndFusion(finished=finished) for finished in (0.1, 0.3, 0.5, 0.9)),
    *(TurnEndFusion(unfinished=unfinished) for unfinished in (0.01, 0.3, 0.7)),
    *(TurnEndFusion(veto=veto, agrees=max(veto, 0.5)) for veto in (0.0, 0.02, 0.05, 0.2, 0.4)),
    *(TurnEndFusion(agrees=agrees) for agrees in (0.1, 0.3, 0.7, 0.9)),
    *(TurnEndFusion(sure=sure) for sure in (0.7, 0.9, 0.99, 1.0)),
    *(TurnEndFusion(unfinished_ms=ms) for ms in (1_500, 3_000)),
)


@dataclass(frozen=True)
class Outcome:
    """What became of one scene."""

    silence_ms: float
    """Endpointing of the last commit; NaN without one, where the language model took it for a backchannel."""
    is_heard: bool
    is_reopened: bool


class Bench:
    """All scenes, and the answers so far."""

    def __init__(
        self,
        utterances: list[Utterance],
        detector: EndOfTurnDetector,
        reply_ms: float,
        model: LanguageModel | None,
        predict_ms: float,
        answer_ms: float,
    ) -> None:
        self._detector = detector
        self._reply_ms = reply_ms
        self._model = model
        self._predict_ms = predict_ms
        self._answer_ms = answer_ms
        self._answers: dict[tuple[str, int, int], float] = {}
        self._predictions: dict[tuple[str, int, int], float | None] = {}
        self.scenes = [scene for utterance in utterances for scene in scenes_of(utterance)]
        self._ends = {
            scene.utterance.name: self._end(scene) for scene in self.scenes if scene.pause_s is None
        }
        """How finished each whole utterance sounds."""

    def line(
        self, name: str, settings: TurnTakingSettings, turns: int = 0, *, asks_model: bool = False
    ) -> Line:
        """What becomes of all scenes with these settings, after so many calibrating turns."""

        def hear(pause_s: float | None) -> list[Outcome]:
            scenes = (scene for scene in self.scenes if scene.pause_s == pause_s)
            return [self._hear(scene, settings, turns, asks_model=asks_model) for scene in scenes]

        whole, paused = hear(None), {pause_s: hear(pause_s) for pause_s in PAUSES_S}
        return Line(name, np.array([outcome.silence_ms for outcome in whole]), paused)

    def _end(self, scene: Scene) -> float | None:
        pauses = pauses_of(scene)
        return self._ask(scene, pauses[-1].speech_start_ms, pauses[-1].at_ms) if pauses else None

    def _calibration(self, utterance: Utterance, turns: int) -> VoiceCalibration:
        """What the turns after this one teach."""
        calibration, names = VoiceCalibration(), list(self._ends)
        place = names.index(utterance.name)
        for name in (names[place + 1 :] + names[:place])[:turns]:
            calibration.commit(self._ends[name])
            calibration.confirm()
        return calibration

    def predictions(self, pause_s: float | None) -> list[float]:
        """Those of the language model in pauses of this length, or at the ends of the utterances."""
        found: list[float | None] = []
        for scene in self.scenes:
            if scene.pause_s == pause_s:
                silences = pauses_of(scene, TurnAction.SILENCE)
                pauses = [event for event in silences if event.at_ms > scene.cut_ms]
                found += [self._predict(scene, event.speech_start_ms, event) for event in pauses[:1]]
        return [each for each in found if each is not None]

    def _hear(self, scene: Scene, settings: TurnTakingSettings, turns: int, *, asks_model: bool) -> Outcome:
        machine = TurnTaking(settings)
        machine.calibration = self._calibration(scene.utterance, turns)
        answers: list[tuple[float, Callable[[], object]]] = []
        heard_ms = np.inf
        start_ms, silence_ms = 0.0, np.nan
        is_heard = is_reopened = False
        for frame, probability in enumerate(scene.vad):
            at_ms = frame * FRAME_MS
            while answers and at_ms >= answers[0][0]:
                answers.pop(0)[1]()
            if at_ms >= heard_ms:
                machine.reply_heard()
                is_heard = True
            for event in machine.update(probability, at_ms, at_ms + FRAME_MS):
                if event.action is TurnAction.OPEN:
                    start_ms = event.speech_start_ms
                elif event.action is TurnAction.PAUSE and settings.policy is not None:
                    asked = partial(machine.rate_pause, event.speech_end_ms)
                    rated = self._ask(scene, start_ms, event.at_ms)
                    answers.append((event.at_ms + self._answer_ms, partial(asked, rated)))
                    answers.sort(key=lambda answer: answer[0])
                elif event.action is TurnAction.SILENCE and asks_model:
                    predicted = self._predict(scene, start_ms, event)
                    if predicted is not None:
                        told = partial(machine.predict_turn_end, event.speech_end_ms, predicted)
                        answers.append((event.at_ms + self._predict_ms, told))
                        answers.sort(key=lambda answer: answer[0])
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

    def _predict(self, scene: Scene, start_ms: float, pause: TurnEvent) -> float | None:
        if self._model is None:
            return None
        settings = TurnTakingSettings()
        first_ms, end_ms = start_ms - settings.pre_roll_ms, pause.speech_end_ms + settings.tail_ms
        turn = scene.pcm[round(max(first_ms, 0) * 16) : round(end_ms * 16)]
        key = (scene.utterance.name, len(turn), hash(turn[-RATE:].tobytes()))
        if key not in self._predictions:
            self._predictions[key] = self._model.probability(turn)
        return self._predictions[key]


@dataclass(frozen=True)
class Line:
    """The result of one way to decide."""

    name: str
    waits_ms: np.ndarray
    paused: dict[float, list[Outcome]]

    def __str__(self) -> str:
        answered = self.waits_ms[~np.isnan(self.waits_ms)]
        p50, p95 = np.percentile(answered, (50, 95))
        text = f"{self.name:<32}{p50:>6.0f}{self.mean_ms:>6.0f}{p95:>6.0f}"
        for outcomes in self.paused.values():
            low, high = _interval(sum(each.is_heard for each in outcomes), len(outcomes))
            cut, reopened = (
                np.mean([getattr(each, kind) for each in outcomes]) for kind in ("is_heard", "is_reopened")
            )
            text += f"{cut:>7.0%} {low:>3.0f}-{high:<3.0f}({reopened:>3.0%})"
        return text

    @property
    def num_ignored(self) -> int:
        """Utterances that were not answered."""
        return int(np.isnan(self.waits_ms).sum())

    @property
    def mean_ms(self) -> float:
        """The mean wait at the end of a turn."""
        return float(np.nanmean(self.waits_ms))

    @property
    def cut(self) -> float:
        """Share of the pauses up to `TARGET_S` that cut the user off."""
        short = [outcome.is_heard for s, own in self.paused.items() if s <= TARGET_S for outcome in own]
        return float(np.mean(short))


def main(utterances: list[Utterance], bench: Bench, model: LanguageModel | None) -> None:
    """Print one line for each way to decide; the bench was made of these utterances, with this model."""
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
    if model is None:
        return
    if not model.predicts:
        _say("The bundle does not detect the end of turns: with its model the lines are the same.")
        return
    _say(_predicted("ends", bench.predictions(None)))
    _say(_predicted("pauses", bench.predictions(PAUSES_S[-1])))
    for turns, (name, eagerness, policy, fusion) in product(CALIBRATING_TURNS, list(_fusions())):
        text = f"{name}, {turns} turns" if turns else name
        settings = TurnTakingSettings(eagerness=eagerness, fusion=fusion)
        with patch.dict(POLICIES, {eagerness: policy}):
            line = bench.line(text, settings, turns, asks_model=True)
        ignored = f"  {line.num_ignored} not answered" if line.num_ignored else ""
        _say(f"{line}{line.cut:>7.0%}{np.interp(line.mean_ms, means, cuts):>9.0%}{ignored}")


def _predicted(what: str, predictions: list[float]) -> str:
    likely = sum(each >= TurnEndFusion().finished for each in predictions)
    deciles = " ".join(f"{value:.2f}" for value in np.percentile(predictions, range(0, 101, 10)))
    return f"language model: {likely} of {len(predictions)} {what} finished; deciles {deciles}"


def _fusions() -> Iterator[tuple[str, Eagerness, EndOfTurnPolicy, TurnEndFusion]]:
    default = TurnEndFusion()
    for eagerness, policy in POLICIES.items():
        if policy is not None:
            yield f"{eagerness} + model", eagerness, policy, default
    balanced = POLICIES["balanced"]
    assert balanced is not None
    for ms in AGREED_MS:
        yield f"+ model, agreed_ms {ms}", "balanced", replace(balanced, agreed_ms=ms), default
    for fusion in FUSIONS:
        changed = (
            each.name for each in fields(fusion) if getattr(fusion, each.name) != getattr(default, each.name)
        )
        text = ", ".join(f"{name} {getattr(fusion, name)}" for name in changed)
        yield f"+ model, {text}", "balanced", balanced, fusion


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
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--predict-ms", type=float, default=100.0)
    parser.add_argument("--answer-ms", type=float, default=32.0)
    options = parser.parse_args()
    network = SmartTurn()
    spoken = samples() if options.folder is None else list(recordings(options.folder))
    detector = network if options.network else TurnEndDetector(network, load_head(head_file()))
    language_model = LanguageModel(options.bundle) if options.bundle is not None else None
    bench = Bench(spoken, detector, options.reply_ms, language_model, options.predict_ms, options.answer_ms)
    main(spoken, bench, language_model)
