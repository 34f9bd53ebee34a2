"""A folder with an engine: the library's files, and our metadata.

In: a folder with config.json ({"version", "pretrained_config", "build_config"}) and rank0.engine, as
Engine.save and trtllm-build write it. Out: one frozen value with the limits for the runtime, or an
EngineError with the reason. Our moss_voice.json records the bundle of the language model and how the engine
was built. An engine without that file was built by trtllm-build and can be read as well. No library is
needed. Any thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from engine_runtime.errors import BundleError, EngineError
from engine_runtime.quantization import FP8
from engine_runtime.tensorrt.checkpoint.format import ABOUT, CONFIG, CheckpointConfig, linear_modules

PLAN = "rank0.engine"
"""The serialized engine, by the library's name for the first GPU."""
_AGAIN = "Rebuild the engine with `moss-voice trt build`."


@dataclass(frozen=True, slots=True)
class Provenance:
    """moss_voice.json of an engine. The sizes are also in config.json, so that files of two builds are
    detected.

    Attributes:
        bundle: name of the bundle whose language model it is.
        lm_fingerprint: hash of that model (checkpoint/fingerprint.py); None if the checkpoint
            did not record it.
        contract: the engine's input contract: "1.x" or "0.13".
        precision: description of the dtypes, for reports.
        build_seconds: duration of the build.
        plan_bytes: size of the engine.
        inputs, outputs: names of its tensors.
    """

    bundle: str | None
    lm_fingerprint: str | None
    contract: str
    precision: str
    build_seconds: float
    plan_bytes: int
    tokens_per_block: int
    max_seq_len: int
    max_num_tokens: int
    max_batch_size: int = 1
    """Notes of earlier builds have none; they were all of one sequence."""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def write(self, directory: Path) -> None:
        """Write moss_voice.json."""
        (directory / ABOUT).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class EngineDirectory:
    """Description of an engine before it is loaded.

    Attributes:
        plan: file of the serialized engine.
        library_version: version of the library that built it, "" if unknown.
        model: sizes and number formats of the network.
        max_batch_size: sequences of a call.
        has_paged_context_fmha: whether a prefill can attend to cached rows; without it they would be ignored.
        provenance: None for an engine of trtllm-build.
    """

    path: Path
    plan: Path
    library_version: str
    model: CheckpointConfig
    tokens_per_block: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    max_batch_size: int
    has_paged_context_fmha: bool
    has_paged_kv_cache: bool
    removes_input_padding: bool
    provenance: Provenance | None

    @classmethod
    def open(cls, path: str | Path) -> EngineDirectory:
        """Read the folder, or that of the .engine file `path`. EngineError names what is missing or wrong."""
        directory = Path(path)
        if directory.suffix == ".engine":
            directory = directory.parent
        plan = directory / PLAN
        if not plan.is_file():
            raise EngineError(
                "{directory} holds no engine: {plan} is missing.",
                "Build one with `moss-voice trt build`.",
                directory=directory,
                plan=PLAN,
            )
        config = _json(directory / CONFIG)
        build = _table(config, "build_config", directory)
        plugins = _table(build, "plugin_config", directory)
        version = str(config.get("version") or "")
        is_old = version.startswith("0.")  # the default of an absent key changed with 1.0
        try:
            model = CheckpointConfig.from_dict(
                _table(config, "pretrained_config", directory), f"{directory / CONFIG}"
            )
        except BundleError as error:
            raise EngineError("{problem}", _AGAIN, problem=error.what_is_wrong) from error
        kv_cache_type = str(build.get("kv_cache_type") or "PAGED").rpartition(".")[2].upper()
        opened = cls(
            path=directory,
            plan=plan,
            library_version=version,
            model=model,
            tokens_per_block=_size(plugins, "tokens_per_block", directory, 64 if is_old else 32),
            max_input_len=_size(build, "max_input_len", directory),
            max_seq_len=_size(build, "max_seq_len", directory),
            max_num_tokens=_size(build, "max_num_tokens", directory),
            max_batch_size=_size(build, "max_batch_size", directory),
            has_paged_context_fmha=bool(plugins.get("use_paged_context_fmha", not is_old)),
            has_paged_kv_cache=kv_cache_type == "PAGED" and plugins.get("paged_kv_cache") is not False,
            removes_input_padding=bool(plugins.get("remove_input_padding", True)),
            provenance=_provenance(directory),
        )
        _check_provenance(opened)
        return opened

    @property
    def bundle_name(self) -> str | None:
        """Bundle of the language model; this and the next are None if unknown."""
        return None if self.provenance is None else self.provenance.bundle

    @property
    def lm_fingerprint(self) -> str | None:
        """Hash of that language model."""
        return None if self.provenance is None else self.provenance.lm_fingerprint

    @property
    def contract(self) -> str | None:
        """The engine's input contract."""
        return None if self.provenance is None else self.provenance.contract

    @property
    def precision(self) -> str:
        """Description of the dtypes, for reports."""
        return describe_precision(self.model)

    @property
    def kv_dtype(self) -> torch.dtype:
        """Dtype of keys and values in the cache."""
        return FP8 if self.model.quantization.kv_cache == "FP8" else self.model.torch_dtype

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the cache, over all layers."""
        model = self.model
        values = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_size
        return values * self.tokens_per_block * self.kv_dtype.itemsize

    @property
    def build_seconds(self) -> float | None:
        """Duration of the build."""
        return None if self.provenance is None else self.provenance.build_seconds

    def document(self) -> dict[str, Any]:
        """Description as plain values."""
        model = self.model
        return {
            "engine": str(self.path),
            "bundle": self.bundle_name,
            "lm_fingerprint": self.lm_fingerprint,
            "library": self.library_version,
            "precision": self.precision,
            "layers": f"{model.num_shared_layers} + {model.num_text_layers} + {model.num_audio_layers}",
            "hidden_size": model.hidden_size,
            "vocabularies": f"{model.text_vocab_size} text, {model.audio_vocab_size} audio",
            "bytes": self.plan.stat().st_size,
            "build_seconds": self.build_seconds,
            "rows_of_a_conversation": self.max_seq_len,
            "rows_of_a_call": min(self.max_num_tokens, self.max_input_len),
            "conversations_of_a_call": self.max_batch_size,
            "rows_of_a_block": self.tokens_per_block,
            "kv_bytes_of_a_block": self.block_bytes,
            "reads_cache_in_prefill": self.has_paged_context_fmha,
        }


def describe_precision(config: CheckpointConfig) -> str:
    """Dtypes of a network in one line."""
    products = linear_modules(config)
    quantized = sum(map(config.is_quantized, products))
    keys = config.quantization.kv_cache or config.dtype
    if not quantized:
        return f"{config.dtype}, K/V {keys}"
    return (
        f"{config.quantization.algorithm} in {quantized} of {len(products)} products, "
        f"{config.dtype} elsewhere, K/V {keys}"
    )


def _check_provenance(engine: EngineDirectory) -> None:
    """Reject a truncated plan, and files of two builds."""
    note = engine.provenance
    if note is None:
        return
    if engine.plan.stat().st_size != note.plan_bytes:
        raise EngineError(
            "{plan} has {size} bytes instead of {plan_bytes}: it was truncated or replaced.",
            "Copy it again, or rebuild it with `moss-voice trt build`.",
            plan=engine.plan,
            size=engine.plan.stat().st_size,
            plan_bytes=note.plan_bytes,
        )
    for name in ("tokens_per_block", "max_seq_len", "max_num_tokens", "max_batch_size"):
        noted, configured = getattr(note, name), getattr(engine, name)
        if noted != configured:
            raise EngineError(
                "{path} mixes files of two builds: {name} is {configured} in {config} and {noted} in "
                "{about}.",
                _AGAIN,
                path=engine.path,
                name=name,
                configured=configured,
                config=CONFIG,
                noted=noted,
                about=ABOUT,
            )


def _provenance(directory: Path) -> Provenance | None:
    file = directory / ABOUT
    if not file.exists():
        return None
    values = _json(file)
    known = {name: values[name] for name in Provenance.__slots__ if name in values}
    try:
        return Provenance(**known | {name: tuple(known.get(name, ())) for name in ("inputs", "outputs")})
    except TypeError as error:
        raise EngineError(
            "{file} does not describe an engine ({error}).", _AGAIN, file=file, error=error
        ) from error


def _json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EngineError(
            "{parent} holds an incomplete engine: {file} is missing.",
            _AGAIN,
            parent=file.parent,
            file=file.name,
        ) from error
    except (OSError, ValueError) as error:
        raise EngineError("{file} cannot be read: {error}.", _AGAIN, file=file, error=error) from error
    if not isinstance(values, dict):
        raise EngineError("{file} holds no JSON object.", _AGAIN, file=file)
    return values


def _table(values: Mapping[str, Any], key: str, directory: Path) -> dict[str, Any]:
    table = values.get(key)
    if not isinstance(table, dict):
        raise EngineError(
            "{directory} has no table {key}; it is not that of an engine.",
            _AGAIN,
            directory=directory / CONFIG,
            key=key,
        )
    return table


def _size(table: Mapping[str, Any], key: str, directory: Path, default: int | None = None) -> int:
    value = table.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise EngineError(
            "{directory} has {key} = {value!r}, not a size.",
            _AGAIN,
            directory=directory / CONFIG,
            key=key,
            value=value,
        )
    return value
