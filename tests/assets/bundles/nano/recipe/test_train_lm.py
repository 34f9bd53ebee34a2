"""Parts of the language model's training."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.assets.conftest import Recipe


def test_weights_to_start_from_bring_their_tokenizer(
    recipe: Recipe, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    given = tmp_path / "bundle"
    given.mkdir()
    other = tokenizer.from_str(tokenizer.to_str())
    other.add_tokens(["<|of another training|>"])
    other.save(str(given / "tokenizer.json"))
    made = recipe("train_lm").prepare_tokenizer(given / "lm.safetensors", tmp_path / "tokenizer.json")
    assert made.to_str() == other.to_str()
    assert tokenizer.from_file(str(tmp_path / "tokenizer.json")).to_str() == other.to_str()


@pytest.mark.slow
def test_without_weights_to_start_from_the_tokenizer_is_new(
    recipe: Recipe, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    made = recipe("train_lm").prepare_tokenizer(None, tmp_path / "tokenizer.json")
    assert made.to_str() == tokenizer.to_str()
