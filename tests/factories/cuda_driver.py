"""A stand-in for the library of the NVIDIA driver, where there is no GPU."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

NAME = "libcuda.so.1"


def make_cuda_driver(user: Path, folder: Path) -> Path:
    """A folder with a library that has every function of the driver that the file `user` is linked to; each
    does nothing and succeeds. Needs gcc and nm."""
    listed = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", user], capture_output=True, text=True, check=True
    )
    names = re.findall(r"\b(cu[A-Z]\w+)$", listed.stdout, re.MULTILINE)
    assert "cuModuleLoadData" in names
    source = "".join(f"int {name}(void) {{ return 0; }}\n" for name in names)
    folder.mkdir(parents=True)
    command = ["gcc", "-shared", "-x", "c", "-", f"-Wl,-soname,{NAME}", "-o", str(folder / NAME)]
    subprocess.run(command, input=source, text=True, check=True)
    return folder
