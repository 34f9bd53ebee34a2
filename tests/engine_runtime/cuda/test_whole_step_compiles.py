"""The kernel of a whole step, compiled for a real GPU at the released model's sizes; that needs no GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path

import pytest
import torch

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


def nvrtc() -> ctypes.CDLL:
    """The library from its package on PyPI."""
    found = importlib.util.find_spec("nvidia.cuda_nvrtc") if importlib.util.find_spec("nvidia") else None
    folders = [] if found is None else list(found.submodule_search_locations or [])
    libraries = [path for folder in folders for path in Path(folder).glob("lib/libnvrtc.so.*")]
    if not libraries:
        pytest.skip("NVRTC is not installed")
    return ctypes.CDLL(str(min(libraries, key=lambda path: len(path.name))))


def compiled(source: str, architecture: str) -> tuple[int, str]:
    """Bytes of the program, and what the compiler said of it."""
    library, program = nvrtc(), ctypes.c_void_p()
    assert library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"step.cu", 0, None, None) == 0
    options = [f"--gpu-architecture={architecture}".encode(), b"--ptxas-options=-v"]
    failed = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert not failed, log.value.decode()
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    return size.value, log.value.decode()


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, FP8])
@pytest.mark.parametrize("weight_format", FORMATS)
def test_it_compiles_into_registers(weight_format: WeightFormat, kv_dtype: torch.dtype) -> None:
    macros = kernel_macros(RELEASED, weight_format, 32, kv_dtype, pieces=16, stages=11)
    defines = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    size, log = compiled(defines + kernel_source(), "sm_90")
    assert size > 10_000
    spilled = [int(count) for count in re.findall(r"(\d+) bytes spill stores", log)]
    assert spilled
    assert max(spilled) <= 128  # some of attention's rows, a few times a layer
