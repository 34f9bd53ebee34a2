from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.doubles.interpreted_triton import needs_triton

pytestmark = needs_triton


@pytest.mark.parametrize(
    ("capability", "warps", "registers", "shared", "resident"),
    [
        (86, 1, 32, 0, 16),  # as many programs as a multiprocessor has at most
        (89, 1, 32, 0, 24),
        (89, 4, 32, 0, 12),  # its 48 warps
        (90, 4, 32, 0, 16),  # its 64 warps
        (89, 8, 128, 0, 2),  # its registers: 8 * 32 * 128 is half of them
        (89, 8, 129, 0, 1),  # a warp gets them in multiples of 256
        (89, 16, 255, 0, 0),  # more than it has
        (89, 4, 32, 49 << 10, 2),  # its 100 KB, of which the driver takes 1 KB for each
        (89, 4, 32, 50 << 10, 1),
        (89, 4, 32, 99 << 10, 1),
        (89, 4, 32, (99 << 10) + 1, 0),
        (90, 4, 32, (99 << 10) + 1, 2),
    ],
)
def test_programs_of_a_multiprocessor(
    capability: int, warps: int, registers: int, shared: int, resident: int
) -> None:
    from tests.tools.kernel_resources import GPUS, Resources

    assert Resources(warps, registers, 0, shared).resident(GPUS[capability]) == resident


@pytest.mark.slow
def test_what_a_compiled_kernel_takes_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own: here the interpreter may stand in for the compiler."""
    code = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tests.tools.kernel_resources import resources_of
from engine_runtime.cuda.kernels.prefill_elementwise import norm_rows

types = dict.fromkeys(("x", "norm", "out"), "*fp32") | {"eps": "fp32"}
types |= dict.fromkeys(("WIDTH", "BLOCK"), "constexpr")
source = ASTSource(norm_rows, types, {(4,): 1024, (5,): 1024}, {})
print(resources_of(triton.compile(source, target=GPUTarget("cuda", 89, 32), options={"num_warps": 2})))
"""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    found = re.fullmatch(r"Resources\(warps=2, registers=(\d+), local=0, shared=(\d+)\)\n", ended.stdout)
    assert found, ended.stderr
    assert 8 <= int(found[1]) <= 255
    assert int(found[2]) > 0  # a sum over two warps goes through it
