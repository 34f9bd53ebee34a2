"""Training rows of the language model: inputs and targets."""

from __future__ import annotations

import random
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.assets.conftest import Recipe


@pytest.fixture(scope="module")
def worker(
    recipe: Recipe, tokenizer: Tokenizer, speech: Any, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    path = tmp_path_factory.mktemp("worker") / "tokenizer.json"
    tokenizer.save(str(path))
    return recipe("conversations")._Worker(str(path), speech)


@pytest.fixture(scope="module")
def speech(recipe: Recipe, domain: ModuleType, dialogues: list[Any]) -> Any:
    """Codes that say where they come from: 3 for a question, 6 for each word of a unit."""
    added = domain.outside_dialogues(dialogues)
    questions = {turn.question for dialogue in [*dialogues, *added] for turn in dialogue.turns}
    unit_codes = {unit: 6 * len(unit.split()) for d in dialogues for t in d.turns for unit in t.units}
    answers = {
        turn.units: np.arange(sum(unit_codes[unit] for unit in turn.units)) % 2048
        for dialogue in dialogues
        for turn in dialogue.turns
    }
    renditions = {question: [np.array([7, 8, 9])] for question in questions}
    return recipe("conversations").Speech(renditions, answers, unit_codes)


def _dialogue(dialogues: list[Any], skill: str, turns: int = 1) -> Any:
    return next(d for d in dialogues if d.skill == skill and len(d.turns) == turns)


@pytest.mark.slow
def test_a_spoken_reply_is_learnt_with_its_subtitles(
    recipe: Recipe, dialogues: list[Any], domain: ModuleType, tokenizer: Tokenizer, speech: Any
) -> None:
    conversations = recipe("conversations")
    rows = conversations.Rows(tokenizer, speech)
    dialogue = _dialogue(dialogues, "capital")
    made = rows.conversation([dialogue], True, random.Random(0), 1000, spoken_share=1.0)
    reply = made[made[:, conversations.WEIGHT] == conversations.REPLY_WEIGHT]
    units = dialogue.turns[0].units
    codes = reply[:, conversations.AUDIO_LABEL]
    assert codes.tolist() == [*speech.answers[units].tolist(), conversations.EOSP, -1]
    text = [int(i) for i in reply[:-1, conversations.TEXT_LABEL] if i != rows.special["empty"]]
    assert tokenizer.decode(text) == domain.sentence(units)
    assert reply[-1, conversations.TEXT_LABEL] == rows.special["im_end"]
    spoken = made[made[:, conversations.WEIGHT] == conversations.USER_WEIGHT]
    assert spoken[:, conversations.AUDIO_LABEL].tolist() == [7, 8, 9, conversations.EOSP]


@pytest.mark.slow
def test_each_label_is_what_comes_next(
    recipe: Recipe, dialogues: list[Any], tokenizer: Tokenizer, speech: Any
) -> None:
    conversations = recipe("conversations")
    rows = conversations.Rows(tokenizer, speech)
    for reply in (True, False):
        made = rows.conversation([_dialogue(dialogues, "follow_up", 2)], reply, random.Random(1), 1000)
        here, after = made[:-1], made[1:]
        audio = here[:, conversations.AUDIO_LABEL]
        assert np.array_equal(audio[audio >= 0], after[audio >= 0, conversations.AUDIO])
        text_only = (here[:, conversations.TEXT_LABEL] >= 0) & (audio < 0)
        assert text_only.any()
        label = here[text_only, conversations.TEXT_LABEL]
        assert np.array_equal(label, after[text_only, conversations.TEXT])


@pytest.mark.slow
def test_a_written_reply_to_a_typed_question_has_no_codes(
    recipe: Recipe, dialogues: list[Any], domain: ModuleType, tokenizer: Tokenizer, speech: Any
) -> None:
    conversations = recipe("conversations")
    rows = conversations.Rows(tokenizer, speech)
    dialogue = _dialogue(dialogues, "plus")
    made = rows.conversation([dialogue], False, random.Random(0), 1000, spoken_share=0.0)
    assert set(made[:, conversations.AUDIO].tolist()) == {conversations.AUDIO_PAD}
    assert set(made[:, conversations.AUDIO_LABEL].tolist()) == {-1}
    text = tokenizer.decode(made[:, conversations.TEXT].tolist(), skip_special_tokens=False)
    assert text.startswith("<|im_start|>system\nAnswer with text.<|im_end|>\n<|im_start|>user\n")
    answer = domain.sentence(dialogue.turns[0].units)
    assert text.endswith(f"<|im_start|>assistant\n{answer}<|im_end|>\n")


@pytest.mark.slow
def test_only_complete_dialogues_fit(
    recipe: Recipe, dialogues: list[Any], tokenizer: Tokenizer, speech: Any
) -> None:
    rows = recipe("conversations").Rows(tokenizer, speech)
    dialogue = _dialogue(dialogues, "count")
    one = rows.conversation([dialogue], True, random.Random(0), 1000, 1.0)
    two = rows.conversation([dialogue] * 2, True, random.Random(0), 2 * len(one), 1.0)
    cut = rows.conversation([dialogue] * 2, True, random.Random(0), len(two) - 1, 1.0)
    assert len(two) > len(one)
    assert np.array_equal(cut, one)


@pytest.mark.slow
@pytest.mark.parametrize("skill", ["unfinished", "backchannel"])
def test_an_empty_reply_ends_at_once(
    recipe: Recipe, dialogues: list[Any], tokenizer: Tokenizer, speech: Any, skill: str
) -> None:
    conversations = recipe("conversations")
    rows = conversations.Rows(tokenizer, speech)
    dialogue = _dialogue(dialogues, skill)
    for speech_reply, wanted in (
        (True, [[rows.special["empty"], conversations.EOSP], [rows.special["im_end"], -1]]),
        (False, [[rows.special["im_end"], -1]]),
    ):
        made = rows.conversation([dialogue], speech_reply, random.Random(0), 1000, spoken_share=0.0)
        labels = made[made[:, conversations.WEIGHT] == conversations.REPLY_WEIGHT, conversations.TEXT_LABEL :]
        assert labels[:, :2].tolist() == wanted
        spoken = made[:, conversations.WEIGHT] == conversations.USER_WEIGHT
        assert made[spoken, conversations.AUDIO_LABEL].tolist() == [7, 8, 9, conversations.EOSP]


@pytest.mark.slow
def test_a_reply_that_was_cut_is_laid_out_as_by_the_runtime_and_its_end_is_not_learnt(
    recipe: Recipe, dialogues: list[Any], tokenizer: Tokenizer, speech: Any
) -> None:
    conversations = recipe("conversations")
    rows = conversations.Rows(tokenizer, speech)
    first, second = _dialogue(dialogues, "capital"), _dialogue(dialogues, "plus")
    for speech_reply in (True, False):
        for seed in range(8):
            rng = random.Random(seed)
            made = rows.conversation([first, second], speech_reply, rng, 1000, 1.0, cut_share=1.0)
            cut, whole = _replies(rows, made)
            answer, all_of = speech.answers[first.turns[0].units], speech.answers[second.turns[0].units]
            audio, im_end = conversations.AUDIO, rows.special["im_end"]
            if speech_reply:
                heard = cut[: cut[:, audio].tolist().index(conversations.EOSP)]
                assert 1 <= len(heard) < len(answer)
                assert heard[:, audio].tolist() == answer[: len(heard)].tolist()
                assert whole[: len(all_of), audio].tolist() == all_of.tolist()
                assert cut[len(heard) :, :2].tolist()[0] == [rows.special["modality_pad"], conversations.EOSP]
                assert cut[len(heard) + 1, conversations.TEXT] == im_end
                assert heard[-1, conversations.TEXT_LABEL :].tolist() == [-1, -1, 0]
                assert (heard[:-1, conversations.WEIGHT] == conversations.REPLY_WEIGHT).all()
            else:
                heard = cut[: cut[:, conversations.TEXT].tolist().index(im_end)]
                assert heard[-1, conversations.TEXT_LABEL :].tolist() == [-1, -1, 0]
            assert im_end not in cut[:, conversations.TEXT_LABEL]
            assert im_end in whole[:, conversations.TEXT_LABEL]


def _replies(rows: Any, made: np.ndarray) -> list[np.ndarray]:
    """The rows of each reply, behind its opening."""
    text = made[:, 0].tolist()
    opening = [rows.special["im_start"], *rows.ids("assistant\n")]
    starts = [i + len(opening) for i in range(len(text)) if text[i : i + len(opening)] == opening]
    starts = [start + (text[start] == rows.special["object_ref_start"]) for start in starts]
    return [made[start:end] for start, end in pairwise([*starts, len(made)])]


@pytest.mark.slow
def test_what_needs_no_reply_comes_last_and_only_there(recipe: Recipe, worker: Any) -> None:
    conversations = recipe("conversations")
    rng, ends = random.Random(0), 0
    for _ in range(60):
        made = worker._conversation(rng, conversations.SHORT)
        empty = [
            reply for reply in _replies(worker.rows, made) if _is_empty(worker.rows, conversations, reply)
        ]
        assert len(empty) <= 1
        if empty:
            ends += 1
            assert np.array_equal(empty[0], made[-len(empty[0]) :])
    assert ends > 5


def _is_empty(rows: Any, conversations: ModuleType, reply: np.ndarray) -> bool:
    return int(reply[0, conversations.AUDIO]) == conversations.EOSP or (
        int(reply[0, conversations.TEXT]) == rows.special["im_end"]
    )


@pytest.mark.slow
def test_workers_use_no_held_out_dialogue(recipe: Recipe, worker: Any) -> None:
    conversations = recipe("conversations")
    assert set(worker.by_skill) == {*conversations.SHARES, *conversations.EMPTY_SHARES}
    assert not any(dialogue.held_out for pile in worker.by_skill.values() for dialogue in pile)
    made = worker.make(3, 4, conversations.SHORT)
    assert made.shape == (4, conversations.SHORT, 5)
    assert np.array_equal(made, worker.make(3, 4, conversations.SHORT))
    assert (made[..., conversations.WEIGHT] == conversations.REPLY_WEIGHT).any(1).sum() >= 3
