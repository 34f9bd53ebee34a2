"""A vocoder in a file of its own, which takes the place of a bundle's (`--vocoder FILE`).

In: a safetensors file whose header describes the network: under VOCODER_KEY, as JSON, what [vocoder] of a
manifest says, without the name of the weights. Out: a `VocoderSection`, or a bundle with it. Description and
weights are one file, so that neither can be taken for that of another vocoder. Reading needs no torch. Any
thread.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from engine_runtime.bundle.bundle import Bundle, check_mel
from engine_runtime.bundle.manifest import Manifest, Table, stated
from engine_runtime.bundle.sections import VocoderSection, parse_vocoder
from engine_runtime.errors import BundleError
from engine_runtime.types import MelSpec

if TYPE_CHECKING:
    from torch import Tensor

VOCODER_KEY = "moss_voice.vocoder"
_REMEDY = "Give a file that assets/training/codec_vocoder.py has written."
_log = logging.getLogger(__name__)


def with_vocoder(bundle: Bundle, file: Path) -> Bundle:
    """The bundle with the vocoder of a file. Raises BundleError for an unusable file, MelMismatchError, which
    shows both, if that vocoder was trained on another mel than the one that the bundle's flow makes."""
    changed = replace(bundle, vocoder=read_vocoder(file))
    check_mel(changed, str(file))
    return changed


def read_vocoder(file: Path) -> VocoderSection:
    """The description in the file's header. Raises BundleError."""
    text = _metadata(file).get(VOCODER_KEY)
    if text is None:
        raise BundleError(
            "{file} does not describe its vocoder: {vocoder_key} is missing in its header.",
            _REMEDY,
            file=file,
            vocoder_key=VOCODER_KEY,
        )
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):  # not JSON, or nested too deeply
        content = None
    if not isinstance(content, Mapping):
        raise BundleError(
            "{file}: {vocoder_key} in its header is not a JSON object.",
            _REMEDY,
            file=file,
            vocoder_key=VOCODER_KEY,
        )
    manifest = Manifest({"vocoder": content}, str(file))
    section = parse_vocoder(file.parent, Table({**content, "weights": file.name}, "vocoder", manifest))
    for sentence in manifest.unknown:
        _log.warning("%s %s, which is ignored", file, sentence)
    return section


def _metadata(file: Path) -> dict[str, str]:
    try:
        if not file.is_file():
            raise BundleError("There is no vocoder file at {file}.", _REMEDY, file=file)
        with safe_open(file, framework="numpy") as content:
            return dict(content.metadata() or {})
    except (SafetensorError, OSError, RuntimeError) as error:
        raise BundleError(
            "{file} is not a vocoder file, or damaged ({error}).", _REMEDY, file=file, error=error
        ) from error


def write_bigvgan(file: Path, weights: Mapping[str, Tensor], config: Mapping[str, Any], mel: MelSpec) -> None:
    """Write a BigVGAN without weight norm, its config, and the mel that it was trained on.

    Raises BundleError for a config of which no network can be built.
    """
    from safetensors.torch import save_file

    from engine_runtime.models.bigvgan import check_config, receptive_field

    left, right = receptive_field(config)
    content = {
        "kind": "bigvgan",
        "left_context_frames": left,
        "right_context_frames": right,
        "config": check_config(config),
        "mel": stated(mel),
    }
    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()},
        file,
        {VOCODER_KEY: json.dumps(content)},
    )
