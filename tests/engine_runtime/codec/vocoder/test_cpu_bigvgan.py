"""The levels of the CPU BigVGAN against the modules of the package, each over a complete signal."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine_runtime.codec.vocoder.cpu_bigvgan import CpuBigVGAN
from engine_runtime.models.bigvgan import build_bigvgan
from engine_runtime.models.bigvgan_package import BigVGAN
from tests.engine_runtime.codec.vocoder.test_vocoder import CONFIG, lively

CHANGES: list[dict[str, object]] = [
    {},
    {"resblock": "2", "resblock_dilation_sizes": [[1, 3, 5], [1, 3]], "use_tanh_at_final": True},
    {"activation": "snake", "snake_logscale": False, "use_bias_at_final": True},
    {"upsample_rates": [8, 5, 4, 3], "upsample_kernel_sizes": [16, 11, 8, 7]},
    {"upsample_rates": [15, 4, 4, 2], "upsample_kernel_sizes": [31, 4, 10, 2]},
]


def network_of(change: dict[str, object]) -> BigVGAN:
    network = build_bigvgan({**CONFIG, **change})
    lively(network)
    for name, parameter in network.named_parameters():
        if name.endswith((".alpha", ".beta")):
            torch.nn.init.uniform_(parameter, 0.3, 1.5)
        elif name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return network


def random(channels: int, length: int) -> Tensor:
    return torch.randn((1, channels, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@torch.inference_mode()
def test_every_level_is_that_of_the_package(change: dict[str, object]) -> None:
    network = network_of(change)
    kinds = network.num_kernels
    x, rows = random(80, 9), random(80, 9)[0].T.contiguous()
    first, *stages, last = CpuBigVGAN(network).levels
    x, rows = network.conv_pre(x), first.run(rows, True, True)
    for index, (up, stage) in enumerate(zip(stages[::2], stages[1::2], strict=True)):
        x, rows = network.ups[index][0](x), up.run(rows, True, True)
        torch.testing.assert_close(rows, x[0].T, rtol=1e-5, atol=2e-6)
        blocks = network.resblocks[index * kinds : (index + 1) * kinds]
        total = torch.stack([block(x) for block in blocks]).sum(dim=0)
        x, rows = total / kinds, stage.run(rows, True, True)
        torch.testing.assert_close(rows, total[0].T, rtol=1e-5, atol=5e-6)
    x = network.conv_post(network.activation_post(x))
    x = x.tanh() if network.use_tanh_at_final else x.clamp(-1.0, 1.0)
    torch.testing.assert_close(last.run(rows, True, True), x[0].T, rtol=1e-5, atol=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@torch.inference_mode()
def test_a_part_of_the_rows_makes_the_rows_that_a_level_states(change: dict[str, object]) -> None:
    for level, width in zip(
        CpuBigVGAN(network_of(change)).levels, (80, 32, 16, 16, 8, 8, 4, 4, 2, 2), strict=True
    ):
        signal = random(width, 40 + 3 * level.context)[0].T.contiguous()
        reference = level.run(signal, True, True)
        length, first = level.context + 4, 9
        for start in (0, first, len(signal) - length):
            at_start, at_end = start == 0, start + length == len(signal)
            part = level.run(signal[start : start + length], at_start, at_end)
            low = 0 if at_start else level.rate * (start + level.context) - level.delay
            high = level.rate * (start + length) - (0 if at_end else level.delay)
            torch.testing.assert_close(part, reference[low:high], rtol=1e-5, atol=5e-6)


@torch.inference_mode()
def test_a_snake_of_no_frequency_is_the_identity_between_the_filters() -> None:
    network = network_of({"activation": "snakebeta", "snake_logscale": False})
    network.activation_post.act.alpha.zero_()
    signal = random(2, 50)
    pcm = CpuBigVGAN(network).levels[-1].run(signal[0].T.contiguous(), True, True)
    want = network.conv_post(network.activation_post(signal / network.num_kernels)).clamp(-1.0, 1.0)
    torch.testing.assert_close(pcm, want[0].T, rtol=1e-5, atol=5e-6)
