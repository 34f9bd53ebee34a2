"""Builds an engine from a checkpoint, and checks the result against the plan.

In: a plan (build_plan.py) and TensorRT-LLM (library.py). Out: a folder with
config.json, rank0.engine and moss_voice.json, and a report. The library may change settings with only a log
message, so the result is compared with the plan. The folder is renamed when it is complete. Any thread; needs
the GPU that will run the engine, and host memory for all weights.
"""

from __future__ import annotations

import gc
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from engine_runtime.bundle.targets import require_folder
from engine_runtime.errors import BundleError, EngineError, ExportError
from engine_runtime.tensorrt.checkpoint.format import ABOUT, CheckpointConfig
from engine_runtime.tensorrt.engine import EngineTensor
from engine_runtime.tensorrt.llm.build_plan import BuildOptions, BuildPlan
from engine_runtime.tensorrt.llm.build_report import BuildReport
from engine_runtime.tensorrt.llm.contract import choose_contract
from engine_runtime.tensorrt.llm.engine_directory import PLAN, EngineDirectory, Provenance
from engine_runtime.tensorrt.llm.library import VERSION, Library
from engine_runtime.tensorrt.llm.model import OUTPUTS, define_model

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
            "TensorRT returned no engine. The reason is in its messages above; if GPU memory ran out, "
            f"close other programs or lower max_num_tokens ({plan.settings['max_num_tokens']})."
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
            f"{directory} exists and is not empty. Choose another folder with --to, or remove it."
        )
    require_folder(directory.absolute().parent, "--to")
    parent = next(folder for folder in directory.absolute().parents if folder.is_dir())
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise ExportError(
            f"The disk of {parent} has {free / 1e9:.1f} GB free, and an engine of these weights takes up to "
            f"{needed / 1e9:.1f} GB. Free some space, or choose a folder on another disk with --to."
        )


def _build_config(plan: BuildPlan, options: BuildOptions, unfinished: Path, library: Library) -> Any:
    with _calling(library, "take the plugin options"):
        plugins = library.PluginConfig(**plan.plugins)
    # NOTE: the library ignores unknown options.
    ignored = sorted(name for name, value in plan.plugins.items() if getattr(plugins, name, None) != value)
    if ignored:
        raise EngineError(
            f"TensorRT-LLM {library.version} does not take the plugin options {', '.join(ignored)}. "
            f"Use release {VERSION} of it."
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
            f"TensorRT-LLM described another network than was meant: outputs {outputs} for {widths}, windows "
            f"of {list(windows)} layers for {config.num_hidden_layers}. Use release {VERSION} of it."
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
            f"TensorRT-LLM built the engine without {' and '.join(missing)}, and a conversation needs that. "
            "The reason is in its messages above."
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
            f"TensorRT-LLM {library.version} could not {what} ({type(error).__name__}: {error}). "
            "Run `moss-voice doctor` to check the requirements on this machine."
        ) from error


def _note(checkpoint: Path) -> dict[str, str | None]:
    """moss_voice.json of a checkpoint; {} if there is none."""
    file = checkpoint / ABOUT
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
    except (OSError, ValueError) as error:
        raise BundleError(f"{file} cannot be read: {error}. Convert the model again.") from error
