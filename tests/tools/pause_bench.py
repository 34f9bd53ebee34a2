"""How often a pause within a turn cuts the user off, against the wait at its end. Run by hand, not by pytest:

    python -m tests.tools.pause_bench [FOLDER] [--network] [--answer-ms N] [--reply-ms N]
        [--bundle DIR [--predict-ms N]] [--json FILE]

Without a folder: the sample questions; with one: its WAV files (any rate). Silence of four lengths is
inserted at their gaps (tests/tools/pause_corpus.py). Real VAD, real detector, which answers after
`--answer-ms`, the turn-taking of the program. One row for each time-out of silence alone, each eagerness,
and the balanced one with other thresholds and with another longest wait, all in the same scenes: first for a
voice that is not known yet, then for one that the ends of the next eight turns have calibrated
(`VoiceCalibration`).
`--network` asks Smart Turn alone. With `--bundle` rows "+ model" follow: the language model of a bundle
that detects the end of turns is asked, too (app/dialog/end_of_turn.py), with the eagerness levels and,
for the balanced one, other thresholds. It answers `--predict-ms` after the speculative reply was begun.

A turn is cut off if the first sample of a reply is heard before the user continues. A reply is heard
`--reply-ms` after its commit: 30 for one that is held ready, 150 for one that is made then (nano). A turn
that was committed but reopened in time is no cut-off.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np

from app.commands.live_report import LiveReport
from app.dialog.end_of_turn import (
    POLICIES,
    EndOfTurnPolicy,
    TurnEndFusion,
    VoiceCalibration,
    log_odds,
    probability_of,
)
from app.dialog.smart_turn import SmartTurn
from app.dialog.turn_end import TurnEndDetector, head_file, load_head
from app.dialog.turn_events import TurnAction, TurnEvent
from app.dialog.turn_taking import TurnTaking
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.vad import SileroVad
from app.settings import Eagerness
from engine_runtime.bench.measuring import p50_p95
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.table import Cell, Section
from engine_runtime.types import Modality, Pcm, TurnEndPrediction
from engine_runtime.work import run_alone
from tests.tools.pause_corpus import LEAD_S, RATE, Utterance, recordings, samples
from tests.tools.tool_report import parse, tool_report

FRAME_MS = SileroVad.frame_samples * 1e3 / RATE
PAUSES_S = (0.3, 0.6, 1.0, 1.5)
_REST_S = 0.5
"""What is heard after a pause: enough to reopen the turn."""
_TAIL_S = 3.0
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


_COLUMNS = {
    "ends by": "what ends a turn: silence of this length, an eagerness, or balanced with one value changed",
    "wait_ms": "from the last speech sample to the commit, median",
    "mean_ms": "the same, mean",
    "wait_ms_p95": "95th percentile",
}
for _pause_s in PAUSES_S:
    _COLUMNS |= {
        f"{_pause_s:g} s": "pauses of this length that cut the user off, percent",
        f"{_pause_s:g} s, interval": "Wilson's interval for 95 %",
        f"{_pause_s:g} s, reopened": "committed, but reopened in time, percent",
    }
_COLUMNS |= {
    "up to 1 s": "pauses of 0.3, 0.6 and 1.0 s together that cut the user off, percent",
    "silence alone": "the same of silence alone with the same mean wait",
    "not answered": "turns that were not answered",
}


@dataclass
class Scene:
    """What the VAD made of some sound, and the detector's answers about it."""

    utterance: Utterance
    pcm: Pcm
    vad: list[float]
    pause_s: float | None
    """None: the whole utterance, which is finished."""
    cut_ms: float
    """Where the pause begins, or the end of the utterance."""


def scenes_of(utterance: Utterance) -> Iterator[Scene]:
    """The whole utterance, then each of its gaps with each of the pauses."""
    vad = SileroVad()
    whole = utterance.scene(len(utterance.pcm), _TAIL_S, 0.0)
    yield Scene(utterance, whole, _speech(vad, whole), None, (LEAD_S + utterance.end / RATE) * 1e3)
    for cut in utterance.gaps:
        for pause_s in PAUSES_S:
            pcm = utterance.scene(cut, pause_s, _REST_S)
            yield Scene(utterance, pcm, _speech(vad, pcm), pause_s, (LEAD_S + cut / RATE) * 1e3)


def pauses_of(scene: Scene, action: TurnAction = TurnAction.PAUSE) -> list[TurnEvent]:
    """The pauses that turn-taking finds by silence alone, before it takes the longest for the end; or where
    it would make a speculative reply."""
    machine = TurnTaking(TurnTakingSettings(eagerness="off", end_ms=round(_TAIL_S * 1e3)))
    events = [
        event
        for frame, probability in enumerate(scene.vad)
        for event in machine.update(probability, frame * FRAME_MS, (frame + 1) * FRAME_MS)
    ]
    return [event for event in events if event.action is action]


def _speech(vad: SileroVad, pcm: Pcm) -> list[float]:
    vad.reset()
    size = vad.frame_samples
    return [vad.probability(pcm[first : first + size]) for first in range(0, len(pcm) - size + 1, size)]


class LanguageModel:
    """The language model of a bundle, asked about a pause as by a speculative reply.

    Each turn is the first of a conversation.
    """

    def __init__(self, bundle: Path) -> None:
        self._engine = Engine.load(Bundle.open(bundle))
        self._turns = 0

    @property
    def predicts(self) -> bool:
        """Whether the bundle detects the end of turns."""
        return self._engine.bundle.lm.detects_turn_end

    def probability(self, turn: Pcm) -> float | None:
        """How likely the user has finished after this speech at the engine's rate, None if it cannot tell."""
        engine, self._turns = self._engine, self._turns + 1
        conversation = engine.new_conversation()
        question = run_alone(engine.open_turn(conversation, self._turns))
        run_alone(question.push(turn))
        event = next(run_alone(question.commit(Modality.SPEECH)))
        question.cancel()
        engine.end_conversation(conversation)
        return event.probability if isinstance(event, TurnEndPrediction) else None


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
        detector: SmartTurn | TurnEndDetector,
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

    def row(self) -> dict[str, Cell]:
        """As a row of a table."""
        answered = self.waits_ms[~np.isnan(self.waits_ms)]
        p50, p95 = p50_p95(answered)
        row: dict[str, Cell] = {
            "ends by": self.name,
            "wait_ms": p50,
            "mean_ms": self.mean_ms,
            "wait_ms_p95": p95,
        }
        for pause_s, outcomes in self.paused.items():
            low, high = _interval(sum(each.is_heard for each in outcomes), len(outcomes))
            cut, reopened = (
                100 * float(np.mean([getattr(each, kind) for each in outcomes]))
                for kind in ("is_heard", "is_reopened")
            )
            row[f"{pause_s:g} s"], row[f"{pause_s:g} s, interval"] = cut, f"{low:.0f}-{high:.0f}"
            row[f"{pause_s:g} s, reopened"] = reopened
        return row | {"up to 1 s": 100 * self.cut, "not answered": self.num_ignored}

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


def main(arguments: argparse.Namespace) -> None:
    """Report one row for each way to decide."""
    network = SmartTurn()
    utterances = samples() if arguments.folder is None else list(recordings(arguments.folder))
    detector = network if arguments.network else TurnEndDetector(network, load_head(head_file()))
    model = LanguageModel(arguments.bundle) if arguments.bundle is not None else None
    waits = arguments.reply_ms, model, arguments.predict_ms, arguments.answer_ms
    with tool_report("pause_bench", arguments) as report:
        _report(utterances, Bench(utterances, detector, *waits), model, report)


def _report(
    utterances: list[Utterance], bench: Bench, model: LanguageModel | None, report: LiveReport
) -> None:
    gaps = sum(len(utterance.gaps) for utterance in utterances)
    report.remark(f"{len(utterances)} turns, {gaps} gaps")
    off = [
        bench.line(f"silence {ms} ms", TurnTakingSettings(eagerness="off", end_ms=ms)) for ms in TIME_OUTS_MS
    ]
    report.add(Section("silence alone", _COLUMNS, [line.row() for line in off]))
    means, cuts = [line.mean_ms for line in off], [line.cut for line in off]

    def add(title: str, lines: list[Line]) -> None:
        section = Section(title, _COLUMNS)
        for line in lines:
            alone = 100 * float(np.interp(line.mean_ms, means, cuts))
            section.rows.append(line.row() | {"silence alone": alone})
        report.add(section)

    lines = []
    for turns, (name, eagerness, policy) in product(CALIBRATING_TURNS, list(_policies())):
        with patch.dict(POLICIES, {eagerness: policy}):
            text = f"{name}, {turns} turns" if turns else name
            lines.append(bench.line(text, TurnTakingSettings(eagerness=eagerness), turns))
    add("with the detector", lines)
    if model is None:
        return
    if not model.predicts:
        report.remark("The bundle does not detect the end of turns: with its model the rows are the same.")
        return
    report.remark(
        _predicted("ends", bench.predictions(None)), _predicted("pauses", bench.predictions(PAUSES_S[-1]))
    )
    lines = []
    for turns, (name, eagerness, policy, fusion) in product(CALIBRATING_TURNS, list(_fusions())):
        text = f"{name}, {turns} turns" if turns else name
        settings = TurnTakingSettings(eagerness=eagerness, fusion=fusion)
        with patch.dict(POLICIES, {eagerness: policy}):
            lines.append(bench.line(text, settings, turns, asks_model=True))
    add("with the language model", lines)


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--reply-ms", type=float, default=30.0)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--predict-ms", type=float, default=100.0)
    parser.add_argument("--answer-ms", type=float, default=32.0)
    main(parse(parser))
