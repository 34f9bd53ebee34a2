"""Build plan of an engine: settings of the library and its plugins, checked before the build.

In: a folder created by `moss-voice trt convert` or `quantize`, and the sizes to build for. Out: a
`BuildPlan`, or an error for settings that the library would reject after minutes or silently misinterpret.
The library is not needed. Any thread.

Settings: PluginConfig and BuildConfig of TensorRT-LLM 1.2. One beam; one sequence unless the engine is to
serve several conversations.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from engine_runtime.bundle.targets import require_file
from engine_runtime.errors import EngineError
from engine_runtime.tensorrt.checkpoint.format import CheckpointConfig, linear_modules
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint
from engine_runtime.tensorrt.llm.engine_directory import describe_precision

_LONGEST, _MOST = 8192, 2048
"""Rows of the longest sequence and of the longest call, unless set otherwise."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Sizes that are fixed in an engine.

    Attributes:
        max_seq_len: rows of the longest conversation; None: that of the model, at most 8192.
        max_num_tokens: rows of the longest call; None: 2048, at most `max_seq_len`.
        max_batch_size: sequences of a call, whose rows are packed.
        opt_num_tokens: rows of the call that kernels are tuned for; None: those of the largest decode step,
            one of each sequence.
        tokens_per_block: rows of a block of the KV cache, a power of two.
        multiple_profiles: tune kernels for several ranges of rows; the build takes several times as long.
        fused_mlp: one GEMM for gate and fc of the MLP.
        timing_cache: file with measurements of earlier builds; read if it exists, and written.
    """

    max_seq_len: int | None = None
    max_num_tokens: int | None = None
    max_batch_size: int = 1
    opt_num_tokens: int | None = None
    tokens_per_block: int = 32
    multiple_profiles: bool = False
    fused_mlp: bool = True
    timing_cache: Path | None = None


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """A checked plan.

    Attributes:
        plugins, settings: arguments of the library's PluginConfig and BuildConfig.
        weights_bytes: size of the checkpoint's weights.
    """

    checkpoint: Checkpoint
    plugins: dict[str, Any]
    settings: dict[str, Any]
    weights_bytes: int

    @property
    def config(self) -> CheckpointConfig:
        """Sizes and number formats."""
        return self.checkpoint.config

    def document(self) -> dict[str, dict[str, Any]]:
        """All settings as plain values, grouped, and the GPU memory that they lead to; that of activations is
        known after the build."""
        about = {
            "path": str(self.checkpoint.directory),
            "tensors": len(self.checkpoint.specs),
            "weights_bytes": self.weights_bytes,
            "precision": describe_precision(self.config),
        }
        config, batch = self.config, self.settings["max_batch_size"]
        kv_bytes = self.settings["max_seq_len"] * config.kv_row_bytes
        memory = {
            "engine_bytes": self.weights_bytes,
            "kv_bytes_of_a_conversation": kv_bytes,
            "kv_bytes_of_a_batch": batch * kv_bytes,
            "logits_bytes_of_a_batch": batch * config.logits_bytes,
        }
        return {
            "checkpoint": about,
            "build": dict(self.settings),
            "plugins": dict(self.plugins),
            "memory": memory,
        }


def plan_build(directory: Path, options: BuildOptions) -> BuildPlan:
    """Read and check a checkpoint and the options.

    BundleError or EngineError if it cannot be built, ExportError for a timing cache that cannot be written.
    """
    checkpoint = Checkpoint.open(directory)
    config = checkpoint.config
    _check_quantization(config, options.fused_mlp)
    longest, most = options.max_seq_len, options.max_num_tokens
    if longest is None:
        longest = min(_LONGEST, config.max_position_embeddings)
    if most is None:
        most = min(_MOST, longest)
    best = options.max_batch_size if options.opt_num_tokens is None else options.opt_num_tokens
    _check_sizes(config, options, longest, most, best)
    if options.timing_cache is not None:
        require_file(options.timing_cache, "--timing-cache")
    plugins = {
        "dtype": config.dtype,
        "gpt_attention_plugin": config.dtype,
        "gemm_plugin": config.dtype,  # of the products that stay plain; FP8 ones go without
        "context_fmha": True,
        "paged_kv_cache": True,
        "remove_input_padding": True,
        "tokens_per_block": options.tokens_per_block,
        # A prefill continues a conversation only with this; without, it would not see the cache.
        "use_paged_context_fmha": True,
        # NOTE: with it the plugin expects a scale of every layer, and the tails that stay plain have none.
        "use_fp8_context_fmha": False,
        "use_fused_mlp": options.fused_mlp,
        "multiple_profiles": options.multiple_profiles,
    }
    settings = {
        "max_batch_size": options.max_batch_size,
        "opt_batch_size": min(options.max_batch_size, best),
        "max_beam_width": 1,
        "max_input_len": most,
        "max_seq_len": longest,
        "max_num_tokens": most,
        "opt_num_tokens": best,
        "strongly_typed": True,
    }
    size = sum(file.stat().st_size for file in {stored.file for stored in checkpoint.stored.values()})
    return BuildPlan(checkpoint, plugins, settings, size)


def _check_quantization(config: CheckpointConfig, fused_mlp: bool) -> None:
    """Reject a plan that the library would misinterpret or run incorrectly."""
    plan = config.quantization
    if plan.kv_cache is not None:
        raise EngineError(
            f"The checkpoint asks for keys and values in {plan.kv_cache}. With layers that stay plain the "
            "library computes attention wrongly then. Quantize again and keep keys and values as they are."
        )
    table = "vocab_embedding"
    if plan.algorithm == "W8A16" and not any(fnmatchcase(table, name) for name in plan.exclude_modules):
        raise EngineError(
            "The checkpoint does not exclude vocab_embedding, and the library would round the table too. "
            "Quantize again with that pattern among exclude_modules."
        )
    if not fused_mlp:
        return
    for name in linear_modules(config):
        if not name.endswith("mlp.fc"):
            continue
        gate = f"{name.removesuffix('fc')}gate"
        readings = {config.is_quantized(name), config.is_quantized(gate), _is_fused_quantized(config, name)}
        if len(readings) > 1:
            raise EngineError(
                f"Whether {name} is quantized is read in two ways from exclude_modules "
                f"{list(plan.exclude_modules)}: the library's MLP fusion accepts full names and a * at the "
                "end. Write such patterns, or build with --no-fused-mlp."
            )


def _is_fused_quantized(config: CheckpointConfig, name: str) -> bool:
    """Whether the library's MLP fusion takes a product for quantized."""
    plan = config.quantization
    return plan.algorithm is not None and not any(
        pattern == name or (pattern.endswith("*") and name.startswith(pattern[:-1]))
        for pattern in plan.exclude_modules
    )


def _check_sizes(config: CheckpointConfig, options: BuildOptions, longest: int, most: int, best: int) -> None:
    block = options.tokens_per_block
    if block < 1 or block & (block - 1):
        raise EngineError(f"tokens_per_block is {block}. Specify a power of two, such as 32.")
    if not 1 <= longest <= config.max_position_embeddings:
        raise EngineError(
            f"max_seq_len is {longest}, and the model supports at most {config.max_position_embeddings} "
            "rows. Give at most that length."
        )
    if not block <= most <= longest:  # the library would raise it to a block
        raise EngineError(
            f"max_num_tokens is {most}. Give at least tokens_per_block ({block}) and at most max_seq_len "
            f"({longest})."
        )
    if not 1 <= options.max_batch_size <= most:  # a decode step has one row of each sequence
        raise EngineError(
            f"max_batch_size is {options.max_batch_size}. Give at least 1 and at most max_num_tokens "
            f"({most})."
        )
    if not 1 <= best <= most:
        raise EngineError(f"opt_num_tokens is {best}. Give at least 1 and at most max_num_tokens ({most}).")
