"""Tools that are run by hand end with a message, not with a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest


def run(code: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"QT_QPA_PLATFORM": "offscreen"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )


def module(name: str, *arguments: str) -> str:
    """Python that runs a tool as `python -m` does."""
    return (
        f"import runpy, sys; sys.argv = {['', *arguments]}; "
        f"runpy.run_module('tests.tools.{name}', run_name='__main__')"
    )


@pytest.mark.parametrize(("name", "word"), [("redraw_bench", "seconds"), ("screenshots", "folder")])
@pytest.mark.slow
def test_a_tool_explains_itself(name: str, word: str) -> None:
    ended = run(module(name, "--help"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert word in ended.stdout


@pytest.mark.slow
def test_window_start_says_that_no_window_came() -> None:
    if shutil.which("Xvfb") is None:
        pytest.skip("needs Xvfb")
    pytest.importorskip("Xlib")
    ended = run(module("window_start", "--runs", "0", "/bin/true"))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "No window of /bin/true (exit status 0).\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decode_phases", "decode_gate"])
def test_a_tool_for_a_gpu_says_that_there_is_none(name: str) -> None:
    if name == "decode_gate":
        pytest.importorskip("triton")
    no_gpu = "import torch; torch.cuda.is_available = lambda: False; "
    ended = run(no_gpu + module(name))
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "There is no CUDA device.\n")


def test_compile_kernels_without_triton_names_what_is_missing() -> None:
    ended = run("import sys; sys.modules['triton'] = None; " + module("compile_kernels", "89"))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "Triton is not installed. Install it with pip install triton (Linux).\n"


@pytest.mark.slow
@pytest.mark.parametrize("argument", ["--help", "12"])
def test_compile_kernels_says_what_it_takes(argument: str) -> None:
    pytest.importorskip("triton")
    ended = run(module("compile_kernels", argument))
    assert ended.returncode == (0 if argument == "--help" else 2)
    assert "capabilities" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
