"""Description of an exported part of the codec: a module, and the names, dtypes and sizes of its tensors.

In: a module whose arguments and results are tensors. Out: a single description for the export, the
optimization profile, the check of a loaded engine and the checks of every call. A size is a number, or a sum
of multiples of variable axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from engine_runtime.errors import ExecutorError

Extent = Literal["least", "usual", "most"]
Runner = Callable[..., tuple[Tensor, ...]]
"""Runs a graph: maps inputs to outputs, in the order of the description."""


@dataclass(frozen=True, slots=True)
class Size:
    """constant + the sum of factor * axis. The axes must be larger than zero, since an engine does not accept
    empty tensors."""

    terms: tuple[tuple[Axis, int], ...] = ()
    constant: int = 0

    def __add__(self, other: Size | Axis | int) -> Size:
        if isinstance(other, int):
            return Size(self.terms, self.constant + other)
        added = _size(other)
        return Size(self.terms + added.terms, self.constant + added.constant)

    def __mul__(self, factor: int) -> Size:
        return Size(tuple((axis, own * factor) for axis, own in self.terms), self.constant * factor)

    def at(self, extent: Extent) -> int:
        """The value with every axis at its least, usual or most."""
        return self.constant + sum(factor * axis.at(extent) for axis, factor in self.terms)


@dataclass(frozen=True, slots=True)
class Axis:
    """A variable size and its range."""

    name: str
    least: int
    usual: int
    most: int

    def at(self, extent: Extent) -> int:
        """The value at one end or in the usual case."""
        return {"least": self.least, "usual": self.usual, "most": self.most}[extent]

    def __mul__(self, factor: int) -> Size:
        return Size(((self, factor),))

    __rmul__ = __mul__

    def __add__(self, other: Size | Axis | int) -> Size:
        return _size(self) + other


def packet_axis(sizes: Sequence[int], before: int = 0) -> tuple[int, int, int]:
    """Least, usual and most frames of packets of these sizes, plus `before` earlier frames; if all packets
    have one size, up to twice that, so that the axis stays dynamic."""
    ordered = sorted(sizes)
    usual, most = ordered[len(ordered) // 2], max(ordered[-1], 2 * ordered[0])
    return ordered[0] + before, usual + before, most + before


def _size(value: Size | Axis) -> Size:
    return value if isinstance(value, Size) else Size(((value, 1),))


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """One input or output."""

    name: str
    shape: tuple[int | Axis | Size, ...]
    dtype: torch.dtype = torch.float32

    @property
    def dynamic(self) -> dict[int, Size]:
        """The variable dimensions, by index."""
        return {place: _size(size) for place, size in enumerate(self.shape) if not isinstance(size, int)}

    @property
    def engine_shape(self) -> tuple[int, ...]:
        """The shape as an engine reports it: -1 for a variable dimension."""
        return tuple(size if isinstance(size, int) else -1 for size in self.shape)

    def agrees(self, shape: tuple[int, ...], is_output: bool) -> bool:
        """Whether an engine may report this shape. A fixed dimension of an output may be reported as -1,
        since parsers do not always infer it; it is checked after every call."""
        return len(shape) == len(self.shape) and all(
            stated == own or (is_output and stated == -1)
            for stated, own in zip(shape, self.engine_shape, strict=True)
        )

    def at(self, extent: Extent) -> tuple[int, ...]:
        """The shape with every axis at its least, usual or most."""
        return tuple(size if isinstance(size, int) else _size(size).at(extent) for size in self.shape)

    def fits(self, value: Tensor) -> bool:
        """Whether a tensor has this dtype and is within the range."""
        least, most = self.at("least"), self.at("most")
        return (
            value.dtype == self.dtype
            and value.ndim == len(least)
            and all(low <= size <= high for low, size, high in zip(least, value.shape, most, strict=True))
        )


@dataclass(frozen=True, slots=True)
class Graph:
    """A part of the codec. `name` is that of its files. `tolerance`: allowed difference of another float32
    implementation from the module, relative to the largest value."""

    name: str
    module: nn.Module
    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]
    tolerance: float = 1e-3
    device: torch.device = torch.device("cpu")  # noqa: RUF009
    """Device of the module's weights."""
    example_values: dict[str, Callable[[tuple[int, ...]], Tensor]] = field(default_factory=dict)
    """For inputs with constrained values: creates one of a given shape."""

    @property
    def axes(self) -> dict[str, Axis]:
        """The variable axes, by name."""
        sizes = [size for spec in self.inputs for size in spec.dynamic.values()]
        return {axis.name: axis for size in sizes for axis, _ in size.terms}

    def examples(self, extent: Extent = "usual", seed: int = 0) -> tuple[Tensor, ...]:
        """Deterministic inputs of a size on the graph's device."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(self._example(spec, extent, generator).to(self.device) for spec in self.inputs)

    def _example(self, spec: GraphTensor, extent: Extent, generator: torch.Generator) -> Tensor:
        shape = spec.at(extent)
        if spec.name in self.example_values:
            return self.example_values[spec.name](shape).to(spec.dtype)
        return torch.randn(shape, generator=generator).to(spec.dtype)

    def check_inputs(self, values: Sequence[Tensor]) -> None:
        """Raise ExecutorError unless these tensors match the description and its range."""
        if len(values) != len(self.inputs):
            raise ExecutorError(
                "{name} takes {count} tensors, got {given}.",
                name=self.name,
                count=len(self.inputs),
                given=len(values),
            )
        for spec, value in zip(self.inputs, values, strict=True):
            if not spec.fits(value):
                raise ExecutorError(
                    "{name}: input {spec} is {dtype} {shape}, but the engine was built for {spec_dtype} "
                    "{least} to {most}.",
                    "Run without --trt-codec.",
                    name=self.name,
                    spec=spec.name,
                    dtype=value.dtype,
                    shape=list(value.shape),
                    spec_dtype=spec.dtype,
                    least=list(spec.at("least")),
                    most=list(spec.at("most")),
                )

    def fits(self, values: Sequence[Tensor]) -> bool:
        """Whether an engine of this graph accepts the sizes and dtypes of these inputs."""
        return all(spec.fits(value) for spec, value in zip(self.inputs, values, strict=True))

    def try_out(self, runner: Callable[..., Sequence[Tensor]]) -> float:
        """Run a runner of this graph once; returns its difference from torch. Raises ExecutorError as
        `check_outputs` does."""
        inputs = self.examples("usual")
        with torch.inference_mode():
            return self.check_outputs(runner(*inputs), self.module(*inputs))

    def check_outputs(self, got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
        """The largest difference relative to the largest value. Raises ExecutorError naming the first output
        with a wrong shape, values that are not finite, or a difference above the tolerance."""
        worst = 0.0
        for spec, value, reference in zip(self.outputs, got, want, strict=True):
            if value.shape != reference.shape:
                raise ExecutorError(
                    "{name}: output {spec} is {shape}, torch returns {reference_shape}.",
                    name=self.name,
                    spec=spec.name,
                    shape=list(value.shape),
                    reference_shape=list(reference.shape),
                )
            difference = (value.double() - reference.double()).abs().max()
            share = float(difference / reference.double().abs().max().clamp(min=1e-6))
            if not share <= self.allowed:
                raise ExecutorError(
                    "{name}: output {spec} differs from torch's by {share:.2g} of its largest value, more "
                    "than {allowed:.2g}.",
                    name=self.name,
                    spec=spec.name,
                    share=share,
                    allowed=self.allowed,
                )
            worst = max(worst, share)
        return worst

    @property
    def allowed(self) -> float:
        """`tolerance` scaled to the dtype of the graph."""
        widest = {torch.float32: 1.0, torch.float16: 30.0, torch.bfloat16: 100.0}
        return self.tolerance * max(widest.get(spec.dtype, 1.0) for spec in self.inputs)


def attend(query: Tensor, past: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    """Attention of an exported graph, over past keys and values that are arguments. Scores are concatenated
    instead of caches, so that the past is read once and never copied within an engine.

    query [B, H, n, d] over the keys and values `past` [B, H, P, d] and `new` [B, H, n, d]; mask [n, P +
    n] is added to the scores. Returns [B, H, n, d]."""
    length = past[0].shape[2]
    scores = torch.cat((query @ past[0].transpose(2, 3), query @ new[0].transpose(2, 3)), dim=3)
    seen = torch.softmax(scores * query.shape[3] ** -0.5 + mask, dim=3)
    return seen[..., :length] @ past[1] + seen[..., length:] @ new[1]
