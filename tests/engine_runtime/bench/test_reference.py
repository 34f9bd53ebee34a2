from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine_runtime.bench import reference as reference_module
from engine_runtime.bench.reference import (
    LayerwiseReference,
    PlainLayers,
    ReferenceOptions,
    agree,
    compare_with_reference,
    needed_bytes,
    open_reference,
    reference_of,
    whole_bytes,
)
from engine_runtime.bench.teacher_forcing import Agreement, Dialog, Lesson, Step
from engine_runtime.bench.transformers_reference import TransformersLayers, TransformersLM
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.random_weights import fill_random
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.engine import Engine
from engine_runtime.hardware import AcceleratorError
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.options import EngineOptions
from tests.factories.bundle import make_random_bundle

CONFIG = MossLMConfig(64, 192, 4, 2, 16, 3, 1, 2, 96, 80, modality_pad=4)
SEQUENCES = [[5, 6, 96, 97, 7, 175], [96, 120, 8, 9, 10, 11, 12, 13, 99]]


@pytest.fixture(scope="module")
def model() -> MossLM:
    model = MossLM(CONFIG)
    fill_random(model, 0)
    return model.eval()


def _rows(ids: list[int]) -> Tensor:
    """[1, L, 2] of merged ids."""
    pad, limit = CONFIG.modality_pad, CONFIG.text_vocab
    return torch.tensor([[(pad, i - limit) if i >= limit else (i, 0) for i in ids]])


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_by_layer_equals_the_whole_network_bit_for_bit(model: MossLM, dtype: torch.dtype) -> None:
    whole = MossLM(CONFIG).to(dtype)
    whole.load_state_dict(model.state_dict())
    source = model.state_dict().__getitem__
    reference = LayerwiseReference(CONFIG, source, PlainLayers(CONFIG), dtype=dtype)
    every_row = [list(range(len(ids))) for ids in SEQUENCES]
    found = {(head, index): logits for head, index, logits in reference.logits(SEQUENCES, every_row)}
    assert list(found) == [("text", 0), ("text", 1), ("audio", 0), ("audio", 1)]
    for index, ids in enumerate(SEQUENCES):
        text, audio = whole(_rows(ids))
        assert torch.equal(found["text", index], text[0].float())
        assert torch.equal(found["audio", index], audio[0].float())


@torch.inference_mode()
def test_only_the_wanted_rows_are_returned(model: MossLM) -> None:
    reference = LayerwiseReference(CONFIG, model.state_dict().__getitem__, PlainLayers(CONFIG))
    found = list(reference.logits(SEQUENCES, [[5], [0, 3]]))
    assert [logits.shape for _, _, logits in found] == [(1, 96), (2, 96), (1, 80), (2, 80)]
    text = model(_rows(SEQUENCES[1]))[0][0]
    assert torch.allclose(found[1][2], text[[0, 3]], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("qk_norm", [True, False])
@torch.inference_mode()
def test_layers_of_transformers_compute_the_same(qk_norm: bool) -> None:
    pytest.importorskip("transformers")
    config = replace(CONFIG, qk_norm=qk_norm)
    model = MossLM(config).eval()
    fill_random(model, 0)
    source, layers = model.state_dict().__getitem__, TransformersLayers(config, "cpu")
    assert layers.described == f"transformers' {'Qwen3' if qk_norm else 'Llama'} modules"
    reference = LayerwiseReference(config, source, layers)
    last = [[len(ids) - 1] for ids in SEQUENCES]
    whole = TransformersLM(model)
    for head, index, logits in reference.logits(SEQUENCES, last):
        whole.reset()
        wanted = whole.run(SEQUENCES[index])[("text", "audio").index(head)]
        assert torch.allclose(logits[0], wanted, atol=1e-5)
        plain = model(_rows(SEQUENCES[index]))[("text", "audio").index(head)][0, -1]
        assert torch.allclose(logits[0], plain, atol=1e-5)


class _Watched(PlainLayers):
    """Fails if a layer is built while an earlier one still exists."""

    alive: ClassVar[list[weakref.ref[nn.Module]]] = []

    def new(self, index: int) -> nn.Module:
        assert not any(layer() is not None for layer in self.alive)
        layer = super().new(index)
        self.alive.append(weakref.ref(layer))
        return layer


def test_one_layer_is_held_at_a_time_and_each_weight_is_read_once(model: MossLM) -> None:
    weights, read = model.state_dict(), Counter[str]()

    def source(name: str) -> Tensor:
        read[name] += 1
        return weights[name]

    layers = _Watched(CONFIG)
    for _ in LayerwiseReference(CONFIG, source, layers).logits(SEQUENCES, [[0], [0]]):
        pass
    assert len(layers.alive) == CONFIG.num_layers
    assert read == Counter(dict.fromkeys(weights, 1))


def test_a_few_gb_are_enough_for_the_released_model() -> None:
    config = MossLMConfig.from_dict(describe(Path("moss-speech")).lm.config)
    whole = whole_bytes(config, torch.bfloat16, 2048)
    assert 19e9 < whole < 23e9
    assert needed_bytes(config, torch.float32) < 5e9
    assert needed_bytes(config, torch.bfloat16) < 4e9


def test_the_device_follows_the_free_memory(model: MossLM, monkeypatch: pytest.MonkeyPatch) -> None:
    source, gpu = model.state_dict().__getitem__, torch.device("cuda:0")
    monkeypatch.setattr(reference_module, "usable_device", torch.device)
    monkeypatch.setattr(reference_module, "free_bytes", lambda device: 2_000_000_000)
    reference, described = open_reference(CONFIG, source, gpu)
    assert reference.device == gpu
    assert described == "the plain network in float32, one layer at a time on cuda:0, at most 1.0 GB"
    monkeypatch.setattr(reference_module, "free_bytes", lambda device: 900_000_000)
    reference, described = open_reference(CONFIG, source, gpu)
    assert reference.device.type == "cpu"
    assert "on cpu (the GPU has 0.9 GB free)" in described
    reference, _ = open_reference(CONFIG, source, gpu, ReferenceOptions(device="cuda:0"))
    assert reference.device == gpu


def test_too_little_memory_is_said_with_what_to_do(model: MossLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    source, lesson = model.state_dict().__getitem__, Lesson("q", [1, 2], [Step(1, "prefill", 0, 1)])
    monkeypatch.setattr(PlainLayers, "run", run_out)
    with pytest.raises(AcceleratorError, match=r"one layer at a time on cpu.*\. Add --reference-device cpu"):
        agree(Agreement([lesson], []), [lesson], lambda: open_reference(CONFIG, source, torch.device("cpu")))


def _broken(source: Path, folder: Path, name: str) -> Path:
    """The same bundle, of which one weight has the wrong sign."""
    made = make_random_bundle(folder)
    weights = load_file(source / "lm.safetensors")
    weights[name] = -weights[name]
    save_file(weights, made / "lm.safetensors")
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        None,
        "model.shared_block.layers.1.mlp.down_proj.weight",
        "model.audio_block.layers.0.self_attn.v_proj.weight",
    ],
)
def test_a_broken_weight_is_found(random_bundle: Path, tmp_path: Path, name: str | None) -> None:
    native = Bundle.open(random_bundle)
    folder = random_bundle if name is None else _broken(random_bundle, tmp_path / "broken", name)
    options = EngineOptions()
    agreement, note = compare_with_reference(
        lambda: Engine.load(Bundle.open(folder, verify="none"), options),
        reference_of(native, options, ReferenceOptions()),
        [Dialog("typed", ("what is two plus three", "and plus two"))],
        rows_per_reply=8,
    )
    assert note.endswith("; 2 of 2 questions got a reply")
    checks = {check.name: check for check in agreement.heads()}
    assert note.startswith("reference: the plain network in float32, one layer at a time on cpu")
    assert checks["text head top-1"].count == checks["audio head top-1"].count >= 2 * (2 + 6)
    if name is None:
        assert agreement.first is None
        assert checks["text head worst"].value == pytest.approx(1, abs=1e-5)
        assert checks["audio head worst"].value == pytest.approx(1, abs=1e-5)
        return
    assert not checks["audio head cosine"].is_aligned
    assert checks["text head cosine"].is_aligned == ("audio_block" in name), "the text head is not behind it"
    assert agreement.first is not None
    assert agreement.first.name == "typed"
