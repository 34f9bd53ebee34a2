"""HiFT's residual blocks with the Triton kernel, run by Triton's interpreter, against the plain ones."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from engine_runtime.codec.vocoder.hift_stream import HiFTStream
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.models.hift import HiFT, ResidualBlock
from tests.doubles.interpreted_triton import HAS_TRITON, needs_triton, patch_interpreter
from tests.engine_runtime.codec.vocoder.test_hift_stream import SPEC, hift

pytestmark = needs_triton
patch_interpreter()
if HAS_TRITON:
    from engine_runtime.codec.vocoder.triton_hift import residual

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@torch.inference_mode()
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 0.02)])
@pytest.mark.parametrize("dilations", [(1,), (1, 3, 5)])
def test_a_block_equals_the_plain_one(
    dtype: torch.dtype, tolerance: float, dilations: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    block = ResidualBlock(6, 3, dilations).to(DEVICE)
    for name, value in block.named_parameters():
        if "alpha" in name:
            torch.nn.init.uniform_(value, -1.5, 1.5)  # as trained, of either sign
    for module in block.modules():
        if torch.nn.utils.parametrize.is_parametrized(module, "weight"):
            torch.nn.utils.parametrize.remove_parametrizations(module, "weight")
    x = torch.randn(2, 6, 97, device=DEVICE)
    wanted = block(x)
    assert (
        float((residual(block.to(dtype), x.to(dtype)) - wanted).abs().max()) <= tolerance * wanted.abs().max()
    )


def has_kernel(stage: Vocoder) -> bool:
    assert isinstance(stage.network, HiFT)
    return any(getattr(module, "faster", None) for module in stage.network.modules())


@pytest.mark.slow
def test_a_vocoder_with_the_kernel_says_the_same() -> None:
    network, _ = hift()
    plain, fast = (
        Vocoder(copy.deepcopy(network), SPEC, device=DEVICE, triton=triton) for triton in (False, True)
    )
    mel = np.random.default_rng(0).normal(-5.0, 2.0, (80, 3)).astype(np.float32)
    assert np.abs(fast.vocode(mel) - plain.vocode(mel)).max() <= 1e-4
    # several replies in one call
    mels = [torch.from_numpy(mel[:, :1]).repeat(1, 9) + shift for shift in (0.0, 1.0, 2.0)]
    streams = [stream for stream in (fast.stream() for _ in mels) if isinstance(stream, HiFTStream)]
    given = [(stream, one.to(DEVICE)) for stream, one in zip(streams, mels, strict=True)]
    for pcm, one in zip(streams[0].push_together(given), mels, strict=True):
        assert np.abs(pcm.cpu().numpy() - plain.stream().push(one.numpy())).max() <= 1e-3
    assert has_kernel(fast)
    assert not has_kernel(plain)
