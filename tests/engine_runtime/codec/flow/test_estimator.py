"""The chunked Euler steps of the flow against the one-shot ones."""

from __future__ import annotations

import pytest
import torch

from engine_runtime.codec.flow.estimator import EstimatorState, EstimatorSteps
from engine_runtime.codec.flow.packed_weights import WeightPacker
from engine_runtime.codec.flow.token2mel import Token2Mel
from tests.engine_runtime.codec.flow.test_token2mel import SPEC, always, codes_of, run
from tests.factories.tiny_flow import make_flow

PACK = WeightPacker(torch.float32, torch.device("cpu"))


@torch.inference_mode()
@pytest.mark.parametrize("cfg_rate", [0.0, 0.7])
def test_chunks_equal_the_one_shot_sample(cfg_rate: float) -> None:
    flow, cases = make_flow()
    decoder = flow.decoder
    mu, cond = (cases[f"internal.est0.{name}"][:1] for name in ("mu", "cond"))  # [1, 80, frames]
    speaker, steps = cases["internal.spk"], 3
    reference = decoder.sample(mu, speaker, cond, steps, cfg_rate)
    chunked = EstimatorSteps(flow, cfg_rate, None, PACK)
    state = chunked.new_state(steps)
    parts = []
    for start in range(0, 80, 20):
        rows = (value[:, :, start : start + 20].transpose(1, 2) for value in (mu, cond))
        chunk_mu, chunk_cond = rows
        noise = decoder.noise(start, 20).T[None]
        parts.append(chunked.sample(state, noise, chunk_mu, speaker, chunk_cond))
    mel = torch.cat(parts, dim=1).transpose(1, 2)
    assert mel.shape == reference.shape == (1, 80, 80)
    assert float((mel - reference).abs().max()) <= 1e-4


def test_schedules_are_made_once() -> None:
    chunked = EstimatorSteps(make_flow()[0], 0.7, None, PACK)
    assert chunked.schedule(4) is chunked.schedule(4)
    assert len(chunked.schedule(4).span) == 4
    assert len(chunked.schedule(2).times[0]) == 2


def test_every_frame_is_worked_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = []
    sample = EstimatorSteps.sample

    def counting(
        self: EstimatorSteps,
        state: EstimatorState,
        noise: torch.Tensor,
        mu: torch.Tensor,
        *more: torch.Tensor,
    ) -> torch.Tensor:
        frames.append(mu.shape[1])
        return sample(self, state, noise, mu, *more)

    monkeypatch.setattr(EstimatorSteps, "sample", counting)
    run(Token2Mel(make_flow()[0], SPEC, steps=2).stream(), codes_of(23), always(1))
    assert frames == [20, 20, 20, 20, 12]
