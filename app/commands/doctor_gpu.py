"""The checks of `moss-voice doctor` about GPUs: torch's devices, the GPU runtime, TensorRT-LLM."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator

from app.commands.doctor_finding import Finding
from engine_runtime.errors import EngineError, MossVoiceError
from engine_runtime.installation import gpu_remedy, is_frozen


def gpu() -> Iterator[Finding]:
    """The devices that torch can use."""
    from engine_runtime import hardware

    if devices := hardware.accelerators():
        for device in devices:
            yield Finding("ok", "GPU", device)
            yield _kernels(device.split()[0])
    elif shutil.which("nvidia-smi") or os.path.exists("/proc/driver/nvidia"):  # noqa: PTH110
        yield Finding("note", "GPU", "there, but torch cannot use it", str(gpu_remedy()))
    else:
        yield Finding("note", "GPU", "none; the shipped bundle is made for the processor")


def _kernels(name: str) -> Finding:
    """The kernels that an engine on this device (cuda:N) runs, and why no faster ones."""
    from engine_runtime.cuda.availability import describe_kernels, triton_remedy, why_no_triton
    from engine_runtime.hardware import usable_device

    device = usable_device(name)
    if (reason := why_no_triton(device)) is None:
        return Finding("ok", "kernels", f"{name}: {describe_kernels(device)}")
    slow = f"{name}: plain torch, several times slower and without quantized weights: {reason}"
    return Finding("note", "kernels", slow, triton_remedy(reason))


def gpu_runtime() -> Iterator[Finding]:
    """The GPU runtime of the packaged program; elsewhere the installed torch is the one that runs."""
    from app.commands.gpu import describe
    from app.gpu_runtime.status import find_status

    if not is_frozen():
        return
    name = "GPU runtime"
    try:
        status = find_status()
    except MossVoiceError as error:
        yield Finding("note", name, error.what_is_wrong, error.what_to_do)
        return
    detail = "; ".join(describe(status)).removeprefix(f"{name}: ")
    if status.state in ("failed", "untested"):
        yield Finding("note", name, detail, str(gpu_remedy()))
    elif status.state != "absent" or status.older:
        yield Finding("ok", name, detail)


def tensorrt_llm() -> Iterator[Finding]:
    """Only required for engines, in an environment with the versions of its dependencies."""
    from engine_runtime import hardware
    from engine_runtime.tensorrt.llm import library

    name, version = "TensorRT-LLM", library.installed_version("tensorrt-llm")
    if is_frozen():
        detail = "not in the packaged program, needed only for engines of large models on NVIDIA GPUs"
        advice = (
            "Let the engine run in an environment that has it: moss-voice --engine-python ENV/bin/python "
            "--backend trtllm --engine DIR (packaging/TENSORRT.md in its source says how to make one)."
        )
        yield Finding("note", name, detail, advice)
        return
    found = [
        f"{clash.package} {clash.installed or 'missing'} (wants {clash.required})"
        for clash in library.clashes()
    ]
    if sys.version_info[:2] != (3, 12):
        found.append(f"Python {sys.version_info.major}.{sys.version_info.minor} (wants 3.12)")
    if not (cuda := hardware.torch_cuda() or "no CUDA").startswith("13."):
        found.append(f"torch for {cuda} (wants CUDA 13)")
    if version is None:
        clash = f"; it would clash with {', '.join(found)}" if found else ""
        detail = f"not installed, needed only for engines of large models on NVIDIA GPUs{clash}"
        yield Finding("note", name, detail, "Its own environment: packaging/TENSORRT.md.")
        return
    try:
        library.check_version(version)
    except EngineError as error:
        yield Finding("note", name, error.what_is_wrong, error.what_to_do)
        return
    yield Finding("ok", name, version)
    for clash in found:
        yield Finding("note", name, f"{version} clashes with {clash}", "See packaging/TENSORRT.md.")
