"""moss-voice trt: from a model to a TensorRT-LLM engine, step by step.

`convert` creates a TensorRT-LLM checkpoint from a bundle, `quantize` an 8-bit or 4-bit checkpoint from that,
`build` an engine from either, on the GPU that will run it and with TensorRT-LLM installed; `inspect` and
`verify` examine an engine. `convert` and `quantize` need no library of NVIDIA. `codec` builds engines of the
other networks.
"""

from __future__ import annotations

import argparse
import importlib
from types import ModuleType

STEPS = {
    "convert": "make a TensorRT-LLM checkpoint from a bundle",
    "quantize": "make an 8-bit or 4-bit checkpoint from a converted one",
    "build": "build an engine from a checkpoint",
    "inspect": "describe an engine",
    "verify": "compare an engine with the torch executor",
    "codec": "build engines of flow, vocoder and speech encoder ahead of time",
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand and its own: module trt_<name> declares its options and carries them out."""
    parser = commands.add_parser(
        "trt",
        help="convert, quantize, build and check a TensorRT-LLM engine",
        description=__doc__,
    )
    steps = parser.add_subparsers(title="steps", metavar="STEP", dest="step", required=True)
    for name, help_text in STEPS.items():
        if (module := _module(name)) is not None:
            step = steps.add_parser(name, help=help_text, description=module.__doc__)
            module.add_arguments(step)
            step.set_defaults(run=module.run)


def _module(name: str) -> ModuleType | None:
    """The module of the step; None if this copy of the program lacks it."""
    path = f"app.commands.trt_{name}"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        return None
