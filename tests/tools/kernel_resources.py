"""What a compiled kernel takes of a multiprocessor, and how many of its programs run on one at a time.

In: a kernel that Triton has compiled, for a GPU that need not be there. Out: registers, local and
shared memory; programs of a multiprocessor. Limits are those of the CUDA programming guide
(technical specifications per compute capability).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

REGISTERS = 64 << 10
"""Of a multiprocessor, the same from 8.0 to 9.0."""
_REGISTER_UNIT = 256
"""Registers are given to a warp in multiples of this."""
_OF_DRIVER = 1 << 10
"""Bytes of shared memory that the driver adds to those of a program."""
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of a compute capability: its multiprocessors, and what one of them has at most: warps, programs,
    bytes of shared memory in all and for a program."""

    name: str
    multiprocessors: int
    warps: int
    programs: int
    shared: int
    shared_of_program: int


GPUS = {
    86: Gpu("A10", 72, 48, 16, 100 << 10, 99 << 10),
    89: Gpu("RTX 4090", 128, 48, 24, 100 << 10, 99 << 10),
    90: Gpu("H100", 132, 64, 32, 228 << 10, 227 << 10),
}


@dataclass(frozen=True, slots=True)
class Resources:
    """Of a program: warps, registers and bytes of local memory of a thread (values without a register, and
    the table of sin for large angles), bytes of shared memory."""

    warps: int
    registers: int
    local: int
    shared: int

    def resident(self, gpu: Gpu) -> int:
        """Programs that a multiprocessor runs at a time; 0 if it cannot run one."""
        of_warp = -(-self.registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
        if self.shared > gpu.shared_of_program:
            return 0
        return min(
            gpu.programs,
            gpu.warps // self.warps,
            REGISTERS // (of_warp * self.warps),
            gpu.shared // (self.shared + _OF_DRIVER),
        )


def resources_of(compiled: Any) -> Resources:
    """What Triton's cuobjdump reads from a compiled kernel."""
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        shown = subprocess.run([program, "-res-usage", file.name], capture_output=True, text=True, check=True)
    (usage,) = _USAGE.findall(shown.stdout)
    return Resources(compiled.metadata.num_warps, int(usage[0]), int(usage[1]), compiled.metadata.shared)
