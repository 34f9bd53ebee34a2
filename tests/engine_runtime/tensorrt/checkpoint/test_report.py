"""The report measures the written checkpoint: no loss without quantization, more loss with fewer bits."""

from __future__ import annotations

import pytest

from engine_runtime.tensorrt.checkpoint.calibrate import Calibration
from engine_runtime.tensorrt.checkpoint.quantize import Format, layer_errors
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint
from tests.factories.trt_checkpoints import quantize


@pytest.fixture(scope="module")
def quantized(
    plain: Checkpoint, calibration: Calibration, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Checkpoint]:
    directory = tmp_path_factory.mktemp("quantized")
    formats: tuple[Format, ...] = ("fp8", "int8", "int4")
    made = {name: quantize(plain, directory / name, name, calibration) for name in formats}
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
