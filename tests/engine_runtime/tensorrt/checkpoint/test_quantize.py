"""Quantized checkpoints, and the errors of their layers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.errors import BundleError, ExportError
from engine_runtime.tensorrt.checkpoint.calibrate import Calibration
from engine_runtime.tensorrt.checkpoint.format import CheckpointConfig, expected_tensors
from engine_runtime.tensorrt.checkpoint.quantize import (
    Format,
    Quantizing,
    layer_errors,
    quantized_config,
    require_bundle,
)
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint
from engine_runtime.tensorrt.checkpoint.scales import QuantizeError, int4_dense, unpack_int4
from tests.factories.trt_checkpoints import quantize

RELEASED = CheckpointConfig(
    dtype="bfloat16",
    hidden_size=4096,
    intermediate_size=12288,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_size=128,
    num_shared_layers=32,
    num_text_layers=4,
    num_audio_layers=4,
    text_vocab_size=151680,
    audio_vocab_size=16512,
    max_position_embeddings=40960,
    rotary_base=1e6,
    norm_epsilon=1e-6,
)


def _size(config: CheckpointConfig) -> float:
    return sum(
        spec.dtype.itemsize * torch.Size(spec.shape).numel() for spec in expected_tensors(config).values()
    )


def test_the_released_model_in_each_format() -> None:
    fp8 = quantized_config(RELEASED, "fp8")
    tensors = expected_tensors(fp8)
    assert len(tensors) == 365 + 32 * 5 * 2
    assert tensors["shared_layers.31.mlp.fc.weight"] == ((12288, 4096), torch.float8_e4m3fn)
    assert tensors["shared_layers.0.attention.qkv.activation_scaling_factor"] == ((1,), torch.float32)
    assert tensors["text_layers.0.mlp.fc.weight"] == ((12288, 4096), torch.bfloat16)
    assert fp8.to_dict()["quantization"] == {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": None,
        "exclude_modules": ["*lm_head", "*vocab_embedding", "text_layers*", "audio_layers*"],
    }
    int4 = quantized_config(RELEASED, "int4", tails=True)
    tensors = expected_tensors(int4)
    assert len(tensors) == 365 + 40 * 5 * 2
    assert tensors["audio_layers.3.mlp.proj.weight"] == ((2048, 12288), torch.int8)
    assert tensors["audio_layers.3.mlp.proj.weights_scaling_factor"] == ((4096, 96), torch.bfloat16)
    assert tensors["audio_layers.3.mlp.proj.prequant_scaling_factor"] == ((12288,), torch.bfloat16)
    assert int4.to_dict()["quantization"]["exclude_modules"] == ["*lm_head", "*vocab_embedding"]
    assert int4.to_dict()["quantization"]["group_size"] == 128
    assert 6.6e9 < _size(int4) < 6.8e9
    int8 = quantized_config(RELEASED, "int8")
    assert expected_tensors(int8) == expected_tensors(RELEASED)
    assert int8.to_dict()["quantization"]["quant_algo"] == "W8A16"


def test_sizes_without_groups_are_refused_in_int4() -> None:
    with pytest.raises(QuantizeError, match="160 inputs"):
        quantized_config(replace(RELEASED, intermediate_size=160), "int4")
    assert quantized_config(replace(RELEASED, intermediate_size=704), "int4").quantization.group_size == 64
    assert quantized_config(replace(RELEASED, intermediate_size=160), "fp8").quantization.algorithm == "FP8"


@pytest.fixture
def files(plain: Checkpoint, calibration: Calibration, tmp_path: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Tensors by format."""
    found = {}
    for number_format in ("fp8", "int8", "int4"):
        quantized = quantize(plain, tmp_path / number_format, number_format, calibration)
        with safe_open(quantized.directory / "rank0.safetensors", framework="pt") as content:
            found[number_format] = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    return found


def test_what_is_written(
    plain: Checkpoint, calibration: Calibration, files: dict[str, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    for number_format, tensors in files.items():
        checkpoint = Checkpoint.open(tmp_path / number_format)
        assert {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()} == dict(checkpoint.specs)
        assert json.loads((checkpoint.directory / "moss_voice.json").read_text()) == json.loads(
            (plain.directory / "moss_voice.json").read_text()
        )
    read = plain.reader()
    same = [name for name in plain.specs if not name.startswith("shared_layers") or "norm" in name]
    for tensors in files.values():
        assert all(torch.equal(tensors[name], read(name)) for name in same)
    assert all(torch.equal(files["int8"][name], read(name)) for name in plain.specs)


def test_fp8_scales_are_those_of_the_library(
    plain: Checkpoint, calibration: Calibration, files: dict[str, dict[str, torch.Tensor]]
) -> None:
    tensors, read = files["fp8"], plain.reader()
    for layer in range(2):
        for names in (["attention.qkv"], ["attention.dense"], ["mlp.fc", "mlp.gate"], ["mlp.proj"]):
            modules = [f"shared_layers.{layer}.{name}" for name in names]
            largest = max(float(read(f"{module}.weight").abs().max()) for module in modules)
            seen = float(calibration.inputs[modules[0]].amax.max())
            for module in modules:
                assert tensors[f"{module}.weights_scaling_factor"].item() == pytest.approx(largest / 448)
                assert tensors[f"{module}.activation_scaling_factor"].item() == pytest.approx(seen / 448)
                weight = tensors[f"{module}.weight"].float() * tensors[f"{module}.weights_scaling_factor"]
                wanted = read(f"{module}.weight")
                assert ((weight - wanted).abs() <= wanted.abs() / 16 + largest / 448 / 512).all()


def test_int4_yields_the_weights_times_their_smoothing(
    plain: Checkpoint, files: dict[str, dict[str, torch.Tensor]]
) -> None:
    tensors, read = files["int4"], plain.reader()
    factors = set()
    for module in (f"shared_layers.1.{name}" for name in ("attention.qkv", "mlp.fc", "mlp.gate", "mlp.proj")):
        factor, scale = (tensors[f"{module}.{part}_scaling_factor"] for part in ("prequant", "weights"))
        dense = int4_dense(unpack_int4(tensors[f"{module}.weight"]), scale) * factor
        wanted = read(f"{module}.weight")
        assert (dense - wanted).norm() / wanted.norm() < 0.2
        factors.add(tuple(factor.tolist()))
    assert len(factors) == 3  # the two of the gated MLP share theirs


@pytest.mark.slow
def test_it_is_the_same_again(plain: Checkpoint, calibration: Calibration, tmp_path: Path) -> None:
    for name in "ab":
        quantize(plain, tmp_path / name, "int4", calibration)
    assert len({(tmp_path / name / "rank0.safetensors").read_bytes() for name in "ab"}) == 1


@pytest.mark.parametrize("number_format", ["fp8", "int4"])
def test_without_calibration_there_are_no_scales(
    plain: Checkpoint, tmp_path: Path, number_format: Format
) -> None:
    with pytest.raises(QuantizeError, match="--statistics"):
        Quantizing.start(plain, tmp_path / "q", number_format).find_scales()


def test_a_calibration_of_other_sizes_is_refused(
    plain: Checkpoint, calibration: Calibration, tmp_path: Path
) -> None:
    inputs = dict(calibration.inputs)
    inputs["shared_layers.1.mlp.proj"] = inputs["shared_layers.1.mlp.fc"]
    with pytest.raises(QuantizeError, match=r"at shared_layers\.1\.mlp\.proj"):
        Quantizing.start(plain, tmp_path / "q", "fp8", replace(calibration, inputs=inputs))
    del inputs["shared_layers.0.mlp.fc"]
    with pytest.raises(QuantizeError, match=r"at shared_layers\.0\.mlp\.fc"):
        Quantizing.start(plain, tmp_path / "q", "fp8", replace(calibration, inputs=inputs))


def test_existing_files_are_kept(plain: Checkpoint, calibration: Calibration, tmp_path: Path) -> None:
    before = (plain.directory / "rank0.safetensors").read_bytes()
    with pytest.raises(ExportError, match="holds a checkpoint already"):
        Quantizing.start(plain, plain.directory, "fp8", calibration)
    assert (plain.directory / "rank0.safetensors").read_bytes() == before
    quantized = quantize(plain, tmp_path / "q", "fp8", calibration)
    with pytest.raises(QuantizeError, match=r"quantized already \(FP8\)"):
        Quantizing.start(quantized, tmp_path / "r", "int8")


def test_the_checkpoint_has_to_be_of_the_bundle(
    random_bundle: Path, plain: Checkpoint, tmp_path: Path
) -> None:
    bundle = Bundle.open(random_bundle)
    require_bundle(plain, bundle)
    copy = tmp_path / "copy"
    shutil.copytree(plain.directory, copy)
    (copy / "moss_voice.json").write_text(json.dumps({"bundle": "random", "lm_fingerprint": "0" * 64}))
    with pytest.raises(BundleError, match="--bundle"):
        require_bundle(Checkpoint.open(copy), bundle)


@pytest.fixture(scope="module")
def quantized(
    plain: Checkpoint, calibration: Calibration, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Checkpoint]:
    directory = tmp_path_factory.mktemp("quantized")
    formats: tuple[Format, ...] = ("fp8", "int8", "int4")
    made: dict[str, Checkpoint] = {
        name: quantize(plain, directory / name, name, calibration) for name in formats
    }
    made["int4 tails"] = quantize(plain, directory / "tails", "int4", calibration, tails=True)
    return made


def test_errors_of_layers(
    plain: Checkpoint, quantized: dict[str, Checkpoint], calibration: Calibration
) -> None:
    rows = {name: layer_errors(plain, checkpoint, calibration).rows for name, checkpoint in quantized.items()}
    assert [row["layer"] for row in rows["fp8"]] == ["shared_layers.0", "shared_layers.1"]
    assert [row["layer"] for row in rows["int4 tails"]][2:] == ["text_layers.0", "audio_layers.0"]
    for product in ("attention.qkv", "attention.dense", "mlp.fc", "mlp.proj"):
        for layer in range(2):
            int8, fp8, int4 = (rows[name][layer][product] for name in ("int8", "fp8", "int4"))
            assert isinstance(int8, float)
            assert isinstance(fp8, float)
            assert isinstance(int4, float)
            assert 0.001 < int8 < fp8 < int4 < 0.2


def test_an_error_is_that_of_the_product_written_out(
    plain: Checkpoint, quantized: dict[str, Checkpoint], calibration: Calibration
) -> None:
    found = layer_errors(plain, quantized["int8"], calibration).rows[1]["mlp.proj"]
    weight = plain.reader()("shared_layers.1.mlp.proj.weight")
    scale = weight.abs().amax(dim=1, keepdim=True) / 128
    rounded = (weight / scale).round().clamp(-128, 127) * scale
    inputs = calibration.inputs["shared_layers.1.mlp.proj"].rows
    wanted = inputs @ weight.t()
    assert found == pytest.approx(float((inputs @ rounded.t() - wanted).norm() / wanted.norm()), rel=1e-3)
