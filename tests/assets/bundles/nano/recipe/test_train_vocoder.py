"""Parts of the vocoder's training: losses, and resuming from saved weights."""

from __future__ import annotations

import pytest
import torch


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_training_resumes_from_saved_weights(recipe, tmp_path) -> None:
    train_vocoder = recipe("train_vocoder")
    torch.manual_seed(0)
    first = train_vocoder.Training("cpu", None)
    first.save(tmp_path)
    second = train_vocoder.Training("cpu", tmp_path)
    mel = torch.randn(1, 80, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted, made = first.generator(mel), second.generator(mel)
    assert torch.equal(wanted.isfinite(), torch.ones_like(wanted, dtype=torch.bool))
    torch.testing.assert_close(made, wanted, atol=2e-3, rtol=0.02)
