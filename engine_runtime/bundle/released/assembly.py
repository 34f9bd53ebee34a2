"""Assembles a bundle from the two released folders: bundle.toml and the checkpoints, contained or linked.

In: folders that `layout.find_released` took. Out: an open `Bundle`, whose networks were all built on the meta
device and compared with the headers of their files, so that a mismatched checkpoint is detected at fetch and
not at load. bundle.toml is written last and atomically. Any thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from engine_runtime.bundle.bundle import FORMAT, MANIFEST_NAME, Bundle, hash_file
from engine_runtime.bundle.manifest import to_toml
from engine_runtime.bundle.released import description, layout
from engine_runtime.bundle.weights import Progress, Uninitialized, find_tensors, stored_tensors
from engine_runtime.errors import BundleError, FetchError
from engine_runtime.models.flow import CausalFlow, FlowConfig
from engine_runtime.models.hift import HiFT, HiFTConfig
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.models.whisper_vq import WhisperVQ, WhisperVQConfig

BUNDLE_NAME = "moss-speech"


def assemble(
    released: layout.Released,
    to: Path,
    *,
    commits: Mapping[str, str] | None = None,
    hashes: Mapping[Path, str] | None = None,
    progress: Progress | None = None,
) -> Bundle:
    """Create the bundle in the folder `to` and open it.

    `commits` maps repositories to the downloaded commits, `hashes` files to a SHA-256 that was just checked.
    `progress` reports the hashing of the others, which reads every byte. Raises FetchError if the folder
    cannot be written, BundleError for mismatched checkpoints.
    """
    manifest = describe(released, commits or {})
    for network in networks(manifest, released):
        find_tensors(
            network.files,
            network.shapes,
            partial=network.partial,
            either_weight_norm_style=network.either_weight_norm_style,
        )
    try:
        to.mkdir(parents=True, exist_ok=True)
        for folder, repository in (
            (released.lm, layout.LM_REPOSITORY),
            (released.codec, layout.CODEC_REPOSITORY),
        ):
            link(to / layout.folder_of(repository), folder)
        manifest["files"] = _hash(released, hashes or {}, progress)
        unfinished = to / f"{MANIFEST_NAME}.part"
        unfinished.write_text(to_toml(manifest), encoding="utf-8")
        os.replace(unfinished, to / MANIFEST_NAME)  # noqa: PTH105 - one step, also over an older one
    except OSError as error:
        raise FetchError(
            "The bundle cannot be written to {to}: {reason}.",
            "Choose another with --to.",
            to=to,
            reason=error.strerror or error,
        ) from error
    return Bundle.open(to, verify="size")


def describe(released: layout.Released, commits: Mapping[str, str]) -> dict[str, Any]:
    """The manifest without [files]."""
    lm_config = layout.read_json(released.lm / layout.CONFIG)
    codec_config = layout.read_json(released.codec / layout.CONFIG)
    preprocessor = layout.read_json(released.codec / layout.PREPROCESSOR)
    lm_folder, codec_folder = map(layout.folder_of, (layout.LM_REPOSITORY, layout.CODEC_REPOSITORY))
    flow, hift = released.codec / layout.FLOW, released.codec / layout.HIFT
    ids = token_ids(released.lm / layout.TOKENIZER)
    origin = ", ".join(f"{name} at {commit}" for name, commit in commits.items()) or "folders of this machine"
    return {
        "bundle": {
            "format": FORMAT,
            "name": BUNDLE_NAME,
            "description": f"MOSS-Speech as released, from {origin}",
            "licence": layout.LICENCE,
        },
        "card": description.describe_card(),
        "lm": {
            "weights": [f"{lm_folder}/{name}" for name in released.lm_weights],
            **description.describe_lm(lm_config, released.lm / layout.CONFIG, ids),
        },
        "text_tokenizer": {"file": f"{lm_folder}/{layout.TOKENIZER}"},
        "speech_encoder": {
            "weights": f"{codec_folder}/{layout.SINGLE_SHARD}",
            **description.describe_speech_encoder(
                codec_config,
                released.codec / layout.CONFIG,
                preprocessor,
                released.codec / layout.PREPROCESSOR,
            ),
        },
        "flow": {
            "weights": f"{codec_folder}/{layout.FLOW}",
            **description.describe_flow(_shapes(flow), flow),
        },
        "vocoder": {
            "weights": f"{codec_folder}/{layout.HIFT}",
            **description.describe_vocoder(_shapes(hift), hift),
        },
        "voice": {
            "speaker_encoder": f"{codec_folder}/{layout.SPEAKER_ENCODER}",
            **description.describe_voice(),
        },
    }


@dataclass(frozen=True, slots=True)
class ReleasedNetwork:
    """The files and tensors of a network."""

    shapes: dict[str, tuple[int, ...]]
    files: tuple[Path, ...] = ()
    partial: bool = False
    either_weight_norm_style: bool = False


def networks(manifest: Mapping[str, Any], released: layout.Released) -> tuple[ReleasedNetwork, ...]:
    """Language model, speech encoder, flow and vocoder of a manifest, and the location of their weights."""
    lm, encoder, flow, hift = build_on_meta(manifest)
    return (
        ReleasedNetwork(_shapes_of(lm), tuple(released.lm / name for name in released.lm_weights)),
        ReleasedNetwork(_shapes_of(encoder), (released.codec / layout.SINGLE_SHARD,), partial=True),
        ReleasedNetwork(_shapes_of(flow), (released.codec / layout.FLOW,)),
        ReleasedNetwork(_shapes_of(hift), (released.codec / layout.HIFT,), either_weight_norm_style=True),
    )


def build_on_meta(manifest: Mapping[str, Any]) -> tuple[nn.Module, nn.Module, nn.Module, nn.Module]:
    """Language model, speech encoder, flow and vocoder of a manifest, without memory for their weights."""
    lm = manifest["lm"]
    lm_config = MossLMConfig.from_dict(lm["config"] | {"modality_pad": lm["special_ids"]["modality_pad"]})
    with torch.device("meta"), Uninitialized():
        return (
            MossLM(lm_config),
            WhisperVQ(WhisperVQConfig.from_dict(manifest["speech_encoder"]["config"])),
            CausalFlow(FlowConfig.from_dict(manifest["flow"]["config"])),
            HiFT(HiFTConfig.from_dict(manifest["vocoder"]["config"])),
        )


def _shapes_of(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in stored_tensors([file]).items()}


def token_ids(file: Path) -> dict[str, int | None]:
    """Ids of the special tokens in a tokenizer; BundleError for an invalid tokenizer."""
    try:
        tokenizer = Tokenizer.from_buffer(file.read_bytes())  # from_file takes only names in UTF-8
    except Exception as error:  # the library raises bare Exception for an invalid file
        raise BundleError(
            "{file} is not a valid tokenizer: {error}.", "Download it again.", file=file, error=error
        ) from error
    return {token: tokenizer.token_to_id(token) for token in description.TEXT_TOKENS.values()}


def link(name: Path, target: Path) -> None:
    """Make `name` a link to the file or folder `target`, unless it is that itself. FetchError if it is
    something else."""
    require_free(name, target)
    if name.exists() and name.samefile(target):
        return
    name.unlink(missing_ok=True)
    name.symlink_to(target.resolve(), target_is_directory=target.is_dir())


def require_free(name: Path, target: Path) -> None:
    """FetchError where `name` is neither `target`, which need not be there yet, nor a link to be replaced."""
    if name.is_symlink() or not name.exists() or (target.exists() and name.samefile(target)):
        return
    raise FetchError(
        "{name} already exists and is not {target}.",
        "Choose another folder for the bundle.",
        name=name,
        target=target,
    )


def _hash(
    released: layout.Released, known: Mapping[Path, str], progress: Progress | None
) -> dict[str, dict[str, Any]]:
    """[files], by names inside the bundle."""
    roots: Sequence[tuple[Path, str]] = (
        (released.lm, layout.folder_of(layout.LM_REPOSITORY)),
        (released.codec, layout.folder_of(layout.CODEC_REPOSITORY)),
    )
    total = sum(file.stat().st_size for file in released.files)
    done, entries = 0, {}
    for file in released.files:
        root, name = next((root, name) for root, name in roots if file.is_relative_to(root))
        size = file.stat().st_size
        entry = {"size": size, "sha256": known.get(file) or hash_file(file)}
        entries[f"{name}/{file.relative_to(root).as_posix()}"] = entry
        done += size
        if progress is not None and total:
            progress(done / total)
    return entries
