"""Checks whether Triton kernels can run here, by compiling and running a small one, and refuses what would be
far too slow without them.

In: the user's choice and the device. Out: yes or no; the reason of a no is logged. Called at load.
"""

from __future__ import annotations

import importlib.util
import logging

import torch

from engine_runtime.cuda.triton_launcher import has_launcher
from engine_runtime.errors import Problem
from engine_runtime.hardware import AcceleratorError, kernel_capability, usable_device
from engine_runtime.installation import COMPILER_REMEDY
from engine_runtime.options import EngineOptions, Kernels

NO_COMPILER = "Triton needs a C compiler and the headers of Python, and one of them is missing"
_WITH_COMPILER = (
    "Install them (sudo apt-get install gcc libc6-dev python3-dev), or choose native weights "
    "(--weights native); --kernels torch runs quantized ones about 30 times slower."
)
_WITHOUT_TRITON = (
    "Choose native weights (--weights native); --kernels torch runs quantized ones about 30 times slower."
)
_OTHER_REMEDY = "Install Triton and the NVIDIA driver again; `moss-voice doctor` examines them."
_OLDEST_PERSISTENT = (9, 0)
"""Compute capability from which the kernels in CUDA C++ run."""

_log = logging.getLogger(__name__)


def uses_triton(choice: Kernels, device: torch.device) -> bool:
    """Whether to run the kernels. AcceleratorError if they were requested explicitly and cannot run."""
    reason = why_plain_torch(choice, device)
    if reason is None:
        return True
    if choice == "triton":
        raise AcceleratorError(
            "The Triton kernels cannot run here: {reason}.", "Use --kernels torch.", reason=reason
        )
    if choice == "auto":
        _log.warning(
            "The Triton kernels cannot run here (%s). Using slower operations in plain torch.", reason
        )
    return False


def why_plain_torch(choice: Kernels, device: torch.device) -> str | None:
    """Why plain torch runs in place of the Triton kernels; None if they run."""
    return "--kernels torch" if choice == "torch" else why_no_triton(device)


def slow_note(choice: Kernels, device: torch.device) -> Problem | None:
    """What to tell the user of a GPU whose kernels cannot run although `choice` leaves them on; else None."""
    if device.type != "cuda" or choice != "auto" or (reason := why_no_triton(device)) is None:
        return None
    return Problem(
        "The GPU runs plain torch, several times slower than the Triton kernels: {reason}.",
        COMPILER_REMEDY if reason == NO_COMPILER else _OTHER_REMEDY,
        reason=Problem(NO_COMPILER) if reason == NO_COMPILER else reason,
    )


def check_formats(options: EngineOptions) -> None:
    """Raise AcceleratorError for quantized weights on a GPU where Triton cannot run, and for keys and values
    in fp8 where its kernels have no e4m3.

    Plain torch dequantizes weights in every step, which takes about 30 times as long as reading them (H200).
    `--kernels torch` asks for just that.
    """
    if (options.weight_format, options.kv_dtype) == ("native", "native"):
        return
    if options.backend != "torch" or options.kernels == "torch":
        return
    device = usable_device(options.device)
    if device.type != "cuda":
        return
    reason = why_no_triton(device)
    if reason is None and options.kv_dtype == "fp8" and kernel_capability(device) < (8, 9):
        raise AcceleratorError(
            "Keys and values in fp8 need a GPU of compute capability 8.9 or later.", "Choose --kv native."
        )
    if reason is not None and options.weight_format != "native":
        raise AcceleratorError(
            "Weights in {weight_format} need the Triton kernels, which cannot run here: {reason}.",
            _WITH_COMPILER if reason == NO_COMPILER else _WITHOUT_TRITON,
            weight_format=options.weight_format,
            reason=Problem(NO_COMPILER) if reason == NO_COMPILER else reason,
        )


def why_no_triton(device: torch.device) -> str | None:
    """The reason why kernels cannot run, or None."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    # Checked here, not by the kernel below: its launcher may be in Triton's cache while others are not.
    if device.type == "cuda" and not has_launcher():
        return NO_COMPILER
    try:
        from engine_runtime.cuda.kernels.prefill_elementwise import norm_rows

        ones = torch.ones(1, 16, device=device)
        out = torch.zeros_like(ones)
        norm_rows[(1,)](ones, ones, out, 0.0, WIDTH=16, BLOCK=16)
    except Exception as error:  # compiler, linker or driver errors of any type
        return first_line(error)
    return None if torch.equal(out, ones) else "a test kernel returned a wrong result"


def triton_remedy(reason: str) -> str:
    """What to do about a reason of `why_no_triton`, a sentence."""
    return COMPILER_REMEDY if reason == NO_COMPILER else _OTHER_REMEDY


def describe_kernels(device: torch.device) -> str:
    """The kernels in CUDA C++ and Triton that a GPU supports by its compute capability."""
    if kernel_capability(device) >= _OLDEST_PERSISTENT:
        return "persistent decode kernel, batched kernels in CUDA C++, Triton kernels"
    return "Triton kernels (the persistent and batched kernels in CUDA C++ need compute capability 9.0)"


def first_line(error: Exception) -> str:
    """The first line of an error message, for use in a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")
