"""The language model built from transformers' Qwen3 modules with their own cache, as in the released demo.

In: the weights of a MossLM on the device. Out: `TransformersLM`, with an interface like `PagedLM`: every step
runs both tails and both heads, eagerly, over a `DynamicCache`. It shares the weights, so both can be compared
in one run. transformers is optional (the extra `compare`). One thread.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from engine_runtime import installation
from engine_runtime.errors import MossVoiceError
from engine_runtime.models.moss_lm import Block, MossLM


class ComparisonError(MossVoiceError):
    """The comparison is not possible, or the two sides disagree."""


def require_transformers() -> None:
    """Raise ComparisonError if transformers is not installed, or too old."""
    try:
        from transformers import DynamicCache, Qwen3Config  # noqa: F401
        from transformers.models.qwen3 import modeling_qwen3  # noqa: F401
    except ImportError as error:
        raise ComparisonError(
            f"The comparison needs transformers with Qwen3 ({error}). {installation.add('compare')}"
        ) from error


class TransformersLM:
    """See the module. Raises ComparisonError if transformers is not installed."""

    def __init__(self, model: MossLM, max_rows: int) -> None:
        require_transformers()
        from transformers import DynamicCache, Qwen3Config
        from transformers.models.qwen3 import modeling_qwen3 as qwen3

        self._new_cache = DynamicCache
        self._model, network, config = model, model.model, model.config
        self._embedding = torch.cat((network.embed_tokens.weight, network.audio_embed.weight))
        self._config = Qwen3Config(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            max_position_embeddings=max_rows,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=config.rope_theta,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            attention_bias=False,
            attn_implementation="sdpa",
        )
        device = network.embed_tokens.weight.device
        self._rotary = qwen3.Qwen3RotaryEmbedding(self._config).to(device)
        first = 0
        blocks = []
        for block in (network.shared_block, network.text_block, network.audio_block):
            blocks.append(self._layers(qwen3, block, first))
            first += len(blocks[-1])
        self._trunk, self._text, self._audio = blocks
        self.reset()

    def _layers(self, qwen3: Any, block: Block, first: int) -> list[nn.Module]:
        """Qwen3 layers that share the weights of `block` and use the cache layers from `first` on."""
        layers = []
        for index, layer in enumerate(block.layers):
            with torch.device("meta"):
                reference = qwen3.Qwen3DecoderLayer(self._config, first + index)
            reference.load_state_dict(layer.state_dict(), strict=True, assign=True)
            layers.append(reference.eval())
        return layers

    def reset(self) -> None:
        """Empty the cache."""
        self._cache, self.num_rows = self._new_cache(config=self._config), 0

    def crop(self, rows: int) -> None:
        """Truncate the cache to this many rows."""
        self._cache.crop(rows - self.num_rows)  # negative: number of rows to remove
        self.num_rows = rows

    @torch.inference_mode()
    def run(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        """Append rows (merged ids); returns text and audio logits of the last one. Several rows require an
        empty cache."""
        device = self._embedding.device
        if len(ids) > 1 and self.num_rows:
            raise ComparisonError("Several rows at once require an empty cache.")
        x = self._embedding[torch.tensor(ids, device=device)][None]
        positions = torch.arange(self.num_rows, self.num_rows + len(ids), device=device)
        rotary = self._rotary(x, positions[None])
        x = self._stack(self._trunk, x, positions, rotary)
        text = self._stack(self._text, x, positions, rotary)[0, -1:]
        audio = self._stack(self._audio, x, positions, rotary)[0, -1:]
        self.num_rows += len(ids)
        model = self._model
        text_logits = model.text_lm_head(model.model.text_norm(text))[0].float()
        return text_logits, model.audio_lm_head(model.model.audio_norm(audio))[0].float()

    def _stack(
        self, layers: list[nn.Module], x: Tensor, positions: Tensor, rotary: tuple[Tensor, Tensor]
    ) -> Tensor:
        for layer in layers:
            out = layer(
                x,
                attention_mask=None,
                position_ids=positions[None],
                past_key_values=self._cache,
                use_cache=True,
                cache_position=positions,
                position_embeddings=rotary,
            )
            x = out[0] if isinstance(out, tuple) else out
        return x
