"""Training rows of the language model: inputs and targets."""

from __future__ import annotations

import random

import numpy as np
import pytest


@pytest.fixture(scope="module")
def speech(recipe, dialogues):
    """Codes that say where they come from: 3 for a question, 6 for each word of a unit."""
    questions = {turn.question for dialogue in dialogues for turn in dialogue.turns}
    unit_codes = {unit: 6 * len(unit.split()) for d in dialogues for t in d.turns for unit in t.units}
    answers = {
        turn.units: np.arange(sum(unit_codes[unit] for unit in turn.units)) % 2048
        for dialogue in dialogues
        for turn in dialogue.turns
    }
    renditions = {question: [np.array([7, 8, 9])] for question in questions}
    return recipe("conversations").Speech(renditions, answers, unit_codes)


def _dialogue(dialogues, skill, turns=1):
    return next(d for d in dialogues if d.skill == skill and len(d.turns) == turns)


@pytest.mark.slow
def test_a_spoken_reply_is_learnt_with_its_subtitles(recipe, dialogues, domain, tokenizer, speech) -> None:
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
def test_each_label_is_what_comes_next(recipe, dialogues, tokenizer, speech) -> None:
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
    recipe, dialogues, domain, tokenizer, speech
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
def test_only_complete_dialogues_fit(recipe, dialogues, tokenizer, speech) -> None:
    rows = recipe("conversations").Rows(tokenizer, speech)
    dialogue = _dialogue(dialogues, "count")
    one = rows.conversation([dialogue], True, random.Random(0), 1000, 1.0)
    two = rows.conversation([dialogue] * 2, True, random.Random(0), 2 * len(one), 1.0)
    cut = rows.conversation([dialogue] * 2, True, random.Random(0), len(two) - 1, 1.0)
    assert len(two) > len(one)
    assert np.array_equal(cut, one)


@pytest.mark.slow
def test_workers_use_no_held_out_dialogue(recipe, tokenizer, speech, tmp_path) -> None:
    conversations = recipe("conversations")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    worker = conversations._Worker(str(tmp_path / "tokenizer.json"), speech)
    assert set(worker.skills) == set(conversations.SHARES)
    assert not any(dialogue.held_out for pile in worker.by_skill.values() for dialogue in pile)
    made = worker.make(3, 4, conversations.SHORT)
    assert made.shape == (4, conversations.SHORT, 5)
    assert np.array_equal(made, worker.make(3, 4, conversations.SHORT))
    assert (made[..., conversations.WEIGHT] == conversations.REPLY_WEIGHT).any(1).sum() >= 3
