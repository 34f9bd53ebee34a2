"""moss-voice trt inspect: show an engine's precision, limits, load time and tensors.

Loads the engine, because only the engine lists its tensors; --files only reads its configuration, without a
GPU.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from app import paths
from app.commands.shared_options import add_device_option, device_of

if TYPE_CHECKING:
    from engine_runtime.tensorrt.engine import EngineTensor, Shape

_COLUMNS = ("tensor", "direction", "number", "shape", "least", "best", "most")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folder", metavar="ENGINE", type=paths.user_path, help="folder of the engine")
    add_device_option(parser)
    parser.add_argument("--files", action="store_true", help="read config.json only, do not load the engine")
    parser.add_argument("--json", action="store_true", help="end the output with one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Print the description from the files, then that of the loaded engine."""
    from engine_runtime.tensorrt.llm.engine_directory import EngineDirectory

    engine = EngineDirectory.open(arguments.folder)
    document = engine.document()
    print("\n".join(_lines(document)))
    if not arguments.files:
        from engine_runtime.hardware import usable_device
        from engine_runtime.tensorrt.llm.loading import check_device, load_session

        device = usable_device(device_of(arguments))
        check_device(device)
        session, _ = load_session(engine, device)
        loaded = session.document()
        print("\n".join(_lines(loaded)))
        tensors = [_row(tensor) for tensor in session.tensors]
        session.close()
        print("\n".join(_table(tensors)))
        document |= loaded | {"tensors": tensors}
    if arguments.json:
        print(json.dumps(document))
    return 0


def _row(tensor: EngineTensor) -> dict[str, str]:
    """One tensor; the bounds are those of the first profile."""
    bounds = tensor.ranges[0] if tensor.ranges else ((), (), ())
    values = (
        tensor.name,
        "in" if tensor.is_input else "out",
        str(tensor.dtype).removeprefix("torch."),
        _sizes(tensor.shape),
        *(_sizes(bound) for bound in bounds),
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _sizes(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _lines(document: dict[str, Any]) -> list[str]:
    return [
        f"{name.replace('_', ' '):<24}{'-' if value is None else value}" for name, value in document.items()
    ]


def _table(rows: list[dict[str, str]]) -> list[str]:
    widths = {column: max(len(column), *(len(row[column]) for row in rows)) for column in _COLUMNS}
    lines = [{column: column for column in _COLUMNS}, *rows]
    return ["", *("  ".join(f"{line[c]:<{widths[c]}}" for c in _COLUMNS).rstrip() for line in lines)]
