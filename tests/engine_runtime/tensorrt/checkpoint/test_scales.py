"""Number formats of quantized checkpoints, and the AWQ search."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from engine_runtime.tensorrt.checkpoint import scales
from engine_runtime.tensorrt.checkpoint.scales import (
    QuantizeError,
    fp8_levels,
    fp8_scale,
    group_size,
    int4_dense,
    int4_levels,
    int4_scale,
    int8_rounded,
    pack_int4,
    unpack_int4,
)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_fp8_puts_the_largest_value_on_448() -> None:
    scale = fp8_scale(torch.tensor(896.0))
    assert scale.shape == (1,)
    assert scale.dtype == torch.float32
    assert scale.item() == 2.0
    values = torch.tensor([896.0, -896.0, 5000.0, 2.0, 0.0, 2.2])
    levels = fp8_levels(values, scale)
    assert levels.dtype == torch.float8_e4m3fn
    # 1.1 is between 1 and 1.125, the next number of e4m3.
    assert levels.float().tolist() == [448.0, -448.0, 448.0, 1.0, 0.0, 1.125]
    assert fp8_scale(torch.tensor(0.0)).item() == 1.0


def test_int8_rounds_as_the_library_does_when_it_loads() -> None:
    # amax / 128 an output: a positive largest weight is cut to 127 steps, a negative one is met by -128.
    weight = torch.tensor([[128.0, 64.4, -3.0], [-1.28, 0.644, 0.0], [0.0, 0.0, 0.0]])
    wanted = torch.tensor([[127.0, 64.0, -3.0], [-1.28, 0.64, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(int8_rounded(weight), wanted)
    assert int8_rounded(weight.bfloat16()).dtype == torch.bfloat16


def test_int4_packs_two_outputs_a_byte_and_reads_them_back() -> None:
    levels = torch.tensor([[1, -1, 7], [-8, 2, 0], [3, 3, 3], [-4, -5, -6]], dtype=torch.int8)
    packed = pack_int4(levels)
    assert packed.shape == (2, 3)
    assert packed.dtype == torch.int8
    # Output 0 in the low half: 1 | -8 << 4 = 0x81; 0xf | 2 << 4 = 0x2f; 7 | 0 << 4 = 0x07.
    assert [value & 0xFF for value in packed[0].tolist()] == [0x81, 0x2F, 0x07]
    assert torch.equal(unpack_int4(packed), levels)
    every = torch.arange(-8, 8, dtype=torch.int8).repeat(4, 3)
    assert torch.equal(unpack_int4(pack_int4(every)), every)
    with pytest.raises(QuantizeError, match="packed in pairs"):
        pack_int4(levels[:3])


def test_the_loader_finds_outputs_side_by_side_after_transposing() -> None:
    """TensorRT-LLM transposes the bytes and takes them as int4 [in, out], row-major, low half first."""
    levels = torch.randint(-8, 8, (8, 6), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    flat = np.frombuffer(pack_int4(levels).t().contiguous().numpy().tobytes(), np.uint8)
    halves = [half for byte in flat for half in (byte & 15, byte >> 4)]
    found = np.array([half - 16 if half > 7 else half for half in map(int, halves)]).reshape(6, 8)
    assert np.array_equal(found, levels.numpy().T)


def test_int4_has_one_scale_a_group() -> None:
    weight = _random(4, 128)
    weight[1, 64:] = 0
    scale = int4_scale(weight, 64, torch.bfloat16)
    assert scale.shape == (4, 2)
    assert scale.dtype == torch.bfloat16
    levels = int4_levels(weight, scale)
    assert levels.dtype == torch.int8
    for row in range(4):
        for column in range(128):
            step = float(scale[row, column // 64])
            wanted = max(-8, min(7, round(float(weight[row, column]) / step)))
            assert levels[row, column] == wanted
    dense = int4_dense(levels, scale)
    assert dense.dtype == torch.bfloat16
    assert not dense[1, 64:].any()
    # Half a step, and what rounding scale and product to bfloat16 adds.
    assert ((dense - weight).abs() <= scale.float().repeat_interleave(64, dim=1) * 0.55).all()


def test_a_group_is_cut_off_where_that_costs_less() -> None:
    weight = _random(8, 128) * 0.1
    weight[:, 3] = 1.0  # an outlier whose input is always zero
    importance = torch.ones(128)
    importance[3] = 0.0

    def error(scale: torch.Tensor) -> float:
        dense = int4_dense(int4_levels(weight, scale), scale)
        return float(((dense - weight).square() * importance).sum())

    plain = int4_scale(weight, 128, torch.float32)
    cut = int4_scale(weight, 128, torch.float32, importance)
    assert (cut < plain).all()
    assert error(cut) < 0.5 * error(plain)


@pytest.mark.parametrize(("inputs", "size"), [(4096, 128), (12288, 128), (704, 64), (64, 64)])
def test_groups_are_of_a_size_that_divides(inputs: int, size: int) -> None:
    assert group_size(inputs) == size


def test_a_size_without_groups_is_refused() -> None:
    with pytest.raises(QuantizeError, match=r"160 inputs .* Choose int8 or fp8"):
        group_size(160)


def _case(outliers: float) -> tuple[list[Tensor], Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(32, 128, generator=generator), torch.randn(16, 128, generator=generator)]
    rows = torch.randn(64, 128, generator=generator)
    rows[:, ::16] *= outliers
    return weights, rows, rows.abs().mean(dim=0)


def _error(weights: list[Tensor], rows: Tensor, factor: Tensor) -> float:
    wrong = complete = 0.0
    for weight in weights:
        dense, _ = scales.int4_smoothed(weight, factor, rows, 64)
        wanted = rows @ weight.t()
        wrong += float(((rows * factor) @ dense.t() - wanted).square().sum())
        complete += float(wanted.square().sum())
    return wrong / complete


def test_large_inputs_are_scaled_down_and_that_helps() -> None:
    weights, rows, mean = _case(30.0)
    found = scales.find_smoothing(weights, rows, mean, 64, torch.float32)
    assert 0 < found.alpha <= 1
    assert found.factor.shape == (128,)
    assert found.factor[0] < 0.6 * found.factor[1]
    none = _error(weights, rows, torch.ones(128))
    assert abs(_error(weights, rows, found.factor) - found.error) < 1e-6
    assert found.error < 0.8 * none


def test_the_search_is_the_best_of_all_its_steps() -> None:
    weights, rows, mean = _case(3.0)
    found = scales.find_smoothing(weights, rows, mean, 64, torch.float32)
    errors = []
    for step in range(scales.SMOOTHING_STEPS + 1):
        scale = mean.pow(step / scales.SMOOTHING_STEPS)
        scale = scale / (scale.max() * scale.min()).sqrt()
        errors.append(_error(weights, rows, 1 / scale))
    assert abs(min(errors) - found.error) < 1e-6
    assert errors.index(min(errors)) == round(found.alpha * scales.SMOOTHING_STEPS)


def test_the_factor_has_the_numbers_that_the_engine_multiplies_with() -> None:
    weights, rows, mean = _case(30.0)
    found = scales.find_smoothing(
        [weight.bfloat16() for weight in weights], rows.bfloat16(), mean, 64, torch.bfloat16
    )
    assert found.factor.dtype == torch.bfloat16
    dense, scale = scales.int4_smoothed(weights[0].bfloat16(), found.factor, rows, 64)
    assert dense.dtype == scale.dtype == torch.bfloat16
    # Weights were divided by the rounded factor, so that only their own rounding is left.
    again = dense.float() * found.factor.float()
    assert (again - weights[0]).norm() / weights[0].norm() < 0.2


def test_a_tall_weight_is_searched_at_outputs_spread_over_it() -> None:
    _, rows, mean = _case(10.0)
    tall = torch.randn(2 * scales.SEARCHED_OUTPUTS, 128, generator=torch.Generator().manual_seed(2))
    tall[1::2] *= 1000
    found = scales.find_smoothing([tall], rows, mean, 64, torch.float32)
    every_second = scales.find_smoothing([tall[::2]], rows, mean, 64, torch.float32)
    assert torch.equal(found.factor, every_second.factor)
    assert found.error == every_second.error


def test_inputs_that_are_always_zero_do_no_harm() -> None:
    weights, rows, mean = _case(1.0)
    rows[:, 5], mean[5] = 0, 0
    found = scales.find_smoothing(weights, rows, mean, 64, torch.float32)
    assert found.factor.isfinite().all()
    assert found.error < 0.02
