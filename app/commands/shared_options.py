"""The options that several commands share: of an engine, of a comparison with the reference, and their types.

Names, limits and help of an engine's options are beside the fields of `EngineOptions` and `StartSettings`. A
type of a numeric option rejects values out of range with an ArgumentTypeError, which argparse reports. Main
thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from app import paths
from app.commands.questions import read_questions, read_texts
from app.sample_questions import load_samples
from app.server_address import read_key
from app.settings import OF_AN_ENGINE, StartSettings, options
from engine_runtime.options import CAPABILITY, DEVICE_HELP, Dtype, EngineOptions
from engine_runtime.setting import OptionsError, Setting
from engine_runtime.types import Modality

if TYPE_CHECKING:
    from engine_runtime.bench.reference import ReferenceOptions
    from engine_runtime.bundle.bundle import Bundle
    from engine_runtime.types import Pcm


LARGEST_COUNT = 1_000_000


def integer(least: int, most: int) -> Callable[[str], int]:
    """The type of an option that takes an integer from `least` to `most`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if least <= value <= most:
            return value
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not an integer from {least} to {most}")

    return read


def integers(least: int, most: int) -> Callable[[str], list[int]]:
    """The type of an option that takes integers from `least` to `most`, separated by commas."""
    read_one = integer(least, most)
    return lambda text: [read_one(part) for part in text.split(",")]


def span(least: int, most: int) -> Callable[[str], tuple[int, int]]:
    """The type of an option that takes an integer, or two with a hyphen: from the one to the other."""
    read_one = integer(least, most)

    def read(text: str) -> tuple[int, int]:
        first, hyphen, last = text.partition("-")
        low = read_one(first)
        high = read_one(last) if hyphen else low
        if low <= high:
            return low, high
        raise argparse.ArgumentTypeError(f"{_shown(text)}: {high} is less than {low}")

    return read


def number(least: float, most: float) -> Callable[[str], float]:
    """The type of an option that takes any number from `least` to `most`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if least <= value <= most:  # never true of nan
            return value
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a number from {least:g} to {most:g}")

    return read


def compute_capability(text: str) -> str:
    """The type of an option that takes the compute capability of a GPU."""
    if CAPABILITY.fullmatch(text) is None:
        raise argparse.ArgumentTypeError("give it as 8.9 or 12.0")
    return text


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


MOST_BATCHED = 64
"""Conversations of one step of the language model on a GPU, at most."""
_OF_SHARING = ("kv_blocks", "context_tokens")
"""Engine options of commands that hold several conversations."""


def add_engine_options(parser: argparse.ArgumentParser, of_subcommand: bool = True) -> None:
    """Add them to a parser. In a subcommand absent options stay unset, so that both `moss-voice --bundle DIR
    talk` and `moss-voice talk --bundle DIR` work.
    """
    own = [known for known in options(EngineOptions) if known.name not in _OF_SHARING]
    _add(parser, [*options(StartSettings, OF_AN_ENGINE), *own], of_subcommand)


def add_sharing_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of several conversations in one engine."""
    parser.add_argument(
        "--batch-invariant",
        action="store_true",
        help="run each sequence in a step of its own, so that no reply depends on what else runs, "
        "not even by rounding (always so on a CPU)",
    )
    _add(parser, options(EngineOptions, _OF_SHARING), of_subcommand=False)


def _add(parser: argparse._ActionsContainer, known: Iterable[Setting], of_subcommand: bool) -> None:
    default = argparse.SUPPRESS if of_subcommand else None
    for one in known:
        if one.kind is bool:
            parser.add_argument(one.option, action="store_true", default=default, help=one.help)
        else:
            parser.add_argument(
                one.option,
                type=_type_of(one),
                choices=one.choices or None,
                metavar=one.metavar,
                default=default,
                help=one.help,
            )


def _type_of(known: Setting) -> Callable[[str], Any]:
    """The function that parses the text of an option."""
    if known.name == "compute_capability":
        return compute_capability
    if known.kind is Path:
        return paths.user_path
    least = known.least or 0
    most = LARGEST_COUNT if known.most is None else known.most
    if known.kind is float:
        return number(least, most)
    return integer(int(least), int(most)) if known.kind is int else str


def shared_engine(
    arguments: argparse.Namespace, options: EngineOptions, conversations: int | None
) -> EngineOptions:
    """The options of an engine for so many conversations, with those of `add_sharing_options`. None: for as
    many as fit into memory."""
    return replace(
        options,
        max_batch_size=min(conversations or MOST_BATCHED, MOST_BATCHED),
        captures_batches=True,
        kv_blocks=arguments.kv_blocks,
        conversations=conversations,
        context_tokens=arguments.context_tokens,
    )


def add_server_options(parser: argparse.ArgumentParser, of_subcommand: bool = True) -> None:
    """Add the server that takes the place of an engine; as in `add_engine_options`."""
    _add(parser, options(StartSettings, ("server",)), of_subcommand)
    parser.add_argument(
        "--server-key-file",
        type=paths.user_path,
        metavar="FILE",
        default=argparse.SUPPRESS if of_subcommand else None,
        help="file with the key of the server (default: $MOSS_VOICE_SERVER_KEY)",
    )
    _add(parser, options(StartSettings, ("server_voice", "engine_python")), of_subcommand)


def add_turn_options(parser: argparse.ArgumentParser, of_subcommand: bool = True) -> None:
    """Add the options of conversations; as in `add_engine_options`."""
    _add(parser, options(StartSettings, ("eagerness", "overlap", "speculate")), of_subcommand)


def add_microphone_options(parser: argparse.ArgumentParser, of_subcommand: bool = True) -> None:
    """Add the options of conversations on a microphone; as in `add_engine_options`."""
    _add(parser, options(StartSettings, ("input_mode",)), of_subcommand)
    add_echo_library_option(parser, of_subcommand)


def add_transcribe_option(parser: argparse._ActionsContainer) -> None:
    """Add the model that writes down what the user says."""
    _add(parser, options(StartSettings, ("transcribe",)), of_subcommand=False)


def add_echo_library_option(parser: argparse._ActionsContainer, of_subcommand: bool = True) -> None:
    """Add the option for the echo canceller; as in `add_engine_options`."""
    _add(parser, options(StartSettings, ("echo_library",)), of_subcommand)


def add_reply_option(parser: argparse.ArgumentParser) -> None:
    """Add the kind of reply."""
    parser.add_argument(
        "--reply",
        choices=[modality.value for modality in Modality],
        default=Modality.SPEECH.value,
        help="kind of reply (default: speech)",
    )


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """Add the device to a command that has no other option of an engine; `device_of` reads it."""
    parser.add_argument("--device", default=argparse.SUPPRESS, help=DEVICE_HELP)


def device_of(arguments: argparse.Namespace) -> str:
    """The device that was given, before or after the command, else the default."""
    return arguments.device or EngineOptions().device


def start_settings(arguments: argparse.Namespace) -> StartSettings:
    """The parsed options, as the settings for main.py."""
    if arguments.server and arguments.engine_python is not None:
        raise OptionsError("--server and --engine-python both name an engine.", "Leave out one of them.")
    of_engine, of_start = _given(EngineOptions, arguments), _given(StartSettings, arguments)
    if arguments.trt_codec:
        of_engine["engine_cache"] = paths.engines_dir()
    given = frozenset({*of_engine, *of_start, *(["server_key"] if arguments.server else [])})
    bundle = of_start.pop("bundle", paths.default_bundle())
    needs_bundle = arguments.random_weights is None and not arguments.server
    return StartSettings(
        # With random weights a name may be that of a model that was never fetched.
        bundle=paths.find_bundle(bundle) if needs_bundle else bundle,
        engine=EngineOptions(**of_engine),
        server_key=read_key(arguments.server_key_file) if arguments.server else "",
        given=given,
        **of_start,
    )


def _given(owner: type, arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields that the command line sets; those of `_OF_SHARING` are set by `shared_engine`."""
    values: dict[str, Any] = {}
    for known in options(owner):
        value = getattr(arguments, known.dest, None)
        if known.name not in _OF_SHARING and value not in (None, ""):
            values[known.name] = not known.default if known.kind is bool else value
    return values


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
