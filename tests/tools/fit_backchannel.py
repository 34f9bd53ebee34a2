"""Fits the weights of app/dialog/backchannel.py. Run by hand, not by pytest:

    RECIPE_VOICES=FOLDER python -m tests.tools.fit_backchannel [--out FILE] [--workers N]

Renders the texts of assets/end_of_turn/overlap.toml with espeak-ng, Kokoro and the voice kal of flite, at
drawn rates and pitches, none of them a voice of the simulated users; coughs and clicks are computed. VAD and
turn-taking hear each over a reply, so the head learns from the moments at which the program asks: a soft
beginning is missed there, and an ending goes on for 100 ms. FOLDER is that of
assets/bundles/nano/recipe/neural_voices.py, which fetches Kokoro. Prints how well the head tells both apart
(area under the curve), each text rated by a head that was fitted without it.
"""

from __future__ import annotations

import argparse
import importlib
import random
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray
from safetensors.numpy import save_file

from app import paths
from app.dialog.backchannel import backchannel_file, features
from app.dialog.smart_turn import SmartTurn
from app.dialog.turn_events import TurnAction
from app.dialog.turn_taking import TurnTaking
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.vad import SileroVad
from app.dialog.voice_level import voiced_level
from app.duplex.clips import click, cough
from engine_runtime.types import Pcm

RATE = 16_000
ACCENTS = (
    "en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-029", "en-us-nyc", "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
)  # fmt: skip
VARIANTS = """
Alex Alicia Andrea Denis Diogo Gene Gene2 Henrique Hugo Jacky Lee Marco Mike Mr Nguyen Storm Tweaky adam
anika antonio aunty belinda benjamin boris caleb david ed edward f1 f3 f5 gustave iven iven2 iven3 john
kaukovalta klatt klatt2 klatt3 klatt4 m1 m4 m6 m8 marcelo max miguel norbert pablo paul pedro quincy rob
robert sandro shelby steph steph2 travis victor zac
""".split()
FLITE = ("kal", "kal16")
_KOKORO = "kokoro "
"""Before the name of a speaker, or of two that are mixed."""
_OFTEN, _SELDOM = {"backchannels": 14, "turns": 12}, {"backchannels": 4, "turns": 3}
"""Voices for each text."""
_FLITE_SHARE, _KOKORO_SHARE = 0.15, 0.3
_NOISES = 20
_LEAD_S, _AFTER_S = (0.35, 0.4), 0.4
"""Silence before and after it."""
_MOMENTS = 2
"""Most moments for each utterance: one of many would count more than a short one."""
_LEVEL_DB, _NOISE_DB = (-20.0, 0.0), (-75.0, -48.0)
_PENALTY = 300.0
"""On the weights of standardized features."""
_STEPS, _TOLERANCE = 25, 1e-4
_FOLDS = 4
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Said:
    """One text in one voice; `voice` is "" for a computed noise."""

    text: str
    is_backchannel: bool
    voice: str
    rate: float
    pitch: float
    speed: float
    seed: int


def draw(seed: int = 3) -> list[Said]:
    """What is rendered, in a fixed order."""
    rng, said = random.Random(seed), []
    known = tomllib.loads((paths.assets_dir() / "end_of_turn" / "overlap.toml").read_text(encoding="utf-8"))
    for kind, lists in known.items():
        for name, voices in (("often", _OFTEN[kind]), ("texts", _SELDOM[kind])):
            for text in lists[name]:
                said += [_in_a_voice(text, kind == "backchannels", rng) for _ in range(voices)]
    said += [Said(name, True, "", 0, 0, 1, rng.getrandbits(30)) for name in ("cough", "click") * _NOISES]
    return said


def _in_a_voice(text: str, is_backchannel: bool, rng: random.Random) -> Said:
    seed, speed = rng.getrandbits(30), rng.uniform(0.88, 1.15)
    synthesizer = 1.0 if "[[" in text else rng.random()
    if synthesizer < _FLITE_SHARE:
        voice, rate, pitch = rng.choice(FLITE), rng.uniform(0.75, 1.35), rng.uniform(80, 210)
        return Said(text, is_backchannel, voice, rate, pitch, speed, seed)
    if synthesizer < _FLITE_SHARE + _KOKORO_SHARE:
        voice = _KOKORO + _neural_voices().random_speaker(rng)
        return Said(text, is_backchannel, voice, rng.uniform(0.8, 1.25), 0, speed, seed)
    voice = f"{rng.choice(ACCENTS)}+{rng.choice(VARIANTS)}"
    return Said(text, is_backchannel, voice, rng.uniform(115, 235), rng.uniform(18, 82), speed, seed)


def render(said: Said) -> Pcm:
    """Its sound, without silence around it; nothing where the voice does not know the phonemes."""
    if not said.voice:
        return (cough if said.text == "cough" else click)(np.random.default_rng(said.seed))
    if said.voice.startswith(_KOKORO):
        pcm, rate = _neural_voices().kokoro(said.text, said.voice.removeprefix(_KOKORO), said.rate)
    else:
        pcm, rate = _say(said)
    sound = soxr.resample(pcm, rate * said.speed, RATE, "HQ")
    frames = sound[: len(sound) // 160 * 160].reshape(-1, 160)
    level = (frames**2).mean(axis=1)
    loud = np.flatnonzero(level > 1e-4 * level.max())
    if not len(loud):
        return np.zeros(0, dtype=np.float32)
    trimmed: Pcm = sound[loud[0] * 160 : (loud[-1] + 1) * 160]
    return trimmed * np.float32(0.6 / np.abs(trimmed).max())


def _say(said: Said) -> tuple[Pcm, int]:
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        command = ["espeak-ng", "-v", said.voice, "-s", f"{said.rate:.0f}", "-p", f"{said.pitch:.0f}"]
        command += ["-w", file.name, said.text]
        if said.voice in FLITE:
            command = ["flite", "-voice", said.voice, "--setf", f"duration_stretch={said.rate:.2f}"]
            command += ["--setf", f"int_f0_target_mean={said.pitch:.0f}", "-t", said.text, "-o", file.name]
        subprocess.run(command, check=True, capture_output=True)
        data = Path(file.name).read_bytes()
    return np.frombuffer(data[44:], "<i2").astype(np.float32), int.from_bytes(data[24:28], "little")


@cache
def _neural_voices() -> Any:
    """The recipe's module; it is run by path, as its neighbours import it."""
    sys.path.append(str(paths.assets_dir() / "bundles" / "nano" / "recipe"))
    found = importlib.import_module("neural_voices")
    if "kokoro" not in found.engines():
        raise SystemExit("Set RECIPE_VOICES to the folder that `python neural_voices.py FOLDER` filled.")
    return found


@cache
def _vad() -> SileroVad:
    return SileroVad()


@cache
def _network() -> SmartTurn:
    return SmartTurn()


def hear(said: Said) -> list[NDArray[np.float32]]:
    """Its features at up to `_MOMENTS` of the moments at which the program asks what it is."""
    rng, sound = np.random.default_rng(said.seed), render(said)
    if not len(sound):
        return []
    sound = sound * np.float32(10 ** (rng.uniform(*_LEVEL_DB) / 20))
    ends = [
        np.zeros(round(seconds * RATE), dtype=np.float32) for seconds in (rng.uniform(*_LEAD_S), _AFTER_S)
    ]
    heard = np.concatenate([ends[0], sound, ends[1]])
    heard += (10 ** (rng.uniform(*_NOISE_DB) / 20) * rng.standard_normal(len(heard))).astype(np.float32)
    asked, found = list(asked_about(heard)), []
    for place in sorted(rng.permutation(len(asked))[:_MOMENTS]):
        so_far, speech_s = asked[place]
        frames = _network().hear(so_far).frames
        if frames is None:
            raise SystemExit("Smart Turn of another version is installed.")
        found.append(features(frames, speech_s))
    return found


def asked_about(sound: Pcm) -> Iterator[tuple[Pcm, float]]:
    """Each moment at which the program asks what `sound` over a reply is: what it has heard by then, and for
    how many seconds somebody speaks. No answer comes, so these are all moments up to a verdict by length."""
    settings, vad = TurnTakingSettings(), _vad()
    machine = TurnTaking(settings)
    machine.begin_reply()
    machine.reply_heard()
    vad.reset()
    size = vad.frame_samples
    for first in range(0, len(sound) - size + 1, size):
        frame, end_ms = sound[first : first + size], (first + size) * 1e3 / RATE
        probability = vad.probability(frame)
        for event in machine.update(probability, first * 1e3 / RATE, end_ms, voiced_level(frame)):
            if event.action is TurnAction.LISTEN:
                begin = max(round((event.speech_start_ms - settings.pre_roll_ms) * RATE / 1e3), 0)
                yield sound[begin : first + size], (end_ms - event.speech_start_ms) / 1e3


def fit(points: Array, is_backchannel: Array) -> tuple[Array, float]:
    """Weights and bias of a logistic model, both classes counting the same; ridge by Newton's method on the
    points' inner products, of which there are fewer than features."""
    mean, spread = points.mean(axis=0), points.std(axis=0) + 1e-3
    standard = (points - mean) / spread
    share = is_backchannel.mean()
    counts = np.where(is_backchannel > 0, 0.5 / share, 0.5 / (1.0 - share))
    inner, score = standard @ standard.T, np.zeros(len(points))
    for _ in range(_STEPS):
        likely = 1.0 / (1.0 + np.exp(-score))
        curve = np.maximum(likely * (1.0 - likely), 1e-4)
        target = score + (is_backchannel - likely) / curve
        system = inner + np.diag(_PENALTY / (curve * counts))
        solved = np.linalg.solve(system, np.stack([target, np.ones(len(points))], axis=1))
        bias = float(solved[:, 0].sum() / solved[:, 1].sum())
        duals = solved[:, 0] - bias * solved[:, 1]
        earlier, score = score, inner @ duals + bias
        if np.abs(score - earlier).max() < _TOLERANCE:
            break
    weight = standard.T @ duals / spread
    return weight, bias - float(mean @ weight)


def area(score: Array, is_backchannel: Array) -> float:
    """Area under the curve."""
    ranks = np.argsort(np.argsort(score))
    hits = is_backchannel.sum()
    return float((ranks[is_backchannel > 0].sum() - hits * (hits - 1) / 2) / (hits * (len(score) - hits)))


def unseen_scores(points: Array, is_backchannel: Array, texts: list[str]) -> Array:
    """The score of each point by a head that was fitted without its text."""
    order = sorted(set(texts))
    random.Random(0).shuffle(order)
    folds = np.array([order.index(text) % _FOLDS for text in texts])
    scores = np.zeros(len(points))
    for fold in range(_FOLDS):
        known = folds != fold
        weight, bias = fit(points[known], is_backchannel[known])
        scores[~known] = points[~known] @ weight + bias
    return scores


def collect(said: list[Said], workers: int) -> Iterator[list[NDArray[np.float32]]]:
    """The features of each."""
    with ProcessPoolExecutor(workers) as pool:
        for place, found in enumerate(pool.map(hear, said, chunksize=8)):
            if place % 200 == 0:
                sys.stderr.write(f"{place} of {len(said)}\n")
            yield found


def main() -> None:
    """Render, fit, rate, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=backchannel_file())
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    said = draw()
    heard = list(collect(said, arguments.workers))
    points = np.array([own for found in heard for own in found], dtype=np.float64)
    known = [own for own, found in zip(said, heard, strict=True) for _ in found]
    is_backchannel, texts = (
        np.array([float(own.is_backchannel) for own in known]),
        [own.text for own in known],
    )
    score = unseen_scores(points, is_backchannel, texts)
    found = area(score, is_backchannel)
    counts = f"{len(said)} utterances, {len(points)} moments"
    sys.stdout.write(f"{counts}, area under the curve for unknown texts: {found:.3f}\n")
    weight, bias = fit(points, is_backchannel)
    save_file(
        {"weight": weight.astype(np.float32), "bias": np.array([bias], dtype=np.float32)}, str(arguments.out)
    )


if __name__ == "__main__":
    main()
