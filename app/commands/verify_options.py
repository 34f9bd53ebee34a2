"""Options of the commands that compare an engine with the reference: what is asked, and how the reference is
computed."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from app import paths
from app.commands.questions import read_questions, read_texts
from app.sample_questions import load_samples
from engine_runtime.options import Dtype

if TYPE_CHECKING:
    from engine_runtime.bench.reference import ReferenceOptions
    from engine_runtime.bundle.bundle import Bundle
    from engine_runtime.types import Pcm

REFERENCES = ("plain", "transformers")
_SAMPLES_TYPED = 4
"""Shipped questions that are also typed, in each language that the model knows."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Recordings at the bundle's input rate, by name, and typed questions."""

    spoken: dict[str, Pcm]
    typed: list[str]


def add_verify_options(parser: argparse.ArgumentParser) -> None:
    """Add them to a parser."""
    parser.add_argument(
        "--wavs",
        type=paths.user_path,
        metavar="DIR",
        help="folder of spoken questions (default: the shipped ones)",
    )
    parser.add_argument(
        "--texts",
        type=paths.user_path,
        metavar="FILE",
        help="typed questions, one per line (default: the bundle's examples, else those of the shipped "
        "recordings)",
    )
    parser.add_argument(
        "--reference",
        choices=REFERENCES,
        default="plain",
        help="layers of the reference: of this program's plain network, or transformers' Qwen3 modules "
        "(default: plain)",
    )
    parser.add_argument(
        "--reference-device",
        metavar="DEVICE",
        help="device of the reference, which takes a few GB, one layer at a time (default: --device, or cpu "
        "if the GPU has too little memory left)",
    )
    parser.add_argument(
        "--reference-dtype",
        choices=get_args(Dtype),
        default="float32",
        help="dtype of the reference (default: float32)",
    )


def prompts_of(bundle: Bundle, wavs: Path | None = None, texts: Path | None = None) -> Prompts:
    """The questions in these files, or the default ones. Raises AudioInputError for a file that cannot be
    used."""
    spoken = read_questions(wavs, bundle.speech_encoder.sample_rate)
    if texts is not None:
        return Prompts(spoken, read_texts(texts))
    if bundle.card.examples:
        return Prompts(spoken, list(bundle.card.examples))
    samples = load_samples(paths.assets_dir() / "samples")[:_SAMPLES_TYPED]
    typed = [sample.english for sample in samples]
    if bundle.card.speaks("zh"):
        typed += [sample.chinese for sample in samples]
    return Prompts(spoken, typed)


def reference_options(arguments: argparse.Namespace) -> ReferenceOptions:
    """How the reference is computed."""
    from engine_runtime.bench.reference import ReferenceOptions

    return ReferenceOptions(arguments.reference, arguments.reference_dtype, arguments.reference_device)
