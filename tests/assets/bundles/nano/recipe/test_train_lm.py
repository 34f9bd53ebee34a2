"""Parts of the language model's training."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def test_weights_to_start_from_bring_their_tokenizer(recipe, tokenizer, tmp_path) -> None:
    given = tmp_path / "bundle"
    given.mkdir()
    other = tokenizer.from_str(tokenizer.to_str())
    other.add_tokens(["<|of another training|>"])
    other.save(str(given / "tokenizer.json"))
    made = recipe("train_lm").prepare_tokenizer(given / "lm.safetensors", tmp_path / "tokenizer.json")
    assert made.to_str() == other.to_str()
    assert tokenizer.from_file(str(tmp_path / "tokenizer.json")).to_str() == other.to_str()


@pytest.mark.slow
def test_without_weights_to_start_from_the_tokenizer_is_new(recipe, tokenizer, tmp_path) -> None:
    made = recipe("train_lm").prepare_tokenizer(None, tmp_path / "tokenizer.json")
    assert made.to_str() == tokenizer.to_str()


def test_trained_weights_are_blended_with_those_of_the_start(recipe) -> None:
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[4.0, 8.0]]))
        model.bias.fill_(1.0)
    start = {"weight": torch.tensor([[0.0, 4.0]]), "bias": torch.tensor([3.0])}
    recipe("train_lm").blend(model, start, 0.25)
    assert model.weight.tolist() == [[1.0, 5.0]]
    assert model.bias.tolist() == [2.5]
