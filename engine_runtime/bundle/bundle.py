"""A model bundle: one folder with bundle.toml, the weights it names and their hashes.

In: a folder. Out: a `Bundle`, plain data that names every number of the pipeline (rates, special ids, chunk
sizes, mel). Any defect of the folder raises a `BundleError` that names the file or key and the remedy. No
torch import, so that a bundle can be inspected without loading it. Any thread; no file is kept open.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from engine_runtime.bundle.card import ModelCard, parse_card
from engine_runtime.bundle.manifest import Manifest, read_toml
from engine_runtime.bundle.sections import (
    FileEntry,
    FlowSection,
    LMSection,
    PromptTexts,
    SpecialIds,
    SpeechEncoderSection,
    VocoderSection,
    VoiceSection,
    parse_files,
    parse_flow,
    parse_lm,
    parse_speech_encoder,
    parse_text_tokenizer,
    parse_vocoder,
    parse_voice,
)
from engine_runtime.bundle.tools import parse_tools
from engine_runtime.errors import BundleError, MelMismatchError
from engine_runtime.models.limits import shown
from engine_runtime.types import MelSpec

__all__ = [
    "Bundle",
    "FileEntry",
    "FlowSection",
    "LMSection",
    "PromptTexts",
    "SpecialIds",
    "SpeechEncoderSection",
    "Verify",
    "VocoderSection",
    "VoiceSection",
    "hash_file",
]

_AGAIN = "Copy or download the bundle again."
FORMAT = 1
MANIFEST_NAME = "bundle.toml"
_LONGEST_NAME = 200
_HASH_BLOCK = 1 << 20
_HASHED_AT_MOST = 1 << 30
"""Maximum size of a bundle whose hashes are checked at every open: takes about a second."""

_log = logging.getLogger(__name__)

Verify = Literal["none", "size", "sha256"]


@dataclass(frozen=True, slots=True)
class Bundle:
    """The content of bundle.toml, checked against the files of the folder."""

    path: Path
    name: str
    description: str
    licence: str
    lm: LMSection
    text_tokenizer: Path
    speech_encoder: SpeechEncoderSection
    flow: FlowSection
    vocoder: VocoderSection
    files: dict[str, FileEntry]
    voice: VoiceSection | None = None
    """None for a bundle with a fixed voice."""
    card: ModelCard = field(default_factory=ModelCard)
    unknown_keys: tuple[str, ...] = ()
    """A sentence for each key of the manifest that this version of the program does not know and ignores."""

    @classmethod
    def open(
        cls,
        directory: str | Path,
        verify: Verify | None = None,
        *,
        needs_lm_weights: bool = True,
        progress: Callable[[float], None] | None = None,
    ) -> Bundle:
        """Read and check the bundle in `directory`.

        `verify` selects whether hashes are checked in addition to sizes; the default is to check them for
        bundles of at most a gigabyte. "none" requires no weight files: a description, for random weights.
        Without `needs_lm_weights` those of the language model are neither checked nor required: an engine
        contains them. `progress` receives the share of the bytes that were checked. Raises BundleError
        (MelMismatchError if flow and vocoder do not match).
        """
        path = Path(directory)
        manifest = Manifest(_read_manifest(path), str(path / MANIFEST_NAME))
        bundle = _parse(path, manifest)
        for sentence in bundle.unknown_keys:
            _log.warning("%s %s, which is ignored", manifest.file, sentence)
        check_mel(bundle, f"the vocoder of bundle {bundle.name}")
        _check_choices(bundle, manifest)
        verify = verify or ("sha256" if bundle.total_bytes <= _HASHED_AT_MOST else "size")
        if verify != "none":
            left_out = () if needs_lm_weights else bundle.lm.weights
            _check_files(bundle, manifest, verify, left_out, progress)
        return bundle

    @property
    def samples_per_code(self) -> int:
        """Output samples per speech code."""
        return int(self.flow.config["upsample"]) * self.flow.mel.hop

    @property
    def total_bytes(self) -> int:
        """Total bytes of all files."""
        return sum(entry.size for entry in self.files.values())


def _is_utf_8(path: Path) -> bool:
    """Whether the bytes of the name are valid UTF-8, whatever the locale."""
    try:
        os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST_NAME
    try:
        is_folder, is_bundle = path.is_dir(), file.is_file()
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise BundleError(
            "{path} cannot be opened: {reason}.",
            "Check its name and its permissions.",
            path=path,
            reason=error.strerror,
        ) from error
    if not is_folder:
        raise BundleError(
            "There is no bundle folder at {path}.",
            "Give the folder that contains {manifest}, or get the released model with `moss-voice "
            "fetch moss-speech`.",
            path=path,
            manifest=MANIFEST_NAME,
        )
    if not _is_utf_8(path):
        raise BundleError(
            "{path} cannot be used: safetensors opens no file whose name is not valid UTF-8.",
            "Rename the folder.",
            path=path,
        )
    if not is_bundle:
        raise BundleError(
            "{path} is not a bundle: it contains no {manifest}.",
            "Specify the folder that contains one.",
            path=path,
            manifest=MANIFEST_NAME,
        )
    return read_toml(file)


def _parse(path: Path, manifest: Manifest) -> Bundle:
    sections = {"bundle", "lm", "text_tokenizer", "speech_encoder", "flow", "vocoder", "files"}
    top = manifest.top(sections | {"voice", "card", "tools"})
    about = top.table("bundle")
    about.allow({"format", "name", "description", "licence"})
    if about.integer("format") != FORMAT:
        raise about.error(
            f"format {shown(about.integer('format'))} is not known; this program reads format {FORMAT}. "
            "Use a matching version of the program or of the bundle."
        )
    if len(about.string("name")) > _LONGEST_NAME:  # errors repeat it
        raise about.error(f"has a name of more than {_LONGEST_NAME} characters")
    card = parse_card(top.table("card")) if "card" in top.content else ModelCard()
    tools = parse_tools(top)
    if tools and card.tool_calls is None:
        raise manifest.error("[[tools]] needs [card.tool_calls], which says how the model writes a call")
    bundle = Bundle(
        path=path,
        name=about.string("name"),
        description=about.string("description"),
        licence=about.string("licence"),
        lm=parse_lm(path, top.table("lm")),
        text_tokenizer=parse_text_tokenizer(path, top.table("text_tokenizer")),
        speech_encoder=parse_speech_encoder(path, top.table("speech_encoder")),
        flow=parse_flow(path, top.table("flow")),
        vocoder=parse_vocoder(path, top.table("vocoder")),
        files=parse_files(path, top.table("files")),
        voice=parse_voice(path, top.table("voice")) if "voice" in top.content else None,
        card=replace(card, tools=tools),
    )
    return replace(bundle, unknown_keys=tuple(manifest.unknown))


def check_mel(bundle: Bundle, vocoder: str) -> None:
    """Raise MelMismatchError, showing both mels, unless the vocoder takes the one that the flow makes.
    `vocoder` is its name in the error."""
    made, wanted = bundle.flow.mel, bundle.vocoder.mel
    _check_vocoder_config(bundle.vocoder, vocoder)
    if made == wanted:
        return
    names = [f.name for f in fields(MelSpec) if getattr(made, f.name) != getattr(wanted, f.name)]
    raise MelMismatchError(
        "The flow of bundle {bundle} does not make the mel that {vocoder} was trained on; "
        "they differ in {names}.\n  flow:    {made}\n  vocoder: {wanted}.",
        "Use a vocoder made for this mel.",
        bundle=bundle.name,
        vocoder=vocoder,
        names=", ".join(names),
        made=made,
        wanted=wanted,
    )


def _check_vocoder_config(section: VocoderSection, name: str) -> None:
    """Check the mel in the vocoder's own config against its description."""
    mel, config = section.mel, section.config
    stated: dict[str, float] = {"sampling_rate": mel.sample_rate}
    if section.kind == "hift":  # its n_fft is that of the inverse transform at its end
        stated |= {"in_channels": mel.n_mels}
    else:
        stated |= {"num_mels": mel.n_mels, "n_fft": mel.n_fft, "hop_size": mel.hop, "win_size": mel.win}
        stated |= {"fmin": mel.fmin, "fmax": mel.fmax}
    for key, value in stated.items():
        if key in config and config[key] != value:
            raise MelMismatchError(
                "The network of {name} was built for {key} = {config}, but [vocoder.mel] says {value}.\n  "
                "vocoder: {mel}.",
                "Use a vocoder made for this mel.",
                name=name,
                key=key,
                config=shown(config[key]),
                value=value,
                mel=mel,
            )


def _check_choices(bundle: Bundle, manifest: Manifest) -> None:
    if bundle.lm.layout not in ("released", "tensorrt-llm"):
        raise manifest.error(
            f"lm.layout is {shown(bundle.lm.layout)}; it must be 'released' or 'tensorrt-llm'"
        )


def _check_files(
    bundle: Bundle,
    manifest: Manifest,
    verify: Verify,
    left_out: Collection[Path],
    progress: Callable[[float], None] | None,
) -> None:
    root = bundle.path.resolve()
    sections = (bundle.lm.weights, bundle.speech_encoder.weights, bundle.flow.weights, bundle.vocoder.weights)
    optional = [bundle.voice.speaker_encoder if bundle.voice else None, bundle.speech_encoder.graph]
    named = [bundle.text_tokenizer, *(file for file in optional if file is not None)]
    for used in [*named, *(file for section in sections for file in section)]:
        if used.relative_to(bundle.path).as_posix() not in bundle.files:
            raise manifest.error(f"{used.name} is used but has no entry in [files]; add its size and sha256")
    done = 0
    for name, entry in bundle.files.items():
        if bundle.path / name not in left_out:
            _check_file(bundle, root / name, entry, verify)
        done += entry.size
        if progress is not None and bundle.total_bytes:
            progress(done / bundle.total_bytes)


def _check_file(bundle: Bundle, file: Path, entry: FileEntry, verify: Verify) -> None:
    try:
        is_there = file.is_file()
    except OSError as error:
        raise BundleError(
            "{file} cannot be opened: {reason}.",
            _AGAIN,
            file=file,
            reason=error.strerror,
        ) from error
    if not is_there:
        raise BundleError(
            "Bundle {bundle} lacks {file} ({size} bytes, expected at {path}).",
            _AGAIN,
            bundle=bundle.name,
            file=file.name,
            size=entry.size,
            path=file,
        )
    size = file.stat().st_size
    if size != entry.size:
        state = "cut short" if size < entry.size else "too long"
        raise BundleError(
            "{file} is {state}: {size} bytes where {manifest} says {entry_size}.",
            _AGAIN,
            file=file,
            state=state,
            size=size,
            manifest=MANIFEST_NAME,
            entry_size=entry.size,
        )
    if verify == "sha256" and (found := hash_file(file)) != entry.sha256.lower():
        raise BundleError(
            "{file} is not the file that {manifest} describes: its sha256 is {found}… where "
            "{sha256}… was expected.",
            _AGAIN,
            file=file,
            manifest=MANIFEST_NAME,
            found=found[:16],
            sha256=entry.sha256[:16],
        )


def hash_file(file: Path) -> str:
    """SHA-256 of a file as lower-case hex. Raises BundleError if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            while block := stream.read(_HASH_BLOCK):
                digest.update(block)
    except OSError as error:
        raise BundleError(
            "{file} cannot be read: {reason}.", "Check its permissions.", file=file, reason=error.strerror
        ) from error
    return digest.hexdigest()
