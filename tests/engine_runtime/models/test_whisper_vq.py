"""The speech encoder against stored vectors, its names and shapes at full size, and its caches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine_runtime.errors import BundleError
from engine_runtime.models.whisper_vq import WhisperVQ, WhisperVQConfig

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
HIDDEN_TOLERANCE = 1e-4
NANO = {
    "num_mel_bins": 16,
    "d_model": 32,
    "heads": 4,
    "ffn": 64,
    "layers": 2,
    "max_positions": 40,
    "codebook_size": 8,
}


@pytest.fixture(scope="module")
def golden() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "encoder_tiny.safetensors")


@pytest.fixture(scope="module")
def released_config() -> dict[str, Any]:
    config: dict[str, Any] = json.loads((GOLDEN / "encoder_tiny.json").read_text())["config"]
    return config


@pytest.fixture(scope="module")
def model(golden: dict[str, torch.Tensor], released_config: dict[str, Any]) -> WhisperVQ:
    model = WhisperVQ(WhisperVQConfig.from_released(released_config))
    weights = {key: value for key, value in golden.items() if key.startswith("encoder.")}
    model.load_state_dict(weights, strict=True)
    return model.eval()


def make_random(seed: int = 0) -> WhisperVQ:
    torch.manual_seed(seed)
    return WhisperVQ(WhisperVQConfig.from_dict(NANO))


@pytest.mark.parametrize(("case", "segment"), [("mult", 0), ("odd", 0), ("tiny", 0), ("long", 1)])
@torch.inference_mode()
def test_hidden_and_codes_of_each_case(
    model: WhisperVQ, golden: dict[str, torch.Tensor], case: str, segment: int
) -> None:
    mel = golden[f"{case}.mel{segment}"][None]
    hidden = model.encode_hidden(mel)[0]
    first = segment * model.config.max_positions // model.config.pool
    torch.testing.assert_close(
        hidden, golden[f"{case}.hidden_pooled"][first:], atol=HIDDEN_TOLERANCE, rtol=0.0
    )
    assert torch.equal(model(mel)[0], golden[f"{case}.codes"][first:].long())


@pytest.mark.parametrize("case", ["odd", "tiny"])
@torch.inference_mode()
def test_output_of_the_last_layer(model: WhisperVQ, golden: dict[str, torch.Tensor], case: str) -> None:
    frames = model.encode_frames(golden[f"{case}.mel0"][None])[0]
    torch.testing.assert_close(frames, golden[f"{case}.layer_out"], atol=HIDDEN_TOLERANCE, rtol=0.0)


def test_names_and_shapes_at_full_size() -> None:
    inventory = json.loads((GOLDEN / "inventory_encoder.json").read_text())
    dims = inventory["config"]
    config = WhisperVQConfig(
        num_mel_bins=dims["mel"],
        d_model=dims["d_model"],
        heads=dims["heads"],
        ffn=dims["ffn"],
        layers=dims["layers"],
        max_positions=dims["positions"],
        codebook_size=dims["codebook"],
    )
    with torch.device("meta"):
        full = WhisperVQ(config)
    shapes = {key: list(value.shape) for key, value in full.state_dict().items()}
    assert shapes == inventory["needed"]
    assert sum(parameter.numel() for parameter in full.parameters()) == inventory["parameters_needed"]


@pytest.mark.parametrize("codes_per_step", [1, 3, 27])
@torch.inference_mode()
def test_steps_with_caches_equal_the_complete_segment(
    model: WhisperVQ, golden: dict[str, torch.Tensor], codes_per_step: int
) -> None:
    mel = golden["odd.mel0"][None]
    state, parts = model.initial_state(), []
    for part in mel.split(codes_per_step * model.config.frames_per_code, dim=2):
        hidden, state = model.step_hidden(part, state)
        parts.append(hidden)
    assert state.length == mel.shape[2] // 2
    torch.testing.assert_close(
        torch.cat(parts, dim=1)[0], golden["odd.hidden_pooled"], atol=HIDDEN_TOLERANCE, rtol=0.0
    )


@torch.inference_mode()
def test_a_state_can_be_gone_on_from_after_another_continuation(
    model: WhisperVQ, golden: dict[str, torch.Tensor]
) -> None:
    mel = golden["odd.mel0"][None]
    _, state = model.step_hidden(mel[:, :, :80], model.initial_state())
    model.step_hidden(torch.zeros_like(mel[:, :, :16]), state)  # dropped
    hidden, _ = model.step_hidden(mel[:, :, 80:], state)
    torch.testing.assert_close(hidden[0], golden["odd.hidden_pooled"][10:], atol=HIDDEN_TOLERANCE, rtol=0.0)


@torch.inference_mode()
def test_the_future_changes_no_code() -> None:
    model = make_random()
    mel = torch.randn(2, NANO["num_mel_bins"], 80)
    changed = mel.clone()
    changed[:, :, 48:] += 1.0
    before, after = model.encode_hidden(mel), model.encode_hidden(changed)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:], atol=1e-3)


def test_trains_under_bf16_autocast() -> None:
    model = make_random()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.encode_hidden(torch.randn(3, NANO["num_mel_bins"], 24))
        codes = model.quantize(hidden)
    entries = model.encoder.codebook(codes)
    (hidden.float() - entries).square().mean().backward()
    assert codes.shape == (3, 3)
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == []


def test_quantize_picks_the_nearest_entry() -> None:
    model = make_random()
    entries = model.encoder.codebook.weight.detach()
    hidden = entries + 0.01 * torch.randn_like(entries)
    assert torch.equal(model.quantize(hidden), torch.arange(NANO["codebook_size"]))


@pytest.mark.parametrize("shape", [(1, 16, 12), (1, 16, 0), (1, 16, 88), (1, 15, 8), (16, 8)])
def test_refuses_mels_of_a_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="mel"):
        make_random().encode_hidden(torch.zeros(shape))


@torch.inference_mode()
def test_refuses_to_step_past_the_segment() -> None:
    model = make_random()
    _, state = model.step_hidden(torch.zeros(1, 16, 72), model.initial_state())
    with pytest.raises(ValueError, match="up to 8 is needed"):
        model.step_hidden(torch.zeros(1, 16, 16), state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 3}, r"unknown keys \['depth'\]"),
        ({"heads": 5}, "not a multiple of heads"),
        ({"max_positions": 42}, "not a multiple of pool"),
        ({"layers": 0}, "layers = 0, which must be an integer from 1"),
    ],
)
def test_config_refuses_what_cannot_work(change: dict[str, int], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        WhisperVQConfig.from_dict({**NANO, **change})


def test_config_names_missing_keys() -> None:
    with pytest.raises(BundleError, match=r"missing keys \['codebook_size'\]"):
        WhisperVQConfig.from_dict({key: value for key, value in NANO.items() if key != "codebook_size"})


def test_refuses_the_block_causal_ancestor(released_config: dict[str, Any]) -> None:
    with pytest.raises(BundleError, match="encoder_causal_attention is False"):
        WhisperVQConfig.from_released({**released_config, "encoder_causal_attention": False})
    with pytest.raises(BundleError, match=r"missing keys \['pooling_type'\]"):
        WhisperVQConfig.from_released({k: v for k, v in released_config.items() if k != "pooling_type"})
