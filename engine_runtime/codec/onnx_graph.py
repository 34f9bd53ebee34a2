"""An exported part of the codec as an ONNX file: written, run by onnxruntime, and compared with torch.

In: a `Graph`. Out: a file (with a .data file for large weights), with all variable axes dynamic, or a small
file without weights; a `Runner` of such a file on the CPU. Exporting needs the packages onnx and onnxscript,
which torch's exporter uses. `OnnxRunner` runs in the thread of its caller, with one thread by default,
because the codec runs beside the language model.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import statistics
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engine_runtime import installation
from engine_runtime.codec.graph import Extent, Graph
from engine_runtime.cuda.stopwatch import times_ms
from engine_runtime.errors import EngineError, ExecutorError
from engine_runtime.onnx_runtime import create_session


class OnnxRunner:
    """Implements `Runner`."""

    def __init__(
        self,
        graph: Graph,
        model: Path | bytes,
        threads: int = 1,
        *,
        purpose: str = "check an exported codec",
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`weights`, on the CPU, are for a model file without weights; they are not copied. Raises as
        `create_session` does."""
        self._graph = graph
        self._weights = {name: value.detach().numpy() for name, value in (weights or {}).items()}
        self._session = create_session(model, purpose=purpose, threads=threads, initializers=self._weights)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the file on the CPU. ExecutorError for inputs that do not match the graph or the model."""
        self._graph.check_inputs(inputs)
        named = {
            spec.name: value.cpu().contiguous().numpy()
            for spec, value in zip(self._graph.inputs, inputs, strict=True)
        }
        try:
            outputs = self._session.run([spec.name for spec in self._graph.outputs], named)
        except Exception as error:  # onnxruntime has its own exception types, none of them public
            raise ExecutorError(
                "onnxruntime cannot run the {graph}: {error}", graph=self._graph.name, error=error
            ) from error
        return tuple(torch.from_numpy(value) for value in outputs)


OPSET = 20
"""The first opset with Gelu, after Mish (18) and LayerNormalization (17); all parsers in use support it."""


def require_exporter() -> None:
    """Raise EngineError unless torch can export."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise EngineError(
            "Exporting the codec needs {missing}.",
            "{remedy}",
            missing=" and ".join(missing),
            remedy=installation.add("trt-codec"),
        )


def export_onnx(graph: Graph, file: Path) -> None:
    """Write the graph to a file. Raises EngineError if the packages are missing or torch cannot export
    it."""
    with _reporting(graph):
        _exported(graph).save(file)


def export_without_weights(graph: Graph, file: Path) -> None:
    """Write the graph to a file with only the names and shapes of its weights, as in the state dict of its
    module. The same graph yields the same bytes. Raises as `export_onnx`."""
    with _reporting(graph):
        # The optimizer would fold weights into new ones without a name in the state dict.
        model = _exported(graph, optimize=False).model_proto
        file.write_bytes(_without_weights(model).SerializeToString(deterministic=True))


def _without_weights(model: Any) -> Any:
    """Remove the values of the module's weights, and the exporter's metadata with paths of this machine."""
    prefix = f"{_AnyNumber.CHILD}."  # only names of weights have dots
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
        node.input[:] = [name.removeprefix(prefix) for name in node.input]
    for initializer in model.graph.initializer:
        del initializer.metadata_props[:]
        if initializer.name.startswith(prefix):
            initializer.name = initializer.name.removeprefix(prefix)
            initializer.ClearField("raw_data")
            initializer.data_location = initializer.EXTERNAL
            initializer.external_data.add(key="location", value="weights")
    for remarks in (model.metadata_props, model.graph.metadata_props, model.graph.value_info):
        del remarks[:]
    for value in (*model.graph.input, *model.graph.output):
        del value.metadata_props[:]
    return model


def _exported(graph: Graph, *, optimize: bool = True) -> Any:
    """torch's ONNXProgram of the graph."""
    require_exporter()
    # Each dimension is dynamic by itself: the exporter infers that `mask` is as long as `past` plus `x`.
    dynamic = tuple(
        {
            place: torch.export.Dim.DYNAMIC(min=size.at("least"), max=size.at("most"))
            for place, size in spec.dynamic.items()
        }
        or None
        for spec in graph.inputs
    )
    with torch.no_grad():
        program = torch.export.export(
            _AnyNumber(graph.module), graph.examples("usual"), dynamic_shapes=(dynamic,), strict=False
        )
        # Given examples, torch 2.9 writes checks of them into the graph that it cannot run itself.
        program.example_inputs = None
        return torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=[spec.name for spec in graph.inputs],
            output_names=[spec.name for spec in graph.outputs],
            optimize=optimize,
            verbose=False,
        )


@contextlib.contextmanager
def _reporting(graph: Graph) -> Iterator[None]:
    """Suppress the exporter's output, and raise errors that name the graph."""
    try:
        with _quiet():
            yield
    except (RuntimeError, ValueError, TypeError, OSError) as error:  # torch's export errors are RuntimeErrors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise EngineError(
            "The {graph} of this bundle cannot be exported: {reason}.",
            "Run the codec in torch, without --trt-codec.",
            graph=graph.name,
            reason=reason,
        ) from error


class _AnyNumber(nn.Module):
    """A module with all arguments in one tuple, so that their shapes are declared uniformly."""

    CHILD = "module"
    """The exporter's prefix of weight names."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Any:
        return self.module(*inputs)


def check_onnx(graph: Graph, file: Path) -> float | None:
    """Run a file and the module on the least and the usual size; returns the largest difference, relative to
    the largest value, None in bfloat16, which onnxruntime lacks. Raises ExecutorError if they differ by more
    than the graph's tolerance."""
    if any(spec.dtype == torch.bfloat16 for spec in graph.inputs):
        return None
    runner, worst = OnnxRunner(graph, file), 0.0
    extents: tuple[Extent, ...] = ("least", "usual")
    for seed, extent in enumerate(extents):
        inputs = graph.examples(extent, seed)
        with torch.no_grad():
            want = [value.cpu() for value in graph.module(*inputs)]
        worst = max(worst, graph.check_outputs(runner(*inputs), want))
    return worst


def times_against_torch(graph: Graph, file: Path, repeats: int = 10) -> tuple[float, float]:
    """Median milliseconds of the usual size: the graph in torch on its device, and onnxruntime with as many
    threads on the CPU."""
    inputs = graph.examples("usual")
    runner = OnnxRunner(graph, file, torch.get_num_threads())
    with torch.inference_mode():
        in_torch = times_ms(lambda: graph.module(*inputs), graph.device, repeats, warm_up=2)
        in_onnx = times_ms(lambda: runner(*inputs), torch.device("cpu"), repeats, warm_up=2)
    return statistics.median(in_torch), statistics.median(in_onnx)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's progress and its remarks on missing packages."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
