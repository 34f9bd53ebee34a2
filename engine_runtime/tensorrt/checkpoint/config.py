"""config.json of a TensorRT-LLM checkpoint: sizes of the network, dtype and quantization.

In: our own config, or a config.json (an engine has the same as `pretrained_config`). Out: a frozen dataclass.
Keys are those of the library (PretrainedConfig and QuantConfig of 1.x), plus those of the forked decoder. Any
thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch

from engine_runtime.bundle.manifest import Manifest, Table
from engine_runtime.errors import BundleError
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import Dtype

ARCHITECTURE = "MossForCausalLM"
CONFIG = "config.json"
LINEARS = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")
"""The linear layers of a decoder layer; the heads are the only other ones."""
HEADS = ("lm_head", "audio_lm_head")
Algorithm = Literal["FP8", "W8A16", "W4A16_AWQ"]
_LIBRARY_EXCLUDES = ("*lm_head", "*vocab_embedding")
"""Modules that are not quantized by default (those of the library's list that this network has)."""
_FIXED: dict[str, Any] = {
    "hidden_act": "silu",
    "position_embedding_type": "rope_gpt_neox",
    "rotary_scaling": None,
    "qk_layernorm": True,
}
_ABSENT: dict[str, Any] = {"hidden_act": "gelu", "qk_layernorm": False}
"""What the library takes for a key that is not there, unless this network has the same."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """The `quantization` table of config.json.

    Attributes:
        algorithm: None for plain numbers.
        kv_cache: number format of keys and values, None for that of the network.
        exclude_modules: patterns (fnmatch) of modules that stay plain; it replaces the library's own list.
        group_size: inputs that share a scale, for W4A16_AWQ.
    """

    algorithm: Algorithm | None = None
    kv_cache: Literal["FP8"] | None = None
    exclude_modules: tuple[str, ...] = ("*lm_head", "*vocab_embedding", "text_layers*", "audio_layers*")
    group_size: int = 128

    def to_dict(self) -> dict[str, Any]:
        """The table under the library's own names."""
        if self.algorithm is None:
            return {"quant_algo": None, "kv_cache_quant_algo": self.kv_cache}
        table: dict[str, Any] = {
            "quant_algo": self.algorithm,
            "kv_cache_quant_algo": self.kv_cache,
            "exclude_modules": list(self.exclude_modules),
        }
        if self.algorithm == "W4A16_AWQ":
            table |= {"group_size": self.group_size, "has_zero_point": False, "pre_quant_scale": True}
        return table

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str) -> Quantization:
        """Read the table; other keys of the library are ignored. BundleError for unsupported values."""
        algorithm, kv_cache = values.get("quant_algo"), values.get("kv_cache_quant_algo")
        if algorithm not in (None, *get_args(Algorithm)) or kv_cache not in (None, "FP8"):
            raise BundleError(
                f"{source} asks for quant_algo {algorithm} and kv_cache_quant_algo {kv_cache}. "
                f"Known are {', '.join(get_args(Algorithm))}, and FP8 for the cache: quantize it again."
            )
        if algorithm is None:
            return cls(None, kv_cache)
        exclude = values.get("exclude_modules")
        return cls(
            algorithm,
            kv_cache,
            exclude_modules=_LIBRARY_EXCLUDES if exclude is None else tuple(exclude),
            group_size=int(values.get("group_size") or cls().group_size),
        )


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """config.json: sizes of the network and its numbers. Fields have the library's names."""

    dtype: Dtype
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_size: int
    num_shared_layers: int
    num_text_layers: int
    num_audio_layers: int
    text_vocab_size: int
    audio_vocab_size: int
    max_position_embeddings: int
    rotary_base: float
    norm_epsilon: float
    quantization: Quantization = field(default_factory=Quantization)

    @classmethod
    def of(cls, config: MossLMConfig, dtype: Dtype, max_position_embeddings: int) -> CheckpointConfig:
        """For plain weights of our network."""
        return cls(
            dtype=dtype,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_size=config.head_dim,
            num_shared_layers=config.shared_layers,
            num_text_layers=config.text_layers,
            num_audio_layers=config.audio_layers,
            text_vocab_size=config.text_vocab,
            audio_vocab_size=config.audio_vocab,
            max_position_embeddings=max_position_embeddings,
            rotary_base=config.rope_theta,
            norm_epsilon=config.rms_norm_eps,
        )

    @property
    def kv_row_bytes(self) -> int:
        """Keys and values of one row in `dtype`, over all layers."""
        return (
            2 * self.num_hidden_layers * self.num_key_value_heads * self.head_size * self.torch_dtype.itemsize
        )

    @property
    def logits_bytes(self) -> int:
        """Logits of both heads for one sequence, in float32."""
        return (self.text_vocab_size + self.audio_vocab_size) * torch.float32.itemsize

    def lm_config(self, modality_pad: int) -> MossLMConfig:
        """Sizes of our network, without `modality_pad`, which an engine does not need: it reads merged
        ids."""
        return MossLMConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_size,
            shared_layers=self.num_shared_layers,
            text_layers=self.num_text_layers,
            audio_layers=self.num_audio_layers,
            text_vocab=self.text_vocab_size,
            audio_vocab=self.audio_vocab_size,
            modality_pad=modality_pad,
            rope_theta=self.rotary_base,
            rms_norm_eps=self.norm_epsilon,
        )

    @property
    def num_hidden_layers(self) -> int:
        """Layers that own keys and values. The plugin indexes by it: the trunk's count alone is too few."""
        return self.num_shared_layers + self.num_text_layers + self.num_audio_layers

    @property
    def vocab_size(self) -> int:
        """Rows of the one embedding table: text ids, then speech codes."""
        return self.text_vocab_size + self.audio_vocab_size

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch calls it."""
        return cast(torch.dtype, getattr(torch, self.dtype))

    def is_quantized(self, module: str) -> bool:
        """Whether a module (`shared_layers.0.attention.qkv`, `lm_head`) is a product that is quantized."""
        if self.quantization.algorithm is None or not module.endswith((*LINEARS, *HEADS)):
            return False
        return not any(fnmatchcase(module, pattern) for pattern in self.quantization.exclude_modules)

    def to_dict(self) -> dict[str, Any]:
        """The complete config.json."""
        own = {name: getattr(self, name) for name in self.__slots__ if name != "quantization"}
        return own | {
            "architecture": ARCHITECTURE,
            "logits_dtype": "float32",
            "vocab_size": self.vocab_size,
            "num_hidden_layers": self.num_hidden_layers,
            "quantization": self.quantization.to_dict(),
            "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
            **_FIXED,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str) -> CheckpointConfig:
        """Read a config.json, or the `pretrained_config` of an engine; `source` names it in a BundleError.

        Keys that the library adds of its own are left alone.
        """
        table = Table(values, "", Manifest(values, source))
        if (architecture := values.get("architecture")) != ARCHITECTURE:
            raise BundleError(
                f"{source} describes a {architecture or 'model without a name'}, not a {ARCHITECTURE}. "
                "Give a folder created by `moss-voice trt convert`."
            )
        for key, wanted in _FIXED.items():
            if (found := values.get(key, _ABSENT.get(key, wanted))) != wanted:
                raise table.error(f"has {key} = {found!r}, but this network has {wanted!r}")
        if int(dict(values.get("mapping") or {}).get("world_size", 1)) != 1:
            raise table.error("is split over several GPUs; convert it for one")
        if (dtype := table.string("dtype")) not in get_args(Dtype):
            raise table.error(f"has dtype = {dtype!r}; known are {', '.join(get_args(Dtype))}")
        real = ("rotary_base", "norm_epsilon")
        given: dict[str, Any] = {name: table.value(name, float) for name in real}
        integers = [name for name in cls.__slots__ if name not in (*real, "dtype", "quantization")]
        given |= {name: table.integer(name) for name in integers}
        quantization = Quantization.from_dict(values.get("quantization") or {}, source)
        config = cls(dtype=cast(Dtype, dtype), quantization=quantization, **given)
        for name in ("num_hidden_layers", "vocab_size"):
            if values.get(name, getattr(config, name)) != getattr(config, name):
                raise table.error(
                    f"has {name} = {values[name]}, but its parts add to {getattr(config, name)}"
                )
        return config


def read_config(directory: Path) -> CheckpointConfig:
    """config.json of a checkpoint folder. BundleError if there is none or it describes a different model."""
    file = directory / CONFIG
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BundleError(
            f"{directory} holds no finished checkpoint: {CONFIG} is missing. "
            "Give a folder created by `moss-voice trt convert`; if it was interrupted, run it again."
        ) from error
    except (OSError, ValueError) as error:
        raise BundleError(f"{file} cannot be read: {error}. Convert the model again.") from error
    if not isinstance(values, dict):
        raise BundleError(f"{file} holds no JSON object. Convert the model again.")
    return CheckpointConfig.from_dict(values, str(file))
