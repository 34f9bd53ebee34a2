"""Cache of built engines in a folder of the user's cache directory.

In: everything that determines an engine. Out: the engine, if it was built before. File names contain a hash
of the weights, the sizes and ranges of all tensors, the library with its version and the GPU, so an engine is
never used for anything else; unused files may be deleted at any time. Any thread; several programs may share
the folder. Engines and compiled kernels are code: the folder is the user's alone, hashes only find damage.
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

from engine_runtime.codec.graph import Graph, GraphTensor
from engine_runtime.tensorrt.library import RuntimeLibrary

VERSION = 1
"""Incremented when the same description is exported to a different graph."""
_DIGEST_BYTES = hashlib.sha256().digest_size
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineReport:
    """A built engine. `difference` is that of the ONNX file, run by onnxruntime, from torch, relative to the
    largest value; None if it was not run."""

    name: str
    library: str
    capability: str
    difference: float | None
    export_seconds: float
    build_seconds: float
    plan_bytes: int
    plan_sha256: str


class EngineStore:
    """A folder of engines; None disables the cache."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, key: str) -> tuple[bytes, EngineReport] | None:
        """The engine of a key, None if it is missing or damaged."""
        if self._folder is None:
            return None
        try:
            report = EngineReport(**json.loads(self._file(key, ".json").read_text(encoding="utf-8")))
            plan = self._file(key, ".plan").read_bytes()
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            _log.warning("the cached engine %s cannot be read and is rebuilt: %s", key, error)
            return None
        if hashlib.sha256(plan).hexdigest() != report.plan_sha256:
            _log.warning("the cached engine %s is damaged and is rebuilt", key)
            return None
        return plan, report

    def save(self, key: str, plan: bytes, report: EngineReport) -> None:
        """Store an engine. If the folder cannot be written, that is logged and the engine is rebuilt next
        time."""
        self._write(key, ".plan", plan)
        self._write(key, ".json", json.dumps(asdict(report), indent=1).encode())

    def load_compiled(self, key: str) -> bytes | None:
        """Kernels that TensorRT for RTX compiled on this machine for an engine."""
        if self._folder is None:
            return None
        try:
            content = self._file(key, ".jit").read_bytes()
        except OSError:
            return None
        digest, compiled = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(compiled).digest() != digest:
            _log.warning("the compiled kernels of the cached engine %s are damaged and made again", key)
            return None
        return compiled

    def save_compiled(self, key: str, compiled: bytes) -> None:
        """Store them behind their hash, as `save` does."""
        self._write(key, ".jit", hashlib.sha256(compiled).digest() + compiled)

    def _file(self, key: str, suffix: str) -> Path:
        assert self._folder is not None
        return self._folder / (key + suffix)

    def _write(self, key: str, suffix: str, content: bytes) -> None:
        if self._folder is None:
            return
        file = self._file(key, suffix)
        unfinished = file.with_name(f"{file.name}.{os.getpid()}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished.write_bytes(content)
            unfinished.replace(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            _log.warning("the engine cannot be cached in %s: %s", self._folder, error)


def engine_key(graph: Graph, weights: str, library: RuntimeLibrary, capability: str) -> str:
    """Key of an engine: the name of its graph, and a hash of everything that determines its results and its
    platform. `weights` identifies the weights and the configuration of the bundle's codec."""
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


def _described(spec: GraphTensor) -> list[Any]:
    return [spec.name, str(spec.dtype), spec.at("least"), spec.at("usual"), spec.at("most")]
