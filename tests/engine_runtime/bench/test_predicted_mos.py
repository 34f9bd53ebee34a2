from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor, nn

from engine_runtime.bench.predicted_mos import MosPredictor, PredictorMissing

QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package whose network returns the number of its samples."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sys.stdout.write("weights loaded")

        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([[float(x.shape[1])]])

    package = ModuleType("distillmos")
    package.__dict__["ConvTransformerSQAModel"] = Network
    monkeypatch.setitem(sys.modules, "distillmos", package)
    return package


def test_speech_is_given_at_16_khz_and_nothing_is_printed(
    double: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.modules.get("torchaudio")
    assert MosPredictor().score(np.zeros(48_000, np.float32), 24_000) == 32_000
    assert capsys.readouterr().out == ""
    assert sys.modules.get("torchaudio") is before


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distillmos", None)
    with pytest.raises(PredictorMissing, match=r"moss-voice\[quality\].*--no-deps distillmos==0.9.1"):
        MosPredictor()
    assert (
        "torchaudio" not in sys.modules
        or sys.modules["torchaudio"].__doc__ is None
        or ("Replaces" not in sys.modules["torchaudio"].__doc__)
    )


@pytest.mark.slow
def test_worse_speech_has_a_lower_score() -> None:
    pytest.importorskip("xls_r_sqa")
    predictor = MosPredictor()
    pcm, rate = soundfile.read(QUESTION, dtype="float32")
    noise = np.random.default_rng(0).normal(0, 0.05, len(pcm)).astype(np.float32)
    score = predictor.score(pcm, rate)
    assert 1 <= predictor.score(pcm + noise, rate) < score <= 5
    assert predictor.score(np.clip(8 * pcm, -0.3, 0.3), rate) < score
    assert predictor.score(0.5 * pcm, rate) == pytest.approx(score, abs=0.01)
