"""Engines that were built, kept in a folder of the user's cache.

In: what decides an engine's content. Out: the engine, if exactly that one was built before. The name of the
files holds a hash of the weights, the sizes and ranges of all tensors, the library with its version and the
GPU, so an engine is never used for something else; what is not used any more may be deleted at any time. Any
thread; several programs may share the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine_runtime.codec.tensorrt.graph import Graph, TensorSpec
from engine_runtime.cuda.tensorrt_library import RuntimeLibrary

VERSION = 1
"""Raised when the same description is exported as another graph."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What is known of a built engine. `difference` is that of the ONNX file, run by onnxruntime, from torch,
    as a share of the largest value; None where it was not run."""

    name: str
    library: str
    capability: str
    difference: float | None
    export_seconds: float
    build_seconds: float
    plan_bytes: int
    plan_sha256: str


class EngineStore:
    """A folder of engines; None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, key: str) -> tuple[bytes, EngineReport] | None:
        """The engine of a key, None where it is not there or damaged."""
        if self._folder is None:
            return None
        try:
            report = EngineReport(**json.loads(self._file(key, ".json").read_text(encoding="utf-8")))
            plan = self._file(key, ".plan").read_bytes()
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            _log.warning("the kept engine %s cannot be read and is built anew: %s", key, error)
            return None
        if hashlib.sha256(plan).hexdigest() != report.plan_sha256:
            _log.warning("the kept engine %s is damaged and is built anew", key)
            return None
        return plan, report

    def save(self, key: str, plan: bytes, report: EngineReport) -> None:
        """Keep an engine. A folder that cannot be written is logged: the engine is built again next time."""
        self._write(key, ".plan", plan)
        self._write(key, ".json", json.dumps(asdict(report), indent=1).encode())

    def load_compiled(self, key: str) -> bytes | None:
        """What TensorRT for RTX compiled on this machine for an engine."""
        if self._folder is None:
            return None
        try:
            return self._file(key, ".jit").read_bytes()
        except OSError:
            return None

    def save_compiled(self, key: str, compiled: bytes) -> None:
        """Keep it, as `save`."""
        self._write(key, ".jit", compiled)

    def _file(self, key: str, suffix: str) -> Path:
        assert self._folder is not None
        return self._folder / (key + suffix)

    def _write(self, key: str, suffix: str, content: bytes) -> None:
        if self._folder is None:
            return
        file = self._file(key, suffix)
        unfinished = file.with_name(f"{file.name}.{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(content)
            unfinished.replace(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            _log.warning("the engine cannot be kept in %s: %s", self._folder, error)


def engine_key(graph: Graph, weights: str, library: RuntimeLibrary, capability: str) -> str:
    """Name of an engine: that of its graph, and a hash of all that decides what it computes and where it
    runs. `weights` stands for the weights and the configuration of the bundle's codec."""
    described = {
        "version": VERSION,
        "weights": weights,
        "inputs": [_described(spec) for spec in graph.inputs],
        "outputs": [_described(spec) for spec in graph.outputs],
        "library": library.label,
        "capability": capability,
    }
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    return f"{graph.name}-{digest[:24]}"


def _described(spec: TensorSpec) -> list[Any]:
    return [spec.name, str(spec.dtype), spec.at("least"), spec.at("usual"), spec.at("most")]
