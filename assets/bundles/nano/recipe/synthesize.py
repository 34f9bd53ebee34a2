"""Stage 2 of the recipe: all speech that training needs, on all cores.

Out, in the work folder: `users.npz` (questions in seen voices), `dev.npz` (held-out questions, seen and held-out voices),
`units.npz` (the assistant's units at 16 and 24 kHz). Waveforms are flat int16 with offsets.

    python synthesize.py WORK [--scale 1.0]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import time
from pathlib import Path

import domain
import numpy as np
import voices

# Renditions of each question. Rare skills are said in more voices, so that every skill is heard about equally well.
RENDITIONS = {"repeat": 2, "follow_up": 2, "plus": 7, "minus": 7, "count": 9, "unknown": 10}
OTHER_RENDITIONS = 16
BATCH = 48

Job = tuple[str, voices.Rendition]


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


def main() -> None:
    """Make all files."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    start = time.time()
    rng = random.Random(1)
    dialogues = domain.all_dialogues()
    wanted: dict[str, int] = {}
    for dialogue in dialogues:
        if dialogue.held_out or rng.random() > args.scale:
            continue
        for turn in dialogue.turns:
            count = RENDITIONS.get(dialogue.skill, OTHER_RENDITIONS)
            wanted[turn.question] = max(wanted.get(turn.question, 0), count)
    jobs = [(question, voices.random_user(rng)) for question, count in wanted.items() for _ in range(count)]
    rng.shuffle(jobs)

    dev_jobs: list[tuple[int, int, Job]] = []  # dialogue, turn, job
    held_out = [d for d in dialogues if d.held_out]
    by_skill: dict[str, list[domain.Dialogue]] = {}
    for dialogue in held_out:
        by_skill.setdefault(dialogue.skill, []).append(dialogue)
    chosen = [d for skill in sorted(by_skill) for d in rng.sample(by_skill[skill], min(16, len(by_skill[skill])))]
    for index, dialogue in enumerate(chosen):
        for t, turn in enumerate(dialogue.turns):
            dev_jobs.append((index, t, (turn.question, voices.seen_voice(rng))))
            for name in voices.HELD_OUT_VOICES:
                dev_jobs.append((index, t, (turn.question, voices.held_out_voice(name))))

    with multiprocessing.Pool(os.cpu_count()) as pool:
        units = domain.all_units(dialogues)
        # In one call, because the loudness is set over all units together.
        spoken_later = pool.apply_async(voices.render_units, (units,))
        questions = render_all(jobs, pool)
        dev = render_all([job for _, _, job in dev_jobs], pool)
        spoken = spoken_later.get()
    np.savez(
        args.work / "users.npz",
        **flat(questions),
        question=np.array([question for question, _ in jobs]),
        voice=np.array([rendition.label for _, rendition in jobs]),
    )
    np.savez(
        args.work / "dev.npz",
        **flat(dev),
        key=np.array([chosen[i].key for i, _, _ in dev_jobs]),
        turn=np.array([t for _, t, _ in dev_jobs]),
        question=np.array([job[0] for _, _, job in dev_jobs]),
        voice=np.array([job[1].label for _, _, job in dev_jobs]),
    )
    waves24 = [(unit * 32767).astype(np.int16) for unit in spoken]
    waves16 = [(voices.resample(unit, voices.ASSISTANT_RATE, voices.RATE) * 32767).astype(np.int16) for unit in spoken]
    data24, data16 = flat(waves24), flat(waves16)
    if not np.array_equal(data24["offsets"] * 2, data16["offsets"] * 3):
        raise RuntimeError("units at 16 and 24 kHz differ in length")
    np.savez(args.work / "units.npz", unit=np.array(units), samples24=data24["samples"], offsets24=data24["offsets"],
             samples16=data16["samples"], offsets16=data16["offsets"])  # fmt: skip
    hours = sum(len(q) for q in questions) / voices.RATE / 3600
    print(f"{len(jobs)} questions, {hours:.1f} h; {len(dev)} dev; {len(units)} units; {time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
