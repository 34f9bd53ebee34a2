"""The language model built from transformers' Qwen3 modules, as in the released demo, or its Llama modules.

Out: `TransformersLayers`, which run one at a time (bench/reference.py), and `TransformersLM`, the whole model
with transformers' own cache and an interface like `PagedLM`: every step runs both tails and both heads,
eagerly, over a `DynamicCache`. It shares the weights of a MossLM. transformers is optional (the extra
`compare`). One thread.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from engine_runtime import installation
from engine_runtime.errors import MossVoiceError
from engine_runtime.models.moss_lm import Block, MossLM, MossLMConfig


class ComparisonError(MossVoiceError):
    """The comparison is not possible, or the two sides disagree."""


def require_transformers() -> None:
    """Raise ComparisonError if transformers is not installed, or too old."""
    try:
        from transformers import DynamicCache, Qwen3Config  # noqa: F401
        from transformers.models.qwen3 import modeling_qwen3  # noqa: F401
    except ImportError as error:
        raise ComparisonError(
            "The comparison needs transformers with Qwen3 ({error}).",
            "{remedy}",
            error=error,
            remedy=installation.add("compare"),
        ) from error


class TransformersLayers:
    """transformers' layers in the shape of a MossLM; see bench/reference.py. Raises ComparisonError if
    transformers is not installed."""

    def __init__(self, config: MossLMConfig, device: torch.device | str) -> None:
        require_transformers()
        import transformers
        from transformers.models.llama import modeling_llama
        from transformers.models.qwen3 import modeling_qwen3

        family, modules = ("Qwen3", modeling_qwen3) if config.qk_norm else ("Llama", modeling_llama)
        self.described = f"transformers' {family} modules"
        self._layer = getattr(modules, f"{family}DecoderLayer")
        # Named `cache` from 5.24 on; an unknown name would be ignored without a word.
        parameters = inspect.signature(inspect.unwrap(self._layer.forward)).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self.config = getattr(transformers, f"{family}Config")(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=config.rope_theta,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            attention_bias=False,
            attn_implementation="sdpa",
        )
        self._rotary = getattr(modules, f"{family}RotaryEmbedding")(self.config).to(device)

    def new(self, index: int) -> nn.Module:
        """`index` is that of the layer in a cache."""
        layer: nn.Module = self._layer(self.config, index)
        return layer

    def run(self, layer: nn.Module, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        return self.forward(layer, x, positions, self.rotary(x, positions), None)

    def rotary(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of positions [L], in the dtype of `x`."""
        cos, sin = self._rotary(x, positions[None])
        return cos, sin

    def forward(
        self, layer: nn.Module, x: Tensor, positions: Tensor, rotary: tuple[Tensor, Tensor], cache: Any
    ) -> Tensor:
        """x [1, L, H] at these positions; a cache holds the rows before them."""
        out = layer(
            x,
            attention_mask=None,
            position_ids=positions[None],
            use_cache=cache is not None,
            cache_position=positions,
            position_embeddings=rotary,
            **{self._cache_name: cache},
        )
        found: Tensor = out[0] if isinstance(out, tuple) else out
        return found


class TransformersLM:
    """The whole model, with a cache. Raises ComparisonError if transformers is not installed."""

    def __init__(self, model: MossLM) -> None:
        require_transformers()
        from transformers import DynamicCache

        network = model.model
        self._new_cache, self._model = DynamicCache, model
        self._embedding = torch.cat((network.embed_tokens.weight, network.audio_embed.weight))
        self._layers = TransformersLayers(model.config, self._embedding.device)
        first = 0
        blocks = []
        for block in (network.shared_block, network.text_block, network.audio_block):
            blocks.append(self._same(block, first))
            first += len(blocks[-1])
        self._trunk, self._text, self._audio = blocks
        self.reset()

    def _same(self, block: Block, first: int) -> list[nn.Module]:
        """Layers that share the weights of `block` and use the cache layers from `first` on."""
        layers = []
        for index, layer in enumerate(block.layers):
            with torch.device("meta"):
                reference = self._layers.new(first + index)
            reference.load_state_dict(layer.state_dict(), strict=True, assign=True)
            layers.append(reference.eval())
        return layers

    def reset(self) -> None:
        """Empty the cache."""
        self._cache, self.num_tokens = self._new_cache(config=self._layers.config), 0

    def crop(self, rows: int) -> None:
        """Truncate the cache to this many rows."""
        self._cache.crop(rows - self.num_tokens)  # negative: number of rows to remove
        self.num_tokens = rows

    @torch.inference_mode()
    def run(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        """Append rows (merged ids); returns text and audio logits of the last one. Several rows require an
        empty cache."""
        device = self._embedding.device
        if len(ids) > 1 and self.num_tokens:
            raise ComparisonError("Several tokens at once require an empty cache.")
        x = self._embedding[torch.tensor(ids, device=device)][None]
        positions = torch.arange(self.num_tokens, self.num_tokens + len(ids), device=device)
        rotary = self._layers.rotary(x, positions)
        x = self._stack(self._trunk, x, positions, rotary)
        text = self._stack(self._text, x, positions, rotary)[0, -1:]
        audio = self._stack(self._audio, x, positions, rotary)[0, -1:]
        self.num_tokens += len(ids)
        model = self._model
        text_logits = model.text_lm_head(model.model.text_norm(text))[0].float()
        return text_logits, model.audio_lm_head(model.model.audio_norm(audio))[0].float()

    def _stack(
        self, layers: list[nn.Module], x: Tensor, positions: Tensor, rotary: tuple[Tensor, Tensor]
    ) -> Tensor:
        for layer in layers:
            x = self._layers.forward(layer, x, positions, rotary, self._cache)
        return x
