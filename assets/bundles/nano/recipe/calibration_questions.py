"""Questions to calibrate a quantization with: training questions in seen voices, as WAV files and as text.

In: flite, espeak-ng and festival, nothing of the training. Out, in a folder: `0000.wav` ... at 16 kHz and
`texts.txt` with other questions, one a line, for `moss-voice trt quantize --wavs FOLDER --texts
FOLDER/texts.txt`. No question is a held-out one, so that what is measured on those was not seen.

    python calibration_questions.py FOLDER [--count 500] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
from itertools import islice, zip_longest
from pathlib import Path

import domain
import voices

from app.audio.wav import write_wav

BATCH = 48


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=500, help="recordings, and as many texts")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    chosen = choose(2 * args.count, rng)
    spoken, typed = chosen[0::2], chosen[1::2]
    args.folder.mkdir(parents=True, exist_ok=True)
    (args.folder / "texts.txt").write_text("\n".join(typed) + "\n", encoding="utf-8")
    jobs = [(text, voices.random_user(rng)) for text in spoken]
    for start in range(0, len(jobs), BATCH):
        for number, samples in enumerate(voices.render_many(jobs[start : start + BATCH]), start=start):
            write_wav(args.folder / f"{number:04}.wav", samples, voices.RATE)
        print(f"{min(start + BATCH, len(jobs))} of {len(jobs)}")


def choose(count: int, rng: random.Random) -> list[str]:
    """Questions that are not held out, as many of each skill as there are, in turns."""
    of_skill: dict[str, set[str]] = {}
    for item in domain.all_dialogues():
        if not item.held_out and item.turns[0].units:  # what is typed is complete
            of_skill.setdefault(item.skill, set()).add(item.turns[0].question)
    shuffled = [rng.sample(sorted(questions), len(questions)) for _, questions in sorted(of_skill.items())]
    in_turns = (question for turn in zip_longest(*shuffled) for question in turn if question is not None)
    return list(islice(dict.fromkeys(in_turns), count))


if __name__ == "__main__":
    main()
