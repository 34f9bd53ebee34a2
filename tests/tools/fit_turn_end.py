"""Fits the weights of app/dialog/turn_end.py. Run by hand, not by pytest:

    python -m tests.tools.fit_turn_end FOLDER ... --people FOLDER ... [--test FOLDER ...] [--out FILE]

Each folder has the WAV files of one voice: whole sentences. Their ends are finished turns, their gaps
(tests/tools/pause_corpus.py) and one soft moment between these are unfinished ones, each with 160 ms of
pause. Each turn counts once as it is and once without its beginning, or the head would learn that long turns
are finished ones. People count three times. `--keep FOLDER` writes the collected turns of each folder to a
file there, which can be named instead of the folder from then on.

Prints the weights of the model of network and prosody, and how well network, that model, the head and both
together tell the turns apart (area under the curve), soft moments and cropped turns left out. A folder is
rated by a head that was fitted without all folders whose names begin with the same word, up to the first "-":
voices of one synthesizer. Folders of `--test` are rated by the head of all others, which `--out` writes.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from app.dialog.end_of_turn import log_odds
from app.dialog.smart_turn import SmartTurn
from app.dialog.turn_end import Prosody, measure_prosody, prosody_score
from app.dialog.turn_events import TurnAction
from app.dialog.turn_taking import TurnTaking
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.vad import SileroVad
from engine_runtime.types import Pcm
from tests.tools.pause_corpus import NOISE, RATE, Utterance, recordings

_PAUSE_S = 0.5
_LEAD_S = 0.32
"""What the detector hears before the speech."""
_KEPT_S = (0.6, 1.8)
"""Of a turn without its beginning, the pause included."""
_NEAR_S = 0.15
"""Around the place of a cut: the quietest moment is taken."""
_PEOPLE_COUNT = 3
_PENALTY_OF_HEAD, _PENALTY_OF_PROSODY = 300.0, 1.0
"""On the weights of standardized features."""
_STEPS = 25
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Points:
    """The turns of one folder; the first axis of each array counts them."""

    name: str
    summaries: Array
    network: Array
    """The network's own probability."""
    prosody: Array
    """Falls of pitch and level, NaN without prosody."""
    finished: Array
    is_natural: NDArray[np.bool_]
    """A whole turn, or one up to a gap: neither a soft moment nor cropped."""

    @property
    def family(self) -> str:
        """Of folders that must not rate each other."""
        return self.name.partition("-")[0]

    def scores(self) -> Array:
        """By the model of network and prosody."""
        falls = [None if np.isnan(own[0]) else Prosody(*own) for own in self.prosody]
        return np.array([prosody_score(p, own) for p, own in zip(self.network, falls, strict=True)])

    def save(self, folder: Path) -> None:
        """Write the file that `collect` reads."""
        arrays = {name: value for name, value in vars(self).items() if name != "name"}
        np.savez_compressed(folder / f"{self.name}.npz", **arrays)


def collect(source: Path, keep: Path | None) -> Points:
    """All turns of a folder, or of a file that was kept."""
    if source.suffix == ".npz":
        return Points(source.stem, **np.load(source))
    vad, network = SileroVad(), SmartTurn()
    rows = []
    for utterance in recordings(source):
        rng = np.random.default_rng(int.from_bytes(hashlib.sha256(utterance.name.encode()).digest()[:4]))
        cuts = [(gap, True) for gap in utterance.gaps]
        cuts += [(_soft_moment(utterance, rng), False), (len(utterance.pcm), True)]
        for cut, is_natural in cuts:
            for turn, own in _turns(vad, utterance, cut, is_natural, rng):
                heard, falls = network.hear(turn), measure_prosody(turn)
                prosody = (np.nan, np.nan) if falls is None else (falls.pitch_fall_st, falls.level_fall_db)
                is_end = cut == len(utterance.pcm)
                rows.append((heard.summary, heard.probability, prosody, float(is_end), own))
    points = Points(source.name, *(np.array(column) for column in zip(*rows, strict=True)))
    if keep is not None:
        points.save(keep)
    return points


def _turns(
    vad: SileroVad, utterance: Utterance, cut: int, is_natural: bool, rng: np.random.Generator
) -> Iterator[tuple[Pcm, bool]]:
    """The turn that pauses at sample `cut`, whole and without its beginning, and whether it is natural."""
    turn = _paused(vad, utterance.scene(cut, _PAUSE_S, 0.0))
    if turn is None:
        return
    yield turn, is_natural
    near = round(_NEAR_S * RATE)
    start = len(turn) - round(rng.uniform(*_KEPT_S) * RATE)
    if start > 2 * near + round(_LEAD_S * RATE):
        start += _quietest(turn[start - near : start + near]) - near
        lead = NOISE * rng.standard_normal(round(_LEAD_S * RATE))
        yield np.concatenate([lead, turn[start:]]).astype(np.float32), False


def _soft_moment(utterance: Utterance, rng: np.random.Generator) -> int:
    """A sample at which the utterance is soft for a moment, off its gaps where it can be."""
    near, size = round(_NEAR_S * RATE), len(utterance.pcm)
    places = rng.integers(size // 4, 3 * size // 4, 8)
    place = next(
        (own for own in places if all(abs(own - gap) > 2 * near for gap in utterance.gaps)), places[0]
    )
    first = max(int(place) - near, 0)
    return first + _quietest(utterance.pcm[first : first + 2 * near])


def _quietest(pcm: Pcm) -> int:
    """The first sample of its quietest 10 ms."""
    hop = RATE // 100
    return int((pcm[: len(pcm) // hop * hop].reshape(-1, hop) ** 2).sum(axis=1).argmin()) * hop


def _paused(vad: SileroVad, pcm: Pcm) -> Pcm | None:
    """The turn at its last pause, as the detector gets it; None without one."""
    vad.reset()
    machine, size, start_ms, turn = (
        TurnTaking(TurnTakingSettings(eagerness="off")),
        vad.frame_samples,
        0.0,
        None,
    )
    for first in range(0, len(pcm) - size + 1, size):
        for event in machine.update(
            vad.probability(pcm[first : first + size]), first / 16, (first + size) / 16
        ):
            if event.action is TurnAction.OPEN:
                start_ms = event.speech_start_ms
            elif event.action is TurnAction.PAUSE:
                turn = pcm[round(max(start_ms - 1e3 * _LEAD_S, 0) * 16) : round(event.at_ms * 16)]
    return turn


def fit(features: Array, finished: Array, penalty: float) -> tuple[Array, float]:
    """Weights and bias of a logistic model, by Newton's method with an L2 penalty."""
    middle, spread = features.mean(axis=0), features.std(axis=0) + 1e-6
    inputs = np.column_stack([np.ones(len(features)), (features - middle) / spread])
    weights = np.zeros(inputs.shape[1])
    penalties = np.full(len(weights), penalty)
    penalties[0] = 0.0
    for _ in range(_STEPS):
        probability = 1.0 / (1.0 + np.exp(-inputs @ weights))
        slope = (inputs * (probability * (1.0 - probability))[:, None]).T @ inputs + np.diag(penalties)
        weights -= np.linalg.solve(slope, inputs.T @ (probability - finished) + penalties * weights)
    own = weights[1:] / spread
    return own, float(weights[0] - middle @ own)


def fit_head(known: list[Points]) -> tuple[Array, float]:
    """Weights [384] and bias of the head."""
    summaries, finished = ([getattr(own, name) for own in known] for name in ("summaries", "finished"))
    return fit(np.concatenate(summaries).astype(float), np.concatenate(finished), _PENALTY_OF_HEAD)


def area(scores: Array, finished: Array) -> float:
    """Chance that a finished turn scores above an unfinished one."""
    above, below = scores[finished == 1.0][:, None], scores[finished == 0.0][None]
    return float(np.mean((above > below) + 0.5 * (above == below)))


def _say_areas(rated: Points, weights: Array, bias: float) -> None:
    own, finished = rated.is_natural, rated.finished[rated.is_natural]
    head, prosody = (rated.summaries @ weights + bias)[own], rated.scores()[own]
    both = (head + prosody) / 2.0
    areas = (area(each, finished) for each in (rated.network[own], prosody, head, both))
    sys.stdout.write(
        f"{rated.name:<36}{finished.sum():5.0f} finished {(1.0 - finished).sum():5.0f} not   network, with "
        f"prosody, head, both: {', '.join(f'{each:.3f}' for each in areas)}   "
        f"mean score of ends {both[finished == 1.0].mean():.1f}, of gaps {both[finished == 0.0].mean():.1f}\n"
    )


def _say_prosody(known: list[Points]) -> None:
    rows = [np.column_stack([[log_odds(p) for p in own.network], own.prosody]) for own in known]
    features, finished, own = (
        np.concatenate(each)
        for each in (rows, [own.finished for own in known], [own.is_natural for own in known])
    )
    own &= ~np.isnan(features[:, 1])
    weights, bias = fit(features[own], finished[own], _PENALTY_OF_PROSODY)
    sys.stdout.write(f"network, pitch fall, level fall: {weights.round(3)}, bias {bias:.3f}\n")
    weights, bias = fit(features[own, :1], finished[own], _PENALTY_OF_PROSODY)
    sys.stdout.write(f"network alone: {weights.round(3)}, bias {bias:.3f}\n")


def main(options: argparse.Namespace) -> None:
    """Print weights and areas, and write the head."""
    sources = [*options.folders, *options.people, *options.test]
    with ProcessPoolExecutor(options.processes) as pool:
        everything = list(pool.map(partial(collect, keep=options.keep), sources))
    voices = len(options.folders)
    people = everything[voices : voices + len(options.people)]
    known = everything[:voices] + people * _PEOPLE_COUNT
    _say_prosody(everything[: voices + len(people)])
    for family in dict.fromkeys(own.family for own in known):
        others = [own for own in known if own.family != family]
        for own in everything[: voices + len(people)]:
            if own.family == family and others:
                _say_areas(own, *fit_head(others))
    weights, bias = fit_head(known)
    for own in everything[voices + len(people) :]:
        _say_areas(own, weights, bias)
    if options.out is not None:
        tensors = {"weight": weights.astype(np.float32), "bias": np.array([bias], np.float32)}
        save_file(tensors, options.out, {"network": "Smart Turn v3.2, tensor sum_1", "licence": "Apache-2.0"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--people", type=Path, nargs="+", default=[], metavar="FOLDER")
    parser.add_argument("--test", type=Path, nargs="+", default=[], metavar="FOLDER")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    main(parser.parse_args())
