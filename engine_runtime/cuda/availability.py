"""Whether the Triton kernels can run here, found by compiling and running a small one.

In: the choice of the user and the device. Out: yes or no; a no is said once, in the log, with its reason.
Called once at load.
"""

from __future__ import annotations

import importlib.util
import logging

import torch

from engine_runtime.hardware import AcceleratorError
from engine_runtime.options import Kernels

_log = logging.getLogger(__name__)


def uses_triton(choice: Kernels, device: torch.device) -> bool:
    """Whether to run the kernels. AcceleratorError if they were asked for by name and cannot run."""
    if choice == "torch":
        return False
    reason = why_no_triton(device)
    if reason is None:
        return True
    if choice == "triton":
        raise AcceleratorError(f"The Triton kernels cannot run here: {reason}. Use --kernels torch.")
    _log.warning("The Triton kernels cannot run here (%s). Plain torch runs instead, slower.", reason)
    return False


def why_no_triton(device: torch.device) -> str | None:
    """What is missing, None if nothing is."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    try:
        from engine_runtime.cuda.kernels.prefill_elementwise import norm_rows

        ones = torch.ones(1, 16, device=device)
        out = torch.zeros_like(ones)
        norm_rows[(1,)](ones, ones, out, 0.0, WIDTH=16, BLOCK=16)
    except Exception as error:  # whatever a compiler, a linker or a driver may say
        return first_line(error)
    return None if torch.equal(out, ones) else "a test kernel gave a wrong result"


def first_line(error: Exception) -> str:
    """What an error says first, to be put into a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")
