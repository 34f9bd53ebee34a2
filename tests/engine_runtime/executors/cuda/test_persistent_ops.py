"""The op list in plain torch equals the chain of operations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine_runtime.executors.cuda.decode_backend import DecodeOutputs, StepShape
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.persistent_layout import TILE_ROWS, Op, OpKind, max_records
from engine_runtime.executors.cuda.persistent_ops import (
    ExchangeBuffers,
    op_list,
    tile_major,
)
from engine_runtime.executors.cuda.torch_backend import TorchBackend
from engine_runtime.executors.cuda.weights import Network, build_network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.options import BlockFormats, WeightFormat
from tests.factories.tiny_lm import load_tiny

TOKEN, POSITION, ROW = 77, 5, 21
TAILS = [(True, False), (False, True), (True, True)]


class Machine:
    """Goes through a list as the kernel does: knows tensors by their addresses, checks who wrote what."""

    def __init__(
        self, network: Network, cache: KVCache, backend: TorchBackend, tensors: list[Tensor]
    ) -> None:
        self.network, self.backend = network, backend
        self.layers = {cache.layer_offset(layer.index): layer for layer in network.layers}
        self.matrices = {matrix.weight.data_ptr(): matrix for matrix in network.matrices}
        self.at = {tensor.data_ptr(): tensor for tensor in tensors}
        self.wrote: dict[int, int] = {}

    def run(self, listed: Tensor, trunk: Tensor) -> None:
        assert listed[-1].tolist() == [0] * 8
        ops = (Op * (len(listed) - 1)).from_buffer_copy(listed.numpy().tobytes())
        for index, op in enumerate(ops):
            kind = OpKind(op.kind)
            is_plain = OpKind.FROM_EMBEDDING in kind and OpKind.ADD_RESIDUAL not in kind
            assert is_plain or self.wrote[op.x] == op.source
            self.wrote[op.out] = index
            if OpKind.ATTENTION in kind:
                layer = self.layers[op.extra]
                assert layer.q_norm is not None
                assert layer.k_norm is not None
                assert (op.scale, op.norm) == (layer.q_norm.data_ptr(), layer.k_norm.data_ptr())
                self.backend.attend(self.at[op.x][None], layer, 512, self.at[op.out][None])
                continue
            matrix = self.matrices[op.weight]
            assert op.scale == (0 if matrix.scale is None else matrix.scale.data_ptr())
            assert (OpKind.QUANTIZED in kind) == (matrix.format != "native")
            assert (op.tiles, op.columns) == (matrix.shape[0] // TILE_ROWS, matrix.shape[1])
            row = self.at[op.x][TOKEN] if is_plain else self.at[op.x]
            if OpKind.RMS_NORM in kind:
                row = F.rms_norm(row, row.shape, self.at[op.norm], self.network.config.rms_norm_eps)
            found = matrix.dense(torch.float32) @ row
            if OpKind.SILU_GATE in kind:
                assert op.extra == matrix.shape[0] // 2
                gate, up = found.chunk(2)
                found = F.silu(gate) * up
            if OpKind.ADD_RESIDUAL in kind:
                residual = self.at[op.residual]
                found = found + (residual[TOKEN] if OpKind.FROM_EMBEDDING in kind else residual)
            target = self.at[op.out]
            assert (OpKind.FLOAT32_OUT in kind) == (target.dim() == 2)
            (target[0] if OpKind.FLOAT32_OUT in kind else target).copy_(found)
            if OpKind.KEEP_TRUNK in kind:
                trunk[ROW] = found


@pytest.mark.parametrize("is_gated", [False, True])
def test_scales_lie_in_the_order_of_the_copies(is_gated: bool) -> None:
    rows, groups = 64, 48
    scale = torch.arange(rows * groups).view(rows, groups)
    tiles = tile_major(scale, is_gated=is_gated)
    assert tiles.shape == (4, 3, TILE_ROWS, 16)
    for tile, k_tile, row, group in np.ndindex(*tiles.shape):
        here = 16 * tile + row
        if is_gated:
            here = 8 * tile + row if row < 8 else rows // 2 + 8 * tile + row - 8
        assert tiles[tile, k_tile, row, group] == scale[here, 16 * k_tile + group]


@pytest.mark.parametrize("weight_format", ["native", "int8"])
@pytest.mark.parametrize(("text", "audio"), TAILS)
def test_the_list_yields_what_the_chain_of_operations_gives(
    weight_format: WeightFormat, text: bool, audio: bool
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
        inputs.set_table(range(32), cache.block_stride)
        inputs.set_row(TOKEN, POSITION, ROW)
        inputs.send(with_table=True)
        scratch = torch.empty(network.largest_dense(multiplies_fp8=False))
        reference = DecodeOutputs.of(config, cache)
        backend = TorchBackend(network, cache, inputs, reference, scratch)
        before = cache.pool.clone()
        backend.run(StepShape(512, text, audio))
        values = (reference.text_logits, reference.audio_logits, reference.trunk[ROW], cache.pool)
        expected = [value.clone() for value in values]

        cache.pool.copy_(before)
        outputs = DecodeOutputs(
            *(
                torch.zeros_like(value)
                for value in (reference.text_logits, reference.audio_logits, reference.trunk)
            )
        )
        buffers = ExchangeBuffers.of(config, torch.device("cpu"))
        listed = op_list(network, {}, buffers, outputs, cache, text=text, audio=audio)
        tensors = [network.embedding, outputs.text_logits, outputs.audio_logits]
        tensors += [getattr(buffers, name) for name in ExchangeBuffers.__slots__]
        for layer in network.layers:
            tensors += [layer.input_norm, layer.post_norm]
        tensors += [network.text.norm, network.audio.norm]
        Machine(network, cache, backend, tensors).run(listed, outputs.trunk)
    assert len(listed) <= max_records(config)
    assert (len(listed) == max_records(config)) == (text and audio)
    found = [outputs.text_logits, outputs.audio_logits, outputs.trunk[ROW], cache.pool]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert bool(outputs.trunk.any()) == (not (text and audio))
