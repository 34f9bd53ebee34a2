"""The built-in scenarios: conversations of several simulated users, drawn with a seed.

In: clips, the wanted groups, a seed. Out: scenarios; the same ones for the same seed. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from app.duplex.clips import Clip, ClipKind, click, cough
from app.duplex.room import RATE
from app.duplex.scenario import ECHO_DB, GROUPS, NOISE_SNR_DB, Cue, Group, RoomConditions, Scenario, Utterance
from engine_runtime.types import Pcm

_PAUSE_S = (0.3, 1.5)
_GAP_S = (2.0, 3.0)
_GAIN = (0.4, 0.7)
_BYSTANDER_DB = (-18.0, -12.0)
"""Against the user."""
_FADE = RATE // 200
_INTERRUPT_S = (0.3, 1.8)
"""After the start of the reply."""
_REACT_S = (0.5, 1.5)
Rng = np.random.Generator


@dataclass(frozen=True, slots=True)
class Counts:
    """How many cues a scenario has."""

    turns: int
    interruptions: int = 0
    backchannels: int = 0
    tics: int = 0
    asides: int = 0


FULL = {
    "pauses": Counts(turns=12),
    "interruptions": Counts(turns=0, interruptions=10),
    "backchannels": Counts(turns=0, backchannels=10, tics=10, asides=10),
    "echo": Counts(turns=2, interruptions=6, backchannels=6, tics=3, asides=3),
    "noise": Counts(turns=5, interruptions=3),
}
QUICK = {
    "pauses": Counts(turns=2),
    "interruptions": Counts(turns=0, interruptions=2),
    "backchannels": Counts(turns=0, backchannels=1, tics=1, asides=1),
    "echo": Counts(turns=1, interruptions=1),
    "noise": Counts(turns=1),
}


def draw_scenarios(
    clips: Sequence[Clip],
    groups: Sequence[Group],
    seed: int,
    *,
    counts: dict[str, Counts] = FULL,
    echo_db: Sequence[float] = ECHO_DB,
    users: int = 10,
) -> Iterator[Scenario]:
    """The scenarios of one round, `users` different speakers for each group without echo or noise. The
    speakers with echo or noise change with the seed."""
    for number, group in enumerate(GROUPS):
        if group not in groups:
            continue
        levels: Sequence[float] = {"echo": echo_db, "noise": NOISE_SNR_DB}.get(group, range(users))
        first = seed if group in ("echo", "noise") else 0
        for place, level in enumerate(levels):
            rng = np.random.default_rng([seed, number, place])
            yield _Draft(clips, rng, first + place).scenario(group, counts[group], level)


class _Draft:
    """One scenario with one speaker."""

    def __init__(self, clips: Sequence[Clip], rng: Rng, place: int) -> None:
        self._rng = rng
        self._clips = clips
        speakers = sorted({clip.speaker for clip in clips if clip.kind == "long"})
        # Speakers who can pause in mid-sentence come first.
        pausing = {clip.speaker for clip in clips if clip.pauses_s}
        speakers.sort(key=lambda speaker: speaker not in pausing)
        self._speaker = speakers[place % len(speakers)]
        self._gain = rng.uniform(*_GAIN)
        self._drawn: dict[ClipKind, list[Clip]] = {}

    def scenario(self, group: Group, counts: Counts, level: float) -> Scenario:
        makers: list[Callable[[], Cue]] = [
            *[lambda: self._turn(pauses=group == "pauses")] * counts.turns,
            *[self._interruption] * counts.interruptions,
            *[lambda: self._over(self._said("backchannel"))] * counts.backchannels,
            *[self._tic] * counts.tics,
            *[self._aside] * counts.asides,
        ]
        order = self._rng.permutation(len(makers))
        # The user has heard the assistant before somebody talks over it.
        cues = (self._turn(pauses=False), *(makers[index]() for index in order))
        room, name = RoomConditions(seed=int(self._rng.integers(1 << 30))), f"{group}-{self._speaker}"
        if group == "echo":
            delay_ms, skew_ppm = float(self._rng.integers(50, 251)), float(self._rng.integers(0, 301))
            room = RoomConditions(level, delay_ms, skew_ppm, seed=room.seed)
            name = f"echo-{level:g}db-{self._speaker}"
        elif group == "noise":
            spoken = np.concatenate([cue.utterance.pcm for cue in cues])
            rms = float(np.sqrt(np.mean(spoken[np.abs(spoken) > 1e-3] ** 2)))
            room = RoomConditions(noise_rms=rms * 10 ** (-level / 20), seed=room.seed)
            name = f"noise-{level:g}db-{self._speaker}"
        return Scenario(name, group, room, cues)

    def _turn(self, *, pauses: bool) -> Cue:
        """A question with a short answer, or with a pause within."""
        kind: ClipKind = "short" if self._rng.random() < 0.7 else "long"
        clip = self._draw(kind)
        pause_s = self._rng.uniform(*_PAUSE_S) if pauses and clip.pauses_s else 0.0
        return Cue(utter(clip, "turn", self._gain, pause_s), self._gap())

    def _interruption(self) -> Cue:
        return self._over(self._said("interruption"), _INTERRUPT_S)

    def _tic(self) -> Cue:
        """A cough or a click: half of them over a reply, half in silence."""
        is_cough = self._rng.random() < 0.6
        gain = self._gain if is_cough else 0.4 * self._gain
        pcm = gain * (cough(self._rng) if is_cough else click(self._rng))
        return self._anywhere(Utterance("tic", pcm, 0.0, len(pcm) / RATE))

    def _aside(self) -> Cue:
        """Speech in the background, not directed at the assistant: half over a reply, half in silence."""
        clip = self._draw("not_directed", anyone=True)
        gain = self._gain * 10 ** (self._rng.uniform(*_BYSTANDER_DB) / 20)
        return self._anywhere(utter(clip, "not_directed", gain))

    def _anywhere(self, utterance: Utterance) -> Cue:
        if self._rng.random() < 0.5:
            return self._over(utterance)
        return Cue(utterance, self._gap())

    def _over(self, utterance: Utterance, after_s: tuple[float, float] = _REACT_S) -> Cue:
        """Said over the reply to a question with a long answer."""
        question = utter(self._draw("long"), "turn", self._gain)
        return Cue(question, self._gap(), utterance, self._rng.uniform(*after_s))

    def _said(self, kind: Literal["interruption", "backchannel"]) -> Utterance:
        return utter(self._draw(kind), kind, self._gain)

    def _draw(self, kind: ClipKind, *, anyone: bool = False) -> Clip:
        """A clip of the speaker; each comes once before one comes again."""
        left = self._drawn.setdefault(kind, [])
        if not left:
            left += [
                clip
                for clip in self._clips
                if clip.kind == kind and (anyone or clip.speaker == self._speaker)
            ]
        return left.pop(self._rng.integers(len(left)))

    def _gap(self) -> float:
        return float(self._rng.uniform(*_GAP_S))


def utter(
    clip: Clip,
    kind: Literal["turn", "interruption", "backchannel", "not_directed"],
    gain: float,
    pause_s: float = 0.0,
) -> Utterance:
    """A clip, with a pause at its first word end for pauses if `pause_s` is above 0."""
    pcm = gain * clip.pcm
    if not pause_s:
        return Utterance(kind, pcm, clip.start_s, clip.end_s, text=clip.text)
    at = round(clip.pauses_s[0] * RATE)
    silence = np.zeros(round(pause_s * RATE), dtype=np.float32)
    pcm = np.concatenate([_fade_out(pcm[:at]), silence, _fade_out(pcm[at:][::-1])[::-1]])
    pause = (clip.pauses_s[0], clip.pauses_s[0] + pause_s)
    return Utterance(kind, pcm, clip.start_s, clip.end_s + pause_s, (pause,), clip.text)


def _fade_out(pcm: Pcm) -> Pcm:
    faded = pcm.copy()
    faded[-_FADE:] *= np.linspace(1.0, 0.0, _FADE, dtype=np.float32)
    return faded
