"""Who says which sentences to the ears."""

from __future__ import annotations

import random

import pytest

from tests.assets.conftest import Recipe

SENTENCES = [f"sentence {index}" for index in range(300)]


def test_each_training_sentence_is_said_once_in_a_seen_voice(recipe: Recipe) -> None:
    voices, jobs = recipe("voices"), recipe("spoken").training_jobs(SENTENCES, random.Random(0))
    assert [text for text, _ in jobs] == SENTENCES
    assert {voices.voice_group(rendition.label) for _, rendition in jobs} == {"seen"}
    assert {rendition.engine for _, rendition in jobs} == {"flite", "espeak"}


def test_tests_on_a_training_machine_need_no_held_out_synthesizer(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RECIPE_VOICES", raising=False)
    voices, jobs = recipe("voices"), recipe("spoken").dev_jobs(SENTENCES, random.Random(0), 40)
    groups = [voices.voice_group(rendition.label) for _, rendition in jobs]
    assert {group: groups.count(group) for group in groups} == {
        "seen": 40,
        "flite-rms": 20,
        "espeak-en-us+f4": 20,
    }
