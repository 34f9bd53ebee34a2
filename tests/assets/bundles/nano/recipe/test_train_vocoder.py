"""The vocoder's training resumes from saved weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.assets.conftest import Recipe


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_training_resumes_from_saved_weights(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train_vocoder = recipe("train_vocoder")
    monkeypatch.setattr(train_vocoder, "CONFIG", {**train_vocoder.CONFIG, "upsample_initial_channel": 32})
    torch.manual_seed(0)
    first = train_vocoder.Training("cpu")
    first.save(tmp_path)
    second = train_vocoder.Training("cpu", init=tmp_path)
    mel = torch.randn(1, 80, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted, made = first.generator(mel), second.generator(mel)
    assert torch.equal(wanted.isfinite(), torch.ones_like(wanted, dtype=torch.bool))
    torch.testing.assert_close(made, wanted, atol=2e-3, rtol=0.02)
