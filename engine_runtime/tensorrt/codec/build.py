"""Builds an engine of TensorRT or TensorRT for RTX from an exported graph.

In: a `Graph`, its ONNX file, the library and, for TensorRT for RTX, the compute capability to build for. Out:
the engine as bytes. TensorRT for RTX needs no GPU to build; TensorRT builds for the GPU of this machine. The
parsed network is checked against the graph before the build. Any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engine_runtime.codec.graph import Graph, GraphTensor
from engine_runtime.errors import EngineError
from engine_runtime.tensorrt.engine import EngineTensor, network_tensors
from engine_runtime.tensorrt.library import RuntimeLibrary, logger, reason


def build_engine(graph: Graph, onnx_file: Path, library: RuntimeLibrary, capability: str) -> bytes:
    """Build an engine for a compute capability ("8.9"). Raises EngineError naming the step that failed."""
    trt = library.module
    if any(spec.dtype == torch.bfloat16 for spec in graph.inputs):
        raise EngineError(
            f"{library.label} cannot build the {graph.name} in bfloat16, in which it has neither Mish nor "
            "transposed convolutions. Use --codec-dtype float16 or float32."
        )
    log = logger(library)
    log.last_error = ""

    def require(done: Any, what: str) -> Any:
        if done is None or done is False:
            raise EngineError(
                f"{library.label} cannot build the {graph.name}: {what} failed{reason(log)}. "
                "Run the codec in torch, without --trt-codec."
            )
        return done

    builder = require(trt.Builder(log), "making a builder")
    # Strongly typed: the dtypes are those of the file, so nothing that torch computes in float32 is lowered.
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = require(builder.create_network(flags), "making a network")
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(onnx_file)):
        errors = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        log.last_error = errors or log.last_error
        require(False, f"reading {onnx_file.name}")
    check_network(graph, network_tensors(network))
    config = require(builder.create_builder_config(), "making a configuration")
    config.clear_flag(trt.BuilderFlag.TF32)  # on by default; rounds float32 to 10 bits
    profile = require(builder.create_optimization_profile(), "making a profile")
    for spec in graph.inputs:
        if spec.dynamic:
            # returns nothing; an invalid range is rejected with the profile
            profile.set_shape(spec.name, spec.at("least"), spec.at("usual"), spec.at("most"))
    require(config.add_optimization_profile(profile) >= 0, "adding the range of sizes")
    if library.is_rtx:
        config.num_compute_capabilities = 1
        target = getattr(trt.ComputeCapability, "SM" + capability.replace(".", ""), None)
        if target is None:
            raise EngineError(
                f"{library.label} does not support compute capability {capability}. Run without "
                "--trt-codec, or install TensorRT itself beside it (packaging/TENSORRT.md)."
            )
        require(config.set_compute_capability(target, 0), f"choosing compute capability {capability}")
    return bytes(require(builder.build_serialized_network(network, config), "building"))


def check_network(graph: Graph, tensors: Sequence[EngineTensor]) -> None:
    """Raise EngineError unless a parsed network has the tensors of the graph: names, dtypes, shapes."""
    for kind, specs, is_input in (("inputs", graph.inputs, True), ("outputs", graph.outputs, False)):
        found = [tensor for tensor in tensors if tensor.is_input == is_input]
        names = [tensor.name for tensor in found]
        if names != [spec.name for spec in specs]:
            raise EngineError(
                f"The {graph.name} was exported with the {kind} {names}, not "
                f"{[spec.name for spec in specs]}. Update torch, or run without --trt-codec."
            )
        for spec, tensor in zip(specs, found, strict=True):
            check_tensor(graph, spec, tensor)


def check_tensor(graph: Graph, spec: GraphTensor, tensor: EngineTensor) -> None:
    """Raise EngineError unless a tensor of a network or an engine matches the graph."""
    if not spec.agrees(tensor.shape, is_output=spec in graph.outputs) or tensor.dtype != spec.dtype:
        raise EngineError(
            f"{graph.name}: tensor {spec.name} is {tensor.dtype} {list(tensor.shape)}, not {spec.dtype} "
            f"{list(spec.engine_shape)}. Delete the cached engine, or run without --trt-codec."
        )
