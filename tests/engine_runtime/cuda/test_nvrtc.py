"""The compiler of CUDA C++, if its package is installed."""

from __future__ import annotations

import pytest

from engine_runtime.cuda import nvrtc
from engine_runtime.cuda.nvrtc import compile_program

SOURCE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }'


@pytest.fixture
def needs_nvrtc() -> None:
    try:
        nvrtc._library()
    except OSError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("needs_nvrtc")
def test_a_program_and_what_the_compiler_says() -> None:
    program, log = compile_program(SOURCE, "sm_90", "--ptxas-options=-v")
    assert program.startswith(b"\x7fELF")
    assert "twice" in log


@pytest.mark.usefixtures("needs_nvrtc")
def test_headers_are_included_by_their_names() -> None:
    headers = {"factor.cuh": "#pragma once\n#define FACTOR 3.0f\n", "twice.cuh": '#include "factor.cuh"\n'}
    source = '#include "twice.cuh"\n#include "factor.cuh"\n' + SOURCE.replace("2.0f", "FACTOR")
    program, _ = compile_program(source, "sm_90", headers=headers)
    assert program.startswith(b"\x7fELF")
    with pytest.raises(RuntimeError, match=r"factor\.cuh"):
        compile_program(source, "sm_90", headers={"twice.cuh": headers["twice.cuh"]})


@pytest.mark.usefixtures("needs_nvrtc")
def test_a_program_that_does_not_compile_raises_with_the_log() -> None:
    with pytest.raises(RuntimeError, match="nothing_like_it"):
        compile_program(SOURCE.replace("threadIdx.x", "nothing_like_it"), "sm_90")
    with pytest.raises(RuntimeError, match="gpu-architecture"):
        compile_program(SOURCE, "sm_1")


def test_a_missing_library_is_an_error_that_says_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_names", lambda: iter(["no-such-library.so"]))
    with pytest.raises(OSError, match="comes with torch for CUDA"):
        compile_program(SOURCE, "sm_90")
