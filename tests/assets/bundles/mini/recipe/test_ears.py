"""The ears: characters, causality, streaming, their files."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from engine_runtime.models.whisper_vq import WhisperVQConfig
from tests.assets.conftest import Recipe

SMALL = WhisperVQConfig(
    num_mel_bins=80, d_model=16, heads=2, ffn=24, layers=2, max_positions=64, codebook_size=12
)


@pytest.fixture
def ears(recipe: Recipe) -> ModuleType:
    """The module."""
    return recipe("ears")


@pytest.fixture
def model(ears: ModuleType) -> Any:
    """Small ears with random weights."""
    torch.manual_seed(0)
    return ears.Ears(SMALL).eval()


def test_characters_come_back(ears: ModuleType) -> None:
    text = "It's HALF past two, isn't it?"
    ids = torch.tensor([index for pair in ears.encode(text) for index in (ears.BLANK, pair, pair)])
    logits = torch.nn.functional.one_hot(ids, 29)[None].float()
    assert ears.greedy(logits) == ["it's half past two isn't it"]


def test_repetitions_need_a_blank_between_them(ears: ModuleType) -> None:
    ids = torch.tensor(ears.encode("a bell"))
    assert ears.greedy(torch.nn.functional.one_hot(ids, 29)[None].float()) == ["a bel"]


def test_nothing_depends_on_what_comes_later(model: Any) -> None:
    mel = torch.randn(1, 80, 64)
    later = mel.clone()
    later[..., 40:] += 1.0
    with torch.no_grad():
        first, second = (model.soft(each)[1] for each in (mel, later))
        assert torch.equal(first[:, :5], second[:, :5])
        assert not torch.allclose(first[:, 5:], second[:, 5:])
        assert torch.equal(model.head(first)[:, :20], model.head(second)[:, :20])


def test_the_head_reads_each_code_on_its_own(model: Any) -> None:
    states = torch.randn(1, 6, 16)
    with torch.no_grad():
        torch.testing.assert_close(model.head(states)[:, 8:12], model.head(states[:, 2:3]))


def test_hearing_reads_states_and_codes(model: Any) -> None:
    soft, coded = model.hear(torch.randn(3, 80, 32))
    assert len(soft) == len(coded) == 3


def test_training_starts_from_whisper(recipe: Recipe, ears: ModuleType) -> None:
    whisper = {
        f"encoder.{name}": value
        for name, value in recipe("whisper_base").WhisperEncoder(SMALL).state_dict().items()
    }
    model = ears.Ears(SMALL).start_from(whisper)
    state = model.encoder.state_dict()
    assert state.keys() - whisper.keys() == {"encoder.codebook.weight"}
    for name in state.keys() & whisper.keys():
        assert torch.equal(state[name], whisper[name])
    assert torch.equal(model.follower.norm.weight, whisper["encoder.layer_norm.weight"])


def test_files_hold_the_weights_in_parts(
    ears: ModuleType, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ears, "SHARD_BYTES", 8_000)
    ears.save_shards(model, tmp_path)
    ears.save_shards(model, tmp_path)
    files = sorted(file.name for file in tmp_path.iterdir())
    assert files == [f"ears-{index:02}.safetensors" for index in range(len(files))]
    assert len(files) > 2
    found = ears.load_shards(tmp_path)
    ears.Ears(SMALL).load_state_dict(found)
    for name, value in model.state_dict().items():
        assert torch.equal(found[name], value.half().float())


def test_a_folder_without_weights_is_named(ears: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="ears-00"):
        ears.load_shards(tmp_path)
