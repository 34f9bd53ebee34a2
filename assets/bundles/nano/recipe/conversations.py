"""Conversations as the language model sees them: rows of a text id and an audio id, and both heads' labels.

Laid out as the runtime does it: a system turn that names the modality of the replies, then dialogues one
after the other, each user turn spoken (codes of an augmented rendition) or typed. `Factory` makes them in
worker processes.

What full duplex needs:
- An unfinished question or a backchannel is answered by an *empty reply*: as text `<|im_end|>` at once, as
  speech the end of speech as the first audio id, beside which the text head learns `<|empty|>` as at every
  end of speech, and then `<|im_end|>`. The runtime takes such a turn back, so it is always the last one, and
  always spoken: what is typed is complete.
- A reply that was interrupted stays in the history as far as it was heard (`ReplyTokens.as_turn`): its codes,
  the end of speech, the end of the turn; its text up to some token, the end of the turn. What was said is
  learnt, the end is not: nobody is taught to stop there.
"""

from __future__ import annotations

import multiprocessing
import random
from dataclasses import dataclass, field
from multiprocessing.pool import AsyncResult

import domain
import numpy as np
import text
from speech_codes import ENCODER
from tokenizers import Tokenizer

CODEBOOK = ENCODER.codebook_size
# Audio ids: the codes, the end of speech, and room to a round number. Rows of text have AUDIO_PAD, any code.
EOSP, AUDIO_PAD, AUDIO_VOCAB = CODEBOOK, 512, CODEBOOK + 8
LONG, SHORT = 448, 144  # rows of a training sequence: a conversation, one or two turns
LONG_DIALOGUES = 8  # dialogues of a long sequence, as far as they fit
TEXT, AUDIO, TEXT_LABEL, AUDIO_LABEL, WEIGHT = range(5)  # columns of a row
USER_WEIGHT, REPLY_WEIGHT = 4, 100  # of the labels, in percent

# How often each skill is asked: hard and large ones more.
SHARES = {
    "repeat": 20, "follow_up": 15, "unknown": 12, "plus": 9, "minus": 9, "times": 9, "count": 8, "spell": 6,
    "compare": 5, "opposite": 5, "number": 5, "confirm": 7, "capital": 4, "month": 4, "again": 6, "colour": 3,
    "day": 3, "greeting": 3, "cannot": 2, "remark": 9, "beyond": 5,
}  # fmt: skip
# How often each ends a conversation that ends with an empty reply. Its few labels ask for many of them.
EMPTY_SHARES = {"unfinished": 6, "cut_off": 6, "backchannel": 1}
EMPTY_ENDS = 0.45  # share of conversations
CUT_REPLIES = 0.08  # share of the replies that something follows
SPEECH_REPLIES = 0.62  # share of conversations


@dataclass(frozen=True, slots=True)
class Speech:
    """Codes of everything that is said."""

    renditions: dict[str, list[np.ndarray]]
    """User speech by question."""
    answers: dict[tuple[str, ...], np.ndarray]
    """The assistant's speech by unit string."""
    unit_codes: dict[str, int]
    """How many codes each unit has."""


@dataclass
class _Sheet:
    """Rows in the making. A row's labels are what comes after it: each token labels the row before."""

    pad: int
    empty: int
    rows: list[list[int]] = field(default_factory=list)

    def say(self, ids: list[int], weight: int = 0) -> None:
        """Text; with a weight the text head learns it."""
        for token in ids:
            if self.rows and weight:
                self.rows[-1][TEXT_LABEL:] = [token, -1, weight]
            self.rows.append([token, AUDIO_PAD, -1, -1, 0])

    def voice(
        self, codes: np.ndarray, subtitles: list[int] | None, weight: int, learns_end: bool = True
    ) -> None:
        """Speech and its end; the audio head learns the codes, the text head the subtitles (if any)."""
        for i, code in enumerate([*codes.tolist(), EOSP]):
            label = -1 if subtitles is None else subtitles[i] if i < len(subtitles) else self.empty
            if i < len(codes) or learns_end:
                self.rows[-1][TEXT_LABEL:] = [label, code, weight]
            self.rows.append([self.pad, code, -1, -1, 0])


def _num_heard(num: int, cut: float | None) -> int:
    """Of so many ids of a reply: at least one and not all of them, if it was cut."""
    return num if cut is None else max(1, int(cut * num))


class Rows:
    """Lays conversations out as rows with labels (-1 = none)."""

    def __init__(self, tokenizer: Tokenizer, speech: Speech) -> None:
        self.tokenizer, self.speech = tokenizer, speech
        self.special = {name.strip("<|>"): tokenizer.token_to_id(name) for name in text.SPECIAL}

    def ids(self, string: str) -> list[int]:
        """Text ids."""
        return self.tokenizer.encode(string, add_special_tokens=False).ids

    def conversation(
        self,
        dialogues: list[domain.Dialogue],
        speech_reply: bool,
        rng: random.Random,
        limit: int,
        spoken_share: float = 0.66,
        cut_share: float = 0.0,
    ) -> np.ndarray:
        """[rows, 5] int16: text id, audio id, text label, audio label, weight of the labels in percent.

        Dialogues are added while all of their rows fit into `limit`; `spoken_share` of the questions are
        spoken, those without a reply always; `cut_share` of the replies but the last were interrupted.
        """
        special = self.special
        sheet = _Sheet(special["modality_pad"], special["empty"])
        system = text.SYSTEM_SPEECH if speech_reply else text.SYSTEM_TEXT
        sheet.say([special["im_start"], *self.ids("system\n"), *self.ids(system), *self._end_of_turn()])
        for dialogue in dialogues:
            size = len(sheet.rows)
            for turn in dialogue.turns:
                self._ask(sheet, turn.question, rng, spoken_share if turn.units else 1.0)
                is_last = dialogue is dialogues[-1] and turn is dialogue.turns[-1]
                is_cut = not is_last and rng.random() < cut_share
                self._reply(sheet, turn.units, speech_reply, rng.random() if is_cut else None)
            if len(sheet.rows) > limit:
                del sheet.rows[size:]
                break
        return np.array(sheet.rows, np.int16)

    def _end_of_turn(self) -> list[int]:
        return [self.special["im_end"], *self.ids("\n")]

    def _ask(self, sheet: _Sheet, question: str, rng: random.Random, spoken_share: float) -> None:
        sheet.say([self.special["im_start"], *self.ids("user\n")])
        if rng.random() < spoken_share:
            codes = rng.choice(self.speech.renditions[question])
            sheet.say([self.special["object_ref_start"]])
            sheet.voice(codes, None, USER_WEIGHT)
        else:
            sheet.say(self.ids(text.typed(question, rng)), USER_WEIGHT)
        sheet.say(self._end_of_turn())

    def _reply(self, sheet: _Sheet, units: tuple[str, ...], speech_reply: bool, cut: float | None) -> None:
        """`cut` is the share of the reply that was heard, None if all of it."""
        sheet.say([self.special["im_start"], *self.ids("assistant\n")])
        end_weight = REPLY_WEIGHT if cut is None else 0
        if speech_reply:
            sheet.say([self.special["object_ref_start"]])
            counts = [self.speech.unit_codes[unit] for unit in units]
            subtitles = text.subtitles(self.tokenizer, units, counts, self.special["empty"])
            codes = self.speech.answers[units] if units else np.zeros(0, np.int64)
            codes = codes[: _num_heard(len(codes), cut)]
            sheet.voice(codes, subtitles, REPLY_WEIGHT, learns_end=cut is None)
        else:
            ids = self.ids(domain.sentence(units))
            sheet.say(ids[: _num_heard(len(ids), cut)], REPLY_WEIGHT)
        sheet.say([self.special["im_end"]], end_weight)
        sheet.say(self.ids("\n"))


class _Worker:
    """State of a worker process, set up once."""

    def __init__(self, tokenizer_path: str, speech: Speech) -> None:
        self.rows = Rows(Tokenizer.from_file(tokenizer_path), speech)
        self.by_skill: dict[str, list[domain.Dialogue]] = {}
        for dialogue in domain.training_dialogues():
            if not dialogue.held_out and all(turn.question in speech.renditions for turn in dialogue.turns):
                self.by_skill.setdefault(dialogue.skill, []).append(dialogue)

    def make(self, seed: int, count: int, limit: int) -> np.ndarray:
        """[count, limit, 5] int16 of random conversations, unused rows zeros without labels."""
        rng = random.Random(seed)
        out = np.zeros((count, limit, 5), np.int16)
        out[..., TEXT_LABEL : AUDIO_LABEL + 1] = -1
        for row in out:
            conversation = self._conversation(rng, limit)
            row[: len(conversation)] = conversation
        return out

    def _conversation(self, rng: random.Random, limit: int) -> np.ndarray:
        many = LONG_DIALOGUES if limit == LONG else rng.choice([1, 1, 1, 2])
        speech_reply = rng.random() < SPEECH_REPLIES
        picks = self._picks(SHARES, many, rng)
        if rng.random() < EMPTY_ENDS:
            # Fewer before it, so that most of the ends fit.
            few = rng.randint(0, many * 5 // 8)
            picks = [*picks[:few], *self._picks(EMPTY_SHARES, 1, rng)]
        return self.rows.conversation(picks, speech_reply, rng, limit, cut_share=CUT_REPLIES)

    def _picks(self, shares: dict[str, int], count: int, rng: random.Random) -> list[domain.Dialogue]:
        known = {skill: share for skill, share in shares.items() if skill in self.by_skill}
        skills = rng.choices(list(known), list(known.values()), k=count)
        return [rng.choice(self.by_skill[skill]) for skill in skills]


_worker: _Worker | None = None


def _start_worker(tokenizer_path: str, speech: Speech) -> None:
    global _worker
    _worker = _Worker(tokenizer_path, speech)


def _make(job: tuple[int, int, int]) -> np.ndarray:
    if _worker is None:
        raise RuntimeError("the worker process was not started")
    return _worker.make(*job)


class Factory:
    """Makes training sequences in worker processes while the last ones are trained."""

    JOB = 64  # sequences of one job

    def __init__(self, tokenizer_path: str, speech: Speech, workers: int, wanted: dict[int, int]) -> None:
        """`wanted`: how many sequences of each length one set has (in whole jobs, at least one)."""
        self.jobs = {limit: max(1, count // self.JOB) for limit, count in wanted.items()}
        self.seed = 0
        context = multiprocessing.get_context("fork")
        self.pool = context.Pool(workers, _start_worker, (tokenizer_path, speech))
        self.waiting = self._request()

    def _request(self) -> dict[int, AsyncResult]:
        return {limit: self.pool.map_async(_make, self._new_jobs(limit), 1) for limit in self.jobs}

    def _new_jobs(self, limit: int) -> list[tuple[int, int, int]]:
        first, self.seed = self.seed + 1, self.seed + self.jobs[limit]
        return [(seed, self.JOB, limit) for seed in range(first, self.seed + 1)]

    def ready(self) -> bool:
        """True when `take` need not wait."""
        return all(result.ready() for result in self.waiting.values())

    def take(self) -> dict[int, np.ndarray]:
        """One set, [sequences, length, 5] int16 by length; the next one is begun."""
        made = {limit: np.concatenate(result.get()) for limit, result in self.waiting.items()}
        self.waiting = self._request()
        return made

    def close(self) -> None:
        """End the workers."""
        self.pool.terminate()
