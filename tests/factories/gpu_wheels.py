"""Small stand-ins for the wheels of the GPU runtime, and locks of them."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

TORCH = '''
"""As much of torch as the test of a runtime uses."""
import types
import numpy

__version__ = "2.13.0+cu130"
version = types.SimpleNamespace(cuda="13.0")
cuda = types.SimpleNamespace(is_available=lambda: False, init=lambda: None)


class device:
    def __init__(self, name):
        self.type = name


class Tensor:
    def __init__(self, values):
        self.values = values

    def to(self, device):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self.values

    def __matmul__(self, other):
        return Tensor(self.values @ other.values)


from_numpy = Tensor
'''
WITH_GPU = """
cuda.is_available = lambda: True
cuda.device_count = lambda: 1
cuda.get_device_properties = lambda index: types.SimpleNamespace(
    name="Test GPU", total_memory=24 * 2**30, major=8, minor=9
)
"""
PADDING = bytes(range(256)) * 400


def make_wheel(
    folder: Path,
    package: str,
    version: str,
    files: Mapping[str, str | bytes],
    *,
    programs: Iterable[str] = (),
) -> Path:
    """A wheel for every Python with these files; those in `programs` can be started."""
    folder.mkdir(parents=True, exist_ok=True)
    name = package.replace("-", "_")
    path = folder / f"{name}-{version}-py3-none-any.whl"
    record = f"{name}-{version}.dist-info/RECORD"
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    everything = {**files, f"{name}-{version}.dist-info/METADATA": metadata}
    lines = []
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in everything.items():
            content = text.encode() if isinstance(text, str) else text
            entry = zipfile.ZipInfo(file)
            entry.external_attr = (0o755 if file in programs else 0o644) << 16
            archive.writestr(entry, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{file},sha256={digest},{len(content)}\n")
        archive.writestr(zipfile.ZipInfo(record), f"{''.join(lines)}{record},,\n")  # not of now
    return path


def make_runtime_wheels(folder: Path, *, torch: str = TORCH, version: str = "2.13.0") -> list[Path]:
    """The wheels of a small runtime: torch, a library without code, a package with a program."""
    return [
        make_wheel(folder, "torch", version, {"torch/__init__.py": torch, "torch/include/c10.h": "//"}),
        make_wheel(folder, "nvidia-cuda-runtime", "13.0.96", {"nvidia/cu13/lib/libcudart.so.13": PADDING}),
        make_wheel(
            folder,
            "cuda-tools",
            "1.0",
            {
                "cuda_tools/bin/ptxas": "#!/bin/sh\n",
                "cuda_tools-1.0.data/purelib/more.py": "",
                "cuda_tools-1.0.data/scripts/tool": "",
            },
            programs=["cuda_tools/bin/ptxas"],
        ),
    ]


def write_lock(file: Path, wheels: Iterable[Path], address: str = "https://files.invalid") -> Path:
    """A lock of wheels that are below `address`."""
    lines = ['lock-version = "1.0"', 'created-by = "a test"']
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        with zipfile.ZipFile(wheel) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        lines += [
            "[[packages]]",
            f'name = "{name.replace("_", "-")}"',
            f'version = "{version}"',
            "[[packages.wheels]]",
            f'url = "{address}/{wheel.name}"',
            f"size = {wheel.stat().st_size}",
            f'hashes = {{ sha256 = "{hashlib.sha256(wheel.read_bytes()).hexdigest()}" }}',
            "[packages.tool.moss-voice]",
            f"unpacked = {unpacked}",
        ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file
