"""BigVGAN from its package: construction from a manifest table, and its receptive field.

In: the `[vocoder.config]` table (the package's own hyper-parameters). Out: the network with plain weights,
and the context in mel frames that a window needs to be exact. Runs in the thread of its caller.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, cast

from engine_runtime.errors import BundleError
from engine_runtime.models.bigvgan_package import AttrDict, BigVGAN
from engine_runtime.models.limits import BIGVGAN_CONFIG
from engine_runtime.models.limits import check_config as check_sizes

REQUIRED = (
    "resblock",
    "upsample_rates",
    "upsample_kernel_sizes",
    "upsample_initial_channel",
    "resblock_kernel_sizes",
    "resblock_dilation_sizes",
    "activation",
    "snake_logscale",
    "num_mels",
)
DEFAULTS = {"use_tanh_at_final": False, "use_bias_at_final": False}
EDGE_KERNEL = 7
"""Width of the first and the last convolution, fixed in the package."""
FILTER_KERNEL = 12
"""Taps of the anti-aliasing filters around every activation, fixed in the package."""


def check_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The table with defaults filled in. Raises BundleError if no network can be built from it."""
    missing = [key for key in REQUIRED if key not in config]
    if missing:
        raise BundleError(
            "vocoder config: missing key(s) {missing} in [vocoder.config]", missing=", ".join(missing)
        )
    check_sizes(config, BIGVGAN_CONFIG, "vocoder.config")
    rates, kernels = config["upsample_rates"], config["upsample_kernel_sizes"]
    if len(rates) != len(kernels) or any(k < u or (k - u) % 2 for u, k in zip(rates, kernels, strict=False)):
        raise BundleError(
            "vocoder config: upsample_kernel_sizes {kernels} must match upsample_rates {rates} one by "
            "one, each kernel at least its rate and different from it by an even number",
            kernels=kernels,
            rates=rates,
        )
    if len(config["resblock_kernel_sizes"]) != len(config["resblock_dilation_sizes"]):
        raise BundleError(
            "vocoder config: resblock_kernel_sizes and resblock_dilation_sizes differ in length"
        )
    if str(config["resblock"]) not in {"1", "2"}:
        raise BundleError(
            'vocoder config: resblock {resblock!r} is neither "1" nor "2"', resblock=config["resblock"]
        )
    return {**DEFAULTS, **config, "resblock": str(config["resblock"])}


def build_bigvgan(config: Mapping[str, Any], *, weight_norm: bool = False) -> BigVGAN:
    """The network of a config with random parameters, on the default device.

    `weight_norm` keeps the weight normalization (training); without it the state dict has plain `weight`
    keys, as bundles store them. Raises BundleError.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the package keeps the older weight norm
        model = BigVGAN(AttrDict(check_config(config)))
    if not weight_norm:
        with contextlib.redirect_stdout(io.StringIO()):  # the package prints here
            model.remove_weight_norm()
        model.eval()
    return model


def receptive_field(config: Mapping[str, Any]) -> tuple[int, int]:
    """Mel frames (before, after) that an output frame depends on, from the structure alone.

    A window with this context on both sides yields the frame exactly, for any weights.
    """
    first, last = stage_intervals(config, 0, 1)[0]
    return -first, last


def stage_intervals(config: Mapping[str, Any], first_frame: int, end_frame: int) -> list[tuple[int, int]]:
    """Intervals that the samples of the mel frames [first_frame, end_frame) depend on, per level.

    Interval arithmetic from the last layer to the first. Each entry is (first, last), inclusive, at the rate
    of its level (sample i of a level with R samples per frame is at frame i / R): the mel; then per
    upsampling stage the input of its transposed convolution and the input of its residual blocks; at the end
    the input of the last activation.
    """
    config = check_config(config)
    rates = cast(Sequence[int], config["upsample_rates"])
    kernels = cast(Sequence[int], config["upsample_kernel_sizes"])
    blocks = list(zip(config["resblock_kernel_sizes"], config["resblock_dilation_sizes"], strict=True))
    hop = prod(rates)
    first, last = _convolution(first_frame * hop, end_frame * hop - 1, EDGE_KERNEL)
    first, last = _activation(first, last)
    levels = [(first, last)]
    for rate, kernel in zip(reversed(rates), reversed(kernels), strict=True):
        reach = [
            _residual_block(first, last, size, dilations, config["resblock"]) for size, dilations in blocks
        ]
        first, last = min(low for low, _ in reach), max(high for _, high in reach)
        levels.append((first, last))
        first, last = _transposed(first, last, kernel, rate)
        levels.append((first, last))
    levels.append(_convolution(first, last, EDGE_KERNEL))
    return levels[::-1]


def _convolution(first: int, last: int, kernel: int, dilation: int = 1) -> tuple[int, int]:
    """Inputs of a centred convolution for outputs first..last (padding (kernel - 1) * dilation / 2)."""
    pad = (kernel * dilation - dilation) // 2
    return first - pad, last - pad + (kernel - 1) * dilation


def _transposed(first: int, last: int, kernel: int, rate: int) -> tuple[int, int]:
    """Inputs of a transposed convolution: output o meets input i at tap o + padding - rate * i."""
    pad = (kernel - rate) // 2
    return -((kernel - 1 - first - pad) // rate), (last + pad) // rate


def _activation(first: int, last: int) -> tuple[int, int]:
    """Inputs of an anti-aliased activation."""
    # low-pass with stride 2, FILTER_KERNEL / 2 - 1 samples of padding before
    before = FILTER_KERNEL // 2 - 1
    first, last = 2 * first - before, 2 * last - before + FILTER_KERNEL - 1
    # up-sampling by 2: the transposed convolution is cropped by FILTER_KERNEL / 2 - 1 samples on the left
    cut = (FILTER_KERNEL - 2) // 2
    return -((FILTER_KERNEL - 1 - first - cut) // 2), (last + cut) // 2


def _residual_block(
    first: int, last: int, kernel: int, dilations: Sequence[int], kind: str
) -> tuple[int, int]:
    """Inputs of an AMP block: per dilation an activation and a convolution, in kind 1 twice."""
    for dilation in reversed(dilations):
        if kind == "1":
            first, last = _activation(*_convolution(first, last, kernel))
        first, last = _activation(*_convolution(first, last, kernel, dilation))
    return first, last
