"""The sections of bundle.toml: one dataclass per stage, and its parser.

In: a table of the manifest. Out: a frozen dataclass per stage. Values stated once in the manifest are copied
to every network config that needs them. Raises BundleError for a missing or unknown key, or a wrong type.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from engine_runtime.bundle import manifest_limits as limits
from engine_runtime.bundle.manifest import Table, read_table
from engine_runtime.models.limits import (
    BIGVGAN_CONFIG,
    FLOW_CONFIG,
    HIFT_CONFIG,
    LM_CONFIG,
    MEL,
    SPEECH_ENCODER_CONFIG,
    shown,
)
from engine_runtime.types import MelSpec, SamplingParams

_LONGEST_NAME = 255
"""Maximum characters of a file name in file systems."""


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Special ids, text channel first, then audio channel (from `eosp` on)."""

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
class DecliningSection:
    """The reply of a model that is not sure of its answer ("I do not know that"), as it was trained to say
    it, and when it takes the place of the answer (conversation/declining.py)."""

    least_probability: float
    """Least probability of the most likely text id at each of the first positions of a reply."""
    codes: tuple[int, ...]
    """Speech codes of the reply."""
    subtitles: tuple[int, ...]
    """Text id at each code, `special_ids.empty` where none begins; without those it is the text reply."""


@dataclass(frozen=True, slots=True)
class LMSection:
    """The language model and its paged cache."""

    weights: tuple[Path, ...]
    tokens_per_block: int
    kv_blocks: int
    context_tokens: int
    config: dict[str, Any]
    special_ids: SpecialIds
    prompt: PromptTexts
    sampling_speech: SamplingParams
    sampling_text: SamplingParams
    layout: Literal["released", "tensorrt-llm"] = "released"
    """How the weights are named: as released, or as a checkpoint that was converted for TensorRT-LLM."""
    subtitles: bool = False
    """At audio positions the text head predicts the word being spoken."""
    detects_turn_end: bool = False
    """The model was trained to reply nothing to an unfinished question and to a backchannel: the probability
    of an empty reply says whether the user has finished (`TurnEndPrediction`)."""
    declining: DecliningSection | None = None
    """None: every answer is given, however unsure the model is."""

    @property
    def context_blocks(self) -> int:
        """KV blocks of the whole context of a conversation."""
        return -(-self.context_tokens // self.tokens_per_block)


@dataclass(frozen=True, slots=True)
class SpeechEncoderSection:
    """The speech tokenizer: PCM at `sample_rate` to codes."""

    weights: tuple[Path, ...]
    sample_rate: int
    normalization: str
    config: dict[str, Any]
    weights_hold_more: bool = False
    """The files contain more than the network, such as a complete training model with the encoder as a
    part."""
    ceiling_prior: float | None = None
    """Initial ceiling of a stream, as log10 mel power; None: the default of the normalization
    (codec/speech_tokenizer/features.py). A "running_max" model was trained with it."""
    graph: Path | None = None
    """ONNX graph of a streaming step without weights, which come from `weights`
    (codec/speech_tokenizer/encoder_graph.py)."""


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
    packet_codes: tuple[int, ...] = ()
    """Codes of the first, second, ... packet of a reply, the last one holding on; left out:
    `first_chunk_codes`, then `chunk_codes`."""

    @property
    def packets(self) -> tuple[int, ...]:
        """Packet sizes in codes, the last one holding on."""
        return self.packet_codes or (self.first_chunk_codes, self.chunk_codes)


@dataclass(frozen=True, slots=True)
class VocoderSection:
    """Mel to PCM. `left/right_context_frames` is the context a chunk needs on either side to be seamless."""

    kind: Literal["bigvgan", "hift"]
    weights: tuple[Path, ...]
    left_context_frames: int
    right_context_frames: int
    config: dict[str, Any]
    mel: MelSpec


@dataclass(frozen=True, slots=True)
class VoiceSection:
    """Speaker encoder and voice prompt."""

    speaker_encoder: Path
    """ONNX network: features of speech at `sample_rate` to an x-vector."""
    sample_rate: int
    n_mels: int
    least_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size in bytes and hash of one file of the bundle."""

    size: int
    sha256: str


def parse_lm(path: Path, table: Table) -> LMSection:
    """[lm] with its tables, `modality_pad` handed on to the network."""
    sampling = table.table("sampling")
    sampling.allow({"speech", "text"})
    special_ids = read_table(SpecialIds, table.table("special_ids"), limits.SPECIAL_IDS)
    table.table("config").hold(LM_CONFIG)
    config = dict(table.table("config").content)
    if config.setdefault("modality_pad", special_ids.modality_pad) != special_ids.modality_pad:
        raise table.error(
            f"says modality_pad = {config['modality_pad']} in config and {special_ids.modality_pad} "
            "in special_ids; leave it out of config"
        )
    _check_ids(table.table("special_ids"), config)
    return read_table(
        LMSection,
        table,
        limits.LM,
        renamed={"sampling": ("sampling_speech", "sampling_text")},
        weights=weights_of(path, table),
        config=config,
        special_ids=special_ids,
        prompt=read_table(PromptTexts, table.table("prompt")),
        sampling_speech=_parse_sampling(sampling.table("speech")),
        sampling_text=_parse_sampling(sampling.table("text")),
        declining=_parse_declining(table, special_ids, config) if "declining" in table.content else None,
    )


def _parse_declining(lm: Table, special: SpecialIds, config: dict[str, Any]) -> DecliningSection:
    """[lm.declining]: a reply of the model's own codes and text ids, one of each at every row."""
    table = lm.table("declining")
    section = read_table(
        DecliningSection,
        table,
        limits.DECLINING,
        codes=tuple(table.value("codes", list)),
        subtitles=tuple(table.value("subtitles", list)),
    )
    if not 0 < len(section.codes) == len(section.subtitles):
        raise table.error(
            f"has {len(section.codes)} codes and {len(section.subtitles)} subtitles; give one of each "
            "for a row"
        )
    text_vocab = config.get("text_vocab", max(section.subtitles) + 1)
    if max(section.codes) >= special.eosp or max(section.subtitles) >= text_vocab:
        raise table.error(
            f"has codes up to {max(section.codes)} and subtitles up to {max(section.subtitles)}; "
            f"codes are below {special.eosp} (eosp), subtitles below {text_vocab} (text_vocab)"
        )
    return section


def _check_ids(table: Table, config: dict[str, Any]) -> None:
    """Ids must be within the vocabularies of the network; a missing size is reported when it is built."""
    of_audio = {"eosp", "audio_pad", "audio_forbidden_from"}
    for key, value in table.content.items():
        name = "audio_vocab" if key in of_audio else "text_vocab"
        last = config.get(name, value + 1) - (key != "audio_forbidden_from")  # which may forbid none
        if value > last:
            raise table.error(f"has {key} = {value}, but {name} in config is {config[name]}")


def _parse_sampling(table: Table) -> SamplingParams:
    params = read_table(SamplingParams, table, limits.SAMPLING)
    if params.do_sample and params.temperature < 1e-3:
        raise table.error(
            f"has temperature = {params.temperature:g} with do_sample = true; make it at least 0.001, or "
            "do_sample false"
        )
    return params


def parse_flow(path: Path, table: Table) -> FlowSection:
    """[flow] with its tables, steps and chunk sizes handed on to the network."""
    table.table("config").hold(FLOW_CONFIG)
    section = read_table(
        FlowSection,
        table,
        limits.FLOW,
        weights=weights_of(path, table),
        mel=_parse_mel(table.table("mel")),
        config=dict(table.table("config").content),
        packet_codes=table.integers("packet_codes"),
    )
    table.table("config").integer("upsample")  # mel frames per code: has to be stated
    # Values of [flow] also apply to the network.
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


def _parse_mel(table: Table) -> MelSpec:
    mel = read_table(MelSpec, table, MEL)
    if not mel.fmin < mel.fmax:
        raise table.error(f"has fmin = {mel.fmin:g} and fmax = {mel.fmax:g}; they must be in this order")
    return mel


def weights_of(path: Path, table: Table) -> tuple[Path, ...]:
    """One file name or a list of shards."""
    return tuple(file_in(path, name, table) for name in table.strings("weights"))


def file_in(path: Path, name: str, table: Table) -> Path:
    """The file of this name in a bundle folder. BundleError for a name outside of it.

    NOTE: only the name is checked. A link may point to an existing large checkpoint elsewhere.
    """
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts:
        raise table.error(f"names {shown(name)}, which is outside the bundle folder")
    if not pure.parts or "\0" in name or max(map(len, pure.parts)) > _LONGEST_NAME:
        raise table.error(f"names {shown(name)}, which is no file")
    return path / name


def parse_text_tokenizer(path: Path, table: Table) -> Path:
    """[text_tokenizer]: its file."""
    table.allow({"file"})
    return file_in(path, table.string("file"), table)


def parse_files(path: Path, table: Table) -> dict[str, FileEntry]:
    """[files]: size and hash by name."""
    for name in table.content:
        file_in(path, name, table)
    return {name: read_table(FileEntry, table.table(name), limits.FILE) for name in table.content}


def parse_speech_encoder(path: Path, table: Table) -> SpeechEncoderSection:
    """[speech_encoder]."""
    table.table("config").hold(SPEECH_ENCODER_CONFIG)
    graph = file_in(path, table.string("graph"), table) if "graph" in table.content else None
    return read_table(
        SpeechEncoderSection, table, limits.SPEECH_ENCODER, weights=weights_of(path, table), graph=graph
    )


def parse_vocoder(path: Path, table: Table) -> VocoderSection:
    """[vocoder] with its mel."""
    of_kind = {"hift": HIFT_CONFIG, "bigvgan": BIGVGAN_CONFIG}
    kind = table.string("kind")
    if kind not in of_kind:
        raise table.manifest.error(f"vocoder.kind is {shown(kind)}; it must be 'bigvgan' or 'hift'")
    table.table("config").hold(of_kind[kind])
    mel = _parse_mel(table.table("mel"))
    return read_table(VocoderSection, table, limits.VOCODER, weights=weights_of(path, table), mel=mel)


def parse_voice(path: Path, table: Table) -> VoiceSection:
    """[voice]."""
    speaker_encoder = file_in(path, table.string("speaker_encoder"), table)
    section = read_table(VoiceSection, table, limits.VOICE, speaker_encoder=speaker_encoder)
    if not 0 < section.least_s <= section.most_s:
        raise table.error(
            f"has least_s = {section.least_s} and most_s = {section.most_s}; "
            "they must be greater than 0 and in this order"
        )
    return section
