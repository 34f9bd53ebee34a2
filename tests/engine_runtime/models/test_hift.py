"""HiFT against stored vectors, its names at full size, and the key styles it accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine_runtime.errors import BundleError
from engine_runtime.models.hift import HiFT, HiFTConfig, inverse_stft

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
META = json.loads((GOLDEN / "hift_tiny.json").read_text())


def config_table() -> dict[str, object]:
    """The stored configuration in the flat form of a manifest."""
    table = dict(META["config"])
    istft, f0 = table.pop("istft_params"), table.pop("f0_predictor")
    return {**table, "n_fft": istft["n_fft"], "hop_len": istft["hop_len"], "f0_channels": f0["cond_channels"]}


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "hift_tiny.safetensors")


@pytest.fixture(scope="module")
def weights(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    prefixes = ("off.", "stream.", "e2e.", "folded.")
    return {key: value for key, value in tensors.items() if not key.startswith(prefixes)}


@pytest.fixture(scope="module")
def tiny(weights: dict[str, torch.Tensor]) -> HiFT:
    model = HiFT(HiFTConfig.from_dict(config_table()))
    model.load_state_dict(weights, strict=True)
    return model.eval()


def difference(got: torch.Tensor, want: torch.Tensor) -> float:
    assert got.shape == want.shape
    return float((got.detach().double() - want.detach().double()).abs().max())


@torch.inference_mode()
def test_stages_of_the_offline_case(tiny: HiFT, tensors: dict[str, torch.Tensor]) -> None:
    mel, noise = tensors["off.mel"][None], tensors["off.draw_noise"][None]
    assert difference(tiny.f0_predictor(mel)[0], tensors["off.f0"]) <= 1e-3
    assert difference(tiny.source(mel, noise)[0], tensors["off.source"]) <= 5e-4
    wave = tiny.decode(mel, tensors["off.source"][None])
    assert difference(wave[0], tensors["off.wave"]) <= 2e-5
    assert difference(tiny(mel, noise)[0], tensors["off.wave"]) <= 3e-3


@torch.inference_mode()
def test_folding_changes_nothing(tiny: HiFT, tensors: dict[str, torch.Tensor]) -> None:
    folded = HiFT(HiFTConfig.from_dict(config_table())).eval()
    folded.load_state_dict(tiny.state_dict())
    folded.fold()
    state = folded.state_dict()
    for key, value in tensors.items():
        if key.startswith("folded."):
            assert difference(state[key.removeprefix("folded.")], value) <= 1e-6
    mel, noise = tensors["off.mel"][None], tensors["off.draw_noise"][None]
    assert difference(folded(mel, noise), tiny(mel, noise)) <= 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("style", ["weight_g", "folded"])
@pytest.mark.parametrize("into_folded", [False, True])
def test_other_key_styles_load(
    tiny: HiFT, weights: dict[str, torch.Tensor], style: str, into_folded: bool
) -> None:
    if style == "weight_g":
        state = {
            key.replace("parametrizations.weight.original0", "weight_g").replace(
                "parametrizations.weight.original1", "weight_v"
            ): value
            for key, value in weights.items()
        }
        assert any(key.endswith("weight_g") for key in state)
    else:
        plain = HiFT(HiFTConfig.from_dict(config_table()))
        plain.load_state_dict(weights)
        state = plain.fold().state_dict()
    model = HiFT(HiFTConfig.from_dict(config_table()))
    if into_folded:
        model.fold()
    model.load_state_dict(state, strict=True)
    for name in ("conv_pre", "ups.1", "resblocks.4.convs2.1", "f0_predictor.condnet.0"):
        want, got = tiny.get_submodule(name).weight, model.get_submodule(name).weight
        assert isinstance(want, torch.Tensor)
        assert isinstance(got, torch.Tensor)
        assert difference(got, want) <= 1e-6


def test_names_and_shapes_at_full_size() -> None:
    inventory = json.loads((GOLDEN / "inventory_hift.json").read_text())
    with torch.device("meta"):
        model = HiFT(HiFTConfig())
    assert {key: list(value.shape) for key, value in model.state_dict().items()} == inventory["tensors"]
    assert sum(parameter.numel() for parameter in model.parameters()) == inventory["parameters"]


@torch.inference_mode()
def test_noise_comes_from_the_generator(tiny: HiFT, tensors: dict[str, torch.Tensor]) -> None:
    mel = tensors["off.mel"][None, :, :10]
    first, second = (tiny(mel, tiny.draw_noise(10, torch.Generator().manual_seed(seed))) for seed in (5, 5))
    other = tiny(mel, tiny.draw_noise(10, torch.Generator().manual_seed(6)))
    assert torch.equal(first, second)
    assert first.shape == (1, 4800)
    assert difference(first, other) > 1e-4


@pytest.mark.parametrize("change", [{"colour": 1}, {"upsample_kernel_sizes": [16, 11]}])
def test_bad_config_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(BundleError, match="vocoder config"):
        HiFTConfig.from_dict({**config_table(), **change})


@pytest.mark.parametrize("frames", [2, 5, 121])
def test_inverse_stft_is_that_of_the_library(frames: int) -> None:
    generator, window = torch.Generator().manual_seed(0), torch.hann_window(16)
    spectrum = torch.randn((2, 9, frames), dtype=torch.complex64, generator=generator)
    want = torch.istft(spectrum, 16, 4, 16, window)
    assert float((inverse_stft(spectrum, window, 4) - want).abs().max()) <= 1e-5


@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 0.02), (torch.bfloat16, 0.15)])
def test_lower_number_formats_keep_the_excitation(
    tiny: HiFT,
    weights: dict[str, torch.Tensor],
    tensors: dict[str, torch.Tensor],
    dtype: torch.dtype,
    most: float,
) -> None:
    lowered = HiFT(HiFTConfig.from_dict(config_table()))
    lowered.load_state_dict(weights)
    lowered.fold().eval().lower(dtype)
    mel = tensors["stream.mel"][None, :, :24]
    noise = tiny.draw_noise(24, torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert difference(lowered.source(mel, noise), tiny.source(mel, noise)) <= 1e-5
        want, wave = tiny(mel, noise), lowered.decode(mel.to(dtype), tiny.source(mel, noise))
    assert wave.dtype == torch.float32
    error = (wave - want).square().mean().sqrt() / want.square().mean().sqrt()
    assert float(error) <= most
