"""The codec's engines: builds them from loaded networks, keeps them, and makes the stages run on them.

In: the loaded flow, vocoder and speech tokenizer, and a folder of engines. Out: `build_engines` builds the
missing ones, for this machine or ahead of time for another; `run_on_engines` makes the stages use them. Every
engine is compared with torch on one input before it is used. Called while an engine is loaded, in its thread.

File names in the folder contain a hash of the weights, the sizes and ranges of all tensors, the library with
its version and the GPU, so an engine is never used for anything else; unused files may be deleted at any
time, and several programs may share the folder. Engines and compiled kernels are code: the folder is the
user's alone, hashes only find damage.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from engine_runtime.bundle.bundle import Bundle, hash_file
from engine_runtime.bundle.weights import LoadProgress
from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.graph import Graph, GraphTensor
from engine_runtime.codec.loading import chosen_codec, load_speech_tokenizer, load_token2mel, load_vocoder
from engine_runtime.codec.onnx_graph import check_onnx, export_onnx, times_against_torch
from engine_runtime.codec.runtime import CodecRuntime, packet_frames
from engine_runtime.codec.speech_tokenizer.encoder_graph import EngineSpeechEncoder, speech_encoder_graph
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.codec.vocoder.bigvgan_stream import BigVGANWindows
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.errors import EngineError, ExecutorError, Problem
from engine_runtime.hardware import usable_device
from engine_runtime.models.hift import HiFT
from engine_runtime.options import EngineOptions
from engine_runtime.tensorrt.codec.engine import EngineRunner, build_engine
from engine_runtime.tensorrt.codec.graphs import (
    EngineEstimator,
    EngineHiFT,
    EngineWindows,
    bigvgan_graphs,
    estimator_graph,
    hift_graph,
)
from engine_runtime.tensorrt.library import RuntimeLibrary, runtime_library

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


@dataclass(frozen=True, slots=True)
class Codec:
    """The stages that have engines, and an identifier of their weights."""

    token2mel: Token2Mel
    vocoder: Vocoder
    speech_tokenizer: SpeechTokenizer
    packet_frames: tuple[int, ...]
    weights: str
    """Identifies the weights and sizes of all three stages (`weights_of`)."""

    def graphs(self) -> list[Graph]:
        """The graphs to export, on the device of the stages: estimator, speech encoder, then the
        vocoder's."""
        rate = self.token2mel.frames_per_code
        chunk = self.token2mel.chunk_codes
        codes = {chunk, *(-(-frames // rate // chunk) * chunk for frames in self.packet_frames)}
        estimator = estimator_graph(self.token2mel.estimator, sorted(codes))
        encoder = speech_encoder_graph(self.speech_tokenizer.model)
        vocoder, frames = self.vocoder, sorted(self.packet_frames)
        if isinstance(network := vocoder.network, BigVGANWindows):
            context = (vocoder.left_context_frames, vocoder.right_context_frames)
            return [
                estimator,
                encoder,
                *bigvgan_graphs(network, vocoder.mel.n_mels, context, frames, vocoder.like),
            ]
        assert isinstance(network, HiFT), "the codec already runs on engines"
        return [
            estimator,
            encoder,
            hift_graph(network, vocoder.right_context_frames, frames, vocoder.like),
        ]


def codec_of(
    bundle: Bundle,
    token2mel: Token2Mel,
    vocoder: Vocoder,
    speech_tokenizer: SpeechTokenizer,
    random_weights: int | None = None,
) -> Codec:
    """The codec of a bundle whose stages are loaded."""
    return Codec(
        token2mel,
        vocoder,
        speech_tokenizer,
        tuple(packet_frames(bundle.flow)),
        weights_of(bundle, random_weights),
    )


def load_codec(bundle: Bundle, options: EngineOptions) -> Codec:
    """Speech encoder, flow and vocoder without the language model, for building their engines; raises as
    `load_stages` does."""
    device, bundle = usable_device(options.device), chosen_codec(bundle, options)
    loading = LoadProgress(
        [one.weights for one in (bundle.speech_encoder, bundle.flow, bundle.vocoder)], None
    )
    runtime = CodecRuntime()
    speech_tokenizer = load_speech_tokenizer(bundle, device, options, loading)
    token2mel = load_token2mel(bundle, device, options, runtime, None, loading)
    vocoder = load_vocoder(bundle, device, options, runtime, loading)
    return codec_of(bundle, token2mel, vocoder, speech_tokenizer, options.random_weights)


def weights_of(bundle: Bundle, random_weights: int | None) -> str:
    """SHA-256, lower-case hex, of the codec's configuration and the hashes of its files, or of the seed of
    random weights."""
    sections = (bundle.speech_encoder, bundle.flow, bundle.vocoder)
    described = {
        "config": [section.config for section in sections],
        "files": [
            value for section in sections for file in section.weights if (value := _hash(bundle, file))
        ],
        "random_weights": random_weights,
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _hash(bundle: Bundle, file: Path) -> str | None:
    """Hash of a weights file, as the manifest says, or of a vocoder in a file of its own; None without a
    file."""
    name = file.relative_to(bundle.path).as_posix() if file.is_relative_to(bundle.path) else str(file)
    if name in bundle.files:
        return bundle.files[name].sha256.lower()
    return hash_file(file) if file.is_file() else None


def build_engines(
    codec: Codec, store: EngineStore, library: RuntimeLibrary, capability: str
) -> Iterator[tuple[Graph, bytes, EngineReport]]:
    """Every graph with its engine, from the store or built now. Raises EngineError if one cannot be
    exported or built, ExecutorError if an exported graph's results differ from torch's."""
    for graph in codec.graphs():
        key = engine_key(graph, codec.weights, library, capability)
        kept = store.load(key)
        if kept is None:
            kept = _build(graph, library, capability)
            store.save(key, *kept)
        yield graph, *kept


def _build(graph: Graph, library: RuntimeLibrary, capability: str) -> tuple[bytes, EngineReport]:
    with tempfile.TemporaryDirectory(prefix="moss-voice-") as folder:
        file = Path(folder) / f"{graph.name}.onnx"
        start = time.perf_counter()
        export_onnx(graph, file)
        exported = time.perf_counter()
        difference = check_onnx(graph, file)
        checked = time.perf_counter()
        plan = build_engine(graph, file, library, capability)
        return plan, EngineReport(
            graph.name,
            library.label,
            capability,
            difference,
            round(exported - start, 3),
            round(time.perf_counter() - checked, 3),
            len(plan),
            hashlib.sha256(plan).hexdigest(),
        )


def export_files(codec: Codec, folder: Path) -> Iterator[dict[str, Any]]:
    """Write the ONNX file of every graph into a folder; a description of each, with its difference from torch
    and the times of both on one input. Raises as `build_engines`."""
    for graph in codec.graphs():
        start, file = time.perf_counter(), folder / f"{graph.name}.onnx"
        export_onnx(graph, file)
        seconds = round(time.perf_counter() - start, 3)
        difference = check_onnx(graph, file)
        row = {"name": graph.name, "file": str(file), "export_seconds": seconds, "difference": difference}
        if difference is not None:
            torch_ms, onnxruntime_ms = times_against_torch(graph, file)
            row |= {"torch_ms": round(torch_ms, 3), "onnxruntime_ms": round(onnxruntime_ms, 3)}
        yield row


def run_on_engines(codec: Codec, store: EngineStore, library: RuntimeLibrary, device: torch.device) -> None:
    """Build the missing engines for the GPU `device`, and make the stages use them.

    Raises EngineError or ExecutorError; the stages are unchanged then.
    """
    capability = compute_capability(device)
    runners = {}
    for graph, plan, _ in build_engines(codec, store, library, capability):
        key = engine_key(graph, codec.weights, library, capability)
        runner = EngineRunner(graph, plan, library, device, store.load_compiled(key))
        graph.try_out(runner)
        if (compiled := runner.compiled()) is not None:
            store.save_compiled(key, compiled)
        runners[graph.name] = (graph, runner)
    token2mel, vocoder = codec.token2mel, codec.vocoder
    token2mel.estimator.engine = EngineEstimator(token2mel.estimator, runners["estimator"][1])
    tokenizer = codec.speech_tokenizer
    tokenizer.step = EngineSpeechEncoder(tokenizer.model, runners["speech_encoder"][1])
    tokenizer.backend = library.label
    if isinstance(network := vocoder.network, BigVGANWindows):
        context = (vocoder.left_context_frames, vocoder.right_context_frames)
        vocoder.network = EngineWindows(network, context, runners["vocoder_start"], runners["vocoder"])
    else:
        assert isinstance(network, HiFT)
        vocoder.network = EngineHiFT(network, *runners["vocoder"])


def compute_capability(device: torch.device) -> str:
    """The compute capability of a GPU, such as "8.9"."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"{major}.{minor}"


def use_engines(codec: Codec, folder: Path | None, device: torch.device) -> Problem:
    """Run the codec on engines if possible; returns one line with the backend and the reason. `is_on_engines`
    checks the result."""
    if device.type != "cuda":
        return Problem("The codec runs in torch: TensorRT needs an NVIDIA GPU (--device cuda).")
    try:
        library = runtime_library()
        run_on_engines(codec, EngineStore(folder), library, device)
    except (EngineError, ExecutorError) as error:
        return Problem("The codec runs in torch: {error}", error=error)
    return Problem("The codec runs on {library}.", library=library.label)


def is_on_engines(codec: Codec) -> bool:
    """Whether `use_engines` succeeded."""
    return codec.token2mel.estimator.engine is not None
