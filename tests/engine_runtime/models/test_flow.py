"""The plain flow against stored vectors, its names at full size, its causality, and its training loss."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine_runtime.errors import BundleError, ContextLengthError
from engine_runtime.models.flow import CausalFlow, FlowConfig
from engine_runtime.models.flow.cfm import fixed_noise, time_span
from engine_runtime.models.flow.encoder import align_distances
from tests.factories.tiny_flow import META, flow_config, make_flow

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
MEL_TOLERANCE = 3e-4


@pytest.fixture(scope="module")
def tiny() -> tuple[CausalFlow, dict[str, torch.Tensor]]:
    return make_flow()


def difference(got: torch.Tensor, want: torch.Tensor) -> float:
    assert got.shape == want.shape
    return float((got.double() - want.double()).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(META["cases"]))
def test_mel_of_stored_cases(tiny: tuple[CausalFlow, dict[str, torch.Tensor]], name: str) -> None:
    model, cases = tiny
    case = META["cases"][name]
    prompt = f"in.P{case['prompt_codes']}."
    has_prompt = case["prompt_codes"] > 0
    mel = model.inference(
        cases["in.token"][: case["codes"]].long()[None],
        prompt_codes=cases[prompt + "prompt_token"].long()[None] if has_prompt else None,
        prompt_mel=cases[prompt + "prompt_feat"].T[None] if has_prompt else None,
        xvector=cases["in.xvector"][None],
        n_steps=case["n_timesteps"],
        streaming=case["streaming"],
        finalize=case["finalize"],
    )
    assert difference(mel[0], cases[name]) <= MEL_TOLERANCE


@torch.inference_mode()
def test_stages_of_one_call(tiny: tuple[CausalFlow, dict[str, torch.Tensor]]) -> None:
    model, cases = tiny
    codes = torch.cat((cases["in.P10.prompt_token"], cases["in.token"][:13])).long()[None]
    mu = model.encode(codes, finalize=False)
    assert difference(mu.transpose(1, 2), cases["internal.enc.mu"]) <= 1e-4  # stored as [1, frames, 80]
    assert difference(model.speaker(cases["in.xvector"][None]), cases["internal.spk"]) <= 1e-5
    for step in ("est0", "est1"):
        x, t = cases[f"internal.{step}.x"], cases[f"internal.{step}.t"]
        mu, spks, cond = (cases[f"internal.est0.{part}"] for part in ("mu", "spks", "cond"))
        velocity = model.decoder.estimator(x, torch.ones(2, 1, x.shape[2]), mu, t, spks, cond)
        assert difference(velocity, cases[f"internal.{step}.out"]) <= MEL_TOLERANCE


@pytest.mark.slow
def test_names_and_shapes_at_full_size() -> None:
    inventory = json.loads((GOLDEN / "inventory_flow.json").read_text())
    with torch.device("meta"):
        model = CausalFlow(FlowConfig())
    assert {key: list(value.shape) for key, value in model.state_dict().items()} == inventory["tensors"]
    assert sum(parameter.numel() for parameter in model.parameters()) == inventory["parameters"]


def test_noise_is_the_stored_buffer(tiny: tuple[CausalFlow, dict[str, torch.Tensor]]) -> None:
    noise = fixed_noise(80, 15000)
    assert hashlib.sha256(noise.numpy().tobytes()).hexdigest() == META["noise"]["sha256_of_fp32_le_bytes"]
    model, cases = tiny
    assert torch.equal(model.decoder.noise(20, 100), cases["in.rand_noise_first_160_frames"][:, 20:120])
    with pytest.raises(ContextLengthError, match="15001 mel frames"):
        model.decoder.noise(14990, 11)


@pytest.mark.parametrize("steps", [2, 5, 10])
def test_cosine_schedule(steps: int) -> None:
    stored = META["t_span_cosine"][str(steps)]
    assert [t for t, _ in time_span(steps)] == pytest.approx(stored[:-1], abs=1e-6)
    assert sum(dt for _, dt in time_span(steps)) == pytest.approx(1.0)


def test_chunks_that_are_out_do_not_change(tiny: tuple[CausalFlow, dict[str, torch.Tensor]]) -> None:
    model, cases = tiny
    codes = cases["in.token"].long()[None]
    reference = model.inference(codes, n_steps=3)
    for count in (8, 13, 18):
        part = model.inference(codes[:, :count], n_steps=3, finalize=False)
        assert difference(part, reference[:, :, : part.shape[2]]) <= 1e-4


def test_guidance_of_zero_is_the_conditional_half(tiny: tuple[CausalFlow, dict[str, torch.Tensor]]) -> None:
    model, cases = tiny
    codes = cases["in.token"][:10].long()[None]
    plain = model.inference(codes, n_steps=2, cfg_rate=0.0)
    assert difference(plain, model.inference(codes, n_steps=2, cfg_rate=1e-9)) <= 1e-5
    assert difference(plain, model.inference(codes, n_steps=2, cfg_rate=0.7)) > 0.1


def test_align_distances_picks_query_minus_key() -> None:
    queries, keys = 3, 7
    distances = torch.arange(keys - 1, -queries, -1).expand(queries, -1)
    want = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)[None, :]
    assert torch.equal(align_distances(distances, keys), want)


@torch.no_grad()
def test_a_padded_row_is_encoded_as_if_alone(tiny: tuple[CausalFlow, dict[str, torch.Tensor]]) -> None:
    model, cases = tiny
    codes = cases["in.token"].long()
    batch = torch.stack((codes, codes.flip(0)))
    lengths = torch.tensor([23, 11])
    together = model.encode(batch, lengths)
    alone = model.encode(batch[1:, :11])
    assert difference(together[1:, :, :44], alone) <= 1e-4


def test_loss_ignores_padding_and_reaches_every_parameter() -> None:
    torch.manual_seed(1)
    model = CausalFlow(replace(flow_config(), encoder_dropout=0.0))
    codes, mel = torch.randint(0, 160, (3, 12)), torch.randn(3, 80, 48)
    lengths = torch.tensor([12, 7, 5])
    torch.manual_seed(2)
    loss = model.loss(codes, mel, lengths)
    loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    damaged, other = mel.clone(), codes.clone()
    damaged[1, :, 28:], damaged[2, :, 20:], other[1, 7:], other[2, 5:] = 9.0, -9.0, 3, 5
    torch.manual_seed(2)
    assert float(model.loss(other, damaged, lengths).detach()) == pytest.approx(
        float(loss.detach()), rel=1e-4
    )


@pytest.mark.slow
def test_loss_falls_in_training_under_autocast() -> None:
    torch.manual_seed(3)
    model = CausalFlow(
        FlowConfig(
            vocab_size=16, encoder_dim=32, encoder_heads=2, encoder_ffn=64, encoder_blocks=1,
            encoder_up_blocks=1, channels=32, n_blocks=1, mid_blocks=1, heads=2, head_dim=16,
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    codes, lengths = torch.randint(0, 16, (4, 10)), torch.full((4,), 10)
    mel = torch.randn(16, 80)[codes].repeat_interleave(4, dim=1).transpose(1, 2)
    losses = []
    for _ in range(100):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.loss(codes, mel, lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"colour": 3}, "unknown key"),
        ({"channels": "wide"}, r"\[flow.config\] has channels = 'wide', which must be an integer from 1"),
        ({"channels": True}, "must be an integer"),
        ({"heads": 0}, "heads = 0, which must be an integer from 1 to 256"),
        ({"cfg_rate": float("nan")}, "cfg_rate = nan, which must be a number from 0 to 100"),
        ({"encoder_dim": 65}, "divisible"),
    ],
)
def test_bad_config_is_refused(values: dict[str, object], word: str) -> None:
    with pytest.raises(BundleError, match=word):
        FlowConfig.from_dict(values)


def test_config_round_trip() -> None:
    config = FlowConfig.from_dict({"channels": 192, "cfg_rate": 1, "steps": 4})
    assert (config.channels, config.cfg_rate, config.steps, config.chunk_frames) == (192, 1.0, 4, 20)
