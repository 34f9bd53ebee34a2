"""Speech for the ears: training sentences in seen voices, held-out ones for tests.

In: what sentences.py wrote. Out, in the work folder, flat int16 at 16 kHz with texts and voices:
`classic.npz` (flite and espeak-ng, each sentence once), `neural.npz` (Kokoro, as many as its time allows),
`dev.npz` (held-out sentences in seen and held-out voices). The voices and their limits are those of the
nano recipe.

    python spoken.py WORK SENTENCES.json [--neural 4] [--device cuda]
    python spoken.py WORK SENTENCES.json --neural 4 --neural-only
    python spoken.py WORK SENTENCES.json --make-tests TESTS.npz

The last makes what a training machine lacks: festival, Piper, and the prompts of a person (prompts.py).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from pathlib import Path

import neural_voices
import prompts
import synthesize
import voices
from synthesize import Job

DEV = 80  # held-out sentences of each group
DEV_BATCH = 2  # a neural voice takes 7 s of a core for a sentence
FESTIVAL, PIPER = 150, 100


def training_jobs(sentences: list[str], rng: random.Random) -> list[Job]:
    """Each sentence once, in a seen voice of flite or espeak-ng."""
    return [(sentence, voices.random_user(rng)) for sentence in sentences]


def neural_jobs(sentences: list[str], count: int = 60_000) -> list[Job]:
    """More than there is time for, in Kokoro's voices."""
    rng = random.Random(2)
    return [(rng.choice(sentences), voices.neural_user(rng)) for _ in range(count)]


def dev_jobs(sentences: list[str], rng: random.Random, each: int = DEV) -> list[Job]:
    """Held-out sentences in seen voices, and in each held-out voice whose synthesizer trains others."""
    names = [
        name
        for name in voices.usable_held_out_voices()
        if voices.HELD_OUT_VOICES[name][0] not in voices.HELD_OUT_ENGINES
    ]
    drawn = [(sentence, voices.seen_voice(rng)) for sentence in rng.sample(sentences, each)]
    for name in names:
        drawn += [
            (sentence, voices.held_out_voice(name)) for sentence in rng.sample(sentences, each // len(names))
        ]
    return drawn


def make_tests(path: Path, sentences: list[str]) -> None:
    """Held-out sentences by festival's voices and Piper's, and a person's own."""
    rng = random.Random(3)
    jobs: list[Job] = []
    for name in voices.usable_held_out_voices():
        engine = voices.HELD_OUT_VOICES[name][0]
        if engine in voices.HELD_OUT_ENGINES:
            count = FESTIVAL // 2 if engine == "festival" else PIPER
            jobs += [(text, voices.held_out_voice(name)) for text in rng.sample(sentences, count)]
    waves = [wave for batch in _batches(jobs) for wave in voices.render_many(batch)]
    person = voices.Rendition(voices.PERSON, "allison")
    for text, wave in prompts.sentences().items():
        jobs.append((text, person))
        waves.append(wave)
    write(path, waves, jobs)
    groups = [voices.voice_group(rendition.label) for _, rendition in jobs]
    print(
        {group: groups.count(group) for group in dict.fromkeys(groups)}, f"{path.stat().st_size / 1e6:.1f} MB"
    )


def _batches(jobs: list[Job], size: int = 50) -> list[list[Job]]:
    return [jobs[first : first + size] for first in range(0, len(jobs), size)]


def write(path: Path, waves: list[voices.Samples], jobs: list[Job]) -> None:
    """Speech as training reads it."""
    synthesize.save_questions(path, [synthesize.pcm16(wave) for wave in waves], jobs)


def main() -> None:
    """Make the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("sentences", type=Path)
    parser.add_argument("--count", type=int, help="only so many training sentences")
    parser.add_argument("--dev", type=int, default=DEV, help="held-out sentences of each group")
    parser.add_argument("--neural", type=float, metavar="MINUTES", help="Kokoro, for so long")
    parser.add_argument("--neural-only", action="store_true", help="without classic.npz, which is there")
    parser.add_argument("--device", help="torch device of Kokoro instead of the CPU's onnxruntime")
    parser.add_argument("--make-tests", type=Path, metavar="FILE")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    start = time.time()
    texts = json.loads(args.sentences.read_text())
    train = texts["train"][: args.count]
    if args.make_tests:
        make_tests(args.make_tests, texts["test"])
        return
    rng = random.Random(1)
    classic, dev = training_jobs(train, rng), dev_jobs(texts["test"], rng, args.dev)
    with multiprocessing.Pool(os.cpu_count()) as pool:
        # Again with --neural-only: Kokoro's files may have come since.
        dev_waves = synthesize.render_all(dev, pool, DEV_BATCH)
        synthesize.save_questions(args.work / "dev.npz", dev_waves, dev)
        if not args.neural_only:
            waves = synthesize.render_all(classic, pool)
            synthesize.save_questions(args.work / "classic.npz", waves, classic)
            hours = sum(map(len, waves)) / voices.RATE / 3600
            print(f"{len(waves)} sentences, {hours:.1f} h; {time.time() - start:.0f} s", flush=True)
    if args.neural and "kokoro" in neural_voices.engines():
        count = synthesize.make_neural(args.work / "neural.npz", neural_jobs(train), args.neural, args.device)
        print(f"{count} sentences by Kokoro; {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
