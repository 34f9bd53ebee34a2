"""When the nano model declines: wrong answers against right ones lost, by how sure it is of its first words.

    python certainty.py BUNDLE REPORT.json [--inside 200] [--follow-ups 40] [--outside 200]
        [--trivia QUESTIONS.jsonl.gz ...] [--modes s2s t2t] [--write]

Asks held-out questions of the domain and questions near to it or far from it, spoken and typed, for speech
and for text, each once: what is declined at a threshold follows from the certainty of the undisturbed reply.
A threshold is chosen on one half (at most 1 % of the right answers lost) and reported on the other. `--write`
puts it into the bundle's manifest, with the codes and subtitles of the model's own refusal.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import domain
import numpy as np
import topics
import voices

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.manifest import read_toml, to_toml
from engine_runtime.bundle.sections import DecliningSection
from engine_runtime.codec.speech_decoder import ReplyVoice
from engine_runtime.conversation import reply
from engine_runtime.engine import Engine
from engine_runtime.lm.chat_template import TextTokenizer
from engine_runtime.timing import TimingEvent
from engine_runtime.types import Modality, Pcm, ReplyDone, ReplyText, SamplingParams
from engine_runtime.work import Task, run_alone

MODES = {"s2s": Modality.SPEECH, "s2t": Modality.TEXT, "t2s": Modality.SPEECH, "t2t": Modality.TEXT}
REFUSALS = {
    domain.normalize(domain.sentence(units)) for units in (topics.UNKNOWN_ANSWER, topics.CANNOT_ANSWER)
}
LEAD_S, TAIL_S = 0.2, 0.3
THRESHOLDS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995)
MOST_LOST = 0.01
OPERATION = ["what is {a} {s} {b}", "{a} {s} {b}", "how much is {a} {s} {b}", "what's {a} {s} {b}"]
NEAR: dict[str, tuple[list[str], str]] = {
    "spell": (
        ["how do you spell {}", "spell {}", "how is {} spelled", "spell the word {}"],
        "elephant banana computer river guitar yellow orange window pencil zero mother flower sugar paper "
        "bottle summer winter friend garden school table chocolate tiger rabbit monkey planet music doctor "
        "bridge castle island silver",
    ),
    "capital": (
        ["what is the capital of {}", "capital of {}", "what's the capital of {}"],
        "morocco australia brazil austin iran iceland romania switzerland argentina india ukraine scotland "
        "peru chile mexico thailand nigeria algeria croatia serbia korea colombia jamaica wales slovenia "
        "estonia",
    ),
    "opposite": (
        ["what is the opposite of {}", "opposite of {}", "what's the opposite of {}"],
        "black dry right wet good long love buy near deep wide smart up left day male front hard",
    ),
    "colour": (
        ["what colour is {}", "which colour is {}", "what color is {}"],
        "gold silver iron sand paper cheese butter honey copper rice",
    ),
}


@dataclass(frozen=True, slots=True)
class Question:
    """One or two questions in a row, in one voice. `wanted` is the normalized answer to the last one, "" out
    of the domain."""

    skill: str
    asked: tuple[str, ...]
    voice: voices.Rendition
    wanted: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said, with the least certainty of its first rows."""

    mode: str
    question: Question
    said: str
    certainty: float

    @property
    def is_right(self) -> bool:
        """Of a question of the domain."""
        return bool(self.question.wanted) and self.said == self.question.wanted

    @property
    def is_wrong(self) -> bool:
        """An answer out of the domain that is no refusal, or another one than wanted."""
        return self.said not in REFUSALS and self.said != self.question.wanted


def _arithmetic(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Endless sums over twenty and products over ten."""
    while True:
        sign = rng.choice(["plus", "times"])
        a, b = rng.randint(1, 30), rng.randint(1, 30)
        if a + b > 20 if sign == "plus" else 10 < max(a, b) <= 15:
            names = {"a": topics.number_name(a), "b": topics.number_name(b), "s": sign}
            yield sign, rng.choice(OPERATION).format(**names)


def outside(count: int, trivia: list[Path], known: set[str], rng: random.Random) -> list[tuple[str, str]]:
    """About `count` (kind, question) without an answer: a third each of arithmetic, near names and trivia."""
    found: dict[str, str] = {}
    arithmetic = _arithmetic(rng)
    while len(found) < count // 3:
        sign, question = next(arithmetic)
        found.setdefault(question, sign)
    near = [(kind, form.format(word)) for kind, (forms, words) in NEAR.items() for word in words.split()
            for form in forms]  # fmt: skip
    rng.shuffle(near)
    for kind, question in near[: count // 3]:
        found.setdefault(question, kind)
    far = [question for file in trivia for question in _trivia(file)]
    rng.shuffle(far)
    found |= dict.fromkeys(far[: count // 3], "trivia")
    return [(kind, question) for question, kind in found.items() if question not in known]


def _trivia(file: Path) -> Iterator[str]:
    """Questions of four to ten words that are complete without choices or digits."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            question = json.loads(line)["question"].lower()
            words = re.sub(r"[^a-z' ]+", " ", question).split()
            is_open = words[:1] and words[0] in ("what", "who", "which", "where", "when", "how")
            if (
                is_open
                and 4 <= len(words) <= 10
                and question.isascii()
                and not re.search(r"\d|these", question)
            ):
                yield " ".join(words)


def questions(args: argparse.Namespace) -> list[Question]:
    """Held-out questions of the domain and questions outside, shuffled."""
    rng, dialogues = random.Random(77), domain.all_dialogues()
    known = {turn.question for dialogue in dialogues for turn in dialogue.turns}
    held_out = [d for d in dialogues if d.held_out and d.turns[-1].units != topics.UNKNOWN_ANSWER]
    answered = [d for d in held_out if d.turns[-1].units]
    single = domain.balanced([d for d in answered if len(d.turns) == 1], args.inside, rng)
    double = domain.balanced([d for d in answered if len(d.turns) == 2], args.follow_ups, rng)
    found = [
        Question(d.skill, tuple(turn.question for turn in d.turns), voices.seen_voice(rng),
                 domain.normalize(domain.sentence(d.turns[-1].units)))
        for d in (*single, *double)
    ]  # fmt: skip
    for kind, question in outside(args.outside, args.trivia, known, rng):
        found.append(Question(kind, (question,), voices.seen_voice(rng)))
    rng.shuffle(found)
    return found


class MuteVoice(ReplyVoice):
    """Codes that are not made into sound: what is said is read from the text head."""

    def push(self, code: int) -> Task[list[Pcm]]:
        """Nothing is heard."""
        return []
        yield

    def finish(self) -> Task[list[Pcm]]:
        """Nothing was heard."""
        return []
        yield


class Asker:
    """Asks an engine whose model never declines."""

    def __init__(self, bundle: Bundle) -> None:
        reply.ReplyVoice = MuteVoice  # type: ignore[misc]
        never = DecliningSection(0.0, (1,), (1,))
        self._engine = Engine.load(replace(bundle, lm=replace(bundle.lm, declining=never)))
        self._engine.timing.subscribe(self._note)
        self._certainty = 1.0

    def _note(self, event: TimingEvent) -> None:
        if event.name == "reply":
            self._certainty = float(event.attributes.get("certainty", 1.0))

    def ask(self, mode: str, question: Question) -> tuple[Answer, ReplyDone, list[ReplyText]]:
        """The answer to the last question, its last event and its text."""
        engine, modality = self._engine, MODES[mode]
        lm, conversation = engine.bundle.lm, engine.new_conversation()
        params = lm.sampling_speech if modality is Modality.SPEECH else lm.sampling_text
        for turn_id, asked in enumerate(question.asked, start=1):
            turn = run_alone(engine.open_turn(conversation, turn_id, modality))
            if mode.startswith("t"):
                run_alone(turn.push_text(asked.capitalize() + "?"))
            else:
                (wave,) = voices.render_many([(asked, question.voice)])
                lead, tail = (np.zeros(int(s * voices.RATE), np.float32) for s in (LEAD_S, TAIL_S))
                run_alone(turn.push(np.concatenate([lead, wave, tail])))
            events = list(run_alone(turn.commit(modality, _answering(params))))
        engine.end_conversation(conversation)
        done, texts = events[-1], [event for event in events if isinstance(event, ReplyText)]
        if not isinstance(done, ReplyDone):
            raise RuntimeError("a reply has no end")
        return Answer(mode, question, domain.normalize(done.text), self._certainty), done, texts


def _answering(params: SamplingParams) -> SamplingParams:
    """As the program asks for an answer to a turn that is over."""
    return replace(params, min_new=2)


def curve(answers: list[Answer]) -> list[dict[str, float]]:
    """For each threshold: how many right answers are lost, and how many wrong ones are left."""
    right = [answer.certainty for answer in answers if answer.is_right]
    wrong = [answer.certainty for answer in answers if answer.is_wrong]
    return [
        {
            "threshold": threshold,
            "right": len(right),
            "right_lost": sum(value < threshold for value in right),
            "wrong": len(wrong),
            "wrong_left": sum(value >= threshold for value in wrong),
        }
        for threshold in THRESHOLDS
    ]


def chosen(points: list[dict[str, float]]) -> float:
    """The largest threshold that loses at most `MOST_LOST` of the right answers."""
    return max(p["threshold"] for p in points if p["right_lost"] <= MOST_LOST * p["right"])


def refusal(bundle: Bundle, done: ReplyDone, texts: list[ReplyText]) -> dict[str, list[int]]:
    """Codes of a spoken refusal and the text id at each of them."""
    lm, empty = bundle.lm, bundle.lm.special_ids.empty
    tokenizer = TextTokenizer(bundle.text_tokenizer, lm.special_ids, lm.config["text_vocab"])
    subtitles = [0 if empty is None else empty] * len(done.codes)
    for text in texts:
        (subtitles[text.start_sample // bundle.samples_per_code],) = tokenizer.encode(text.text)
    return {"codes": list(done.codes), "subtitles": subtitles}


def main() -> None:
    """Ask, and print the curves of both halves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--inside", type=int, default=200)
    parser.add_argument("--follow-ups", type=int, default=40)
    parser.add_argument("--outside", type=int, default=200)
    parser.add_argument("--trivia", type=Path, nargs="*", default=[])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--write", action="store_true", help="into the manifest of the bundle")
    args = parser.parse_args()
    bundle = Bundle.open(args.bundle)
    asker = Asker(bundle)
    halves: tuple[list[Answer], list[Answer]] = ([], [])
    section: dict[str, list[int]] = {}
    wanted = domain.normalize(domain.sentence(topics.UNKNOWN_ANSWER))
    for index, question in enumerate(questions(args)):
        for mode in args.modes:
            answer, done, texts = asker.ask(mode, question)
            halves[index % 2].append(answer)
            if not section and done.codes and answer.said == wanted and answer.certainty > 0.99:
                section = refusal(bundle, done, texts)
        if index % 50 == 49:
            print(index + 1, flush=True)
    curves = [curve(half) for half in halves]
    threshold = chosen(curves[0])
    report = {
        "chosen": threshold,
        "chosen_on": curves[0],
        "reported_on": curves[1],
        "by_kind": _by_kind(halves[1]),
    }
    args.report.write_text(
        json.dumps(report | {"answers": [_row(a) for half in halves for a in half]}, indent=1)
    )
    print(json.dumps(report, indent=1))
    if args.write:
        file = args.bundle / "bundle.toml"
        content = read_toml(file)
        content["lm"]["declining"] = {"least_probability": threshold, **section}
        file.write_text(to_toml(content), encoding="utf-8")


def _by_kind(answers: list[Answer]) -> dict[str, list[dict[str, float]]]:
    """The curve of each kind of question outside the domain."""
    kinds = sorted({answer.question.skill for answer in answers if not answer.question.wanted})
    return {kind: curve([answer for answer in answers if answer.question.skill == kind]) for kind in kinds}


def _row(answer: Answer) -> list[object]:
    return [
        answer.mode,
        answer.question.skill,
        answer.question.asked,
        answer.said,
        round(answer.certainty, 4),
    ]


if __name__ == "__main__":
    main()
