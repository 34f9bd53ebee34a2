"""Options of all commands that load an engine: bundle, device, seed and others."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any, get_args

from app import paths
from app.commands.option_types import LARGEST_COUNT, LARGEST_SEED, compute_capability, integer, number
from app.server_address import read_key
from app.settings import Eagerness, EchoLibrary, InputMode, SpeculationMode, StartSettings
from engine_runtime.options import (
    LEAST_CONTEXT_ROWS,
    LEAST_PREFILL_TOKENS,
    MOST_FLOW_STEPS,
    PREFILL_TOKENS,
    Backend,
    Dtype,
    EngineOptions,
    FlowSchedule,
    Kernels,
    KVDtype,
    OptionsError,
    WeightFormat,
)
from engine_runtime.types import Modality

MOST_BATCHED = 64
"""Conversations of one step of the language model on a GPU, at most."""
_DEVICE_HELP = "cpu, cuda or cuda:N (default: cpu)"


def add_engine_options(parser: argparse.ArgumentParser, of_subcommand: bool = True) -> None:
    """Add them to a parser. In a subcommand absent options stay unset, so that both `moss-voice --bundle DIR
    talk` and `moss-voice talk --bundle DIR` work.
    """

    def default(value: Any) -> Any:
        return argparse.SUPPRESS if of_subcommand else value

    parser.add_argument(
        "--bundle",
        type=paths.user_path,
        metavar="DIR",
        default=default(None),
        help=f"model bundle, a folder or the name of a fetched one (default: ${paths.BUNDLE_VARIABLE}, "
        "else the shipped one)",
    )
    parser.add_argument(
        "--voice",
        type=paths.user_path,
        metavar="FILE",
        default=default(None),
        help="speak in the voice of this recording (WAV or FLAC): at least 3.2 s of speech, of which the "
        "first 6 s are used (bundles with a speaker encoder); its voice print stays in the cache until "
        "`voices --remove`",
    )
    parser.add_argument("--device", default=default(None), help=_DEVICE_HELP)
    parser.add_argument(
        "--dtype",
        default=default(None),
        choices=get_args(Dtype),
        help="dtype of the language model (default: float32, bfloat16 on a GPU)",
    )
    parser.add_argument(
        "--seed",
        type=integer(0, LARGEST_SEED),
        metavar="SEED",
        default=default(None),
        help="seed of the sampling: the same conversation gets the same replies (default: the bundle's, or "
        "else a new one for each conversation)",
    )
    parser.add_argument(
        "--flow-steps",
        type=integer(1, MOST_FLOW_STEPS),
        metavar="N",
        default=default(None),
        help="steps of the flow per chunk (default: the bundle's; 10 is the released codec's reference, "
        "5 to 8 are faster)",
    )
    parser.add_argument(
        "--flow-schedule",
        default=default(None),
        choices=get_args(FlowSchedule),
        help="time schedule of those steps (default: cosine, the reference)",
    )
    parser.add_argument(
        "--codec-dtype",
        default=default(None),
        choices=get_args(Dtype),
        help="dtype of flow and vocoder (default: float32, float16 on a GPU)",
    )
    parser.add_argument(
        "--vocoder",
        type=paths.user_path,
        metavar="FILE",
        default=default(None),
        help="speak through this vocoder in place of the bundle's: a BigVGAN that was trained on the mel of "
        "the bundle (assets/training/README.md)",
    )
    parser.add_argument(
        "--trt-codec",
        action="store_true",
        default=default(False),
        help="run flow, vocoder and speech encoder on TensorRT engines, built at the first start (see "
        "`moss-voice trt codec`); falls back to torch if they cannot be built",
    )
    parser.add_argument(
        "--exact-encoding",
        action="store_true",
        default=default(False),
        help="encode a spoken turn once more when it ends, normalized by its loudest part, and prefill what "
        "changed (default: use the streamed codes)",
    )
    parser.add_argument(
        "--weights",
        default=default(None),
        choices=get_args(WeightFormat),
        help="weight format of the shared layers of the language model (default: native, that of --dtype)",
    )
    parser.add_argument(
        "--tails",
        action="store_true",
        default=default(None),
        help="use the format of --weights for the layers of both tails, too",
    )
    parser.add_argument(
        "--kv",
        default=default(None),
        choices=get_args(KVDtype),
        help="format of the KV cache (default: native, that of --dtype)",
    )
    parser.add_argument(
        "--prefill-tokens",
        type=integer(LEAST_PREFILL_TOKENS, LARGEST_COUNT),
        metavar="N",
        default=default(None),
        help="tokens of one prefill call at most; a longer prompt is prefilled in chunks. Fewer let other "
        f"conversations wait less, more take less time and more memory (default: {PREFILL_TOKENS})",
    )
    parser.add_argument(
        "--kernels",
        default=default(None),
        choices=get_args(Kernels),
        help="kernels of language model and codec on a GPU (default: auto, Triton if available); with "
        "torch, the speech encoder does not use onnxruntime on a CPU",
    )
    parser.add_argument(
        "--compute-capability",
        type=compute_capability,
        metavar="X.Y",
        default=default(None),
        help="run the kernels of this compute capability on a newer GPU: 8.9 for those of an RTX 4090; with "
        "`trt codec`, build for it (default: that of the GPU)",
    )
    parser.add_argument(
        "--no-graphs",
        action="store_true",
        default=default(False),
        help="launch each kernel separately on a GPU instead of replaying CUDA graphs",
    )
    parser.add_argument(
        "--gpu-memory-gb",
        type=number(0.001, 1_000_000),
        metavar="GB",
        default=default(None),
        help="limit of the GPU memory to use (default: all of it)",
    )
    parser.add_argument(
        "--backend",
        default=default(None),
        choices=get_args(Backend),
        help="run the language model in torch, or as a TensorRT-LLM engine (default: torch)",
    )
    parser.add_argument(
        "--engine",
        type=paths.user_path,
        metavar="DIR",
        default=default(None),
        help="folder of that engine, created by `moss-voice trt build`",
    )
    parser.add_argument(
        "--random-weights",
        type=integer(0, LARGEST_SEED),
        metavar="SEED",
        default=default(None),
        help="random values in every network instead of the bundle's files, to measure speed and memory",
    )


def add_sharing_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of several conversations in one engine."""
    parser.add_argument(
        "--batch-invariant",
        action="store_true",
        help="run each sequence in a step of its own, so that no reply depends on what else runs, not even "
        "by rounding (on a CPU that is always so)",
    )
    parser.add_argument(
        "--kv-blocks",
        type=integer(1, LARGEST_COUNT),
        metavar="N",
        help="blocks of the KV cache, for all conversations together (default: enough for --conversations)",
    )
    parser.add_argument(
        "--context-rows",
        type=integer(LEAST_CONTEXT_ROWS, LARGEST_COUNT),
        metavar="N",
        help="rows that a conversation remembers, about 80 ms of speech each, so that more conversations fit "
        "into the KV cache (default, and at most: the bundle's)",
    )


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
        context_rows=arguments.context_rows,
    )


def add_server_options(parser: argparse.ArgumentParser, of_subcommand: bool = True) -> None:
    """Add the server that takes the place of an engine; as in `add_engine_options`."""
    parser.add_argument(
        "--server",
        metavar="URL",
        default=argparse.SUPPRESS if of_subcommand else "",
        help="hold the conversation with this Realtime server, such as ws://127.0.0.1:8000 or "
        "wss://voice.example.org, and load no model",
    )
    parser.add_argument(
        "--server-key-file",
        type=paths.user_path,
        metavar="FILE",
        default=argparse.SUPPRESS if of_subcommand else None,
        help="file with the key of the server (default: $MOSS_VOICE_SERVER_KEY)",
    )
    parser.add_argument(
        "--engine-python",
        type=paths.user_path,
        metavar="FILE",
        default=argparse.SUPPRESS if of_subcommand else None,
        help="run the engine as a child process in the environment of this interpreter, such as "
        "~/moss-trt/bin/python with TensorRT-LLM; it needs this program with the extra serve",
    )


def add_turn_options(parser: argparse.ArgumentParser, of_subcommand: bool = True) -> None:
    """Add the options of conversations; as in `add_engine_options`."""
    parser.add_argument(
        "--eagerness",
        default=argparse.SUPPRESS if of_subcommand else None,
        choices=get_args(Eagerness),
        help="how soon a pause that sounds finished ends a turn; off goes by silence alone (default: the "
        "window's setting, else balanced)",
    )
    parser.add_argument(
        "--speculate",
        default=argparse.SUPPRESS if of_subcommand else None,
        choices=get_args(SpeculationMode),
        help="make the reply at the first pause and hold it until the turn is confirmed; auto does so while "
        "the engine keeps up (default: the window's setting, else auto)",
    )


def add_microphone_options(parser: argparse.ArgumentParser, of_subcommand: bool = True) -> None:
    """Add the options of conversations on a microphone; as in `add_engine_options`."""
    parser.add_argument(
        "--input-mode",
        default=argparse.SUPPRESS if of_subcommand else None,
        choices=get_args(InputMode),
        help="what opens a turn: voice activity, push-to-talk, or both (default: the window's setting, else "
        "voice)",
    )
    add_echo_library_option(parser, of_subcommand)


def add_echo_library_option(parser: argparse._ActionsContainer, of_subcommand: bool = True) -> None:
    """Add what cancels the echo; as in `add_engine_options`."""
    parser.add_argument(
        "--echo-library",
        default=argparse.SUPPRESS if of_subcommand else None,
        choices=get_args(EchoLibrary),
        help="what cancels the echo of the loudspeaker: the package pywebrtc-audio, or that of LiveKit "
        "(default: the window's setting, else pywebrtc)",
    )


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
    parser.add_argument("--device", default=argparse.SUPPRESS, help=_DEVICE_HELP)


def device_of(arguments: argparse.Namespace) -> str:
    """The device that was given, before or after the command, else the default."""
    return arguments.device or EngineOptions().device


def start_settings(arguments: argparse.Namespace) -> StartSettings:
    """The parsed options, as the settings for main.py."""
    if arguments.server and arguments.engine_python is not None:
        raise OptionsError("--server and --engine-python both name an engine. Leave out one of them.")
    of_engine = {
        "device": arguments.device,
        "dtype": arguments.dtype,
        "flow_steps": arguments.flow_steps,
        "flow_schedule": arguments.flow_schedule,
        "codec_dtype": arguments.codec_dtype,
        "vocoder": arguments.vocoder,
        "weight_format": arguments.weights,
        "rounds_tails": arguments.tails,
        "kv_dtype": arguments.kv,
        "prefill_tokens": arguments.prefill_tokens,
        "kernels": arguments.kernels,
        "compute_capability": arguments.compute_capability,
        "graphs": False if arguments.no_graphs else None,
        "gpu_memory_gb": arguments.gpu_memory_gb,
        "random_weights": arguments.random_weights,
        "backend": arguments.backend,
        "engine": arguments.engine,
        "trt_codec": arguments.trt_codec or None,
        "engine_cache": paths.engines_dir() if arguments.trt_codec else None,
        "exact_encoding": arguments.exact_encoding or None,
    }
    of_start = {
        "bundle": arguments.bundle,
        "voice": arguments.voice,
        "seed": arguments.seed,
        "eagerness": arguments.eagerness,
        "input_mode": arguments.input_mode,
        "speculate": arguments.speculate,
        "echo_library": arguments.echo_library,
        "server": arguments.server or None,
        "server_key": read_key(arguments.server_key_file) if arguments.server else None,
        "engine_python": arguments.engine_python,
    }
    of_engine, of_start = _given(of_engine), _given(of_start)
    bundle = of_start.pop("bundle", paths.default_bundle())
    needs_bundle = arguments.random_weights is None and not arguments.server
    return StartSettings(
        # With random weights a name may be that of a model that was never fetched.
        bundle=paths.find_bundle(bundle) if needs_bundle else bundle,
        engine=EngineOptions(**of_engine),
        given=frozenset({*of_engine, *of_start, *(["bundle"] if arguments.bundle else [])}),
        **of_start,
    )


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
