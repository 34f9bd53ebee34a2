"""Training data: layout, answers on the grid."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tests.assets.conftest import Recipe


@pytest.fixture(scope="module")
def corpus(recipe: Recipe) -> ModuleType:
    return recipe("corpus")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Two units of 2 and 3 codes, three questions; every sample says where it comes from."""
    units16 = np.arange(1, 5 * 1280 + 1, dtype=np.int16)
    units24 = np.arange(1, 5 * 1920 + 1, dtype=np.int16)
    np.savez(
        tmp_path / "units.npz",
        unit=np.array(["one", "plus two"]),
        samples16=units16,
        offsets16=np.array([0, 2, 5]) * 1280,
        samples24=units24,
        offsets24=np.array([0, 2, 5]) * 1920,
    )
    np.savez(
        tmp_path / "users.npz",
        samples=np.full(12_000, 16_384, np.int16),
        offsets=np.array([0, 3_000, 8_000, 12_000]),
        question=np.array(["a", "b", "c"]),
        voice=np.array(["flite-slt"] * 3),
    )
    return tmp_path


def test_lay_out_is_a_copy_of_the_parts(corpus: ModuleType) -> None:
    rng = np.random.default_rng(0)
    flat = rng.integers(-32768, 32767, 500).astype(np.int16)
    rows = [[(0, 10, 40), (50, 400, 100)], [(90, 0, 60)], []]
    wanted = np.zeros((3, 120), np.float32)
    for row, parts in enumerate(rows):
        for position, start, length in parts:
            for i in range(length):
                if position + i < 120:
                    wanted[row, position + i] = flat[start + i] / 32768
    assert np.array_equal(corpus.lay_out(torch.from_numpy(flat), rows, 120).numpy(), wanted)


def test_answers_are_their_units_one_after_the_other(corpus: ModuleType, work: Path) -> None:
    answers = corpus.Answers(work / "units.npz", "cpu")
    assert answers.num_codes(("plus two", "one")) == 5
    wave = answers.batch([("plus two", "one"), ("one",)], 6, 24) * 32768
    assert wave.shape == (2, 6 * 1920)
    wanted = [*range(3841, 9601), *range(1, 3841), *[0] * 1920]
    assert wave[0].tolist() == wanted
    cut = answers.batch([("plus two", "one")], 4, 16)[0] * 32768
    assert cut.tolist() == [*range(2561, 6401), *range(1, 1281)]


def test_windows_hold_complete_questions_and_pauses(corpus: ModuleType, work: Path) -> None:
    questions = corpus.Questions(work / "users.npz", "cpu")
    wave, said = questions.windows(np.random.default_rng(0), 20, 40_000)
    lengths = dict(zip(questions.text, questions.lengths.tolist(), strict=True))
    assert all(1 <= len(row) <= 4 for row in said)
    assert [int((row == 0.5).sum()) for row in wave] == [sum(lengths[text] for text in row) for row in said]


@pytest.mark.slow
def test_random_answers_come_after_the_known_ones(corpus: ModuleType, dialogues: list[Any]) -> None:
    strings = corpus.training_answers(np.random.default_rng(0), 50)
    known = strings[:-50]
    assert len(set(known)) == len(known)
    trained = {turn.units for dialogue in dialogues if not dialogue.held_out for turn in dialogue.turns}
    assert set(known) == trained - {()}
    assert all(2 <= len(units) <= 4 for units in strings[-50:])
