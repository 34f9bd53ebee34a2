"""Parts of the speech encoder's training: losses, initial weights, best path, edit distance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_runtime.models.whisper_vq import WhisperVQ
from tests.assets.conftest import Recipe


@pytest.mark.parametrize(
    ("a", "b", "distance"), [("kitten", "sitting", 3), ("", "abc", 3), ("same", "same", 0)]
)
def test_edit_distance(recipe: Recipe, a: str, b: str, distance: int) -> None:
    assert recipe("train_tokenizer").edit_distance([*map(ord, a)], [*map(ord, b)]) == distance


def test_the_best_path_drops_blanks_and_repetitions(recipe: Recipe) -> None:
    path = torch.tensor([0, 3, 3, 0, 3, 2, 2, 0])
    logits = torch.nn.functional.one_hot(path, 5)[None].float()
    assert recipe("train_tokenizer").greedy(logits) == [[3, 3, 2]]


def test_training_starts_from_the_layers_that_both_networks_have(recipe: Recipe, tmp_path: Path) -> None:
    stage, sizes = recipe("stage"), recipe("speech_codes").ENCODER
    larger = WhisperVQ(replace(sizes, layers=sizes.layers + 1))
    file = tmp_path / "init.safetensors"
    stage.save_weights(larger.encoder.layers, file)
    save_file({f"encoder.layers.{name}": value for name, value in load_file(file).items()}, file)
    generator = torch.Generator().manual_seed(0)
    module = recipe("train_tokenizer")
    training = module.Training([0, 1, 2], "cpu", generator, file)
    for index, layer in enumerate(training.model.encoder.layers):
        for name, value in layer.state_dict().items():
            assert torch.equal(value.half(), larger.encoder.layers[index].state_dict()[name].half())


def test_both_versions_of_a_question_are_drawn_to_each_others_codes(recipe: Recipe) -> None:
    module = recipe("train_tokenizer")
    torch.manual_seed(0)
    training = module.Training([0, 1, 2], "cpu", torch.Generator().manual_seed(0))
    width = recipe("speech_codes").ENCODER.d_model
    hidden = torch.randn(2, 5, width)
    training.quantizer.k_means(hidden.reshape(-1, width))
    alike = training._quantize(torch.cat([hidden[:1], hidden[:1]]), 0.5, 2)[2]
    apart = training._quantize(hidden, 0.5, 2)[2]
    assert alike < 0.2 < apart


def test_the_mel_is_made_of_the_answers_alone(recipe: Recipe) -> None:
    decoder = recipe("train_tokenizer").Decoder(16, 7)
    hidden = torch.randn(5, 4, 16)
    phones, mel = decoder(hidden, 3)
    assert phones.shape == (5, 16, 7)
    assert mel.shape == (2, 16, 80)
    assert torch.equal(decoder.phones(hidden), phones)
