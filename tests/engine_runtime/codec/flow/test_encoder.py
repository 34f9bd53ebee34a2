"""The chunked encoder of the flow against the one-shot encoder."""

from __future__ import annotations

import torch

from engine_runtime.codec.flow.encoder import EncoderSteps
from engine_runtime.codec.flow.packed_weights import WeightPacker
from tests.factories.tiny_flow import make_flow

PACK = WeightPacker(torch.float32, torch.device("cpu"))


@torch.inference_mode()
def test_chunks_equal_the_one_shot_result_with_and_without_an_end() -> None:
    flow, cases = make_flow()
    codes = cases["in.token"].long()
    steps = EncoderSteps(flow, None, PACK)
    state = steps.new_state()
    steps.push(state, codes)
    parts = [steps.encode(state, count) for count in (5, 5, 5, 5, 3)]
    mu = torch.cat(parts, dim=1).transpose(1, 2)
    assert float((mu - flow.encode(codes[None])).abs().max()) <= 1e-4
    part = flow.encode(codes[None], finalize=False)
    assert float((mu[:, :, :80] - part).abs().max()) <= 1e-4


@torch.inference_mode()
def test_a_copied_state_goes_its_own_way() -> None:
    flow, cases = make_flow()
    codes = cases["in.token"].long()
    steps = EncoderSteps(flow, None, PACK)
    state = steps.new_state()
    steps.push(state, codes[:13])
    steps.encode(state, 5)
    copied = state.copy()
    steps.push(state, codes.flip(0))
    for _ in range(3):
        steps.encode(state, 5)
    reference = flow.encode(codes[None, :13], finalize=False).transpose(1, 2)
    assert float((steps.encode(copied, 5) - reference[:, 20:40]).abs().max()) <= 1e-4
