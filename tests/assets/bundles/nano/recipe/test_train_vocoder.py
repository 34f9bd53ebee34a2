"""Parts of the vocoder's training: losses, and resuming from saved weights."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from engine_runtime.models.bigvgan import build_bigvgan


def test_losses_of_a_perfect_generator(recipe) -> None:
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


def test_the_spectral_loss_is_zero_only_for_the_same_wave(recipe) -> None:
    multi_mel = recipe("train_vocoder").MultiMel()
    wave = torch.randn(1, 8_000, generator=torch.Generator().manual_seed(0)) * 0.1
    assert multi_mel(wave, wave).item() == 0
    assert multi_mel(wave, wave * 0.5).item() > 0.5


@pytest.fixture
def small(recipe, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The training with a generator of a few channels."""
    train_vocoder = recipe("train_vocoder")
    monkeypatch.setattr(train_vocoder, "CONFIG", {**train_vocoder.CONFIG, "upsample_initial_channel": 32})
    torch.manual_seed(0)
    return train_vocoder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_training_resumes_from_saved_weights(small: ModuleType, tmp_path) -> None:
    first = small.Training("cpu")
    first.save(tmp_path)
    second = small.Training("cpu", init=tmp_path)
    mel = torch.randn(1, 80, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted, made = first.generator(mel), second.generator(mel)
    assert torch.equal(wanted.isfinite(), torch.ones_like(wanted, dtype=torch.bool))
    torch.testing.assert_close(made, wanted, atol=2e-3, rtol=0.02)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_generator_starts_from_the_blocks_in_common_with_a_larger_one(small: ModuleType) -> None:
    more = {"resblock_kernel_sizes": [7, 3], "resblock_dilation_sizes": [[1], [1, 3, 5]]}
    larger = build_bigvgan({**small.CONFIG, **more}).state_dict()
    generator = build_bigvgan(small.CONFIG, weight_norm=True)
    small.take_weights(generator, small.in_common(generator, larger))
    generator.remove_weight_norm()
    for name, value in generator.state_dict().items():
        kind, *rest = name.split(".")
        source = f"resblocks.{2 * int(rest[0]) + 1}.{'.'.join(rest[1:])}" if kind == "resblocks" else name
        torch.testing.assert_close(value, larger[source], msg=name)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_with_a_channel_of_zeros_are_taken_over(small: ModuleType) -> None:
    weights = build_bigvgan(small.CONFIG).state_dict()
    weights["conv_pre.weight"][0] = 0
    generator = build_bigvgan(small.CONFIG, weight_norm=True)
    small.take_weights(generator, weights)
    generator(torch.randn(1, small.CONFIG["num_mels"], 8)).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in generator.parameters())
    generator.remove_weight_norm()
    torch.testing.assert_close(generator.state_dict()["conv_pre.weight"], weights["conv_pre.weight"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_each_side_of_the_gan_learns_from_its_own_loss(small: ModuleType) -> None:
    training = small.Training("cpu")
    training.set_rates(0.5, 1e-4)
    mel, wave = torch.randn(2, 80, 8), torch.randn(2, 8 * 480) * 0.1
    sides = training.generator, training.discriminators
    before = [[parameter.detach().clone() for parameter in side.parameters()] for side in sides]
    made = training.generator(mel)[:, 0].detach()
    loss = small.discriminator_loss(training.discriminators(wave), training.discriminators(made))
    wanted = torch.autograd.grad(loss, list(training.discriminators.parameters()))
    _, found, _, _ = training.gan_step(mel, wave)
    torch.testing.assert_close(found, loss.detach())
    for parameter, gradient in zip(training.discriminators.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-5)
    for side, values in zip(sides, before, strict=True):
        assert any(not torch.equal(p, q) for p, q in zip(side.parameters(), values, strict=True))
