"""The kernel of a whole step, compiled for a real GPU at the released model's sizes; that needs no GPU."""

from __future__ import annotations

import re

import pytest
import torch

from engine_runtime.cuda.nvrtc import compile_program
from engine_runtime.cuda.quantise import FP8
from engine_runtime.cuda.whole_step import kernel_macros, kernel_source
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import WeightFormat

RELEASED = MossLMConfig(
    hidden_size=4096,
    intermediate_size=12288,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    shared_layers=32,
    text_layers=4,
    audio_layers=4,
    text_vocab=151680,
    audio_vocab=16512,
    modality_pad=151667,
)
FORMATS: list[WeightFormat] = ["native", "fp8", "int8", "int4"]


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, FP8])
@pytest.mark.parametrize("weight_format", FORMATS)
def test_it_compiles_into_registers(weight_format: WeightFormat, kv_dtype: torch.dtype) -> None:
    macros = kernel_macros(RELEASED, weight_format, 32, kv_dtype, pieces=16, stages=11)
    defines = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    try:
        program, log = compile_program(defines + kernel_source(), "sm_90", "--ptxas-options=-v")
    except OSError as error:
        pytest.skip(str(error))
    assert len(program) > 10_000
    assert b"whole_step" in program
    spilled = [int(count) for count in re.findall(r"(\d+) bytes spill stores", log)]
    assert spilled
    assert max(spilled) <= 256  # some of attention's rows, a few times a layer
