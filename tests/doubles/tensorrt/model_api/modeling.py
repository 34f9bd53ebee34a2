"""Configuration, the base class of models, and the model transformations of the library.

`quantize` replaces linear layers whose name matches no pattern of exclude_modules. `fuse_gate_mlp` fuses two
layers; as in the library it interprets the patterns differently: full names, or a prefix before a `*` at the
end.
"""

from __future__ import annotations

import copy
import fnmatch
import json
from collections import OrderedDict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.doubles.tensorrt.model_api.attention import Attention, AttentionParams, KeyValueCacheParams
from tests.doubles.tensorrt.model_api.graph import DTYPES, PositionEmbeddingType, Tensor
from tests.doubles.tensorrt.model_api.layers import (
    FP8_MAX,
    ColumnLinear,
    Embedding,
    FP8Linear,
    FusedGatedMLP,
    GatedMLP,
    Linear,
    WeightOnlyGroupwiseLinear,
    WeightOnlyLinear,
)
from tests.doubles.tensorrt.model_api.module import Module

MODEL_MAP: dict[str, Any] = {}
DEFAULT_EXCLUDES = ["*lm_head", "*router", "*vocab_embedding", "*position_embedding", "*block_embedding"]


@dataclass
class QuantConfig:
    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    group_size: int = 128
    smoothquant_val: float = 0.5
    clamp_val: list[float] | None = None
    use_meta_recipe: bool = False
    has_zero_point: bool = False
    pre_quant_scale: bool = False
    exclude_modules: list[str] | None = None

    def algorithm_of_fused(self, name: str) -> str | None:
        """How the MLP fusion reads the patterns."""
        for pattern in self.exclude_modules or []:
            if pattern == name or (pattern.endswith("*") and name.startswith(pattern[:-1])):
                return None
        return self.quant_algo


class PretrainedConfig:
    """Takes any key, as the library does; those that it has no name for are listed in `implicit`."""

    def __init__(
        self,
        *,
        architecture: str,
        dtype: str,
        hidden_size: int,
        num_hidden_layers: int,
        num_attention_heads: int,
        vocab_size: int | None = None,
        hidden_act: str = "gelu",
        logits_dtype: str = "float32",
        norm_epsilon: float = 1e-5,
        position_embedding_type: str = "learned_absolute",
        max_position_embeddings: int | None = None,
        rotary_embedding_dim: int | None = None,
        num_key_value_heads: int | None = None,
        intermediate_size: int | None = None,
        mapping: dict[str, int] | None = None,
        quantization: dict[str, Any] | None = None,
        use_parallel_embedding: bool = False,
        embedding_sharding_dim: int = 0,
        head_size: int | None = None,
        qk_layernorm: bool = False,
        runtime_defaults: None = None,
        **kwargs: Any,
    ) -> None:
        self.architecture, self.dtype = architecture, dtype
        self.hidden_size, self.vocab_size = hidden_size, vocab_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.hidden_act, self.logits_dtype, self.norm_epsilon = hidden_act, logits_dtype, norm_epsilon
        self.position_embedding_type = PositionEmbeddingType.from_string(position_embedding_type)
        self.max_position_embeddings = max_position_embeddings
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        self.intermediate_size = intermediate_size or hidden_size * 4
        self.head_size = head_size or hidden_size // num_attention_heads
        self.mapping = mapping or {"world_size": 1}
        assert self.mapping["world_size"] == 1
        self.quantization = QuantConfig(**(quantization or {}))
        self.qk_layernorm = qk_layernorm
        self.implicit = sorted(kwargs)
        for key, value in kwargs.items():
            setattr(self, key, value)

    @property
    def quant_mode(self) -> object:
        return self.quantization.quant_algo, self.quantization.kv_cache_quant_algo

    def to_dict(self) -> dict[str, Any]:
        """Only what this class knows: a subclass has to add its own keys."""
        known_keys = {*(PretrainedConfig.__init__.__kwdefaults__ or ()), *_REQUIRED}
        known = {name: copy.deepcopy(value) for name, value in vars(self).items() if name in known_keys}
        return known | {
            "position_embedding_type": str(self.position_embedding_type),
            "quantization": asdict(self.quantization),
        }

    @classmethod
    def from_json_file(cls, config_file: str) -> Any:
        config = json.loads(Path(config_file).read_text())
        return MODEL_MAP[config["architecture"]].config_class(**config)


_REQUIRED = ("architecture", "dtype", "hidden_size", "num_hidden_layers", "num_attention_heads")


class _PostInit(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        model = super().__call__(*args, **kwargs)
        quantize(model, model.config.quantization)
        return model


class PretrainedModel(Module, metaclass=_PostInit):
    config_class: type = PretrainedConfig

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    @classmethod
    def from_checkpoint(cls, ckpt_dir: str, rank: int | None = None, config: Any = None) -> Any:
        if config is None:
            config = PretrainedConfig.from_json_file(f"{ckpt_dir}/config.json")
        model = cls(config)
        model.load(load_file(f"{ckpt_dir}/rank{rank or 0}.safetensors"))
        return model

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        parameters = {name: p for name, p in self.named_parameters() if not p.is_buffer}
        missing, unused = parameters.keys() - weights.keys(), weights.keys() - parameters.keys()
        if missing:
            raise RuntimeError(f"Required but not provided tensors:{missing}")
        assert not unused, f"the library would only warn: {unused}"
        for name, parameter in parameters.items():
            parameter.value = weights[name]

    def prepare_inputs(
        self,
        max_batch_size: int,
        max_input_len: int,
        max_seq_len: int,
        max_num_tokens: int,
        use_cache: bool,
        max_beam_width: int = 1,
        opt_num_tokens: int | None = None,
    ) -> dict[str, Any]:
        """The 17 inputs of a packed, paged engine of 1.x; sizes that vary are -1."""
        layers = self.config.num_hidden_layers
        shapes = OrderedDict(
            input_ids=("int32", [-1]),
            position_ids=("int32", [-1]),
            last_token_ids=("int32", [-1]),
            host_past_key_value_lengths=("int32", [-1]),
            host_max_attention_window_sizes=("int32", [layers]),
            host_sink_token_length=("int32", [1]),
            kv_cache_block_offsets=("int32", [1, -1, 2, -1]),
            host_kv_cache_block_offsets=("int32", [1, -1, 2, -1]),
            host_kv_cache_pool_pointers=("int64", [1, 2]),
            host_kv_cache_pool_mapping=("int32", [layers, 2]),
            cache_indirection=("int32", [-1, -1, -1]),
            sequence_length=("int32", [-1]),
            context_lengths=("int32", [-1]),
            host_context_lengths=("int32", [-1]),
            host_request_types=("int32", [-1]),
            host_runtime_perf_knobs=("int64", [16]),
            host_context_progress=("int64", [1]),
        )
        made = {name: Tensor(name=name, dtype=dtype, shape=shape) for name, (dtype, shape) in shapes.items()}
        of_cache = set(KeyValueCacheParams.__dataclass_fields__)
        of_attention = set(AttentionParams.__dataclass_fields__)
        return {
            "input_ids": made["input_ids"],
            "position_ids": made["position_ids"],
            "use_cache": use_cache,
            "last_token_ids": made["last_token_ids"],
            "attention_mask": None,
            "kv_cache_params": KeyValueCacheParams(
                past_key_value=[], **{name: made[name] for name in made if name in of_cache}
            ),
            "attention_params": AttentionParams(
                max_context_length=max_input_len,
                **{name: made[name] for name in made if name in of_attention},
            ),
        }


def quantize(model: Any, config: QuantConfig) -> None:
    """Replace every product that is not excluded."""
    assert config.kv_cache_quant_algo is None
    if config.quant_algo is None:
        return
    excludes = DEFAULT_EXCLUDES if config.exclude_modules is None else config.exclude_modules
    for name, module, parent in list(model.named_modules_with_parent()):
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in excludes):
            continue
        if isinstance(module, Embedding):
            assert config.quant_algo != "W8A16", f"{name} would be quantized"
        if isinstance(module, Linear):
            setattr(parent, name.rpartition(".")[2], _quantized(module, config))


def _quantized(module: Linear, config: QuantConfig) -> Linear:
    if config.quant_algo == "FP8":
        return FP8Linear(module)
    if config.quant_algo == "W8A16":
        return WeightOnlyLinear(module)
    assert config.quant_algo == "W4A16_AWQ", config.quant_algo
    assert config.pre_quant_scale
    assert not config.has_zero_point
    return WeightOnlyGroupwiseLinear(module, config.group_size)


def fuse_gate_mlp(model: Any) -> None:
    """Join gate and fc of every plain or FP8 MLP; two FP8 weights get the larger of their scales."""
    for name, mlp, parent in list(model.named_modules_with_parent()):
        if not isinstance(mlp, GatedMLP):
            continue
        algorithm = model.config.quantization.algorithm_of_fused(f"{name}.fc")
        if algorithm not in (None, "FP8"):
            continue
        gate, fc = mlp.gate.weight.raw_value, mlp.fc.weight.raw_value
        fused: Linear = ColumnLinear(
            mlp.fc.in_features, 2 * mlp.fc.out_features, bias=False, dtype=mlp.fc.dtype
        )
        if algorithm == "FP8":
            fused, dtype = FP8Linear(fused), DTYPES[str(mlp.fc.dtype)]
            scales = [part.weights_scaling_factor.raw_value for part in (mlp.gate, mlp.fc)]  # type: ignore[attr-defined]
            largest = torch.maximum(*scales)
            wide = torch.cat([w.to(dtype).float() * s for w, s in zip((gate, fc), scales, strict=True)])
            fused.weight.value = (wide / largest).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
            fused.weights_scaling_factor.value = largest
            fused.activation_scaling_factor.value = torch.maximum(
                mlp.gate.activation_scaling_factor.raw_value,  # type: ignore[attr-defined]
                mlp.fc.activation_scaling_factor.raw_value,  # type: ignore[attr-defined]
            )
        else:
            fused.weight.value = torch.cat((gate, fc))
        setattr(parent, name.rpartition(".")[2], FusedGatedMLP(fused, mlp.proj))


__all__ = ["MODEL_MAP", "Attention", "PretrainedConfig", "PretrainedModel", "fuse_gate_mlp", "quantize"]
