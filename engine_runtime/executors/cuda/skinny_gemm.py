"""Products of a decode step of several sequences in CUDA C++ (cuda/kernels/skinny_gemm), which read weights
at the bandwidth of device memory, on GPUs of compute capability 9.0.

In: rows [capacity, in], a Matrix in bf16 or fp8. Out: as BatchedLinear, whose kernels in Triton are the
reference implementation. Engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import torch
from torch import Tensor

from engine_runtime.cuda.compiled_kernel import CompiledKernel, kernel_files, layout_header
from engine_runtime.cuda.driver import LARGE_SHARED_MEMORY, shared_memory_limit
from engine_runtime.cuda.gpu_memory import BATCH_SPLITS
from engine_runtime.cuda.tensor_map import ROW_BYTES, TensorMap, tensor_map
from engine_runtime.executors.cuda.weights import LayerWeights
from engine_runtime.hardware import kernel_capability
from engine_runtime.quantization import FP8, Matrix

GROUP_OUTPUTS = 64
"""Outputs of a warpgroup: those of a matrix instruction."""
_MOST_GROUPS, _GROUPS_OF_TWO_SETS = 3, 2
_STORED = 4
"""Sums that are stored at a time."""
_GATED_ROWS = 8
"""Gates, and their ups, that follow each other in a tile."""
_INTERLEAVED = 16
"""Columns of rows in float16 that are interleaved."""
_ROWS_COLUMNS = 64
"""Columns of 128 bytes of rows."""
_WEIGHT_BYTES = {torch.bfloat16: 2, torch.float16: 1}
"""Bytes of a weight by the dtype of the rows that it is multiplied with."""
_RING_AT = 1024
"""Bytes of shared memory before the ring: barriers."""
_SHARED_LIMIT = LARGE_SHARED_MEMORY - 2048
"""Bytes of shared memory: a block of residual_norm fits beside one, and so is there before it is needed."""
_MAX_STAGES = 24
_RING_OF_ROWS, _MIN_ROW_STAGES = 64 << 10, 3
"""Bytes of the ring of the rows, and the fewest stages that it may have."""
_BYTES_IN_FLIGHT = 48 << 10
"""Weight bytes each block keeps in flight, as whole copies (2 with three warpgroups, 3 with two). One more
was up to 4 % slower with fp8, one less 3 to 7 % in any format."""
_SMALLEST_ROWS = 8
PARTS_READ = 4
"""Sums of squares that are read at a time."""


class RowFormat(IntEnum):
    """How the input of a product is stored: see `interleaved` in common/primitives.cuh."""

    BF16 = 0
    F16 = 1
    F16_INTERLEAVED = 2


@dataclass(frozen=True, slots=True)
class GemmLayout:
    """Sizes for which the kernel is compiled: rows of a product, warpgroups of a block, parts of the
    columns."""

    rows: int
    groups: int
    splits: int
    is_gated: bool
    is_fp8: bool
    capacity: int
    eps: float

    @property
    def tile_columns(self) -> int:
        """Columns of a pipeline stage."""
        return ROW_BYTES // (1 if self.is_fp8 else 2)

    @property
    def weight_bytes(self) -> int:
        """Weights of a pipeline stage."""
        return self.groups * GROUP_OUTPUTS * ROW_BYTES

    @property
    def row_bytes(self) -> int:
        """Rows of a pipeline stage."""
        return self.tile_columns // _ROWS_COLUMNS * self.rows * ROW_BYTES

    @property
    def num_row_stages(self) -> int:
        """Stages of the ring of the rows, which are there much sooner than the weights. A multiple of the
        sets, as is that of the weights."""
        fitting = max(_MIN_ROW_STAGES, min(_MAX_STAGES, _RING_OF_ROWS // self.row_bytes))
        return fitting + fitting % self.num_sets

    @property
    def num_stages(self) -> int:
        """Stages of the ring of the weights, as many as fit: in flight they hide the latency of memory, and
        they are copied while the rows are waited for."""
        room = _SHARED_LIMIT - _RING_AT - self.num_row_stages * self.row_bytes
        fitting = min(_MAX_STAGES, room // self.weight_bytes)
        return fitting - fitting % self.num_sets

    @property
    def num_in_flight(self) -> int:
        """Copies of weights in flight: enough for the bandwidth of memory, and no more."""
        return min(self.num_stages, _BYTES_IN_FLIGHT // self.weight_bytes)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return _RING_AT + self.num_stages * self.weight_bytes + self.num_row_stages * self.row_bytes

    @property
    def num_threads(self) -> int:
        """Threads of a block: the warpgroups, two producer warps and one for the factors of the rows."""
        return 128 * self.groups * self.num_sets + 96

    @property
    def num_sets(self) -> int:
        """Sets of warpgroups: two where weights are converted and registers suffice."""
        return 2 if self.is_fp8 and self.groups <= _GROUPS_OF_TWO_SETS else 1

    def header(self) -> str:
        """Text of layout.cuh."""
        constants: dict[str, int | str] = {
            "ROWS": self.rows,
            "GROUPS": self.groups,
            "SPLITS": self.splits,
            "GATED": int(self.is_gated),
            "WEIGHT_FP8": int(self.is_fp8),
            "CAPACITY": self.capacity,
            "SETS": self.num_sets,
            "STAGES": self.num_stages,
            "ROW_STAGES": self.num_row_stages,
            "IN_FLIGHT": self.num_in_flight,
            "RING_AT": _RING_AT,
            "EPS": f"{self.eps!r}f",
        }
        return layout_header(constants)


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """How a product is spread over the GPU, whatever the number of rows.

    Attributes:
        groups: warpgroups of a block, with GROUP_OUTPUTS outputs each.
        splits: parts of the columns, with a block each.
        tiles: tiles of outputs.
    """

    groups: int
    splits: int
    tiles: int


def plan_of(matrix: Matrix, num_multiprocessors: int, *, most_splits: int) -> GemmPlan:
    """The plan whose busiest multiprocessor has least to read; of equal ones that with the largest blocks,
    which read the rows less often."""
    outputs, columns = matrix.shape
    return _plan_of(outputs, columns // _tile_columns(matrix), num_multiprocessors, most_splits)


@cache  # layers have the same few shapes
def _plan_of(outputs: int, tiles_of_columns: int, num_multiprocessors: int, most_splits: int) -> GemmPlan:
    def to_read(plan: GemmPlan) -> int:
        rounds = -(-plan.tiles * plan.splits // num_multiprocessors)
        return rounds * plan.groups * (tiles_of_columns // plan.splits)

    plans = [
        GemmPlan(groups, splits, -(-outputs // (groups * GROUP_OUTPUTS)))
        for groups in range(_MOST_GROUPS, 0, -1)
        for splits in range(1, most_splits + 1)
        if tiles_of_columns % splits == 0
    ]
    return min(plans, key=to_read)


def _tile_columns(matrix: Matrix) -> int:
    return ROW_BYTES // matrix.weight.element_size()


def unsupported_reason(device: torch.device, dtype: torch.dtype, *, has_pdl: bool) -> str | None:
    """Why the kernel cannot run in a model of `dtype`; None if it can. `has_pdl`: the driver captures
    dependent launches."""
    if kernel_capability(device) != (9, 0):
        return "it needs a GPU of compute capability 9.0"
    if shared_memory_limit(device) < LARGE_SHARED_MEMORY:
        return f"it needs {LARGE_SHARED_MEMORY} bytes of shared memory per block"
    if dtype != torch.bfloat16:
        return "it needs bfloat16"
    return None if has_pdl else "it needs a driver for CUDA 12.3"


def can_multiply(matrix: Matrix, *, is_gated: bool) -> bool:
    """Whether the kernel has this format, and these sizes."""
    if matrix.format not in ("native", "fp8") or matrix.weight.dtype not in (torch.bfloat16, FP8):
        return False
    outputs, columns = matrix.shape
    gates = _GATED_ROWS if matrix.weight.dtype != FP8 else _INTERLEAVED
    outputs_stored = 2 * gates if is_gated else _STORED
    return columns % _tile_columns(matrix) == 0 and outputs % outputs_stored == 0


def can_multiply_layer(layer: LayerWeights) -> bool:
    """Whether the kernel has the format and the sizes of all matrices of a layer."""
    return can_multiply(layer.gate_up, is_gated=True) and all(
        can_multiply(matrix, is_gated=False) for matrix in (layer.qkv, layer.o, layer.down)
    )


def kernel_source(layout: GemmLayout) -> tuple[str, dict[str, str]]:
    """CUDA C++ source of the kernel, and the headers that it includes, by name."""
    source, headers = kernel_files("skinny_gemm", "gemm.cu")
    return source, headers | {"layout.cuh": layout.header()}


@dataclass(frozen=True, slots=True)
class RowNorms:
    """The factors that the norm still lacks in the input of a product, all float32.

    Attributes:
        squares: sums of the squares of x. [capacity, parts]
        applied: the factor by which the input is multiplied already. [capacity]
        whole: where the product stores the factor of the whole norm. [capacity]
    """

    squares: Tensor
    applied: Tensor
    whole: Tensor


class SkinnyGemm:
    """`capacity`: rows of every buffer; `eps`: of the norms. Compiles the kernel for the
    smallest product at once: raises RuntimeError, ImportError or OSError if that is not possible."""

    def __init__(self, capacity: int, eps: float, device: torch.device) -> None:
        self._capacity, self._eps, self._device = capacity, eps, device
        self._num_multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        self._kernels: dict[GemmLayout, CompiledKernel] = {}
        # Keys hold all that a map describes: memory may be freed and used for another tensor.
        self._weights: dict[tuple[int, torch.dtype, tuple[int, int], int, bool], TensorMap] = {}
        self._rows: dict[tuple[int, torch.dtype, int, int], TensorMap] = {}
        self._kernel(self._layout(_SMALLEST_ROWS, GemmPlan(1, 1, 1), is_gated=False, is_fp8=False))

    def plan(self, matrix: Matrix, *, is_gated: bool = False, is_split: bool = True) -> GemmPlan:
        """How a product is computed: its columns in parts if `is_split`. A gate needs whole sums."""
        most_splits = BATCH_SPLITS if is_split and not is_gated else 1
        return plan_of(matrix, self._num_multiprocessors, most_splits=most_splits)

    def launch(
        self,
        rows: int,
        x: Tensor,
        matrix: Matrix,
        out: Tensor,
        *,
        is_gated: bool = False,
        is_split: bool = True,
        norms: RowNorms | None = None,
    ) -> None:
        """Multiply the first `rows` rows of x [capacity, in], a power of two. At least 8 rows are written.
        `norms`: what the norm of x lacks."""
        plan, (outputs, columns) = self.plan(matrix, is_gated=is_gated, is_split=is_split), matrix.shape
        padded = max(_SMALLEST_ROWS, rows)
        layout = self._layout(padded, plan, is_gated=is_gated, is_fp8=matrix.weight.dtype == FP8)
        self._kernel(layout).launch(
            plan.tiles * plan.splits,
            layout.num_threads,
            [
                self._weight_map(matrix, plan.groups, is_gated=is_gated),
                self._rows_map(x, columns, padded),
                matrix.weight if matrix.scale is None else matrix.scale,  # a bf16 weight has none: not read
                out,
                outputs,
                columns,
                None if norms is None else norms.squares,
                0 if norms is None else norms.squares.shape[1],
                None if norms is None else norms.applied,
                None if norms is None else norms.whole,
            ],
            starts_early=True,
        )

    def _layout(self, rows: int, plan: GemmPlan, *, is_gated: bool, is_fp8: bool) -> GemmLayout:
        return GemmLayout(rows, plan.groups, plan.splits, is_gated, is_fp8, self._capacity, self._eps)

    def _kernel(self, layout: GemmLayout) -> CompiledKernel:
        kernel = self._kernels.get(layout)
        if kernel is None:
            source, headers = kernel_source(layout)
            kernel = self._kernels[layout] = CompiledKernel(
                source,
                headers,
                "skinny_gemm",
                layout.shared_bytes,
                self._device,
                is_architecture_specific=True,
            )
        return kernel

    def _weight_map(self, matrix: Matrix, groups: int, *, is_gated: bool) -> TensorMap:
        weight = matrix.weight
        key = weight.data_ptr(), weight.dtype, matrix.shape, groups, is_gated
        if key not in self._weights:
            self._weights[key] = weight_map(matrix, groups, is_gated=is_gated)
        return self._weights[key]

    def _rows_map(self, x: Tensor, columns: int, rows: int) -> TensorMap:
        key = x.data_ptr(), x.dtype, columns, rows
        if key not in self._rows:
            sizes = [_ROWS_COLUMNS, self._capacity, columns // _ROWS_COLUMNS]
            box = [_ROWS_COLUMNS, rows, ROW_BYTES // _WEIGHT_BYTES[x.dtype] // _ROWS_COLUMNS]
            self._rows[key] = tensor_map(x, sizes, [columns, _ROWS_COLUMNS], box)
        return self._rows[key]


def weight_map(matrix: Matrix, groups: int, *, is_gated: bool) -> TensorMap:
    """Boxes of a weight: the outputs of `groups` warpgroups; if gated, eight gates and their ups in turn."""
    (outputs, columns), box = matrix.shape, _tile_columns(matrix)
    if not is_gated:
        sizes = [columns, outputs]
        return tensor_map(matrix.weight, sizes, [columns], [box, groups * GROUP_OUTPUTS], l2_bytes=256)
    width = outputs // 2
    sizes = [columns, _GATED_ROWS, 2, width // _GATED_ROWS]
    strides = [columns, width * columns, _GATED_ROWS * columns]
    boxes = [box, _GATED_ROWS, 2, groups * GROUP_OUTPUTS // (2 * _GATED_ROWS)]
    return tensor_map(matrix.weight, sizes, strides, boxes, l2_bytes=256)
