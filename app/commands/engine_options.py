"""Options of all commands that load an engine: bundle, device, seed and others.

Names, limits and help are beside the fields of `EngineOptions` and `StartSettings`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from app import paths
from app.commands.option_types import LARGEST_COUNT, compute_capability, integer, number
from app.server_address import read_key
from app.settings import OF_AN_ENGINE, StartSettings, options
from engine_runtime.options import DEVICE_HELP, EngineOptions
from engine_runtime.setting import OptionsError, Setting
from engine_runtime.types import Modality

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
        help="run each sequence in a step of its own, so that no reply depends on what else runs, not even "
        "by rounding (on a CPU that is always so)",
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
    """What reads the text of an option."""
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
    _add(parser, options(StartSettings, ("engine_python",)), of_subcommand)


def add_turn_options(parser: argparse.ArgumentParser, of_subcommand: bool = True) -> None:
    """Add the options of conversations; as in `add_engine_options`."""
    _add(parser, options(StartSettings, ("eagerness", "speculate")), of_subcommand)


def add_microphone_options(parser: argparse.ArgumentParser, of_subcommand: bool = True) -> None:
    """Add the options of conversations on a microphone; as in `add_engine_options`."""
    _add(parser, options(StartSettings, ("input_mode",)), of_subcommand)
    add_echo_library_option(parser, of_subcommand)


def add_echo_library_option(parser: argparse._ActionsContainer, of_subcommand: bool = True) -> None:
    """Add what cancels the echo; as in `add_engine_options`."""
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
