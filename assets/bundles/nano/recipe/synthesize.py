"""Stage 2 of the recipe: all speech that training needs, on all cores.

Out, in the work folder: `users.npz` (questions in seen voices), `dev.npz` (held-out questions, seen and
held-out voices), `units.npz` (the assistant's units at 16 and 24 kHz). Waveforms are flat int16 with offsets.
With `--neural MINUTES` instead: `neural.npz`, questions in Kokoro's voices, as many as that time allows; with
`--device cuda` in several processes on the GPU.

    python synthesize.py WORK [--questions 19400] [--renditions 3] [--tests FILE]
    python synthesize.py WORK --neural 4 [--device cuda]
    python synthesize.py WORK --make-tests FILE

The last makes questions of people and of voices whose files are too large for a training machine; the first
takes them over into `dev.npz`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path

import domain
import neural_voices
import numpy as np
import recordings
import torch
import voices

BATCH = 48
NEURAL_BATCH = 8
GPU_PROCESSES = 14

DEV_DIALOGUES = 8  # held-out dialogues of each skill
TEST_DIALOGUES = 10

Job = tuple[str, voices.Rendition]


@dataclass(frozen=True, slots=True)
class DevJob:
    """One turn of a held-out dialogue in one voice."""

    key: str
    turn: int
    job: Job


def pcm16(wave: voices.Samples) -> np.ndarray:
    """Float samples in -1..1 -> int16."""
    return (np.clip(wave, -1, 1) * 32767).astype(np.int16)


def _render(jobs: list[Job]) -> list[np.ndarray]:
    return [pcm16(pcm) for pcm in voices.render_many(jobs)]


def _render_with_jobs(jobs: list[Job]) -> tuple[list[Job], list[np.ndarray]]:
    return jobs, _render(jobs)


def render_all(jobs: list[Job], pool: multiprocessing.pool.Pool, batch: int = BATCH) -> list[np.ndarray]:
    """Say all jobs, in order."""
    batches = [jobs[i : i + batch] for i in range(0, len(jobs), batch)]
    return [pcm for part in pool.imap(_render, batches) for pcm in part]


def flat(waves: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Flat samples and offsets [n + 1]."""
    offsets = np.concatenate([[0], np.cumsum([len(wave) for wave in waves])])
    return {"samples": np.concatenate(waves), "offsets": offsets.astype(np.int64)}


def user_jobs(
    questions: list[str], renditions: int, rng: random.Random, unfinished: set[str] | None = None
) -> list[Job]:
    """The training questions in random voices of flite and espeak-ng, shuffled."""
    jobs = [(question, voices.random_user(rng)) for question in questions for _ in range(renditions)]
    rng.shuffle(jobs)
    return [_said(job, unfinished or set(), rng) for job in jobs]


def neural_jobs(questions: list[str], unfinished: set[str]) -> list[Job]:
    """More than there is time for, in Kokoro's voices."""
    rng = random.Random(2)
    jobs = [(rng.choice(questions), voices.neural_user(rng)) for _ in range(100_000)]
    return [_said(job, unfinished, rng) for job in jobs]


def _said(job: Job, unfinished: set[str], rng: random.Random) -> Job:
    """Half of what is unfinished sounds as if it went on, half as if the speaker had lost the thread."""
    question, rendition = job
    if question not in unfinished or rng.random() < 0.5:
        return job
    return question, replace(rendition, continues=True)


def dev_jobs(
    dialogues: list[domain.Dialogue], count: int, held_out_voices: list[str], rng: random.Random
) -> list[DevJob]:
    """Some held-out dialogues of each skill, each in one seen voice and in two of the held-out ones."""
    by_skill: dict[str, list[domain.Dialogue]] = {}
    for dialogue in dialogues:
        if dialogue.held_out:
            by_skill.setdefault(dialogue.skill, []).append(dialogue)
    found = []
    for skill in sorted(by_skill):
        for dialogue in rng.sample(by_skill[skill], min(count, len(by_skill[skill]))):
            names = rng.sample(held_out_voices, min(2, len(held_out_voices)))
            for voice in (voices.seen_voice(rng), *map(voices.held_out_voice, names)):
                turns = enumerate(dialogue.turns)
                found += [DevJob(dialogue.key, index, (turn.question, voice)) for index, turn in turns]
    return found


def person_jobs(dialogues: list[domain.Dialogue]) -> tuple[list[DevJob], list[np.ndarray]]:
    """The recordings of a person that ask what some dialogue asks, and their waveforms."""
    keys = {d.turns[0].question: d.key for d in dialogues if len(d.turns) == 1}
    spoken = {text: wave for text, wave in recordings.questions().items() if text in keys}
    person = voices.Rendition(voices.PERSON, "allison")
    jobs = [DevJob(keys[text], 0, (text, person)) for text in spoken]
    return jobs, [pcm16(wave) for wave in spoken.values()]


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
    data24 = flat([pcm16(wave) for wave in waves])
    resampled = [voices.resample(wave, voices.ASSISTANT_RATE, voices.RATE) for wave in waves]
    data16 = flat([pcm16(wave) for wave in resampled])
    if not np.array_equal(data24["offsets"] * 2, data16["offsets"] * 3):
        raise RuntimeError("units at 16 and 24 kHz differ in length")
    columns = {f"{name}24": value for name, value in data24.items()}
    columns |= {f"{name}16": value for name, value in data16.items()}
    np.savez(path, unit=np.array(names), **columns)


def save_dev(path: Path, waves: list[np.ndarray], jobs: list[DevJob], more: Path | None) -> None:
    """Held-out questions with key and turn of their dialogue, those of the file `more` behind them."""
    if more is not None:
        with np.load(more) as file:
            columns = [file[name].tolist() for name in ("key", "turn", "question", "voice")]
            labels = [voice.split("-", 1) for voice in columns[3]]
            jobs = jobs + [
                DevJob(key, turn, (question, voices.Rendition(engine, name)))
                for key, turn, question, (engine, name) in zip(*columns[:3], labels, strict=True)
            ]
            waves = waves + np.split(file["samples"], file["offsets"][1:-1])
    key, turn = np.array([item.key for item in jobs]), np.array([item.turn for item in jobs])
    save_questions(path, waves, [item.job for item in jobs], key=key, turn=turn)


def make_tests(path: Path, dialogues: list[domain.Dialogue]) -> None:
    """A person's recordings, and held-out questions in a voice of Piper."""
    rng = random.Random(3)
    drawn = dev_jobs(dialogues, TEST_DIALOGUES, ["piper-joe"], rng)
    jobs = [item for item in drawn if item.job[1].engine == "piper"]
    spoken, recorded = person_jobs(dialogues)
    save_dev(path, _render([item.job for item in jobs]) + recorded, jobs + spoken, None)


def _start_neural(device: str | None) -> None:
    """Prepare a process; training goes on beside it and comes first."""
    os.nice(10)
    if device is not None:
        torch.set_num_threads(1)
        neural_voices.use_device(device)


def make_neural(path: Path, jobs: list[Job], minutes: float, device: str | None) -> int:
    """Questions in Kokoro's voices until the time is over; how many there are."""
    end = time.monotonic() + 60 * minutes
    batches = [jobs[i : i + NEURAL_BATCH] for i in range(0, len(jobs), NEURAL_BATCH)]
    said: list[Job] = []
    waves: list[np.ndarray] = []
    processes = min(os.cpu_count() or 1, GPU_PROCESSES) if device else os.cpu_count()
    with multiprocessing.Pool(processes, _start_neural, (device,)) as pool:
        for done, spoken in pool.imap_unordered(_render_with_jobs, batches):
            said += done
            waves += spoken
            if time.monotonic() > end:
                break
        pool.terminate()
    unfinished = path.with_name("unfinished.npz")
    save_questions(unfinished, waves, said)
    unfinished.rename(path)  # a training that waits for it finds it complete
    return len(said)


def main() -> None:
    """Make all files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("--questions", type=int, default=19_400, help="distinct training questions")
    parser.add_argument("--renditions", type=int, default=3, help="of each question, by flite and espeak-ng")
    parser.add_argument("--neural", type=float, metavar="MINUTES", help="make neural.npz alone")
    parser.add_argument("--device", help="torch device of Kokoro instead of the CPU's onnxruntime")
    parser.add_argument("--tests", type=Path, help="questions to be taken over into dev.npz")
    parser.add_argument("--make-tests", type=Path, metavar="FILE")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    start = time.time()
    rng = random.Random(1)
    dialogues = domain.training_dialogues()
    if args.make_tests:
        make_tests(args.make_tests, dialogues)
        return
    questions = domain.training_questions(args.questions, rng, dialogues)
    unfinished = {d.turns[0].question for d in dialogues if d.skill in ("unfinished", "cut_off")}
    if args.neural:
        jobs = neural_jobs(questions, unfinished)
        count = make_neural(args.work / "neural.npz", jobs, args.neural, args.device)
        print(f"{count} questions in Kokoro's voices; {time.time() - start:.0f} s")
        return
    units = domain.all_units(dialogues)
    users = user_jobs(questions, args.renditions, rng, unfinished)
    dev = dev_jobs(dialogues, DEV_DIALOGUES, voices.usable_held_out_voices(), rng)
    with multiprocessing.Pool(os.cpu_count()) as pool:
        # In one call, because the loudness is set over all units together.
        spoken_later = pool.apply_async(voices.render_units, (units,))
        rendered = render_all(users, pool)
        # Small batches: a neural voice takes seconds of a core for a question.
        dev_waves = render_all([item.job for item in dev], pool, NEURAL_BATCH)
        spoken = spoken_later.get()
    save_questions(args.work / "users.npz", rendered, users)
    save_dev(args.work / "dev.npz", dev_waves, dev, args.tests)
    save_units(args.work / "units.npz", units, spoken)
    hours = sum(len(question) for question in rendered) / voices.RATE / 3600
    seconds = time.time() - start
    print(f"{len(users)} questions, {hours:.1f} h; {len(dev)} dev; {len(units)} units; {seconds:.0f} s")


if __name__ == "__main__":
    main()
