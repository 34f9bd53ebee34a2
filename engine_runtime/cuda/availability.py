"""Checks whether Triton kernels can run here, by compiling and running a small one.

In: the user's choice and the device. Out: yes or no; the reason of a no is logged once. Called once at load.
"""

from __future__ import annotations

import importlib.util
import logging

import torch

from engine_runtime.hardware import AcceleratorError
from engine_runtime.options import Kernels

_log = logging.getLogger(__name__)


def uses_triton(choice: Kernels, device: torch.device) -> bool:
    """Whether to run the kernels. AcceleratorError if they were requested explicitly and cannot run."""
    if choice == "torch":
        return False
    reason = why_no_triton(device)
    if reason is None:
        return True
    if choice == "triton":
        raise AcceleratorError(f"The Triton kernels cannot run here: {reason}. Use --kernels torch.")
    _log.warning("The Triton kernels cannot run here (%s). Using slower operations in plain torch.", reason)
    return False


def why_no_triton(device: torch.device) -> str | None:
    """The reason why kernels cannot run, or None."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    try:
        from engine_runtime.cuda.kernels.prefill_elementwise import norm_rows

        ones = torch.ones(1, 16, device=device)
        out = torch.zeros_like(ones)
        norm_rows[(1,)](ones, ones, out, 0.0, WIDTH=16, BLOCK=16)
    except Exception as error:  # compiler, linker or driver errors of any type
        return first_line(error)
    return None if torch.equal(out, ones) else "a test kernel returned a wrong result"


def first_line(error: Exception) -> str:
    """The first line of an error message, for use in a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")
