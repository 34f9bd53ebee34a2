"""Single access point to onnxruntime: sessions on the CPU with a fixed number of threads.

In: an ONNX model, as a file, from a package of PyPI or as bytes. Out: an `InferenceSession`. Since 1.29 the
library's Linux builds send usage events and store a device id unless ORT_DISABLE_TELEMETRY is set before it
is loaded; `engine_runtime/__init__.py` sets it. Any thread.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_runtime import installation
from engine_runtime.errors import MossVoiceError

_ERRORS_ONLY = 3
_EXACT_INT8 = ("session.x64quantprecision", "1")
"""Products of int8 without overflow also on processors without VNNI, where they take longer."""


class OnnxModelError(ValueError):
    """A model that onnxruntime cannot load; callers add the name of the network."""


def create_session(
    model: Path | bytes,
    *,
    purpose: str,
    threads: int = 1,
    config: Mapping[str, str] | None = None,
    initializers: Mapping[str, NDArray[np.float32]] | None = None,
) -> Any:
    """A session on the CPU. `config` holds session configuration entries, by the library's keys.

    `initializers` are the weights of a graph without weights, by name: exactly those, in these shapes. They
    are not copied, so keep them alive as long as the session.

    Raises MossVoiceError without onnxruntime, with the reason why it is needed: `purpose`, such as "detect
    speech". Raises OnnxModelError for a model that cannot be loaded.
    """
    onnxruntime = _library(purpose)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY  # hide warnings about the graph
    for key, value in dict([_EXACT_INT8], **(config or {})).items():
        options.add_session_config_entry(key, value)
    try:
        if initializers:
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in initializers.values()]
            options.add_external_initializers(list(initializers), values)
        return onnxruntime.InferenceSession(
            model if isinstance(model, bytes) else os.fspath(model),
            sess_options=options,
            providers=["CPUExecutionProvider"],
        )
    except Exception as error:  # onnxruntime has its own exception types, none of them public
        raise OnnxModelError(str(error)) from error


def find_model(package: str, file: str) -> Path | None:
    """The network in `file` (relative to the folder of the package) of an installed top-level package, or
    None.

    The package is not imported: that would need what it depends on (torch, web frameworks).
    """
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / file
        if path.is_file():
            return path
    return None


def with_output(model: bytes, tensor: str) -> bytes:
    """The `model` with one more output, behind those it has: a float32 tensor within its graph, by name.

    Loading fails with OnnxModelError if the graph has no such tensor.
    """
    # An ONNX file is a protocol buffer, and what follows one is merged into it: lists, such as the outputs of
    # the graph, grow. The numbers are those of onnx.proto, each with the wire type of a message.
    element_type = _field(1, b"\x08\x01")
    output = _field(1, tensor.encode()) + _field(2, element_type)
    return model + _field(7, _field(12, output))


def _field(number: int, content: bytes) -> bytes:
    if len(content) >= 128:
        raise ValueError(f"at most 127 bytes fit one byte of length, got {len(content)}")
    return bytes((number << 3 | 2, len(content))) + content


def library_version() -> str:
    """The installed version, for reports. Raises importlib.metadata.PackageNotFoundError without it."""
    return metadata.version("onnxruntime")


def _library(purpose: str) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MossVoiceError(
            "onnxruntime is missing, which is needed to {purpose}.",
            "{remedy}",
            purpose=purpose,
            remedy=installation.remedy(),
        ) from error
    return onnxruntime
