"""The persistent decode kernel, compiled for a real GPU at the released model's sizes; that needs no GPU."""

from __future__ import annotations

import re

import pytest
import torch

from engine_runtime.cuda.nvrtc import compile_program
from engine_runtime.executors.cuda.persistent_backend import kernel_source
from engine_runtime.executors.cuda.persistent_layout import KernelLayout, max_stages
from engine_runtime.options import WeightFormat
from engine_runtime.quantization import FP8
from tests.factories.tiny_lm import RELEASED

FORMATS: list[WeightFormat] = ["native", "fp8", "int8", "int4"]


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, FP8])
@pytest.mark.parametrize("weight_format", FORMATS)
def test_it_compiles_into_registers(weight_format: WeightFormat, kv_dtype: torch.dtype) -> None:
    num_stages = max_stages(RELEASED, 227 << 10)
    source, headers = kernel_source(KernelLayout(RELEASED, weight_format, 32, kv_dtype, 16, num_stages))
    try:
        program, log = compile_program(source, "sm_90", "--ptxas-options=-v", headers=headers)
    except OSError as error:
        pytest.skip(str(error))
    assert len(program) > 10_000
    assert b"persistent_decode" in program
    spilled = [int(count) for count in re.findall(r"(\d+) bytes spill stores", log)]
    assert spilled
    assert max(spilled) <= 32
