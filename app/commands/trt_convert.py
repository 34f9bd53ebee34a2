"""moss-voice trt convert: create a TensorRT-LLM checkpoint from a language model.

Takes a bundle, or the folder that the released model was downloaded to. The weights are fused into the layout
of TensorRT-LLM without changing values, and streamed through memory. An interrupted run is resumed, and the
result is compared with the model before the folder counts as a checkpoint. Notes and progress go to stderr,
the checkpoint's folder to stdout.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from app import paths
from app.progress import progress_bar, say
from engine_runtime.options import Dtype


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "model",
        metavar="BUNDLE",
        nargs="?",
        type=paths.user_path,
        help="folder or name of a bundle, or folder of a released checkpoint (default: the shipped bundle)",
    )
    parser.add_argument(
        "--to", type=paths.user_path, metavar="DIR", required=True, help="folder of the checkpoint"
    )
    parser.add_argument(
        "--dtype",
        choices=get_args(Dtype),
        help="dtype of the checkpoint (default: that of the model)",
    )
    parser.add_argument(
        "--bundle-to",
        type=paths.user_path,
        metavar="DIR",
        help="also make a bundle here that runs from the checkpoint, with links to all other files",
    )


def run(arguments: argparse.Namespace) -> int:
    """Check, write, compare, print the folder."""
    from engine_runtime.bundle.released.download import size_in_words
    from engine_runtime.tensorrt.checkpoint.convert import (
        Conversion,
        check_bundle_target,
        find_language_model,
        make_bundle,
    )

    source = paths.default_bundle() if arguments.model is None else paths.find_bundle(arguments.model)
    to: Path = arguments.to
    bundle_to: Path | None = arguments.bundle_to
    if bundle_to is not None:
        check_bundle_target(source, to, bundle_to)
    conversion = Conversion.start(find_language_model(source), to, arguments.dtype)
    file = conversion.file
    size, dtype = size_in_words(file.bytes), conversion.config.dtype
    say(f"{conversion.model.name}: {len(file.specs)} tensors, {size} in {dtype}.")
    if rounded := conversion.rounded:
        say(
            f"{len(rounded)} tensors of the model lose digits: they are stored in wider numbers than {dtype}."
        )
    try:
        with progress_bar("write") as progress:
            conversion.write(progress)
        with progress_bar("check") as progress:
            conversion.finish(progress)
    except KeyboardInterrupt:
        say("Interrupted. The same command resumes where it stopped.")
        raise
    say("Every tensor was read again and is that of the model.")
    if bundle_to is not None:
        say("Hashing the checkpoint for its bundle ...")
        bundle = make_bundle(source, to, bundle_to)
        say(f"Talk to it with: moss-voice --bundle {bundle.path}")
    print(to)
    return 0
