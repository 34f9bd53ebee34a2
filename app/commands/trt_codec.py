"""moss-voice trt codec: build the codec's TensorRT engines ahead of time, for `--trt-codec`.

Exports flow estimator, speech encoder and vocoder to ONNX, compares each file with torch, builds an engine
and stores it in the user's cache for the next start. TensorRT for RTX builds for the GPU of another machine
as well (--compute-capability); TensorRT builds for the local GPU. --onnx writes the ONNX files to a folder,
compares their CPU times with torch, and builds nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app import paths
from app.commands.shared_options import add_engine_options, start_settings
from engine_runtime.errors import MossVoiceError
from engine_runtime.options import EngineOptions

if TYPE_CHECKING:
    from engine_runtime.bundle.bundle import Bundle
    from engine_runtime.tensorrt.codec.engines import Codec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_engine_options(parser)
    parser.add_argument(
        "--onnx", type=paths.user_path, metavar="DIR", help="write ONNX files there, build nothing"
    )
    parser.add_argument(
        "--engines",
        type=paths.user_path,
        metavar="DIR",
        help="folder of the engines (default: the user's cache)",
    )
    parser.add_argument("--json", action="store_true", help="end the output with one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Export, compare, build, print."""
    settings = start_settings(arguments)
    from engine_runtime.codec.onnx_graph import require_exporter
    from engine_runtime.tensorrt.codec.engines import export_files, load_codec

    require_exporter()
    folder = arguments.onnx or arguments.engines or paths.engines_dir()
    _check_folder(folder)  # before minutes of building
    codec = load_codec(_open(settings.bundle, settings.engine), settings.engine)
    if arguments.onnx is not None:
        rows = export_files(codec, folder)
    else:
        rows = _built(codec, folder, _capability(arguments.compute_capability, settings.engine.device))
    done = []
    for row in rows:
        done.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    if arguments.json:
        print(json.dumps({"bundle": str(settings.bundle), "engines": done}))
    return 0


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise MossVoiceError(
            "{folder} cannot be written to: {reason}.",
            "Choose another folder.",
            folder=folder,
            reason=error.strerror,
        ) from None


def _built(codec: Codec, folder: Path, capability: str) -> Iterator[dict[str, Any]]:
    from engine_runtime.tensorrt.codec.engines import EngineStore, build_engines
    from engine_runtime.tensorrt.library import runtime_library

    for _, _, report in build_engines(codec, EngineStore(folder), runtime_library(), capability):
        row = asdict(report)
        del row["plan_sha256"]
        yield row


def _capability(chosen: str | None, device: str) -> str:
    """The compute capability to build for. Raises MossVoiceError if it is unknown."""
    if chosen is not None:
        return chosen
    if device == "cpu":
        raise MossVoiceError(
            "The GPU to build for is unknown.",
            "Add --device cuda, or --compute-capability 8.9 for an RTX 4090.",
        )
    from engine_runtime.hardware import usable_device
    from engine_runtime.tensorrt.codec.engines import compute_capability

    return compute_capability(usable_device(device))


def _open(folder: Path, options: EngineOptions) -> Bundle:
    from engine_runtime.bundle.bundle import Bundle
    from engine_runtime.bundle.released.full_size import describe

    return Bundle.open(folder) if options.random_weights is None else describe(folder)
