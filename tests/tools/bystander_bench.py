"""Who is taken for a bystander: the user, whose level varies, or somebody further away? Run by hand:

    python -m tests.tools.bystander_bench [TURNS] [--json FILE]

The recordings of the duplex bench go through the real VAD and turn-taking, without a session. Each of the
users says TURNS questions and interruptions, at a level drawn anew each time within the given range. After
each of them one of two other voices says a sentence, 12 to 18 dB below the user's mean level, in silence or
over a reply.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from app.dialog.turn_events import TurnAction
from app.dialog.turn_taking import TurnTaking
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.vad import SileroVad
from app.dialog.voice_level import voiced_level
from app.duplex.clips import Clip, load_clips
from app.duplex.room import RATE
from engine_runtime.table import Section
from engine_runtime.types import Pcm
from tests.tools.tool_report import parse, tool_report

_COLUMNS = {
    "range_db": "the user's level is drawn anew each time, so far above or below the mean",
    "user_heard": "utterances of the user that opened a turn or paused a reply",
    "user_said": "of these",
    "others_heard": "the same of the other voices",
    "others_said": "of these",
}
CLIPS = Path(__file__).parents[2] / "assets" / "duplex"
USER_DB = -6.0
FURTHER_DB = (-18.0, -12.0)
FLOOR_DB = -62.0
SILENCE_S = 4.0
"""After each utterance, longer than somebody waits who repeats what was not heard."""
_UNKNOWN = 2
"""Turns after which the user's level is known."""
_HEARD = {TurnAction.OPEN, TurnAction.INTERRUPT}


class Listener:
    """Turn-taking that hears one utterance after the other."""

    def __init__(self, settings: TurnTakingSettings, rng: np.random.Generator) -> None:
        self._machine, self._vad, self._rng = TurnTaking(settings), SileroVad(), rng
        self._ms = 0.0

    def hears(self, pcm: Pcm, *, over_reply: bool) -> bool:
        """Whether it opens a turn, or pauses the reply that is being heard."""
        self._machine.end_turn()
        if over_reply:
            self._machine.begin_reply()
            self._machine.reply_heard()
        lead = np.zeros(int(self._rng.integers(512)), dtype=np.float32)
        sound = np.concatenate([lead, pcm, np.zeros(round(SILENCE_S * RATE), dtype=np.float32)])
        sound += 10 ** (FLOOR_DB / 20) * self._rng.standard_normal(len(sound)).astype(np.float32)
        actions: set[TurnAction] = set()
        size, step_ms = self._vad.frame_samples, self._vad.frame_samples * 1e3 / RATE
        for frame in sound[: len(sound) // size * size].reshape(-1, size):
            start_ms, self._ms = self._ms, self._ms + step_ms
            probability = self._vad.probability(frame)
            events = self._machine.update(probability, start_ms, self._ms, voiced_level(frame))
            actions |= {event.action for event in events}
        return bool(actions & _HEARD)


def at_level(clip: Clip, level_db: float) -> Pcm:
    """The clip, `level_db` above the level of its recording."""
    return np.asarray(10 ** (level_db / 20) * clip.pcm, dtype=np.float32)


def talk(clips: list[Clip], speaker: str, turns: int, range_db: float, rng: np.random.Generator) -> list[int]:
    """(heard, said) of the user, the same of the others; not counted before the user's level is known,
    when the others speak as well."""
    own = [clip for clip in clips if clip.speaker == speaker and clip.kind != "backchannel"]
    others = [clip for clip in clips if clip.kind == "not_directed"]
    listener = Listener(TurnTakingSettings(), rng)
    counts = [0, 0, 0, 0]
    for turn in range(turns + _UNKNOWN):
        level_db = USER_DB + rng.uniform(-range_db, range_db)
        is_heard = listener.hears(at_level(own[rng.integers(len(own))], level_db), over_reply=turn % 2 == 1)
        other = at_level(others[rng.integers(len(others))], USER_DB + rng.uniform(*FURTHER_DB))
        was_other_heard = listener.hears(other, over_reply=rng.random() < 0.5)
        if turn < _UNKNOWN:
            continue
        counts = [
            counts[0] + is_heard,
            counts[1] + 1,
            counts[2] + was_other_heard,
            counts[3] + 1,
        ]
    return counts


def main(arguments: argparse.Namespace) -> None:
    """Report one row for each range."""
    clips = load_clips(CLIPS)
    speakers = sorted({clip.speaker for clip in clips if clip.kind == "long"})
    section = Section("bystanders", _COLUMNS)
    with tool_report("bystander_bench", arguments) as report:
        for range_db in (0.0, 3.0, 6.0, 9.0):
            rng = np.random.default_rng(0)
            counts = [talk(clips, speaker, arguments.turns, range_db, rng) for speaker in speakers]
            user_heard, user_said, heard, said = (int(total) for total in np.sum(counts, axis=0))
            section.rows.append(
                {
                    "range_db": range_db,
                    "user_heard": user_heard,
                    "user_said": user_said,
                    "others_heard": heard,
                    "others_said": said,
                }
            )
        report.add(section)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("turns", type=int, nargs="?", default=20, help="of each user (default: 20)")
    main(parse(parser))
