"""The list of phases, gone through with plain torch: it gives what the chain of operations gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine_runtime.executors.cuda.decode_step import DecodeStep, StepShape
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.operations import TorchOperations
from engine_runtime.executors.cuda.persistent_ops import (
    ADDS,
    ATTENDS,
    FROM_TABLE,
    GATED,
    KEEPS,
    NORMED,
    ROUNDED,
    TILE_ROWS,
    WIDE,
    Messages,
    StepOutputs,
    listed_phases,
    tile_major,
)
from engine_runtime.executors.cuda.sampler import DeviceSampler
from engine_runtime.executors.cuda.weights import Network, build_network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.options import BlockFormats
from tests.factories.tiny_lm import load_tiny

TOKEN, POSITION, ROW = 77, 5, 21
TAILS = [(True, False), (False, True), (True, True)]


class Machine:
    """Goes through a list as the kernel does: knows tensors by their addresses, checks who wrote what."""

    def __init__(self, network: Network, operations: TorchOperations, tensors: list[Tensor]) -> None:
        self.network, self.operations = network, operations
        self.layers = {2 * layer.index: layer for layer in network.layers}
        self.matrices = {matrix.weight.data_ptr(): matrix for matrix in network.matrices}
        self.at = {tensor.data_ptr(): tensor for tensor in tensors}
        self.wrote: dict[int, int] = {}

    def run(self, listed: Tensor, trunk: Tensor) -> None:
        assert listed[-1].tolist() == [0] * 8
        for index, (weight, scale, norm, x, residual, out, how, sizes) in enumerate(listed[:-1].tolist()):
            kind, source, tiles = how & 0xFFFF, how >> 16 & 0xFFFF, how >> 32
            columns, extra = sizes & 0xFFFFFFFF, sizes >> 32
            is_plain = kind & FROM_TABLE and not kind & ADDS
            assert is_plain or self.wrote[x] == source
            self.wrote[out] = index
            if kind & ATTENDS:
                layer = self.layers[extra]
                assert (scale, norm) == (layer.q_norm.data_ptr(), layer.k_norm.data_ptr())
                self.operations.attend(self.at[x][None], layer, 512, self.at[out][None])
                continue
            matrix = self.matrices[weight]
            assert scale == (0 if matrix.scale is None else matrix.scale.data_ptr())
            assert bool(kind & ROUNDED) == (matrix.format != "native")
            assert (tiles, columns) == (matrix.shape[0] // TILE_ROWS, matrix.shape[1])
            row = self.at[x][TOKEN] if is_plain else self.at[x]
            if kind & NORMED:
                row = F.rms_norm(row, row.shape, self.at[norm], self.network.config.rms_norm_eps)
            found = matrix.dense(torch.float32) @ row
            if kind & GATED:
                assert extra == matrix.shape[0] // 2
                gate, up = found.chunk(2)
                found = F.silu(gate) * up
            if kind & ADDS:
                found = found + (self.at[residual][TOKEN] if kind & FROM_TABLE else self.at[residual])
            target = self.at[out]
            assert bool(kind & WIDE) == (target.dim() == 2)
            (target[0] if kind & WIDE else target).copy_(found)
            if kind & KEEPS:
                trunk[ROW] = found


@pytest.mark.parametrize("is_gated", [False, True])
def test_scales_lie_in_the_order_of_the_copies(is_gated: bool) -> None:
    rows, groups = 64, 48
    scale = torch.arange(rows * groups).view(rows, groups)
    tiles = tile_major(scale, is_gated=is_gated)
    assert tiles.shape == (4, 3, TILE_ROWS, 16)
    for tile, piece, row, group in np.ndindex(*tiles.shape):
        here = 16 * tile + row
        if is_gated:
            here = 8 * tile + row if row < 8 else rows // 2 + 8 * tile + row - 8
        assert tiles[tile, piece, row, group] == scale[here, 16 * piece + group]


@pytest.mark.parametrize("weight_format", ["native", "int8"])
@pytest.mark.parametrize(("text", "audio"), TAILS)
def test_the_list_gives_what_the_chain_of_operations_gives(
    weight_format: str, text: bool, audio: bool
) -> None:
    model, _ = load_tiny()
    config = model.config
    network = build_network(
        config,
        model.state_dict().__getitem__,
        formats=BlockFormats(weight_format),
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_seq_len=512,
    )
    with torch.inference_mode():
        cache = KVCache(config, 32, 16, dtype=torch.float32, device=torch.device("cpu"))
        torch.manual_seed(0)
        cache.pool.normal_()
        inputs = StepInputs(32, torch.device("cpu"))
        inputs.set_table(torch.arange(32, dtype=torch.int32) * 2 * config.num_layers)
        inputs.set_row(TOKEN, POSITION, ROW)
        inputs.send(with_table=True)
        operations = TorchOperations(
            network, cache, inputs, torch.empty(network.largest_dense(multiplies_fp8=False))
        )
        sampler = DeviceSampler(config.text_vocab, config.audio_vocab, inputs, torch.device("cpu"))
        step = DecodeStep(network, cache, inputs, operations, sampler)
        before = cache.pool.clone()
        step.run(StepShape(512, text, audio))
        trunk = cache.trunk.view(-1, config.hidden_size)
        expected = [value.clone() for value in (step.text_logits, step.audio_logits, trunk[ROW], cache.pool)]

        cache.pool.copy_(before)
        outputs = StepOutputs(
            torch.zeros_like(step.text_logits), torch.zeros_like(step.audio_logits), torch.zeros_like(trunk)
        )
        messages = Messages.of(config, torch.device("cpu"))
        listed = listed_phases(network, {}, messages, outputs, text=text, audio=audio)
        tensors = [network.embedding, outputs.text_logits, outputs.audio_logits]
        tensors += [getattr(messages, name) for name in Messages.__slots__]
        for layer in network.layers:
            tensors += [layer.input_norm, layer.post_norm]
        tensors += [network.text.norm, network.audio.norm]
        Machine(network, operations, tensors).run(listed, outputs.trunk)
    found = [outputs.text_logits, outputs.audio_logits, outputs.trunk[ROW], cache.pool]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert bool(outputs.trunk.any()) == (not (text and audio))
