"""The KV pool: where K and V of a block and layer lie, in either layout."""

from __future__ import annotations

import pytest
import torch

from engine_runtime.lm.block_manager import BlockCopy
from engine_runtime.lm.kv_cache import KVCache
from tests.factories.tiny_lm import load_tiny

BLOCKS, TOKENS = 5, 4


@pytest.fixture(params=[False, True], ids=["layer-major", "block-major"])
def cache(request: pytest.FixtureRequest) -> KVCache:
    cache = KVCache(load_tiny()[0].config, BLOCKS, TOKENS, is_block_major=request.param)
    cache.pool.copy_(torch.randn(cache.pool.shape))
    return cache


def test_offsets_address_the_blocks_of_the_pool(cache: KVCache) -> None:
    for block in range(BLOCKS):
        for layer in range(cache.num_layers):
            at = block * cache.block_stride + cache.layer_offset(layer)
            assert torch.equal(cache.blocks[at : at + 2], cache.pool[block, layer])


def test_the_blocks_of_a_layer_lie_together_or_the_layers_of_a_block() -> None:
    config = load_tiny()[0].config
    layers = config.num_layers
    by_layer = KVCache(config, BLOCKS, TOKENS)
    assert (by_layer.block_stride, by_layer.layer_offset(1)) == (2, 2 * BLOCKS)
    by_block = KVCache(config, BLOCKS, TOKENS, is_block_major=True)
    assert (by_block.block_stride, by_block.layer_offset(1)) == (2 * layers, 2)
    assert by_block.pool.is_contiguous()
    assert by_layer.pool.shape == by_block.pool.shape
    assert by_layer.bytes == by_block.bytes


def test_a_copied_block_is_copied_in_every_layer(cache: KVCache) -> None:
    before = cache.pool.clone()
    cache.trunk.normal_()
    cache.copy([BlockCopy(source=3, target=1)])
    before[1] = before[3]
    assert torch.equal(cache.pool, before)
    assert torch.equal(cache.trunk[1], cache.trunk[3])
