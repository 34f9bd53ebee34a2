"""Linear layers of a quantized checkpoint, compared with explicit arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine_runtime.errors import BundleError
from engine_runtime.executors.torch.linear import DenseLinear
from engine_runtime.tensorrt.checkpoint.format import CheckpointConfig, Quantization
from engine_runtime.tensorrt.checkpoint.quantized_network import Fp8Linear, SmoothedLinear, read_linear
from engine_runtime.tensorrt.checkpoint.scales import int8_rounded, pack_int4
from tests.factories.tiny_lm import load_tiny

FC, GATE = "shared_layers.0.mlp.fc", "shared_layers.0.mlp.gate"
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(5, 128, generator=GENERATOR)
RESIDUAL = torch.randn(5, 24, generator=GENERATOR)


def _config(quantization: Quantization) -> CheckpointConfig:
    return replace(CheckpointConfig.of(load_tiny()[0].config, "float32", 1024), quantization=quantization)


def test_plain_products_are_joined() -> None:
    stored = {f"{FC}.weight": torch.randn(16, 128), f"{GATE}.weight": torch.randn(8, 128)}
    linear = read_linear(_config(Quantization()), stored.__getitem__, (FC, GATE), torch.float32)
    assert isinstance(linear, DenseLinear)
    wanted = torch.cat([X @ weight.t() for weight in stored.values()], dim=1)
    torch.testing.assert_close(linear(X), wanted)
    torch.testing.assert_close(linear.added_to(RESIDUAL, X), RESIDUAL + wanted)


def test_the_tails_of_a_mixed_checkpoint_stay_plain() -> None:
    stored = {"text_layers.0.mlp.proj.weight": torch.randn(24, 128)}
    linear = read_linear(
        _config(Quantization("FP8")), stored.__getitem__, ["text_layers.0.mlp.proj"], torch.float32
    )
    torch.testing.assert_close(linear(X), X @ stored["text_layers.0.mlp.proj.weight"].t())


def _fp8(scales: tuple[float, float]) -> dict[str, Tensor]:
    stored = {}
    for module, scale, outputs in ((FC, scales[0], 16), (GATE, scales[1], 8)):
        stored[f"{module}.weight"] = (torch.randn(outputs, 128, generator=GENERATOR) * 8).to(
            torch.float8_e4m3fn
        )
        stored[f"{module}.weights_scaling_factor"] = torch.tensor([scale])
        stored[f"{module}.activation_scaling_factor"] = torch.tensor([1 / 128])
    return stored


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fp8_rounds_inputs_and_weights(dtype: torch.dtype) -> None:
    stored = _fp8((0.25, 0.25))
    linear = read_linear(_config(Quantization("FP8")), stored.__getitem__, (FC, GATE), dtype)
    assert isinstance(linear, Fp8Linear)
    x = X.to(dtype)
    # Written out: e4m3 has 4 significant bits down to 2^-6, and steps of 2^-9 below.
    levels = (x.double() * 128).clamp(-448, 448)
    steps = torch.exp2(levels.abs().log2().floor().clamp_min(-6) - 3)
    rounded = (levels / steps).round() * steps / 128
    weight = torch.cat([stored[f"{module}.weight"].double() * 0.25 for module in (FC, GATE)])
    got = linear(x)
    assert got.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(got.double(), rounded @ weight.t(), rtol=tolerance, atol=tolerance * 5)
    torch.testing.assert_close(linear.added_to(RESIDUAL.to(dtype), x), RESIDUAL.to(dtype) + got)


def test_inputs_beyond_the_calibrated_range_become_its_end() -> None:
    linear = Fp8Linear(torch.eye(2), torch.tensor([0.5]), torch.tensor([2.0]))
    assert linear(torch.tensor([[1e6, -1e6]])).tolist() == [[448.0, -448.0]]


def test_scales_that_differ_are_joined_by_the_larger_as_the_engine_does() -> None:
    stored = _fp8((0.25, 0.3))
    linear = read_linear(_config(Quantization("FP8")), stored.__getitem__, (FC, GATE), torch.float32)
    assert isinstance(linear, Fp8Linear)
    assert linear.weight_scale.item() == pytest.approx(0.3)
    anew = (stored[f"{FC}.weight"].float() * 0.25 / 0.3).to(torch.float8_e4m3fn).float()
    assert torch.equal(linear.levels[:, :16], anew.t())
    assert torch.equal(linear.levels[:, 16:], stored[f"{GATE}.weight"].float().t())


def test_int8_is_what_the_library_makes_of_plain_weights() -> None:
    stored = {f"{FC}.weight": torch.randn(16, 128, generator=GENERATOR)}
    linear = read_linear(_config(Quantization("W8A16")), stored.__getitem__, [FC], torch.float32)
    torch.testing.assert_close(linear(X), X @ int8_rounded(stored[f"{FC}.weight"]).t())
    assert not torch.equal(linear(X), X @ stored[f"{FC}.weight"].t())


def _int4() -> dict[str, Tensor]:
    stored = {}
    factor = torch.rand(128, generator=GENERATOR) + 0.5
    for module, outputs in ((FC, 16), (GATE, 8)):
        levels = torch.randint(-8, 8, (outputs, 128), generator=GENERATOR).to(torch.int8)
        stored[f"{module}.weight"] = pack_int4(levels)
        stored[f"{module}.weights_scaling_factor"] = torch.rand(outputs, 2, generator=GENERATOR)
        stored[f"{module}.prequant_scaling_factor"] = factor.clone()
        stored[f"{module}.levels"] = levels
    return stored


def test_int4_multiplies_smoothed_inputs() -> None:
    stored, config = _int4(), _config(Quantization("W4A16_AWQ", group_size=64))
    linear = read_linear(config, stored.__getitem__, (FC, GATE), torch.float32)
    assert isinstance(linear, SmoothedLinear)
    wanted = []
    for module in (FC, GATE):
        scale = stored[f"{module}.weights_scaling_factor"].repeat_interleave(64, dim=1)
        wanted.append(
            (X * stored[f"{FC}.prequant_scaling_factor"]) @ (stored[f"{module}.levels"] * scale).t()
        )
    torch.testing.assert_close(linear(X), torch.cat(wanted, dim=1))
    torch.testing.assert_close(linear.added_to(RESIDUAL, X), RESIDUAL + linear(X), rtol=1e-4, atol=1e-4)


def test_two_factors_for_one_input_are_refused() -> None:
    stored, config = _int4(), _config(Quantization("W4A16_AWQ", group_size=64))
    stored[f"{GATE}.prequant_scaling_factor"][0] += 1
    with pytest.raises(BundleError, match="different prequant_scaling_factors"):
        read_linear(config, stored.__getitem__, (FC, GATE), torch.float32)
