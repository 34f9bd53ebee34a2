"""BigVGAN as built here against stored vectors, and its receptive field against perturbation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine_runtime.errors import BundleError
from engine_runtime.models.bigvgan import build_bigvgan, receptive_field

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
META = json.loads((GOLDEN / "bigvgan_tiny.json").read_text())
CONFIG = META["config"]
SMALL = {
    "resblock": "1",
    "upsample_rates": [10, 6, 4, 2],
    "upsample_kernel_sizes": [20, 12, 8, 4],
    "upsample_initial_channel": 32,
    "resblock_kernel_sizes": [3, 7],
    "resblock_dilation_sizes": [[1, 3], [1, 2]],
    "activation": "snakebeta",
    "snake_logscale": True,
    "num_mels": 80,
}


def test_wave_of_the_stored_mel() -> None:
    tensors = load_file(GOLDEN / "bigvgan_tiny.safetensors")
    model = build_bigvgan(CONFIG)
    weights = {
        key: value for key, value in tensors.items() if not key.startswith(("mel", "wave", "internal."))
    }
    assert len(weights) == META["n_weights"]
    model.load_state_dict(weights, strict=True)
    with torch.inference_mode():
        wave = model(tensors["mel"][None])[0, 0]
    assert wave.shape == tensors["wave"].shape
    assert float((wave - tensors["wave"]).abs().max()) <= 5e-5


def test_receptive_field_of_stored_configs() -> None:
    support = META["receptive_field"]["structural_support"]
    assert receptive_field(CONFIG) == (support["left"], support["right"])
    for name, field in META["other_configs"].items():
        rates, kernels = (json.loads(part) for part in name.split(" k "))
        if any((k - u) % 2 for u, k in zip(rates, kernels, strict=True)):
            continue  # makes one sample too many per stage; refused below
        config = {**CONFIG, "upsample_rates": rates, "upsample_kernel_sizes": kernels}
        assert receptive_field(config) == (field["structural"]["left"], field["structural"]["right"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"resblock": "2", "resblock_dilation_sizes": [[1, 3, 5], [1, 3]]},
        {"upsample_rates": [8, 5, 4, 3], "upsample_kernel_sizes": [16, 11, 8, 7]},
        {"upsample_rates": [15, 4, 4, 2], "upsample_kernel_sizes": [31, 8, 8, 4]},
    ],
)
def test_a_window_with_the_receptive_field_is_exact_and_less_is_not(change: dict[str, object]) -> None:
    torch.manual_seed(0)
    config = {**SMALL, **change}
    model = build_bigvgan(config).double()
    for name, parameter in model.named_parameters():  # large enough that the edge of the support shows
        if name.endswith("weight"):
            torch.nn.init.normal_(parameter, std=0.7 / parameter[0].numel() ** 0.5)
    left, right = receptive_field(config)
    mel = torch.randn(1, 80, 60, dtype=torch.float64)
    with torch.inference_mode():
        reference = model(mel)[0, 0, 30 * 480 : 34 * 480]
        window = model(mel[..., 30 - left : 34 + right])[0, 0, left * 480 : (left + 4) * 480]
        short = model(mel[..., 30 - left + 3 : 34 + right - 3])[0, 0, (left - 3) * 480 : (left + 1) * 480]
    assert float((window - reference).abs().max()) <= 1e-12
    assert float((short - reference).abs().max()) > 1e-12


def test_weight_norm_for_training_folds_into_the_same_network() -> None:
    torch.manual_seed(0)
    model = build_bigvgan(SMALL, weight_norm=True)
    mel = torch.randn(1, 80, 12)
    with torch.no_grad():
        before = model(mel)
        model.remove_weight_norm()
        plain = build_bigvgan(SMALL)
        plain.load_state_dict(model.state_dict(), strict=True)
        assert torch.allclose(before, plain(mel), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"upsample_kernel_sizes": [20, 11, 8, 4]}, "even number"),
        ({"resblock": "3"}, "neither"),
        ({"resblock_kernel_sizes": [3]}, "differ in length"),
        ({"num_mels": None}, "num_mels"),
    ],
)
def test_bad_config_is_refused(change: dict[str, object], word: str) -> None:
    config = {key: value for key, value in {**SMALL, **change}.items() if value is not None}
    with pytest.raises(BundleError, match=word):
        build_bigvgan(config)
