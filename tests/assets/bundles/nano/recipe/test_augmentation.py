"""Disturbances of user speech: shape, level, tempo, vocal tract."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from tests.assets.conftest import Recipe


@pytest.fixture(scope="module")
def augmentation(recipe: Recipe) -> ModuleType:
    return recipe("augmentation")


def test_augmentation_keeps_the_shape_and_the_level(augmentation: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    wave = torch.randn(16, 8_000, generator=generator) * 0.1
    wave[3] = 0.0
    changed = augmentation.augment(wave, generator)
    assert changed.shape == wave.shape
    assert bool(changed.isfinite().all())
    peaks = changed.abs().amax(1)
    assert bool((peaks[torch.arange(16) != 3] >= 0.099).all() and (peaks <= 0.9).all())
    assert torch.equal(changed, augmentation.augment(*_again(wave)))


def _again(wave: torch.Tensor) -> tuple[torch.Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(0)
    torch.randn(16, 8_000, generator=generator)
    return wave, generator


@pytest.mark.slow
def test_nobody_is_warped_by_a_share_of_zero(augmentation: ModuleType) -> None:
    mel = torch.randn(4, 128, 10, generator=torch.Generator().manual_seed(1))
    same = augmentation.warp_mel(mel, torch.Generator().manual_seed(0), share=0.0)
    torch.testing.assert_close(same, mel, atol=2e-4, rtol=0)


def test_a_warp_moves_a_band(augmentation: ModuleType) -> None:
    mel = torch.zeros(64, 128, 1)
    mel[:, 60] = 1.0
    warped = augmentation.warp_mel(mel, torch.Generator().manual_seed(0), share=1.0)
    places = warped[..., 0].argmax(1)
    assert places.min() < 57
    assert places.max() > 63
    assert places.min() > 50
    assert places.max() < 70


def test_the_mel_scale_is_turned_round(augmentation: ModuleType) -> None:
    hertz = torch.tensor([0.0, 500.0, 1000.0, 4000.0, 8000.0])
    torch.testing.assert_close(augmentation._hertz(augmentation._mel_scale(hertz)), hertz)
    assert augmentation._mel_scale(hertz)[2] == 15


def test_a_warp_of_time_keeps_the_ends_and_the_order(augmentation: ModuleType) -> None:
    ramp = torch.arange(100.0).expand(64, 3, 100).contiguous()
    warped = augmentation.warp_time(ramp, torch.Generator().manual_seed(0), views=2)
    torch.testing.assert_close(warped[..., [0, -1]], ramp[..., [0, -1]], atol=1e-3, rtol=0)
    assert bool((warped.diff(dim=2) > 0).all())
    torch.testing.assert_close(warped[:32], warped[32:])  # both versions alike
    moved = (warped - ramp).abs().amax((1, 2))
    assert 0.3 < (moved > 0.5).float().mean() < 0.9


def test_a_telephone_has_no_highs(augmentation: ModuleType) -> None:
    draw = augmentation._Draw(torch.Generator().manual_seed(0), torch.device("cpu"))
    gains = augmentation._band(draw, 400, 801, 16_000)
    limited = gains[:, 780] < 0.01
    assert 0.3 < limited.float().mean() < 0.5
    assert bool((gains[:, 50:300] > 0.95).all())  # 500 to 3,000 Hz pass
    assert 0.1 < (gains[:, 2] < 0.2).float().mean() < 0.3
