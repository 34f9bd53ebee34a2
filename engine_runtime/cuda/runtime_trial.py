"""Child process that tries a torch from a folder of its own: python -m engine_runtime.cuda.runtime_trial
FOLDER

In: the folder of a GPU runtime. Out: one line of JSON on stdout (torch, devices, no_gpu, no_triton: reasons,
"" for none) and exit status 0, or the reason on the last line of stderr and status 1. Bytecode of what is
imported is written beside it. Main thread.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def main() -> int:
    """Try everything that the program needs of it."""
    folder = Path(sys.argv[1]).resolve()
    sys.dont_write_bytecode = False
    sys.path.insert(0, str(folder))
    try:
        found = try_torch(folder)
    except Exception as error:  # a library that is damaged fails in any way
        lines = str(error).strip().splitlines() or ["no reason given"]
        sys.stderr.write(f"\n{type(error).__name__}: {lines[0]}\n")
        return 1
    sys.stdout.write(f"\n{json.dumps(found)}\n")
    return 0


def try_torch(folder: Path) -> dict[str, str | list[str]]:
    """What works. Raises whatever a broken torch raises, and RuntimeError for wrong results."""
    import torch

    if not Path(torch.__file__).resolve().is_relative_to(folder):
        raise RuntimeError(f"torch was imported from {torch.__file__}")
    from engine_runtime import hardware

    devices = hardware.accelerators()
    for name in ("cpu", "cuda")[: 2 if devices else 1]:
        _multiply(torch.device(name))
    return {
        "torch": hardware.torch_build(),
        "devices": devices,
        "no_gpu": "" if devices else hardware.why_no_cuda() or "no GPU found",
        "no_triton": _why_no_triton(torch.device("cuda" if devices else "cpu")),
    }


def _multiply(device: torch.device) -> None:
    """A product on the device, compared with numpy's: both libraries, and the way between them."""
    import numpy as np
    import torch

    left = np.random.default_rng(0).standard_normal((64, 64))
    product = (torch.from_numpy(left).to(device) @ torch.from_numpy(left).to(device)).cpu().numpy()
    if not np.allclose(product, left @ left):
        raise RuntimeError(f"a product on {device.type} is wrong")


def _why_no_triton(device: torch.device) -> str:
    """Why kernels cannot run there, "" if they can. On the CPU they are loaded only."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    from engine_runtime.cuda.availability import NO_COMPILER, why_no_triton
    from engine_runtime.cuda.triton_launcher import has_launcher

    if device.type == "cuda":
        return why_no_triton(device) or ""
    if not has_launcher():
        return NO_COMPILER
    try:
        import engine_runtime.cuda.kernels.prefill_elementwise  # noqa: F401
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
