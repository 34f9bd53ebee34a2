"""Layout of the two released repositories: which files are needed, and whether a folder holds all of them.

In: downloaded folders. Out: their files, or a FetchError with the missing ones and the remedy. No large file
is read. Any thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_runtime.errors import FetchError

LM_REPOSITORY = "fnlp/MOSS-Speech"
CODEC_REPOSITORY = "fnlp/MOSS-Speech-Codec"
DOWNLOAD_BYTES = 20_000_000_000
"""Rough size of both repositories; the hub states it exactly."""
LICENCE = "weights without a licence file (the code of MOSS-Speech is Apache-2.0)"
LICENCE_NOTE = (
    "Licence: the code of MOSS-Speech is Apache-2.0, but its weights come without a licence file. "
    "Ask OpenMOSS before you pass them on or build a product on them."
)

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
PREPROCESSOR = "preprocessor_config.json"
SINGLE_SHARD = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOW = "flow/flow-chunk-5.pt"
"""The checkpoint trained with chunks of five codes; flow.pt was trained on complete replies only."""
HIFT = "flow/hift.pt"
SPEAKER_ENCODER = "flow/campplus.onnx"

LM_PATTERNS = (CONFIG, TOKENIZER, INDEX, "model*.safetensors")
CODEC_FILES = (CONFIG, PREPROCESSOR, SINGLE_SHARD, FLOW, HIFT, SPEAKER_ENCODER)


@dataclass(frozen=True, slots=True)
class Released:
    """Two folders that contain all required file names."""

    lm: Path
    codec: Path
    lm_weights: tuple[str, ...]
    """Shards, relative to `lm`."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that a bundle needs."""
        lm = (CONFIG, TOKENIZER, *self.lm_weights)
        return tuple(self.lm / name for name in lm) + tuple(self.codec / name for name in CODEC_FILES)


def folder_of(repository: str) -> str:
    """Name of a repository's folder: the part after its owner."""
    return repository.partition("/")[2]


def locate(source: Path, codec: Path | None = None) -> tuple[Path, Path]:
    """The folders of language model and codec, from the user's arguments.

    `source` is the folder of the language model, or one that holds both folders under the names of their
    repositories; without `codec` the codec's folder is looked for in or beside it.
    """
    lm_name, codec_name = folder_of(LM_REPOSITORY), folder_of(CODEC_REPOSITORY)
    if not source.is_dir():
        raise FetchError(
            "There is no folder {source}.", "Give the one that holds the checkpoint.", source=source
        )
    if (source / CONFIG).is_file() or not (source / lm_name).is_dir():
        lm, beside = source, source.parent / codec_name
    else:
        lm, beside = source / lm_name, source / codec_name
    if codec is None and not beside.is_dir():
        raise FetchError(
            "The codec's folder was expected at {beside} and is not there.",
            "Name the folder of {repository} with --codec-from.",
            beside=beside,
            repository=CODEC_REPOSITORY,
        )
    return lm, codec or beside


def find_released(lm: Path, codec: Path) -> Released:
    """Check both folders; FetchError names missing files."""
    for folder, repository in ((lm, LM_REPOSITORY), (codec, CODEC_REPOSITORY)):
        if not folder.is_dir():
            raise FetchError(
                "There is no folder {folder}.",
                "Give the one that holds {repository}.",
                folder=folder,
                repository=repository,
            )
        if not (folder / CONFIG).is_file():
            raise FetchError(
                "{folder} is not a checkpoint: it contains no {config}.",
                "Give the folder that holds {repository}.",
                folder=folder,
                config=CONFIG,
                repository=repository,
            )
    kind = read_json(lm / CONFIG).get("model_type")
    if kind != "moss_speech":
        raise FetchError(
            "{lm} holds a model of type {kind!r}, not 'moss_speech'.",
            "Give the folder that holds {repository}.",
            lm=lm,
            kind=kind,
            repository=LM_REPOSITORY,
        )
    weights = find_shards(lm)
    _require(lm, LM_REPOSITORY, (TOKENIZER, *weights))
    _require(codec, CODEC_REPOSITORY, CODEC_FILES)
    return Released(lm, codec, weights)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FetchError(
            "{file} cannot be read: {error}.", "Download it again.", file=file, error=error
        ) from error
    if not isinstance(content, dict):
        raise FetchError("{file} holds no JSON object.", "Download it again.", file=file)
    return content


def find_shards(lm: Path) -> tuple[str, ...]:
    """Files of the language model: those that its index names, or the only one. FetchError for neither."""
    if not (lm / INDEX).is_file():
        if (lm / SINGLE_SHARD).is_file():
            return (SINGLE_SHARD,)
        raise FetchError(
            "{lm} is not complete: {index} is missing, which names the shards.",
            "Complete the download: it resumes where it stopped.",
            lm=lm,
            index=INDEX,
        )
    names = read_json(lm / INDEX).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise FetchError("{lm} names no shards.", "Download it again.", lm=lm / INDEX)
    shards = tuple(sorted(set(names.values())))
    if wrong := [name for name in shards if Path(name).name != name]:
        raise FetchError(
            "{lm} names {wrong}, which is not in its folder.",
            "Download it again.",
            lm=lm / INDEX,
            wrong=wrong[0],
        )
    return shards


def _require(folder: Path, repository: str, names: tuple[str, ...]) -> None:
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise FetchError(
            "{folder} is not complete: {missing} of {repository} {are} missing.",
            "Complete the download: it resumes where it stopped.",
            folder=folder,
            missing=", ".join(missing),
            repository=repository,
            are="is" if len(missing) == 1 else "are",
        )
