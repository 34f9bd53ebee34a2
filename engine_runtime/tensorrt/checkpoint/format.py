"""The checkpoint that TensorRT-LLM builds an engine from: config.json, tensors, mapping to our state dict.

In: our own config, or a config.json (an engine has the same as `pretrained_config`). Out: a frozen config;
names, shapes and dtypes of rank0.safetensors; the mapping from our state dict and back; and the fingerprint
of the language model that a checkpoint or an engine was made from. No weights are read. Any thread.

The decoder forks: `shared_layers`, then `text_layers` and `audio_layers` in parallel; the KV cache numbers
all layers in this order. Keys of config.json are those of the library (PretrainedConfig and QuantConfig of
1.x), plus those of the fork. Names and layouts are those of TensorRT-LLM's checkpoint format
(docs/source/architecture/checkpoint.md, ModelWeightsLoader of 1.x): weights [out, in], q, k and v
concatenated by rows, both embedding tables concatenated, and in the MLP `fc` for gate_proj of Qwen3, `gate`
for up_proj, `proj` for down_proj.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import torch

from engine_runtime.bundle.bundle import Bundle
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
                "{source} asks for quant_algo {algorithm} and kv_cache_quant_algo {kv_cache}.",
                "Known are {known}, and FP8 for the cache: quantize it again.",
                source=source,
                algorithm=algorithm,
                kv_cache=kv_cache,
                known=", ".join(get_args(Algorithm)),
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
        """For plain weights of our network. Raises BundleError for one that an engine cannot run."""
        if not config.qk_norm:
            raise BundleError(
                "TensorRT-LLM engines normalize queries and keys, and [lm.config] has qk_norm = false.",
                "Run this language model with --backend torch.",
            )
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
                "{source} describes a {architecture}, not a {wanted_architecture}.",
                "Give a folder created by `moss-voice trt convert`.",
                source=source,
                architecture=architecture or "model without a name",
                wanted_architecture=ARCHITECTURE,
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
            "{directory} holds no finished checkpoint: {config} is missing.",
            "Give a folder created by `moss-voice trt convert`; if it was interrupted, run it again.",
            directory=directory,
            config=CONFIG,
        ) from error
    except (OSError, ValueError) as error:
        raise BundleError(
            "{file} cannot be read: {error}.", "Convert the model again.", file=file, error=error
        ) from error
    if not isinstance(values, dict):
        raise BundleError("{file} holds no JSON object.", "Convert the model again.", file=file)
    return CheckpointConfig.from_dict(values, str(file))


WEIGHTS = "rank0.safetensors"
ABOUT = "moss_voice.json"
"""Our additional file: identifies the bundle whose language model this is."""

LAYERS = {"shared_layers": "shared_block", "text_layers": "text_block", "audio_layers": "audio_block"}
"""The three stacks: their name in the checkpoint, and ours below `model.`."""
_OF_LAYER = {
    "input_layernorm": ("input_layernorm",),
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.dense": ("self_attn.o_proj",),
    "attention.q_layernorm": ("self_attn.q_norm",),
    "attention.k_layernorm": ("self_attn.k_norm",),
    "post_layernorm": ("post_attention_layernorm",),
    "mlp.fc": ("mlp.gate_proj",),
    "mlp.gate": ("mlp.up_proj",),
    "mlp.proj": ("mlp.down_proj",),
}
_AROUND_LAYERS = {
    "vocab_embedding": ("model.embed_tokens", "model.audio_embed"),
    "text_norm": ("model.text_norm",),
    "audio_norm": ("model.audio_norm",),
    "lm_head": ("text_lm_head",),
    "audio_lm_head": ("audio_lm_head",),
}


class CheckpointTensor(NamedTuple):
    """Shape and dtype of a tensor in rank0.safetensors."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class TensorSlice(NamedTuple):
    """Location of one of our tensors: rows [first, first + rows) of the tensor `name`."""

    name: str
    first: int
    rows: int


def is_checkpoint(directory: Path) -> bool:
    """Whether a folder holds a finished checkpoint of this network."""
    try:
        read_config(directory)
    except BundleError:
        return False
    return (directory / WEIGHTS).is_file()


def modules(config: CheckpointConfig) -> dict[str, tuple[str, ...]]:
    """Our source modules of each module of the checkpoint, in the order of its rows."""
    counts = (config.num_shared_layers, config.num_text_layers, config.num_audio_layers)
    sources = {"vocab_embedding": _AROUND_LAYERS["vocab_embedding"]}
    for (stack, ours), count in zip(LAYERS.items(), counts, strict=True):
        for index in range(count):
            for name, parts in _OF_LAYER.items():
                sources[f"{stack}.{index}.{name}"] = tuple(
                    f"model.{ours}.layers.{index}.{part}" for part in parts
                )
    return sources | _AROUND_LAYERS


def linear_modules(config: CheckpointConfig) -> list[str]:
    """All linear layers: those of the decoder layers, then the heads."""
    return [name for name in modules(config) if name.endswith((*LINEARS, *HEADS))]


def name_map(config: CheckpointConfig) -> dict[str, tuple[str, ...]]:
    """Our source tensors of each weight of the checkpoint, in the order of its rows."""
    return {
        f"{name}.weight": tuple(f"{part}.weight" for part in parts) for name, parts in modules(config).items()
    }


def tensor_slices(config: CheckpointConfig) -> dict[str, TensorSlice]:
    """Location of each tensor of our state dict in an unquantized checkpoint: the inverse mapping."""
    head, kv = (config.head_size * n for n in (config.num_attention_heads, config.num_key_value_heads))
    found = {}
    for name, parts in name_map(config).items():
        rows: tuple[int, ...] = (_weight_shape(config, name.removesuffix(".weight"))[0],)
        if len(parts) == 3:
            rows = (head, kv, kv)
        elif len(parts) == 2:
            rows = (config.text_vocab_size, config.audio_vocab_size)
        first = 0
        for part, count in zip(parts, rows, strict=True):
            found[part] = TensorSlice(name, first, count)
            first += count
    return found


def expected_tensors(config: CheckpointConfig) -> dict[str, CheckpointTensor]:
    """All tensors of rank0.safetensors, in the order of the network.

    Unquantized: 9 tensors per layer and 5 others, 365 for the released model. W8A16 is stored unquantized,
    since the library quantizes it when loading; FP8 and W4A16_AWQ have scales.
    """
    tensors: dict[str, CheckpointTensor] = {}
    for module in modules(config):
        shape = _weight_shape(config, module)
        if config.is_quantized(module):
            tensors |= _quantized(config, module, *shape)
        else:
            tensors[f"{module}.weight"] = CheckpointTensor(shape, config.torch_dtype)
        if module.endswith("attention.qkv") and config.quantization.kv_cache is not None:
            name = f"{module.removesuffix('qkv')}kv_cache_scaling_factor"
            tensors[name] = CheckpointTensor((1,), torch.float32)
    return tensors


def _quantized(
    config: CheckpointConfig, module: str, outputs: int, inputs: int
) -> dict[str, CheckpointTensor]:
    weight = f"{module}.weight"
    if config.quantization.algorithm == "FP8":
        return {
            weight: CheckpointTensor((outputs, inputs), torch.float8_e4m3fn),
            f"{module}.activation_scaling_factor": CheckpointTensor((1,), torch.float32),
            f"{module}.weights_scaling_factor": CheckpointTensor((1,), torch.float32),
        }
    if config.quantization.algorithm == "W4A16_AWQ":
        groups = -(-inputs // config.quantization.group_size)
        return {
            # Two outputs a byte, the even one in the low half.
            weight: CheckpointTensor((outputs // 2, inputs), torch.int8),
            f"{module}.weights_scaling_factor": CheckpointTensor((outputs, groups), config.torch_dtype),
            f"{module}.prequant_scaling_factor": CheckpointTensor((inputs,), config.torch_dtype),
        }
    return {weight: CheckpointTensor((outputs, inputs), config.torch_dtype)}


def _weight_shape(config: CheckpointConfig, module: str) -> tuple[int, ...]:
    """Shape of the weight in plain numbers, [out, in] for a product."""
    hidden, ffn = config.hidden_size, config.intermediate_size
    head, kv = (config.head_size * n for n in (config.num_attention_heads, config.num_key_value_heads))
    shapes: dict[str, tuple[int, ...]] = {
        "vocab_embedding": (config.vocab_size, hidden),
        "lm_head": (config.text_vocab_size, hidden),
        "audio_lm_head": (config.audio_vocab_size, hidden),
        "attention.qkv": (head + 2 * kv, hidden),
        "attention.dense": (hidden, head),
        "attention.q_layernorm": (config.head_size,),
        "attention.k_layernorm": (config.head_size,),
        "mlp.fc": (ffn, hidden),
        "mlp.gate": (ffn, hidden),
        "mlp.proj": (hidden, ffn),
    }
    last = module.split(".", 2)[-1]
    return shapes.get(last, (hidden,))


def lm_fingerprint(bundle: Bundle) -> str:
    """SHA-256, lower-case hex, of the network's sizes and the hashes of its weight files, in their order."""
    if bundle.lm.layout == "tensorrt-llm":
        return _of_checkpoint(bundle.lm.weights[0].parent / ABOUT)
    entries = [bundle.files.get(file.relative_to(bundle.path).as_posix()) for file in bundle.lm.weights]
    described = {
        "config": bundle.lm.config,
        "weights": [None if entry is None else entry.sha256.lower() for entry in entries],
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _of_checkpoint(about: Path) -> str:
    try:
        return str(json.loads(about.read_text(encoding="utf-8"))["lm_fingerprint"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(
            "{about} does not say which model the checkpoint is of ({error}).",
            "Convert the model again.",
            about=about,
            error=error,
        ) from error
