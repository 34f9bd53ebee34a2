"""Training of a BigVGAN: losses, weights in and out, and what each step improves."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from engine_runtime.models.bigvgan import build_bigvgan
from tests.assets.conftest import Recipe

CONFIG = {
    "resblock": "1",
    "upsample_rates": [10, 6, 4, 2],
    "upsample_kernel_sizes": [20, 12, 8, 4],
    "upsample_initial_channel": 32,
    "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3]],
    "activation": "snakebeta",
    "snake_logscale": True,
    "num_mels": 80,
}
RATE = 24_000
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture
def training(recipe: Recipe) -> ModuleType:
    torch.manual_seed(0)
    return recipe("bigvgan_training")


def test_losses_of_a_perfect_generator(recipe: Recipe) -> None:
    discriminators = recipe("discriminators")
    torch.manual_seed(0)
    wave = torch.randn(2, 4_000) * 0.1
    features = discriminators.Discriminators()(wave)
    assert len(features) == len(discriminators.PERIODS) + len(discriminators.RESOLUTIONS)
    assert discriminators.matching_loss(features, features).item() == 0
    ones = [[torch.ones(2, 1)]] * 3
    zeros = [[torch.zeros(2, 1)]] * 3
    assert discriminators.discriminator_loss(ones, zeros).item() == 0
    assert discriminators.discriminator_loss(zeros, ones).item() == 6
    assert discriminators.adversarial_loss(ones).item() == 0


def test_wider_discriminators_have_more_channels_in_every_layer(recipe: Recipe) -> None:
    narrow, wide = (recipe("discriminators").Discriminators(width).state_dict() for width in (1, 2))
    for name, value in narrow.items():
        grown = 1 if ".head." in name or value.numel() == 1 else 2
        assert len(wide[name]) == grown * len(value), name


def test_the_spectral_loss_is_zero_only_for_the_same_wave(training: ModuleType) -> None:
    multi_mel = training.MultiMel(RATE)
    wave = torch.randn(1, 8_000, generator=torch.Generator().manual_seed(0)) * 0.1
    assert multi_mel(wave, wave).item() == 0
    assert multi_mel(wave, wave * 0.5).item() > 0.5


def test_a_generator_starts_from_the_blocks_in_common_with_a_larger_one(training: ModuleType) -> None:
    more = {"resblock_kernel_sizes": [7, 3], "resblock_dilation_sizes": [[1], [1, 3, 5]]}
    larger = build_bigvgan({**CONFIG, **more}).state_dict()
    generator = build_bigvgan(CONFIG, weight_norm=True)
    training.take_weights(generator, training.in_common(generator, larger))
    generator.remove_weight_norm()
    for name, value in generator.state_dict().items():
        kind, *rest = name.split(".")
        source = f"resblocks.{2 * int(rest[0]) + 1}.{'.'.join(rest[1:])}" if kind == "resblocks" else name
        torch.testing.assert_close(value, larger[source], msg=name)


def test_weights_with_a_channel_of_zeros_are_taken_over(training: ModuleType) -> None:
    weights = build_bigvgan(CONFIG).state_dict()
    weights["conv_pre.weight"][0] = 0
    generator = build_bigvgan(CONFIG, weight_norm=True)
    training.take_weights(generator, weights)
    generator(torch.randn(1, 80, 8)).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in generator.parameters())
    generator.remove_weight_norm()
    torch.testing.assert_close(generator.state_dict()["conv_pre.weight"], weights["conv_pre.weight"])


@pytest.mark.slow
def test_samples_that_do_not_count_change_no_loss(training: ModuleType) -> None:
    inner = slice(2 * 480, 6 * 480)
    gan = training.GanTraining(build_bigvgan(CONFIG, weight_norm=True), RATE, "cpu", inner=inner)
    gan.set_rates(0.0, 0.0)
    mel, wave = torch.randn(2, 80, 8), torch.randn(2, 8 * 480) * 0.1
    (before,) = gan.spectral_step(mel, wave)
    wave[:, : inner.start] = wave[:, inner.stop :] = 0.5
    torch.testing.assert_close(gan.spectral_step(mel, wave)[0], before)
    wave[:, inner] = 0.5
    assert gan.spectral_step(mel, wave)[0] > before + 0.1


@pytest.mark.slow
def test_each_side_of_the_gan_learns_from_its_own_loss(training: ModuleType, recipe: Recipe) -> None:
    gan = training.GanTraining(build_bigvgan(CONFIG, weight_norm=True), RATE, "cpu")
    gan.set_rates(0.5, 1e-4)
    mel, wave = torch.randn(2, 80, 8), torch.randn(2, 8 * 480) * 0.1
    sides = gan.generator, gan.discriminators
    before = [[parameter.detach().clone() for parameter in side.parameters()] for side in sides]
    made = gan.generator(mel)[:, 0].detach()
    loss = recipe("discriminators").discriminator_loss(gan.discriminators(wave), gan.discriminators(made))
    wanted = torch.autograd.grad(loss, list(gan.discriminators.parameters()))
    _, found, _, _ = gan.gan_step(mel, wave)
    torch.testing.assert_close(found, loss.detach())
    for parameter, gradient in zip(gan.discriminators.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-5)
    for side, values in zip(sides, before, strict=True):
        assert any(not torch.equal(p, q) for p, q in zip(side.parameters(), values, strict=True))
