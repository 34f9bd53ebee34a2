"""Conversion: a bundle or a released checkpoint becomes a checkpoint for TensorRT-LLM to build from.

In: the folder of either. Out: a folder with rank0.safetensors, moss_voice.json and, last, config.json;
without the last it is incomplete, and the next run resumes. Weights are fused, not changed, unless another
dtype is requested; they are processed in chunks, independent of the size of the model. `make_bundle` then
creates a bundle that runs from the checkpoint: a bundle.toml of its own, and links to the checkpoint and to
all other files. Any thread.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import Tensor

from engine_runtime.bundle.bundle import MANIFEST_NAME, Bundle, hash_file
from engine_runtime.bundle.manifest import to_toml
from engine_runtime.bundle.released import assembly, description, layout
from engine_runtime.bundle.released.assembly import link, require_free
from engine_runtime.bundle.targets import require_folder
from engine_runtime.bundle.weights import Progress, StoredTensor, TensorReader, Uninitialized, find_tensors
from engine_runtime.errors import BundleError, ExportError, FetchError
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.options import Dtype
from engine_runtime.tensorrt.checkpoint.format import (
    ABOUT,
    CONFIG,
    WEIGHTS,
    CheckpointConfig,
    expected_tensors,
    is_checkpoint,
    lm_fingerprint,
    name_map,
)
from engine_runtime.tensorrt.checkpoint.tensor_file import TensorFile, write_json

_CHUNK_BYTES = 32 << 20
"""Bytes of a source tensor processed at a time."""


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """The source model: every tensor located, none read.

    Attributes:
        context_tokens: the longest conversation.
        fingerprint: identifies the weights; None for a checkpoint that is not part of a bundle.
    """

    name: str
    config: MossLMConfig
    context_tokens: int
    weights: Mapping[str, StoredTensor]
    fingerprint: str | None

    @property
    def dtype(self) -> Dtype:
        """The number format of its products as they are stored."""
        dtype = str(TensorReader(self.weights)("text_lm_head.weight").dtype).removeprefix("torch.")
        if dtype not in get_args(Dtype):
            raise BundleError(
                "The weights of {name} are stored in {dtype}, which TensorRT-LLM does not take.",
                "Choose one of {known} with --dtype.",
                name=self.name,
                dtype=dtype,
                known=", ".join(get_args(Dtype)),
            )
        return cast(Dtype, dtype)


def find_language_model(folder: Path) -> LanguageModel:
    """The language model of a bundle, or of a folder that was downloaded from the released repository.

    Names and shapes of all tensors are compared with those of the model. Raises BundleError or FetchError
    with the defect of the folder.
    """
    if (folder / MANIFEST_NAME).is_file():
        bundle = Bundle.open(folder)
        if bundle.lm.layout != "released":
            raise BundleError(
                "The language model of bundle {bundle} is converted already.",
                "Use its files.",
                bundle=bundle.name,
            )
        config = MossLMConfig.from_dict(bundle.lm.config)
        fingerprint = lm_fingerprint(bundle)
        return _found(bundle.name, config, bundle.lm.context_tokens, bundle.lm.weights, fingerprint)
    if not folder.is_dir():
        raise BundleError(
            "There is no folder {folder}.",
            "Give the folder of a bundle, or get the released model with `moss-voice fetch moss-speech`.",
            folder=folder,
        )
    if is_checkpoint(folder):
        raise BundleError(
            "{folder} is already a TensorRT-LLM checkpoint.",
            "Specify the model it was converted from.",
            folder=folder,
        )
    name = layout.folder_of(layout.LM_REPOSITORY)
    if not (folder / layout.CONFIG).is_file() and (folder / name).is_dir():
        folder = folder / name
    if not (folder / layout.CONFIG).is_file():
        raise BundleError(
            "{folder} holds neither {manifest} nor {config}.",
            "Give the folder of a bundle, or the one that {repository} was downloaded to.",
            folder=folder,
            manifest=MANIFEST_NAME,
            config=layout.CONFIG,
            repository=layout.LM_REPOSITORY,
        )
    return _released(folder)


def _released(folder: Path) -> LanguageModel:
    values = layout.read_json(folder / layout.CONFIG)
    if (kind := values.get("model_type")) != "moss_speech":
        raise BundleError(
            "{folder} holds a model of type {kind!r}, not 'moss_speech'.",
            "Give the folder that {repository} was downloaded to.",
            folder=folder,
            kind=kind,
            repository=layout.LM_REPOSITORY,
        )
    tokenizer = folder / layout.TOKENIZER
    section = description.describe_lm(values, folder / layout.CONFIG, assembly.token_ids(tokenizer))
    pad = {"modality_pad": section["special_ids"]["modality_pad"]}
    config = MossLMConfig.from_dict(section["config"] | pad)
    files = tuple(folder / name for name in layout.find_shards(folder))
    return _found(folder.resolve().name, config, section["context_tokens"], files, None)


def _found(
    name: str, config: MossLMConfig, context_tokens: int, files: tuple[Path, ...], fingerprint: str | None
) -> LanguageModel:
    with torch.device("meta"), Uninitialized():
        shapes = {key: tuple(tensor.shape) for key, tensor in MossLM(config).state_dict().items()}
    return LanguageModel(name, config, context_tokens, find_tensors(files, shapes), fingerprint)


@dataclass(frozen=True, slots=True)
class Conversion:
    """Conversion of one model into one folder: `start`, `write`, `finish`."""

    model: LanguageModel
    config: CheckpointConfig
    directory: Path
    file: TensorFile

    @classmethod
    def start(cls, model: LanguageModel, directory: Path, dtype: Dtype | None = None) -> Conversion:
        """Check before writing: ExportError for a folder with other content or without write permission, or a
        full disk. `dtype` None keeps that of the model."""
        config = CheckpointConfig.of(model.config, dtype or model.dtype, model.context_tokens)
        metadata = {"format": "pt", "source": _source_of(model)}
        file = TensorFile(directory / WEIGHTS, expected_tensors(config), metadata)
        conversion = cls(model, config, directory, file)
        require_folder(directory, "--to")
        conversion._refuse_other_content()
        if not file.is_written():
            file.require_room()
        return conversion

    @property
    def rounded(self) -> list[str]:
        """Tensors that lose precision, because the model stores them in a wider dtype than the checkpoint."""
        read, dtype = TensorReader(self.model.weights), self.config.torch_dtype
        return [name for name in self.model.weights if torch.promote_types(read(name).dtype, dtype) != dtype]

    def write(self, progress: Progress | None = None) -> None:
        """Write the weights that an earlier run has not written."""
        if not self.file.is_written():
            self.file.write(self.produce, progress)

    def finish(self, progress: Progress | None = None) -> None:
        """Compare the written tensors with the model, bit by bit, and complete the checkpoint."""
        self.file.finish(self.produce, progress)
        about = {"bundle": self.model.name, "lm_fingerprint": self.model.fingerprint}
        for name, content in ((ABOUT, about), (CONFIG, self.config.to_dict())):
            write_json(self.directory / name, content)

    def produce(self, name: str) -> Iterator[Tensor]:
        """A tensor of the checkpoint in runs of rows. BundleError for NaN or infinity."""
        read = TensorReader(self.model.weights)
        for part in name_map(self.config)[name]:
            tensor = read(part)
            row_bytes = tensor[0].numel() * tensor.element_size()
            for rows in tensor.split(max(1, _CHUNK_BYTES // row_bytes)):
                values = rows.to(self.config.torch_dtype)
                if not bool(values.isfinite().all()):
                    raise BundleError(
                        "{part} of {model} holds values that are infinite or no numbers in {dtype}.",
                        "Choose bfloat16 with --dtype, or get the model again.",
                        part=part,
                        model=self.model.name,
                        dtype=self.config.dtype,
                    )
                yield values

    def _refuse_other_content(self) -> None:
        file = self.directory / CONFIG
        if not file.is_file():
            return
        try:
            is_ours = layout.read_json(file) == self.config.to_dict()
        except FetchError:  # it holds no JSON
            is_ours = False
        if not is_ours:
            raise ExportError(
                "{directory} holds another model, or this one in another dtype ({config} differs).",
                "Choose another folder with --to.",
                directory=self.directory,
                config=CONFIG,
            )


def _source_of(model: LanguageModel) -> str:
    """Identifies the model of an unfinished file: the hashes of its weights, otherwise their names and
    sizes."""
    if model.fingerprint is not None:
        return model.fingerprint
    files = sorted({stored.file for stored in model.weights.values()})
    described = [(file.name, file.stat().st_size) for file in files]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


CHECKPOINT_FOLDER = "lm"
"""Name of the link to the checkpoint in a bundle."""


def check_bundle_target(source: Path, checkpoint: Path, to: Path) -> None:
    """Check before the conversion that `make_bundle` can succeed. Raises BundleError for a bare checkpoint,
    which has no speech encoder, flow and vocoder; ExportError for a folder that cannot be written or contains
    another bundle; FetchError if another file is in the way.
    """
    if not (source / MANIFEST_NAME).is_file():
        raise BundleError(
            "{source} is not a bundle, so no bundle can be created from it.",
            "Make one with `moss-voice fetch moss-speech --from DIR`, and convert that.",
            source=source,
        )
    require_folder(to, "--bundle-to")
    if (to / MANIFEST_NAME).exists() and not (to / CHECKPOINT_FOLDER).is_symlink():
        raise ExportError("{to} holds another bundle.", "Choose another folder with --bundle-to.", to=to)
    links = {name: source / name for name in _other_files(Bundle.open(source, verify="size"))}
    for name, target in {**links, CHECKPOINT_FOLDER: checkpoint}.items():
        require_folder((to / name).parent, "--bundle-to")
        require_free(to / name, target)


def make_bundle(source: Path, checkpoint: Path, to: Path) -> Bundle:
    """Create it in the folder `to` and open it. Raises as `check_bundle_target`, and ExportError if it cannot
    be written."""
    check_bundle_target(source, checkpoint, to)
    original = Bundle.open(source, verify="size")
    manifest: dict[str, Any] = tomllib.loads((source / MANIFEST_NAME).read_text(encoding="utf-8"))
    manifest["files"] = {name: manifest["files"][name] for name in _other_files(original)}
    manifest["lm"] |= {"layout": "tensorrt-llm", "weights": f"{CHECKPOINT_FOLDER}/{WEIGHTS}"}
    manifest["bundle"]["description"] += "; language model from a TensorRT-LLM checkpoint"
    try:
        to.mkdir(parents=True, exist_ok=True)
        for name in manifest["files"]:
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            link(to / name, source / name)
        link(to / CHECKPOINT_FOLDER, checkpoint)
        for name in (WEIGHTS, CONFIG, ABOUT):
            file = checkpoint / name
            entry = {"size": file.stat().st_size, "sha256": hash_file(file)}
            manifest["files"][f"{CHECKPOINT_FOLDER}/{name}"] = entry
        unfinished = to / f"{MANIFEST_NAME}.part"
        unfinished.write_text(to_toml(manifest), encoding="utf-8")
        unfinished.replace(to / MANIFEST_NAME)
    except OSError as error:
        raise ExportError(
            "The bundle cannot be created in {to}: {reason}.",
            "Choose another folder for it.",
            to=to,
            reason=error.strerror or error,
        ) from error
    return Bundle.open(to, verify="size")


def _other_files(bundle: Bundle) -> list[str]:
    """Names of all files but those of the language model's weights."""
    replaced = {file.relative_to(bundle.path).as_posix() for file in bundle.lm.weights}
    return [name for name in bundle.files if name not in replaced]
