"""Stage 2 of the recipe: all speech that training needs, on all cores.

Out, in the work folder: `users.npz` (questions in seen voices), `dev.npz` (held-out questions, seen and
held-out voices), `units.npz` (the assistant's units at 16 and 24 kHz). Waveforms are flat int16 with offsets.

    python synthesize.py WORK [--scale 1.0]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import domain
import numpy as np
import voices

# Renditions of each question. Rare skills are said in more voices, so that all are heard about equally well.
RENDITIONS = {"repeat": 2, "follow_up": 2, "plus": 7, "minus": 7, "count": 9, "unknown": 10}
OTHER_RENDITIONS = 16
BATCH = 48

DEV_DIALOGUES = 16  # held-out dialogues of each skill

Job = tuple[str, voices.Rendition]


@dataclass(frozen=True, slots=True)
class DevJob:
    """One turn of a held-out dialogue in one voice."""

    key: str
    turn: int
    job: Job


def _render(jobs: list[Job]) -> list[np.ndarray]:
    return [(np.clip(pcm, -1, 1) * 32767).astype(np.int16) for pcm in voices.render_many(jobs)]


def render_all(jobs: list[Job], pool: multiprocessing.pool.Pool) -> list[np.ndarray]:
    """Say all jobs, in order."""
    batches = [jobs[i : i + BATCH] for i in range(0, len(jobs), BATCH)]
    return [pcm for batch in pool.imap(_render, batches) for pcm in batch]


def flat(waves: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Flat samples and offsets [n + 1]."""
    offsets = np.concatenate([[0], np.cumsum([len(wave) for wave in waves])])
    return {"samples": np.concatenate(waves), "offsets": offsets.astype(np.int64)}


def user_jobs(dialogues: list[domain.Dialogue], scale: float, rng: random.Random) -> list[Job]:
    """The training questions in random voices, shuffled; `scale` is the share of dialogues that are taken."""
    wanted: dict[str, int] = {}
    for dialogue in dialogues:
        if dialogue.held_out or rng.random() > scale:
            continue
        count = RENDITIONS.get(dialogue.skill, OTHER_RENDITIONS)
        for turn in dialogue.turns:
            wanted[turn.question] = max(wanted.get(turn.question, 0), count)
    jobs = [(question, voices.random_user(rng)) for question, count in wanted.items() for _ in range(count)]
    rng.shuffle(jobs)
    return jobs


def dev_jobs(dialogues: list[domain.Dialogue], rng: random.Random) -> list[DevJob]:
    """Some held-out dialogues of each skill, each in one seen and in every held-out voice."""
    by_skill: dict[str, list[domain.Dialogue]] = {}
    for dialogue in dialogues:
        if dialogue.held_out:
            by_skill.setdefault(dialogue.skill, []).append(dialogue)
    chosen = [
        dialogue
        for skill in sorted(by_skill)
        for dialogue in rng.sample(by_skill[skill], min(DEV_DIALOGUES, len(by_skill[skill])))
    ]
    return [
        DevJob(dialogue.key, index, (turn.question, voice))
        for dialogue in chosen
        for index, turn in enumerate(dialogue.turns)
        for voice in (voices.seen_voice(rng), *map(voices.held_out_voice, voices.HELD_OUT_VOICES))
    ]


def save_questions(path: Path, waves: list[np.ndarray], jobs: list[Job], **more: np.ndarray) -> None:
    """Waveforms with the question and the voice of each, and `more` columns."""
    np.savez(
        path,
        **flat(waves),
        question=np.array([question for question, _ in jobs]),
        voice=np.array([rendition.label for _, rendition in jobs]),
        **more,
    )


def save_units(path: Path, names: list[str], waves: list[voices.Samples]) -> None:
    """The assistant's units, given at 24 kHz, at both rates of the codec."""
    data24 = flat([(wave * 32767).astype(np.int16) for wave in waves])
    resampled = [voices.resample(wave, voices.ASSISTANT_RATE, voices.RATE) for wave in waves]
    data16 = flat([(wave * 32767).astype(np.int16) for wave in resampled])
    if not np.array_equal(data24["offsets"] * 2, data16["offsets"] * 3):
        raise RuntimeError("units at 16 and 24 kHz differ in length")
    columns = {f"{name}24": value for name, value in data24.items()}
    columns |= {f"{name}16": value for name, value in data16.items()}
    np.savez(path, unit=np.array(names), **columns)


def main() -> None:
    """Make all files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the training dialogues")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    start = time.time()
    rng = random.Random(1)
    dialogues = domain.all_dialogues()
    units = domain.all_units(dialogues)
    users, dev = user_jobs(dialogues, args.scale, rng), dev_jobs(dialogues, rng)
    with multiprocessing.Pool(os.cpu_count()) as pool:
        # In one call, because the loudness is set over all units together.
        spoken_later = pool.apply_async(voices.render_units, (units,))
        questions = render_all(users, pool)
        dev_questions = render_all([item.job for item in dev], pool)
        spoken = spoken_later.get()
    save_questions(args.work / "users.npz", questions, users)
    key, turn = np.array([item.key for item in dev]), np.array([item.turn for item in dev])
    save_questions(args.work / "dev.npz", dev_questions, [item.job for item in dev], key=key, turn=turn)
    save_units(args.work / "units.npz", units, spoken)
    hours = sum(len(question) for question in questions) / voices.RATE / 3600
    seconds = time.time() - start
    print(f"{len(users)} questions, {hours:.1f} h; {len(dev)} dev; {len(units)} units; {seconds:.0f} s")


if __name__ == "__main__":
    main()
