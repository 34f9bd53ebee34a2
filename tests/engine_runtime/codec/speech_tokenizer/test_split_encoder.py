"""The encoder with weights in two bf16 parts: hidden states, codes and caches of the float32 reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine_runtime.codec.speech_tokenizer.encoder_pool import EncoderPool, split_bytes, step_slots
from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.models.whisper_vq import EncoderState, WhisperVQ, WhisperVQConfig
from tests.doubles.interpreted_triton import HAS_TRITON, needs_triton, patch_interpreter

pytestmark = [needs_triton, pytest.mark.slow]
patch_interpreter()
if HAS_TRITON:
    from engine_runtime.codec.speech_tokenizer.split_encoder import SplitEncoder


class Recorded(WhisperVQ):
    """Keeps the hidden states that it quantizes."""

    hidden: Tensor

    def quantize(self, hidden: Tensor) -> Tensor:
        """See `WhisperVQ`."""
        self.hidden = hidden
        return super().quantize(hidden)


@pytest.mark.parametrize("codes", [1, 3, 20])  # 20: several tiles of positions
@torch.inference_mode()
def test_a_step_equals_the_reference_in_float32(codes: int) -> None:
    torch.manual_seed(3)
    # sizes that are no powers of two, heads smaller than a matrix instruction
    config = WhisperVQConfig(
        num_mel_bins=32, d_model=48, heads=4, ffn=72, layers=2, max_positions=320, codebook_size=64
    )
    model = Recorded(config).eval()
    mine = model.initial_state(4)
    mine.keys.normal_()
    mine.values.normal_()
    plain = EncoderState(mine.conv1, mine.conv2, mine.keys.clone(), mine.values.clone(), 0)
    mel = torch.randn(3, config.num_mel_bins, codes * config.frames_per_code)
    past = torch.randn(3, config.num_mel_bins, 2), torch.randn(3, config.d_model, 2)
    slots_and_lengths = torch.tensor([[2, 0], [0, 17], [1, 130]])
    split = SplitEncoder(model)
    matrices = [
        linear.weight
        for layer in split._layers
        for linear in (layer.qkv, layer.out, layer.inner, layer.outer)
    ]
    assert sum(weight.nbytes for weight in matrices) == split_bytes(config)
    found, first = split.step(mine, mel, *past, slots_and_lengths, seen=320)
    hidden = model.hidden
    wanted, wanted_first = step_slots(model, plain, mel, *past, slots_and_lengths, seen=320)
    assert torch.equal(found, wanted)
    torch.testing.assert_close(first, wanted_first)
    # Products in plain bf16 differ by some 1e-2.
    assert torch.linalg.vector_norm(hidden - model.hidden) < 3e-5 * torch.linalg.vector_norm(model.hidden)
    torch.testing.assert_close(mine.keys, plain.keys, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(mine.values, plain.values, atol=1e-4, rtol=1e-3)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@torch.inference_mode()
def test_captured_calls_on_cuda_give_the_codes_of_float32() -> None:
    """With the widths of the released encoder, in calls of several sizes."""
    torch.manual_seed(5)
    config = WhisperVQConfig(
        num_mel_bins=128, d_model=1280, heads=20, ffn=5120, layers=3, max_positions=1500, codebook_size=512
    )
    model = WhisperVQ(config).cuda().eval()
    pool = EncoderPool(model, 6, GraphedCalls("cuda"), triton=True)
    pool.warm_up(4)
    captured = pool.calls.num_captured
    owners = [torch.zeros(1) for _ in range(3)]
    states = [pool.state(owner) for owner in owners]
    pooled = [state for state in states if state is not None]
    alone = [model.initial_state() for _ in owners]
    for counts in ((1, 1, 1), (3, 2, 1), (8, 8, 3), (1, 3, 2)):
        mels = [torch.randn(128, 8 * count, device="cuda") for count in counts]
        codes, pooled = pool.step(mels, pooled)
        for place, mel in enumerate(mels):
            hidden, alone[place] = model.step_hidden(mel[None], alone[place])
            assert torch.equal(codes[place], model.quantize(hidden)[0])
    assert pool.calls.num_captured == captured
    ends = [state.length for state in alone]
    for mine, single, end in zip(pooled, alone, ends, strict=True):
        torch.testing.assert_close(mine.keys[..., :end, :], single.keys[..., :end, :], atol=1e-3, rtol=1e-3)
