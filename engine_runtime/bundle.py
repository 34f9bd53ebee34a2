"""A model bundle: one folder with bundle.toml, the weights it names and their hashes.

In: a folder. Out: a `Bundle`, plain data that names every number of the pipeline (rates, special ids, chunk
sizes, mel). Whatever is wrong with the folder is a `BundleError` that says which file or key and what to do.
No torch here, so that a bundle can be inspected without loading it. Any thread; nothing is kept open.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from .errors import BundleError, MelMismatchError
from .manifest import Manifest, Table, read_table
from .types import MelSpec, SamplingParams

FORMAT = 1
MANIFEST_NAME = "bundle.toml"
_HASH_BLOCK = 1 << 20

Verify = Literal["size", "sha256"]


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids with a meaning of their own, text channel first, then audio channel (`eosp` and on)."""

    endoftext: int
    im_start: int
    im_end: int
    sosp: int
    modality_pad: int
    eosp: int
    audio_pad: int
    audio_forbidden_from: int
    empty: int | None = None


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """The words around a conversation. The system text selects the modality of the reply."""

    system_speech: str
    system_text: str
    user_role: str = "user"
    assistant_role: str = "assistant"


@dataclass(frozen=True, slots=True)
class LMSection:
    """The language model and its paged cache."""

    weights: tuple[Path, ...]
    tokens_per_block: int
    kv_blocks: int
    context_rows: int
    config: dict[str, Any]
    special_ids: SpecialIds
    prompt: PromptTexts
    sampling_speech: SamplingParams
    sampling_text: SamplingParams
    subtitles: bool = False
    """At audio positions the text head says the word being spoken."""


@dataclass(frozen=True, slots=True)
class SpeechEncoderSection:
    """The speech tokenizer: PCM at `sample_rate` to codes."""

    weights: tuple[Path, ...]
    sample_rate: int
    normalisation: str
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FlowSection:
    """Codes to mel by flow matching, in chunks."""

    weights: tuple[Path, ...]
    steps: int
    cfg_rate: float
    chunk_codes: int
    look_ahead_codes: int
    first_chunk_codes: int
    config: dict[str, Any]
    mel: MelSpec


@dataclass(frozen=True, slots=True)
class VocoderSection:
    """Mel to PCM. `left/right_context_frames` is what a chunk needs on either side to be seamless."""

    kind: Literal["bigvgan", "hift"]
    weights: tuple[Path, ...]
    left_context_frames: int
    right_context_frames: int
    config: dict[str, Any]
    mel: MelSpec


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size in bytes and hash of one file of the bundle."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """Everything that bundle.toml says, checked against the files beside it."""

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

    @classmethod
    def open(cls, directory: str | Path, verify: Verify = "sha256") -> Bundle:
        """Read and check the bundle in `directory`.

        `verify="size"` skips the hashes, for bundles of many gigabytes.
        Raises BundleError (MelMismatchError where flow and vocoder do not fit).
        """
        path = Path(directory)
        manifest = Manifest(_read_toml(path), str(path / MANIFEST_NAME))
        bundle = _parse(path, manifest)
        _check_mel(bundle)
        _check_numbers(bundle, manifest)
        _check_files(bundle, manifest, verify)
        return bundle

    @property
    def samples_per_code(self) -> int:
        """Output samples that one speech code becomes."""
        return int(self.flow.config["upsample"]) * self.flow.mel.hop

    @property
    def total_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.files.values())


def _read_toml(path: Path) -> dict[str, Any]:
    file = path / MANIFEST_NAME
    if not path.is_dir():
        raise BundleError(f"There is no bundle folder at {path}. Give the folder that holds {MANIFEST_NAME}.")
    if not file.is_file():
        raise BundleError(
            f"{path} is not a bundle: it holds no {MANIFEST_NAME}. Give the folder that holds one."
        )
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BundleError(
            f"{file} is not valid TOML: {error}. Correct that line or restore the file."
        ) from error
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror}. Check its permissions.") from error


def _parse(path: Path, manifest: Manifest) -> Bundle:
    top = manifest.top({"bundle", "lm", "text_tokenizer", "speech_encoder", "flow", "vocoder", "files"})
    about = top.table("bundle")
    about.allow({"format", "name", "description", "licence"})
    if about.integer("format") != FORMAT:
        raise about.error(
            f"format {about.integer('format')} is not known; this program reads format {FORMAT}. "
            "Use a matching version of the program or of the bundle."
        )
    tokenizer = top.table("text_tokenizer")
    tokenizer.allow({"file"})
    return Bundle(
        path=path,
        name=about.string("name"),
        description=about.string("description"),
        licence=about.string("licence"),
        lm=_parse_lm(path, top.table("lm")),
        text_tokenizer=path / tokenizer.string("file"),
        speech_encoder=read_table(
            SpeechEncoderSection,
            top.table("speech_encoder"),
            weights=_weights(path, top.table("speech_encoder")),
        ),
        flow=_parse_flow(path, top.table("flow")),
        vocoder=read_table(
            VocoderSection,
            top.table("vocoder"),
            weights=_weights(path, top.table("vocoder")),
            mel=read_table(MelSpec, top.table("vocoder").table("mel")),
        ),
        files=_parse_files(top.table("files")),
    )


def _parse_lm(path: Path, table: Table) -> LMSection:
    sampling = table.table("sampling")
    sampling.allow({"speech", "text"})
    special_ids = read_table(SpecialIds, table.table("special_ids"))
    config = dict(table.table("config").content)
    if config.setdefault("modality_pad", special_ids.modality_pad) != special_ids.modality_pad:
        raise table.error(
            f"says modality_pad = {config['modality_pad']} in config and {special_ids.modality_pad} "
            "in special_ids; leave it out of config"
        )
    return read_table(
        LMSection,
        table,
        renamed={"sampling": ("sampling_speech", "sampling_text")},
        weights=_weights(path, table),
        config=config,
        special_ids=special_ids,
        prompt=read_table(PromptTexts, table.table("prompt")),
        sampling_speech=read_table(SamplingParams, sampling.table("speech")),
        sampling_text=read_table(SamplingParams, sampling.table("text")),
    )


def _parse_flow(path: Path, table: Table) -> FlowSection:
    section = read_table(
        FlowSection,
        table,
        weights=_weights(path, table),
        mel=read_table(MelSpec, table.table("mel")),
        config=dict(table.table("config").content),
    )
    table.table("config").integer("upsample")  # mel frames per code: has to be stated
    # What [flow] says once holds for the network too.
    section.config.setdefault("steps", section.steps)
    section.config.setdefault("cfg_rate", section.cfg_rate)
    section.config.setdefault("chunk_codes", section.chunk_codes)
    same = {"look_ahead_codes": section.look_ahead_codes, "n_mels": section.mel.n_mels}
    for key, value in same.items():
        if section.config.setdefault(key, value) != value:
            raise table.error(
                f"says {key} = {section.config[key]} in config and {value} outside; make them equal"
            )
    return section


def _weights(path: Path, table: Table) -> tuple[Path, ...]:
    """One file name or a list of shards."""
    return tuple(path / name for name in table.strings("weights"))


def _parse_files(table: Table) -> dict[str, FileEntry]:
    return {name: read_table(FileEntry, table.table(name)) for name in table.content}


def _check_mel(bundle: Bundle) -> None:
    made, wanted = bundle.flow.mel, bundle.vocoder.mel
    _check_vocoder_config(bundle)
    if made == wanted:
        return
    names = [f.name for f in fields(MelSpec) if getattr(made, f.name) != getattr(wanted, f.name)]
    raise MelMismatchError(
        f"The flow of bundle {bundle.name} makes a mel that its vocoder was not trained on; they differ in "
        f"{', '.join(names)}.\n  flow:    {made}\n  vocoder: {wanted}\nUse a vocoder made for this mel."
    )


def _check_vocoder_config(bundle: Bundle) -> None:
    """What a vocoder's own config says of its mel must be what the manifest states."""
    mel, config = bundle.vocoder.mel, bundle.vocoder.config
    stated: dict[str, float] = {
        "num_mels": mel.n_mels,
        "n_fft": mel.n_fft,
        "hop_size": mel.hop,
        "win_size": mel.win,
    }
    stated |= {"sampling_rate": mel.sample_rate, "fmin": mel.fmin, "fmax": mel.fmax}
    for key, value in stated.items():
        if key in config and config[key] != value:
            raise MelMismatchError(
                f"The vocoder of bundle {bundle.name} was built for {key} = {config[key]}, but [vocoder.mel] "
                f"says {value}.\n  vocoder: {mel}\nUse a vocoder made for this mel."
            )


def _check_numbers(bundle: Bundle, manifest: Manifest) -> None:
    """Values that would only fail deep inside a stage."""
    positive = {
        "lm.tokens_per_block": bundle.lm.tokens_per_block,
        "lm.kv_blocks": bundle.lm.kv_blocks,
        "lm.context_rows": bundle.lm.context_rows,
        "speech_encoder.sample_rate": bundle.speech_encoder.sample_rate,
        "flow.steps": bundle.flow.steps,
        "flow.chunk_codes": bundle.flow.chunk_codes,
        "flow.first_chunk_codes": bundle.flow.first_chunk_codes,
        "flow.mel.sample_rate": bundle.flow.mel.sample_rate,
        "flow.mel.n_mels": bundle.flow.mel.n_mels,
        "flow.mel.hop": bundle.flow.mel.hop,
    }
    not_negative = {
        "flow.look_ahead_codes": bundle.flow.look_ahead_codes,
        "vocoder.left_context_frames": bundle.vocoder.left_context_frames,
        "vocoder.right_context_frames": bundle.vocoder.right_context_frames,
    }
    for key, value in positive.items():
        if value <= 0:
            raise manifest.error(f"{key} is {value}; it must be greater than 0")
    for key, value in not_negative.items():
        if value < 0:
            raise manifest.error(f"{key} is {value}; it must not be negative")
    if bundle.vocoder.kind not in ("bigvgan", "hift"):
        raise manifest.error(f"vocoder.kind is {bundle.vocoder.kind!r}; it must be 'bigvgan' or 'hift'")


def _check_files(bundle: Bundle, manifest: Manifest, verify: Verify) -> None:
    root = bundle.path.resolve()
    sections = (bundle.lm.weights, bundle.speech_encoder.weights, bundle.flow.weights, bundle.vocoder.weights)
    for used in [bundle.text_tokenizer, *(file for section in sections for file in section)]:
        if used.relative_to(bundle.path).as_posix() not in bundle.files:
            raise manifest.error(f"{used.name} is used but has no entry in [files]; add its size and sha256")
    for name, entry in bundle.files.items():
        if not (root / name).resolve().is_relative_to(root):
            raise manifest.error(f"[files] names {name}, which lies outside the bundle folder")
        _check_file(bundle, root / name, entry, verify)


def _check_file(bundle: Bundle, file: Path, entry: FileEntry, verify: Verify) -> None:
    again = "Copy or download the bundle again."
    if not file.is_file():
        raise BundleError(
            f"Bundle {bundle.name} lacks {file.name} ({entry.size} bytes, expected at {file}). {again}"
        )
    size = file.stat().st_size
    if size != entry.size:
        state = "cut short" if size < entry.size else "too long"
        raise BundleError(f"{file} is {state}: {size} bytes where {MANIFEST_NAME} says {entry.size}. {again}")
    if verify == "sha256" and (found := hash_file(file)) != entry.sha256.lower():
        raise BundleError(
            f"{file} is not the file that {MANIFEST_NAME} describes: its sha256 is {found[:16]}… "
            f"where {entry.sha256[:16]}… was expected. {again}"
        )


def hash_file(file: Path) -> str:
    """SHA-256 of a file as lower-case hex. Raises BundleError where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            while block := stream.read(_HASH_BLOCK):
                digest.update(block)
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror}. Check its permissions.") from error
    return digest.hexdigest()
