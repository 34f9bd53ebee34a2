"""The KV pool: one tensor for all sequences and all layers, and the offsets that address it.

`pool` is [blocks, layers, 2 (K, V), kv_heads, tokens_per_block, head_dim]; layers are the trunk's, then the
text tail's, then the audio tail's. One block table serves all layers: in units of one K (or V) block of one
layer (`blocks`), K of block i in layer l is at i * block_stride + layer_offset(l), and V follows.

In memory the blocks of a layer lie together. A step reads layer by layer; if the layers of a block lay
together, each block would be on another page of the GPU's virtual memory, and attention of many sequences
would wait for address translation. TensorRT-LLM has that layout (`is_block_major`).

A second tensor keeps the trunk's output of every token, from which a skipped tail is filled later. The pool
may be 8-bit (float8 e4m3); the kept trunk output, which must be exact, has the dtype of the step. Engine
thread.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from engine_runtime.lm.block_manager import BlockCopy
from engine_runtime.lm.step import ExecutorLimits
from engine_runtime.models.moss_lm import MossLMConfig


class KVCache:
    """The pool tensors on one device."""

    def __init__(
        self,
        config: MossLMConfig,
        num_blocks: int,
        tokens_per_block: int,
        *,
        dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        keep_trunk: bool = True,
        is_block_major: bool = False,
    ) -> None:
        self.num_blocks = num_blocks
        self.num_layers = config.num_layers
        self.tokens_per_block = tokens_per_block
        self.block_stride = 2 * self.num_layers if is_block_major else 2
        self._layer_stride = 2 if is_block_major else 2 * num_blocks
        outer = (num_blocks, self.num_layers) if is_block_major else (self.num_layers, num_blocks)
        shape = (*outer, 2, config.num_key_value_heads, tokens_per_block, config.head_dim)
        # NOTE: zeros, not empty: a masked column is multiplied by 0, and 0 x NaN would be NaN.
        stored = torch.zeros(shape, dtype=kv_dtype or dtype, device=device)
        self.pool = stored if is_block_major else stored.transpose(0, 1)
        self.blocks = stored.view(-1, *shape[3:])
        """K and V blocks of all layers. [.., kv_heads, tokens_per_block, head_dim]"""
        trunk_tokens = tokens_per_block if keep_trunk else 0
        self.trunk = torch.zeros((num_blocks, trunk_tokens, config.hidden_size), dtype=dtype, device=device)

    def layer_offset(self, layer: int) -> int:
        """What a layer adds to the offset of a block."""
        return layer * self._layer_stride

    def limits(
        self, config: MossLMConfig, max_seq_len: int, max_num_tokens: int, max_batch_size: int = 1
    ) -> ExecutorLimits:
        """Size limits of a step over this pool."""
        return ExecutorLimits(
            text_vocab=config.text_vocab,
            audio_vocab=config.audio_vocab,
            num_layers=config.num_layers,
            num_blocks=self.num_blocks,
            tokens_per_block=self.tokens_per_block,
            max_seq_len=max_seq_len,
            max_num_tokens=max_num_tokens,
            max_batch_size=max_batch_size,
        )

    @property
    def bytes(self) -> int:
        """Memory of the pool in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.pool, self.trunk))

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """Perform the copies of copy-on-write."""
        for copy in copies:
            self.pool[copy.target] = self.pool[copy.source]
            self.trunk[copy.target] = self.trunk[copy.source]
