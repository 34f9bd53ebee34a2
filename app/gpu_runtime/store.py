"""The folders of the GPU runtime in the user's data, and the records that say whether they are used.

    gpu-runtime/
      torch-2.13.0-.../        one runtime; one of another version of the program stays beside it
      torch-2.13.0-....json    its record: what its test found, in which state it was. It is the switch
      torch-2.13.0-....part/   one that is being unpacked
      downloads/               wheels, and .part files to be resumed

A folder gets its name when it is complete, and a record is replaced as a whole, so that an interruption
leaves the old or the new state. Any thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from app.gpu_runtime.lock import GpuRuntimeError
from app.process import take_lock

_DRIVER = Path("/proc/driver/nvidia/version")
_DOWNLOADS, _BUSY, _PART, _RECORD = "downloads", "busy", ".part", ".json"
_BYTECODE = "__pycache__"


@dataclass(frozen=True, slots=True)
class RuntimeRecord:
    """What is known of a runtime. `state` is the fingerprint of the folder that was tested, `failure` a
    sentence why it is not used ("" if it is), `is_reported` whether the user has been told. The rest is what
    the test found: the GPUs, and why Triton kernels cannot run on them."""

    state: str = ""
    torch: str = ""
    devices: tuple[str, ...] = ()
    no_triton: str = ""
    failure: str = ""
    is_reported: bool = False


class RuntimeStore:
    """The folder of all runtimes of a user."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def downloads(self) -> Path:
        """Where wheels are kept until they are installed."""
        return self.root / _DOWNLOADS

    def folder(self, key: str) -> Path:
        """The folder of a runtime, whether it is there or not."""
        return self.root / key

    def part(self, key: str) -> Path:
        """The folder in which a runtime is unpacked."""
        return self.root / f"{key}{_PART}"

    def prepare(self) -> None:
        """Make the folder, which nobody else may look into or change: it holds code. Raises OSError."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.root.chmod(0o700)  # one of an earlier version was made as the umask said

    def is_private(self, key: str) -> bool:
        """Whether only this user, or root, could change the runtime so far."""
        try:
            found = [self.root.stat(), self.folder(key).stat()]
        except OSError:
            return False
        return all(each.st_uid in (os.geteuid(), 0) and not each.st_mode & 0o022 for each in found)

    def installed(self) -> list[Path]:
        """The folders of complete runtimes, by name."""
        if not self.root.is_dir():
            return []
        found = (path for path in self.root.iterdir() if path.name != _DOWNLOADS and path.suffix != _PART)
        return sorted(path for path in found if path.is_dir())

    def read_record(self, key: str) -> RuntimeRecord | None:
        """The record of a runtime; None if there is none, or it cannot be read."""
        try:
            content = json.loads((self.root / f"{key}{_RECORD}").read_text(encoding="utf-8"))
            return RuntimeRecord(**content | {"devices": tuple(content["devices"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write_record(self, key: str, record: RuntimeRecord) -> None:
        """Replace the record as a whole. Raises OSError."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self.root / f"{key}.{os.getpid()}{_PART}"
        new.write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
        new.replace(self.root / f"{key}{_RECORD}")

    def remove(self, key: str) -> None:
        """Remove one runtime, its record first. Raises OSError."""
        (self.root / f"{key}{_RECORD}").unlink(missing_ok=True)
        for folder in (self.folder(key), self.part(key)):
            if folder.is_dir():
                shutil.rmtree(folder)

    def remove_others(self, keep: Collection[str]) -> None:
        """Remove runtimes, records, unfinished folders and downloads whose names do not begin with one of
        `keep`: keys and names of wheels. Raises OSError."""
        folders = (self.root, self.downloads)
        for path in (path for folder in folders if folder.is_dir() for path in folder.iterdir()):
            if path in (self.downloads, self.root / _BUSY) or path.name.startswith(tuple(keep)):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def remove_all(self) -> None:
        """Remove everything, unfinished downloads as well. Raises OSError."""
        for folder in self.installed():
            self.remove(folder.name)
        if self.root.is_dir():
            shutil.rmtree(self.root)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Keep other processes from changing anything meanwhile. GpuRuntimeError if one does so."""
        self.prepare()
        with (self.root / _BUSY).open("w") as file:
            if not take_lock(file.fileno()):
                raise GpuRuntimeError(
                    "The GPU runtime is being installed or removed by another process.", "Wait for it to end."
                )
            yield


def fingerprint(folder: Path) -> str:
    """A hash that changes with any file of a runtime (names, sizes, times) and with the driver.

    Bytecode does not count: it appears when a module is used first. Raises OSError.
    """
    digest = hashlib.sha256()
    with contextlib.suppress(OSError):
        digest.update(_DRIVER.read_bytes())
    for name, found in _files(folder):
        digest.update(f"{name}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def size_bytes(folder: Path) -> int:
    """Size of all files in a folder. Raises OSError."""
    return sum(found.st_size for _, found in _files(folder))


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Path and status of every file, in the order of their names."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                if entry.name != _BYTECODE:
                    yield from _files(Path(entry.path))
            else:
                yield entry.path, entry.stat(follow_symlinks=False)
