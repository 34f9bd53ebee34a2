"""The forked decoder in TensorRT-LLM's Python Model API, from which an engine is built.

In: the names of the library (library.py). Out: configuration and model classes of our
network, created by `define_model`, so that this file can be imported, and tested with a double, without the
library. The library traces `forward` once during the build, on symbolic tensors. Any thread.

    input_ids -> vocab_embedding -> shared_layers 0..S-1
        -> text_layers S..S+T-1      -> text_norm  -> lm_head       -> logits
        -> audio_layers S+T..S+T+A-1 -> audio_norm -> audio_lm_head -> audio_logits

Sources: docs/source/architecture/core-concepts.md, checkpoint.md and add-model.md of TensorRT-LLM 1.x, and
its Qwen3 (q and k are normalized per head before RoPE). Differences from the decoders of the library:

- Layers are numbered consecutively over both tails: the attention plugin uses the number as the index of the
  layer's keys and values in the pool, and into the window sizes, without a check. So num_hidden_layers is the
  number of all layers, and DecoderLayerList, a plain stack, cannot be used.
- q_layernorm and k_layernorm get the network's epsilon; their default is 1e-5.
- Two outputs are marked, which the library's own sessions refuse but its builder does not.
"""

from __future__ import annotations

import copy
from typing import Any

from engine_runtime.tensorrt.checkpoint.format import ARCHITECTURE
from engine_runtime.tensorrt.engine import EngineTensor, network_tensors
from engine_runtime.tensorrt.llm.library import Library

OUTPUTS = ("logits", "audio_logits")


def define_model(library: Library) -> Any:
    """The model class, with `config_class`, derived from classes of the library and registered there. After
    `forward` its instances hold the inputs and outputs of the network in `network_tensors`.
    """

    class MossConfig(library.PretrainedConfig):  # type: ignore[name-defined]
        """config.json of a checkpoint: the library's keys, and those of the fork."""

        def __init__(
            self,
            *,
            num_shared_layers: int,
            num_text_layers: int,
            num_audio_layers: int,
            text_vocab_size: int,
            audio_vocab_size: int,
            rotary_base: float,
            rotary_scaling: None = None,
            rotary_pct: float = 1.0,
            **library_keys: Any,
        ) -> None:
            super().__init__(**library_keys)
            self.num_shared_layers = num_shared_layers
            self.num_text_layers = num_text_layers
            self.num_audio_layers = num_audio_layers
            self.text_vocab_size = text_vocab_size
            self.audio_vocab_size = audio_vocab_size
            self.rotary_base = rotary_base  # read by Attention.create_attention_const_params, as the next two
            self.rotary_scaling = rotary_scaling
            self.rotary_pct = rotary_pct

        def to_dict(self) -> dict[str, Any]:
            """Content of the engine's config.json."""
            names = (
                "num_shared_layers num_text_layers num_audio_layers text_vocab_size audio_vocab_size "
                "rotary_base rotary_scaling rotary_pct"
            )
            own = {name: getattr(self, name) for name in names.split()}
            return dict(super().to_dict()) | own

    class Layer(library.Module):  # type: ignore[name-defined]
        """One Qwen3 layer; `index` counts through all layers of the network."""

        def __init__(self, config: Any, index: int) -> None:
            super().__init__()
            self.input_layernorm = _norm(library, config)
            self.attention = library.Attention(
                local_layer_idx=index,
                hidden_size=config.hidden_size,
                attention_head_size=config.head_size,
                num_attention_heads=config.num_attention_heads,
                num_kv_heads=config.num_key_value_heads,
                max_position_embeddings=config.max_position_embeddings,
                dtype=config.dtype,
                attention_mask_type=library.AttentionMaskType.causal,
                bias=False,
                dense_bias=False,
                position_embedding_type=config.position_embedding_type,
                rotary_embedding_base=config.rotary_base,
                rotary_embedding_scaling=config.rotary_scaling,
                quant_mode=config.quant_mode,
                qk_layernorm=True,
                layernorm_type=library.LayerNormType.RmsNorm,
                eps=config.norm_epsilon,
            )
            self.post_layernorm = _norm(library, config)
            self.mlp = library.GatedMLP(
                hidden_size=config.hidden_size,
                ffn_hidden_size=config.intermediate_size,
                hidden_act=config.hidden_act,
                dtype=config.dtype,
                bias=False,
                quant_mode=config.quant_mode,
            )

        def forward(self, x: Any, kv_cache_params: Any, attention_params: Any) -> Any:
            """[num_tokens, hidden] -> [num_tokens, hidden]."""
            attended, _ = self.attention(  # keys and values remain in the pool and are not outputs
                self.input_layernorm(x),
                use_cache=True,
                kv_cache_params=kv_cache_params,
                attention_params=attention_params,
            )
            x = x + attended
            return x + self.mlp(self.post_layernorm(x))

    class MossForCausalLM(library.PretrainedModel):  # type: ignore[name-defined]
        """The complete network. Attribute paths are the names of the tensors in the checkpoint."""

        config_class = MossConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            library.Attention.create_attention_const_params(self, config)  # tables of RoPE
            self.position_embedding_type = config.position_embedding_type
            self.network_tensors: tuple[EngineTensor, ...] = ()
            first_text = config.num_shared_layers
            first_audio = first_text + config.num_text_layers
            self.vocab_embedding = library.Embedding(
                config.vocab_size, config.hidden_size, dtype=config.dtype
            )
            self.shared_layers = _stack(config, 0, config.num_shared_layers)
            self.text_layers = _stack(config, first_text, config.num_text_layers)
            self.audio_layers = _stack(config, first_audio, config.num_audio_layers)
            self.text_norm, self.audio_norm = _norm(library, config), _norm(library, config)
            self.lm_head = _head(library, config, config.text_vocab_size)
            self.audio_lm_head = _head(library, config, config.audio_vocab_size)

        def forward(
            self,
            input_ids: Any,
            position_ids: Any,
            use_cache: bool,
            last_token_ids: Any,
            attention_mask: Any,
            kv_cache_params: Any,
            attention_params: Any,
        ) -> None:
            """Build the network on the tensors of `prepare_inputs`; parameters are named as there.

            `input_ids` [num_tokens] are merged ids, `last_token_ids` [batch] count from 1. position_ids and
            attention_mask are ignored: RoPE uses sequence_length, and the mask is causal.
            """
            attention_params = library.Attention.fill_attention_params(self, attention_params)
            kv_cache_params = copy.copy(kv_cache_params)
            kv_cache_params.past_key_value = [None]  # of each layer; a paged cache has none
            x = self.vocab_embedding(input_ids)
            for layer in self.shared_layers:
                x = layer(x, kv_cache_params, attention_params)
            packed = library.default_net().plugin_config.remove_input_padding
            tails = (
                (self.text_layers, self.text_norm, self.lm_head),
                (self.audio_layers, self.audio_norm, self.audio_lm_head),
            )
            for output, (layers, norm, head) in zip(OUTPUTS, tails, strict=True):
                hidden = x
                for layer in layers:
                    hidden = layer(hidden, kv_cache_params, attention_params)
                last = library.gather_last_token_logits(hidden, last_token_ids, packed)
                head(norm(last)).mark_output(output, self.config.logits_dtype)
            self.network_tensors = network_tensors(library.default_net().trt_network)

    def _stack(config: Any, first: int, count: int) -> Any:
        return library.ModuleList([Layer(config, first + index) for index in range(count)])

    library.MODEL_MAP[ARCHITECTURE] = MossForCausalLM
    return MossForCausalLM


def _norm(library: Library, config: Any) -> Any:
    return library.RmsNorm(normalized_shape=config.hidden_size, eps=config.norm_epsilon, dtype=config.dtype)


def _head(library: Library, config: Any, vocabulary: int) -> Any:
    return library.ColumnLinear(
        config.hidden_size, vocabulary, bias=False, dtype=config.dtype, gather_output=True
    )
