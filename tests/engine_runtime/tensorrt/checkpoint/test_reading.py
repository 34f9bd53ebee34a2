"""A converted model has the logits of the original, as the plain network and in the torch executor."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine_runtime.bundle.weights import find_tensors
from engine_runtime.errors import BundleError
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.tensorrt.checkpoint.convert import Conversion, LanguageModel
from engine_runtime.tensorrt.checkpoint.format import Quantization, expected_tensors
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint
from tests.factories.tiny_lm import GOLDEN, LOGIT_TOLERANCE, as_ids, load_tiny, make_paged

Tiny = tuple[MossLM, dict[str, Tensor]]


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return load_tiny()


@pytest.fixture(scope="module")
def converted(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model of the stored vectors as a checkpoint. Read only."""
    config = tiny[0].config
    shapes = {name: tuple(tensor.shape) for name, tensor in tiny[0].state_dict().items()}
    weights = find_tensors(GOLDEN / "lm_tiny.safetensors", shapes, partial=True)
    directory = tmp_path_factory.mktemp("checkpoint")
    conversion = Conversion.start(LanguageModel("tiny", config, 1024, weights, None), directory)
    conversion.write()
    conversion.finish()
    return directory


@pytest.mark.parametrize("case", ["a", "c"])
@torch.inference_mode()
def test_the_plain_network_yields_the_stored_logits(tiny: Tiny, converted: Path, case: str) -> None:
    original, cases = tiny
    model = Checkpoint.open(converted).language_model(original.config.modality_pad)
    assert model.config == original.config
    rows = cases[f"{case}.rows"][None]
    for mine, other, name in zip(model(rows), original(rows), ("text", "audio"), strict=True):
        assert torch.equal(mine, other)
        torch.testing.assert_close(mine[0], cases[f"{case}.{name}_logits"], atol=LOGIT_TOLERANCE, rtol=0)


def test_the_torch_executor_yields_the_stored_logits(tiny: Tiny, converted: Path) -> None:
    original, cases = tiny
    ids = as_ids(cases["a.rows"], original)
    model = Checkpoint.open(converted).language_model(original.config.modality_pad)
    paged, sequence = make_paged(model), Sequence()
    prefilled = 37
    steps = [paged.prefill(sequence, ids[:prefilled])]
    steps += [paged.prefill(sequence, [merged]) for merged in ids[prefilled:]]
    for index, logits in enumerate(steps, start=prefilled - 1):
        assert logits.text_logits is not None
        assert logits.audio_logits is not None
        for mine, name in ((logits.text_logits, "text"), (logits.audio_logits, "audio")):
            wanted = cases[f"a.{name}_logits"][index]
            torch.testing.assert_close(mine.view(-1), wanted, atol=LOGIT_TOLERANCE, rtol=0)


def test_every_weight_comes_back_bit_by_bit(tiny: Tiny, converted: Path) -> None:
    shares: list[float] = []
    source = Checkpoint.open(converted).weight_source(progress=shares.append)
    for name, tensor in tiny[0].state_dict().items():
        assert torch.equal(source(name), tensor), name
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


def test_a_checkpoint_of_another_model_is_reported_with_its_differences(tiny: Tiny, converted: Path) -> None:
    checkpoint = Checkpoint.open(converted)
    checkpoint.require(tiny[0].config)
    with pytest.raises(BundleError, match=r"differs in rope_theta \(1000000.0, not 10000.0\)"):
        checkpoint.require(replace(tiny[0].config, rope_theta=1e4))


def _changed(converted: Path, to: Path, **tensors: Tensor | None) -> Path:
    """A copy of the checkpoint with other tensors; None leaves one out."""
    content = load_file(converted / "rank0.safetensors") | {
        name.replace("__", "."): tensor for name, tensor in tensors.items()
    }
    save_file({name: t for name, t in content.items() if t is not None}, to / "rank0.safetensors")
    (to / "config.json").write_bytes((converted / "config.json").read_bytes())
    return to


def test_tensors_that_are_missing_too_many_or_of_another_shape(converted: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"missing: lm_head\.weight"):
        Checkpoint.open(_changed(converted, tmp_path, lm_head__weight=None))
    with pytest.raises(BundleError, match=r"unexpected: lm_head\.bias"):
        Checkpoint.open(_changed(converted, tmp_path, lm_head__bias=torch.zeros(1)))
    with pytest.raises(BundleError, match=r"text_norm.weight is \[65\], expected \[64\]"):
        Checkpoint.open(_changed(converted, tmp_path, text_norm__weight=torch.zeros(65)))
    half = _changed(converted, tmp_path, text_norm__weight=torch.zeros(64).half())
    with pytest.raises(BundleError, match=r"text_norm.weight in torch.float16, but config.json says"):
        Checkpoint.open(half).language_model(503)


def test_a_file_that_was_cut_short(converted: Path, tmp_path: Path) -> None:
    _changed(converted, tmp_path)
    file = tmp_path / "rank0.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(BundleError, match=r"incomplete checkpoint.*damaged"):
        Checkpoint.open(tmp_path)
    file.unlink()
    with pytest.raises(BundleError, match="is missing"):
        Checkpoint.open(tmp_path)


def test_a_quantized_one_has_no_plain_weights(tiny: Tiny, converted: Path, tmp_path: Path) -> None:
    plain = Checkpoint.open(converted)
    config = replace(plain.config, quantization=Quantization("FP8"))
    tensors = dict(load_file(converted / "rank0.safetensors"))
    for name in tensors:
        if config.is_quantized(name.removesuffix(".weight")):
            tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    scales = expected_tensors(config).keys() - tensors.keys()
    assert len(scales) == 2 * 5 * tiny[0].config.shared_layers
    save_file(tensors | {name: torch.ones(1) for name in scales}, tmp_path / "rank0.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.reader()("shared_layers.0.mlp.fc.weight").dtype == torch.float8_e4m3fn
    with pytest.raises(BundleError, match=r"quantized \(FP8\)"):
        checkpoint.language_model(tiny[0].config.modality_pad)
