"""Tests a GPU runtime in a child process, where a library that ends the process does no harm.

In: the folder of a runtime. Out: what works, as `engine_runtime.cuda.runtime_trial` has found. Blocks, in the
thread of its caller.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from app.gpu_runtime.lock import GpuRuntimeError
from app.gpu_runtime.store import RuntimeRecord, fingerprint

VARIABLE = "MOSS_VOICE_GPU_RUNTIME"
"""Set to "off" in the environment, the program starts without the GPU runtime."""
_MODULE = "engine_runtime.cuda.runtime_trial"
TIMEOUT_S = 300.0


def try_out(folder: Path, *, needs_gpu: bool) -> RuntimeRecord:
    """The record of a runtime that passes. Raises GpuRuntimeError with the reason otherwise, OSError."""
    state = fingerprint(folder)
    try:
        child = subprocess.run(
            [sys.executable, "-m", _MODULE, str(folder)],
            cwd=Path(__file__).parents[2],
            env=os.environ | {VARIABLE: "off"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise GpuRuntimeError("its test did not end within {seconds:.0f} s", seconds=TIMEOUT_S) from error
    if child.returncode != 0:
        raise GpuRuntimeError("{reason}", reason=_reason(child))
    try:
        found = json.loads(child.stdout.splitlines()[-1])
        record = RuntimeRecord(state, found["torch"], tuple(found["devices"]), found["no_triton"])
        no_gpu = str(found["no_gpu"])
    except (ValueError, LookupError, TypeError) as error:
        raise GpuRuntimeError("its test ended without a result") from error
    if needs_gpu and not record.devices:
        raise GpuRuntimeError("it cannot use the GPU ({reason})", reason=no_gpu)
    return record


def _reason(child: subprocess.CompletedProcess[str]) -> str:
    """Why the child failed, as part of a sentence."""
    if child.returncode < 0:
        return f"its test ended with {signal.Signals(-child.returncode).name}"
    lines = child.stderr.strip().splitlines() or [f"its test ended with status {child.returncode}"]
    return lines[-1].strip().rstrip(".")
