"""Fits the weights of app/dialog/turn_end.py. Run by hand, not by pytest:

    python -m tests.tools.fit_turn_end FOLDER [FOLDER ...]

Each folder has the WAV files of one speaker: whole sentences. Their ends are finished turns, their gaps
(tests/tools/pause_corpus.py) unfinished ones, each with 160 ms of pause. Prints how well the network alone
and the model tell them apart for each speaker, fitted on the others (area under the curve), and the weights
fitted on all.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.dialog.end_of_turn import log_odds
from app.dialog.prosody import measure
from app.dialog.smart_turn import SmartTurn
from app.dialog.turn_events import TurnAction
from app.dialog.turn_taking import TurnTaking
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.vad import SileroVad
from engine_runtime.types import Pcm
from tests.tools.pause_corpus import recordings

_PAUSE_S = 0.5
_PENALTY = 1.0
_STEPS = 30
Array = NDArray[np.float64]


def points(folder: Path) -> tuple[Array, Array]:
    """Features [n, 3] and whether the turn is finished [n], of one speaker."""
    vad, network = SileroVad(), SmartTurn()
    features, finished = [], []
    for utterance in recordings(folder):
        for cut in (*utterance.gaps, len(utterance.pcm)):
            turn = _paused(vad, utterance.scene(cut, _PAUSE_S, 0.0))
            prosody = None if turn is None else measure(turn)
            if turn is not None and prosody is not None:
                certainty = log_odds(network.probability(turn))
                features.append((certainty, prosody.pitch_fall_st, prosody.level_fall_db))
                finished.append(cut == len(utterance.pcm))
    return np.array(features), np.array(finished, dtype=float)


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
                turn = pcm[round(max(start_ms - 320, 0) * 16) : round(event.at_ms * 16)]
    return turn


def fit(features: Array, finished: Array) -> Array:
    """Weights of a logistic model, the bias first, by Newton's method with an L2 penalty."""
    inputs = np.column_stack([np.ones(len(features)), features])
    weights = np.zeros(inputs.shape[1])
    for _ in range(_STEPS):
        probability = 1.0 / (1.0 + np.exp(-inputs @ weights))
        slope = (inputs * (probability * (1.0 - probability))[:, None]).T @ inputs
        error = inputs.T @ (probability - finished) + _PENALTY * weights
        weights -= np.linalg.solve(slope + _PENALTY * np.eye(len(weights)), error)
    return weights


def area(scores: Array, finished: Array) -> float:
    """Chance that a finished turn scores above an unfinished one."""
    above, below = scores[finished == 1.0][:, None], scores[finished == 0.0][None]
    return float(np.mean((above > below) + 0.5 * (above == below)))


def _joined(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    return np.concatenate([features for features, _ in parts]), np.concatenate([own for _, own in parts])


def main(folders: list[Path]) -> None:
    """Print the areas by speaker, and the weights."""
    known = [points(folder) for folder in folders]
    for index, (folder, (features, finished)) in enumerate(zip(folders, known, strict=True)):
        others = [each for place, each in enumerate(known) if place != index]
        line = f"{folder.name:<16}{finished.sum():5.0f} finished {(1 - finished).sum():5.0f} not"
        line += f"   network {area(features[:, 0], finished):.3f}"
        if others:
            weights = fit(
                np.concatenate([own for own, _ in others]), np.concatenate([own for _, own in others])
            )
            line += f"   model {area(features @ weights[1:], finished):.3f}"
        sys.stdout.write(line + "\n")
    features, finished = _joined(known)
    sys.stdout.write(f"bias, network, pitch fall, level fall: {fit(features, finished).round(3)}\n")
    sys.stdout.write(f"bias, network alone: {fit(features[:, :1], finished).round(3)}\n")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
