"""Builds an engine from a checkpoint: the plan, the build, and the report.

In: a folder created by `moss-voice trt convert` or `quantize`, and the sizes to build for. Out: a
`BuildPlan`, or an error for settings that the library would reject after minutes or silently misinterpret;
the library is not needed for that. With TensorRT-LLM (library.py) then a folder with config.json,
rank0.engine and moss_voice.json, renamed when it is complete, and a report. The library may change settings
with only a log message, so the result is compared with the plan. Any thread; a build needs the GPU that will
run the engine, and host memory for all weights.

Settings: PluginConfig and BuildConfig of TensorRT-LLM 1.2. One beam; one sequence unless the engine is to
serve several conversations.
"""

from __future__ import annotations

import gc
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from engine_runtime.bundle.targets import require_file, require_folder
from engine_runtime.errors import BundleError, EngineError, ExportError
from engine_runtime.tensorrt.checkpoint.format import ABOUT, CheckpointConfig, linear_modules
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint
from engine_runtime.tensorrt.engine import EngineTensor
from engine_runtime.tensorrt.llm.contract import choose_contract
from engine_runtime.tensorrt.llm.engine_directory import PLAN, EngineDirectory, Provenance, describe_precision
from engine_runtime.tensorrt.llm.library import VERSION, Library
from engine_runtime.tensorrt.llm.model import OUTPUTS, define_model

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
            "The checkpoint asks for keys and values in {kv_cache}.",
            "With layers that stay plain the library computes attention wrongly then. Quantize again and "
            "keep keys and values as they are.",
            kv_cache=plan.kv_cache,
        )
    table = "vocab_embedding"
    if plan.algorithm == "W8A16" and not any(fnmatchcase(table, name) for name in plan.exclude_modules):
        raise EngineError(
            "The checkpoint does not exclude vocab_embedding, and the library would round the table too.",
            "Quantize again with that pattern among exclude_modules.",
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
                "Whether {name} is quantized is read in two ways from exclude_modules {exclude_modules}: "
                "the library's MLP fusion accepts full names and a * at the end.",
                "Write such patterns, or build with --no-fused-mlp.",
                name=name,
                exclude_modules=list(plan.exclude_modules),
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
        raise EngineError("tokens_per_block is {block}.", "Specify a power of two, such as 32.", block=block)
    if not 1 <= longest <= config.max_position_embeddings:
        raise EngineError(
            "max_seq_len is {longest}, but the model supports at most {max_position_embeddings} positions.",
            "Give at most that length.",
            longest=longest,
            max_position_embeddings=config.max_position_embeddings,
        )
    if not block <= most <= longest:  # the library would raise it to a block
        raise EngineError(
            "max_num_tokens is {most}.",
            "Give at least tokens_per_block ({block}) and at most max_seq_len ({longest}).",
            most=most,
            block=block,
            longest=longest,
        )
    if not 1 <= options.max_batch_size <= most:  # a decode step has one row of each sequence
        raise EngineError(
            "max_batch_size is {max_batch_size}.",
            "Give at least 1 and at most max_num_tokens ({most}).",
            max_batch_size=options.max_batch_size,
            most=most,
        )
    if not 1 <= best <= most:
        raise EngineError(
            "opt_num_tokens is {best}.",
            "Give at least 1 and at most max_num_tokens ({most}).",
            best=best,
            most=most,
        )


@dataclass(frozen=True, slots=True)
class BuildReport:
    """One build.

    Attributes:
        tensors: inputs and outputs as the library described them; -1 is a size that varies.
        load_seconds: time to read the checkpoint; `engine` holds the build time.
        gpu: name of the GPU it was built on, None where torch sees none.
        changed: sizes that differ from the requested ones.
    """

    engine: EngineDirectory
    tensors: tuple[EngineTensor, ...]
    load_seconds: float
    weights_bytes: int
    gpu: str | None
    changed: tuple[str, ...] = ()

    @property
    def plan_bytes(self) -> int:
        """Size of the engine."""
        return self.engine.plan.stat().st_size

    @property
    def cache_bytes(self) -> int:
        """Keys and values of the longest sequence."""
        return self.engine.max_seq_len * self.engine.model.kv_row_bytes

    def document(self) -> dict[str, Any]:
        """The report as plain values."""
        engine = self.engine
        return {
            "engine": str(engine.path),
            "library_version": engine.library_version,
            "gpu": self.gpu,
            "bundle": engine.bundle_name,
            "lm_fingerprint": engine.lm_fingerprint,
            "contract": engine.contract,
            "precision": engine.precision,
            "load_s": round(self.load_seconds, 1),
            "build_s": engine.build_seconds,
            "weights_bytes": self.weights_bytes,
            "plan_bytes": self.plan_bytes,
            "cache_bytes": self.cache_bytes,
            "max_seq_len": engine.max_seq_len,
            "max_num_tokens": engine.max_num_tokens,
            "max_batch_size": engine.max_batch_size,
            "tokens_per_block": engine.tokens_per_block,
            "changed": list(self.changed),
            "tensors": [
                {
                    "name": tensor.name,
                    "mode": "input" if tensor.is_input else "output",
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    "shape": list(tensor.shape),
                }
                for tensor in self.tensors
            ],
        }

    def lines(self) -> list[str]:
        """The same as text."""
        engine = self.engine
        inputs = sum(tensor.is_input for tensor in self.tensors)
        gpu, bundle = (
            self.gpu or "an unknown GPU",
            engine.bundle_name or "a checkpoint without a bundle's name",
        )
        cache = f"{self.cache_bytes / 1e9:.2f} GB of keys and values in blocks of {engine.tokens_per_block}"
        lines = [
            f"{engine.path}",
            f"  built       with TensorRT-LLM {engine.library_version} on {gpu}, of {bundle}",
            f"  time        {self.load_seconds:.1f} s to load, {engine.build_seconds:.1f} s to build",
            f"  size        {self.plan_bytes / 1e9:.2f} GB, of {self.weights_bytes / 1e9:.2f} GB of weights",
            f"  precision   {engine.precision}",
            f"  limits      {engine.max_seq_len} rows in all ({cache}), {engine.max_num_tokens} a call",
            f"  batch       {self._batch()}",
            *(f"  changed     {change}" for change in self.changed),
            f"  tensors     {inputs} inputs, {len(self.tensors) - inputs} outputs",
        ]
        for tensor in self.tensors:
            mode, dtype = "in " if tensor.is_input else "out", str(tensor.dtype).removeprefix("torch.")
            lines.append(f"    {mode} {tensor.name:<32} {dtype:<8} {list(tensor.shape)}")
        return lines

    def _batch(self) -> str:
        sequences = self.engine.max_batch_size
        if sequences == 1:
            return "one sequence a call; for several, build with --max-batch-size"
        return f"{sequences} sequences a call, {sequences * self.cache_bytes / 1e9:.2f} GB at full length"


_TIMINGS = "timing.cache"


def build_engine(plan: BuildPlan, directory: Path, options: BuildOptions, library: Library) -> BuildReport:
    """Build into `directory`, which must be empty or absent.

    Raises ExportError for an unusable folder, EngineError if the library fails or the engine cannot run a
    conversation.
    """
    _check_target(directory, plan.weights_bytes)
    unfinished = directory.with_name(f"{directory.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    folder = str(plan.checkpoint.directory)
    began = time.perf_counter()
    with _calling(library, "load the checkpoint"):
        model = define_model(library).from_checkpoint(folder)
    loaded = time.perf_counter()
    settings = _build_config(plan, options, unfinished, library)
    with _calling(library, "build the engine"):
        engine = library.build(model, settings)
    built = time.perf_counter()
    tensors = model.network_tensors
    contract = _check_network(tensors, plan.config)
    del model
    gc.collect()  # the weights, of which the engine holds another copy
    with _calling(library, "write the engine"):
        engine.save(str(unfinished))
    if not (unfinished / PLAN).is_file():
        raise EngineError(
            "TensorRT returned no engine.",
            "The reason is in its messages above; if GPU memory ran out, close other programs or lower "
            "max_num_tokens ({max_num_tokens}).",
            max_num_tokens=plan.settings["max_num_tokens"],
        )
    made, note = EngineDirectory.open(unfinished), _note(plan.checkpoint.directory)
    _check_features(made)
    Provenance(
        bundle=note.get("bundle"),
        lm_fingerprint=note.get("lm_fingerprint"),
        contract=contract,
        precision=made.precision,
        build_seconds=round(built - loaded, 1),
        plan_bytes=made.plan.stat().st_size,
        tokens_per_block=made.tokens_per_block,
        max_seq_len=made.max_seq_len,
        max_num_tokens=made.max_num_tokens,
        max_batch_size=made.max_batch_size,
        inputs=tuple(tensor.name for tensor in tensors if tensor.is_input),
        outputs=tuple(tensor.name for tensor in tensors if not tensor.is_input),
    ).write(unfinished)
    if directory.exists():
        directory.rmdir()
    unfinished.replace(directory)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return BuildReport(
        engine=EngineDirectory.open(directory),
        tensors=tensors,
        load_seconds=loaded - began,
        weights_bytes=plan.weights_bytes,
        gpu=gpu,
        changed=_changes(made, plan),
    )


def _check_target(directory: Path, needed: int) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ExportError(
            "{directory} exists and is not empty.",
            "Choose another folder with --to, or remove it.",
            directory=directory,
        )
    require_folder(directory.absolute().parent, "--to")
    parent = next(folder for folder in directory.absolute().parents if folder.is_dir())
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise ExportError(
            "The disk of {parent} has {free:.1f} GB free, and an engine of these weights takes up to "
            "{needed:.1f} GB.",
            "Free some space, or choose a folder on another disk with --to.",
            parent=parent,
            free=free / 1e9,
            needed=needed / 1e9,
        )


def _build_config(plan: BuildPlan, options: BuildOptions, unfinished: Path, library: Library) -> Any:
    with _calling(library, "take the plugin options"):
        plugins = library.PluginConfig(**plan.plugins)
    # NOTE: the library ignores unknown options.
    ignored = sorted(name for name, value in plan.plugins.items() if getattr(plugins, name, None) != value)
    if ignored:
        raise EngineError(
            "TensorRT-LLM {version} does not take the plugin options {ignored}.",
            "Use release {wanted_version} of it.",
            version=library.version,
            ignored=", ".join(ignored),
            wanted_version=VERSION,
        )
    timings = options.timing_cache or unfinished / _TIMINGS
    timings.parent.mkdir(parents=True, exist_ok=True)
    with _calling(library, "take the build options"):
        return library.BuildConfig(
            **plan.settings,
            kv_cache_type=library.KVCacheType.PAGED,
            plugin_config=plugins,
            input_timing_cache=str(timings) if timings.is_file() else None,
            output_timing_cache=str(timings),
        )


def _check_network(tensors: Sequence[EngineTensor], config: CheckpointConfig) -> str:
    """The contract of the network that was described; EngineError if it is not the one we run."""
    contract = choose_contract(tensors)
    found = {tensor.name: tensor.shape for tensor in tensors}
    widths = dict(zip(OUTPUTS, (config.text_vocab_size, config.audio_vocab_size), strict=True))
    outputs = {tensor.name: tensor.shape[-1] for tensor in tensors if not tensor.is_input}
    windows = found["host_max_attention_window_sizes"]
    # The size of a plugin output is known only after the build: -1 until then.
    is_meant = outputs.keys() == widths.keys() and all(outputs[n] in (-1, widths[n]) for n in widths)
    if not is_meant or windows != (config.num_hidden_layers,):
        raise EngineError(
            "TensorRT-LLM described another network than was meant: outputs {outputs} for {widths}, "
            "windows of {windows} layers for {num_hidden_layers}.",
            "Use release {version} of it.",
            outputs=outputs,
            widths=widths,
            windows=list(windows),
            num_hidden_layers=config.num_hidden_layers,
            version=VERSION,
        )
    return contract.name


def _check_features(engine: EngineDirectory) -> None:
    """Check that the library did not disable required features, which it only logs."""
    needed = {
        "a paged KV cache": engine.has_paged_kv_cache,
        "paged-context FMHA": engine.has_paged_context_fmha,
        "packed input": engine.removes_input_padding,
    }
    if missing := [name for name, is_there in needed.items() if not is_there]:
        raise EngineError(
            "TensorRT-LLM built the engine without {missing}, and a conversation needs that.",
            "The reason is in its messages above.",
            missing=" and ".join(missing),
        )


def _changes(engine: EngineDirectory, plan: BuildPlan) -> tuple[str, ...]:
    """Sizes that differ from the requested ones; the engine's own values are used from then on."""
    asked = {name: plan.settings[name] for name in ("max_seq_len", "max_num_tokens", "max_batch_size")}
    asked["tokens_per_block"] = plan.plugins["tokens_per_block"]
    return tuple(
        f"{name} is {getattr(engine, name)}, not the requested {value}"
        for name, value in asked.items()
        if getattr(engine, name) != value
    )


@contextmanager
def _calling(library: Library, what: str) -> Iterator[None]:
    """Convert errors of any type from the library to an EngineError."""
    try:
        yield
    except Exception as error:
        raise EngineError(
            "TensorRT-LLM {version} could not {what} ({kind}: {error}).",
            "Run `moss-voice doctor` to check the requirements on this machine.",
            version=library.version,
            what=what,
            kind=type(error).__name__,
            error=error,
        ) from error


def _note(checkpoint: Path) -> dict[str, str | None]:
    """moss_voice.json of a checkpoint; {} if there is none."""
    file = checkpoint / ABOUT
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
    except (OSError, ValueError) as error:
        raise BundleError(
            "{file} cannot be read: {error}.", "Convert the model again.", file=file, error=error
        ) from error
