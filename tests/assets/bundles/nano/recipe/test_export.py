"""Trained weights become a bundle that the engine opens and loads."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.models.bigvgan import build_bigvgan
from engine_runtime.models.flow import CausalFlow
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.models.whisper_vq import WhisperVQ
from tests.assets.conftest import Recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def exported(recipe: Recipe, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Networks of the recipe's sizes with random weights, exported."""
    stage, out = recipe("stage"), tmp_path_factory.mktemp("out")
    torch.manual_seed(0)
    tokenizer.save(str(out / "tokenizer.json"))
    stage.save_weights(WhisperVQ(recipe("speech_codes").ENCODER), out / "speech_encoder.safetensors")
    stage.save_weights(MossLM(recipe("train_lm").config(tokenizer)), out / "lm.safetensors")
    stage.save_weights(CausalFlow(recipe("train_flow").CONFIG), out / "flow.safetensors")
    vocoder = build_bigvgan(recipe("train_vocoder").CONFIG, weight_norm=False)
    stage.save_weights(vocoder, out / "vocoder.safetensors")
    bundle = tmp_path_factory.mktemp("bundle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["export.py", str(out), str(bundle)])
        recipe("export").main()
    return bundle


def test_it_opens_with_right_hashes(recipe: Recipe, exported: Path, nano_bundle: Path) -> None:
    bundle = Bundle.open(exported, verify="sha256")
    assert bundle.name == "nano"
    assert bundle.card == Bundle.open(nano_bundle, verify="none").card
    assert sum(file.stat().st_size for file in exported.iterdir()) < recipe("export").LIMIT_BYTES


def test_the_engine_loads_it(exported: Path) -> None:
    engine = Engine.load(Bundle.open(exported))
    assert (engine.input_sample_rate, engine.output_sample_rate) == (16_000, 24_000)
    assert engine.stages.speech_tokenizer.backend.startswith("onnxruntime")
    engine.close()


def test_weights_come_back_as_they_were_to_16_bit(recipe: Recipe, exported: Path) -> None:
    stage, sizes = recipe("stage"), recipe("speech_codes").ENCODER
    state = stage.read_weights(exported / "speech_encoder.safetensors")
    assert {value.dtype for value in state.values()} == {torch.float32}
    model = WhisperVQ(sizes)
    model.load_state_dict(state)
    assert all(torch.equal(value.half().float(), value) for value in model.state_dict().values())


def test_the_description_of_a_bundle_is_updated_in_place(
    recipe: Recipe, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def content() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in exported.iterdir()}

    before = content()
    (exported / "speech_encoder.onnx").unlink()
    (exported / "bundle.toml").unlink()
    monkeypatch.setattr(sys, "argv", ["export.py", str(exported), str(exported)])
    recipe("export").main()
    assert content() == before


def test_toml_of_nested_tables(recipe: Recipe) -> None:
    content = {"a": {"x": 1, "b": {"y": "z", "w": [1, 2]}}, "files": {"f.bin": {"size": 3}}}
    made = recipe("export").to_toml(content)
    assert tomllib.loads(made) == content
