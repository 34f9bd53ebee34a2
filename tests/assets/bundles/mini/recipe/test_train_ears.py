"""Training of the ears: losses, the codebook's course, and a language of tones that is soon learned."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine_runtime.models.whisper_vq import WhisperVQConfig
from tests.assets.conftest import Recipe

SMALL = WhisperVQConfig(
    num_mel_bins=80, d_model=64, heads=2, ffn=128, layers=1, max_positions=256, codebook_size=32
)
RATE = 16_000


@pytest.fixture(autouse=True)
def _small(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads the states is small, too."""
    monkeypatch.setattr(recipe("ears").Head, "WIDTH", 64)
    monkeypatch.setattr(recipe("ears").Reader, "WIDTH", 64)
    monkeypatch.setattr(recipe("ears").Reader, "LAYERS", 1)


@pytest.fixture
def trained(recipe: Recipe) -> ModuleType:
    """The module."""
    return recipe("train_ears")


def _tones(text: str) -> np.ndarray:
    """A quarter of a second of one tone for each letter."""
    time = np.arange(RATE // 4) / RATE
    letters = [
        np.sin(2 * np.pi * (300 + 400 * (ord(letter) - ord("a"))) * time) for letter in text if letter != " "
    ]
    return (np.concatenate(letters) * 12_000).astype(np.int16)


@pytest.fixture
def work(tmp_path: Path, recipe: Recipe) -> Path:
    """A folder with "speech" of tones: one file for training, one for tests in two voices."""
    texts = ["abc", "cab", "bca", "aca", "bab", "cbc"]
    waves = [_tones(text) for text in texts]
    for name in ("classic", "dev"):
        voices = ["flite-slt"] * 3 + ["festival-kal_diphone"] * 3
        made = recipe("synthesize").flat(waves)
        np.savez(tmp_path / f"{name}.npz", **made, question=np.array(texts), voice=np.array(voices))
    return tmp_path


def _training(recipe: Recipe, trained: ModuleType) -> Any:
    torch.manual_seed(0)
    model = recipe("ears").Ears(SMALL)
    teacher = trained.Teacher(recipe("whisper_base").WhisperEncoder(SMALL), "cpu")
    return trained.Training(model, teacher, "cpu")


def test_half_of_the_windows_end_with_their_speech(trained: ModuleType, work: Path) -> None:
    speech = trained.Speech(work, "cpu", 30)
    lengths = set()
    for _ in range(20):
        wave, texts = speech.batch(4)
        lengths.add(wave.shape[1])
        assert len(wave) == len(texts)
        assert len(wave) * wave.shape[1] <= 4 * 30 * 1_280
        assert not wave[:, -trained.TAIL :].any()
    assert len(lengths) == len(trained.LENGTHS)
    said = torch.tensor([[0.0, 0.0, 1.0, 2.0, 0.0, 3.0, 0.0, 0.0], [0.0] * 8])
    assert trained.moved_to_the_end(said).tolist() == [[0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 3.0], [0.0] * 8]


def test_one_large_dimension_is_uneven(trained: ModuleType) -> None:
    states = torch.randn(4, 100, 16)
    assert trained.unevenness(states) == 0
    states[..., 3] *= 10
    assert trained.unevenness(states) == pytest.approx(np.log(100 / trained.LARGEST) / 10, rel=0.2)


def test_a_mask_is_one_stripe_in_some_rows(trained: ModuleType) -> None:
    mel = torch.randn(40, 80, 30)
    made = trained.mask_bands(mel, torch.Generator().manual_seed(0))
    changed = (made != mel).any(2)
    assert (made != mel).any(2).eq((made != mel).all(2)).all()
    assert 0 < changed.any(1).sum() < 40
    assert changed.sum(1).max() <= trained.MASKED_BANDS + 1
    for row in changed[changed.any(1)]:
        bands = row.nonzero()[:, 0]
        assert len(bands) == bands[-1] - bands[0] + 1


def test_states_are_quantized_once_there_are_enough_of_them(recipe: Recipe, trained: ModuleType) -> None:
    codebook = trained.Codebook(recipe("quantizer").Quantizer(torch.randn(8, 4)))
    states = torch.randn(2, 50, 4)
    same, *losses = codebook(states, 0.05)
    assert same is states
    assert not codebook.pool
    codebook(states, trained.COLLECT_FROM + 0.01)
    assert len(codebook.pool) == 1
    quantized, commitment, agreement = codebook(states, trained.QUANTIZE_FROM + 0.01)
    assert not torch.equal(quantized, states)
    assert 0 < commitment < agreement
    assert [float(loss) for loss in losses] == [0, 0]


def test_versions_that_are_alike_agree(recipe: Recipe, trained: ModuleType) -> None:
    codebook = trained.Codebook(recipe("quantizer").Quantizer(torch.randn(8, 4)), is_placed=True)
    half = torch.randn(2, 50, 4)
    alike = codebook(torch.cat([half, half]), 0.5)[2]
    apart = codebook(torch.cat([half, half.flip(1)]), 0.5)[2]
    assert alike < apart


def test_figures_are_by_file_and_voice(recipe: Recipe, trained: ModuleType, work: Path) -> None:
    model = recipe("ears").Ears(SMALL)
    table = trained.Tests([work / "dev.npz"], "cpu").word_error_rates(model)
    assert table.keys() == {"dev seen", "dev festival"}
    assert table["dev seen"]["words"] == 3
    assert "dev festival" in trained.table_text(table)


def test_a_stream_hears_what_the_whole_sentence_says(recipe: Recipe, trained: ModuleType, work: Path) -> None:
    model = recipe("ears").Ears(SMALL)
    found = trained.Tests([work / "dev.npz"], "cpu").streaming(model, 3)
    assert found["equal codes"] > 0.98  # a tie between two codes is possible
    assert found["difference"] < 1e-4


def _undisturbed(recipe: Recipe, trained: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training windows as they are: tones have no voice that could be another one."""
    monkeypatch.setattr(recipe("augmentation"), "augment", lambda wave, _: wave)
    monkeypatch.setattr(recipe("augmentation"), "warp_time", lambda mel, _, views: mel)
    monkeypatch.setattr(recipe("augmentation"), "warp_mel", lambda mel, _: mel)
    monkeypatch.setattr(trained, "mask_bands", lambda mel, _: mel)


@pytest.mark.slow
def test_characters_are_learned_from_states_and_from_codes(
    recipe: Recipe, trained: ModuleType, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _undisturbed(recipe, trained, monkeypatch)
    monkeypatch.setattr(trained, "LENGTHS", (1.0,))
    changed = {"ENCODER_RATE": 3e-3, "NEW_RATE": 3e-3, "CLOSENESS": 0.0}
    for name, value in (changed | {"COLLECT_FROM": 0.36, "QUANTIZE_FROM": 0.4}).items():
        monkeypatch.setattr(trained, name, value)
    training, speech = _training(recipe, trained), trained.Speech(work, "cpu", 20)
    steps = 400
    last: list[tuple[float, float]] = []
    for step in range(steps):
        losses = training.step(*speech.batch(4), step / steps)
        last = [*last[-49:], (float(losses["soft"].detach()), float(losses["codes"].detach()))]
    assert training.codebook.is_placed
    guessing = np.log(3)  # of three letters, without having heard which one
    assert (np.mean(last, axis=0) < 0.7 * guessing).all(), np.mean(last, axis=0)


def test_a_run_leaves_weights_and_figures_and_can_go_on(
    recipe: Recipe,
    trained: ModuleType,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _undisturbed(recipe, trained, monkeypatch)
    whisper_base, out = recipe("whisper_base"), work / "out"
    monkeypatch.setattr(whisper_base, "ENCODER", SMALL)
    state = whisper_base.WhisperEncoder(SMALL).state_dict()
    save_file({f"encoder.{name}": value for name, value in state.items()}, work / "whisper.safetensors")
    common = ["train_ears.py", str(work), str(out), "--init", str(work / "whisper.safetensors")]
    common += ["--device", "cpu", "--batch", "2", "--codes", "20", "--tests", str(work / "classic.npz")]
    monkeypatch.setattr(sys, "argv", [*common, "--minutes", "0.02", "--save-every", "0.1"])
    trained.main()
    first = recipe("ears").load_shards(out)
    log = json.loads((out / "ears_log.json").read_text())
    assert log["steps"] > 0
    assert log["word_error_rate"].keys() == {
        "classic festival", "classic seen", "dev festival", "dev seen"
    }  # fmt: skip
    again = ["--start", str(out), "--minutes", "0.04", "--before", "0.02"]
    monkeypatch.setattr(sys, "argv", [*common, *again])
    trained.main()
    second = recipe("ears").load_shards(out)
    assert first.keys() == second.keys()
    assert any(not torch.equal(first[name], second[name]) for name in first)
    assert "equal codes" in capsys.readouterr().out
