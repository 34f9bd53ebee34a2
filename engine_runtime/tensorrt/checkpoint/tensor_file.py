"""Writes a safetensors file larger than memory: the header first, then tensor by tensor.

In: names, shapes and dtypes, and a producer of the values in chunks. Out: one file, written under a temporary
name and renamed after a comparison of its full content with the source. An interrupted run is resumed.
safetensors itself writes a file from tensors that are all in memory at once; its format is a length, a JSON
header and the values without gaps (README of huggingface/safetensors). Any thread.
"""

from __future__ import annotations

import json
import os
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine_runtime.bundle.weights import Progress
from engine_runtime.errors import BundleError, ExportError
from engine_runtime.tensorrt.checkpoint.format import CheckpointTensor

Produce = Callable[[str], Iterable[Tensor]]
"""The values of a tensor, as chunks of complete rows in order, in its dtype, on the CPU."""

_DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
}
_ALIGNMENT = 8


@dataclass(frozen=True)
class TensorFile:
    """A file to be written. `metadata` goes into its header: a file with a different header is never
    resumed."""

    file: Path
    specs: Mapping[str, CheckpointTensor]
    metadata: Mapping[str, str]

    @property
    def unfinished(self) -> Path:
        """Its path until it is complete."""
        return self.file.with_name(f"{self.file.name}.part")

    @cached_property
    def names(self) -> list[str]:
        """The order in the file: wide dtypes first, so that each tensor is aligned to its item size."""
        return sorted(self.specs, key=lambda name: -self.specs[name].dtype.itemsize)

    @cached_property
    def ends(self) -> list[int]:
        """End of each of `names`, in bytes after the header."""
        return list(accumulate(_size(self.specs[name]) for name in self.names))

    @cached_property
    def header(self) -> bytes:
        """Length and JSON, padded so that the values start aligned."""
        starts = [0, *self.ends]
        content: dict[str, Any] = {"__metadata__": dict(self.metadata)}
        for name, start, end in zip(self.names, starts, self.ends, strict=False):
            spec = self.specs[name]
            content[name] = {
                "dtype": _DTYPES[spec.dtype],
                "shape": list(spec.shape),
                "data_offsets": [start, end],
            }
        text = json.dumps(content, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        return len(text).to_bytes(8, "little") + text

    @property
    def bytes(self) -> int:
        """Size of the complete file in bytes."""
        return len(self.header) + self.ends[-1]

    def is_written(self) -> bool:
        """Whether the complete file exists; ExportError if it is a different file."""
        if not self.file.is_file():
            return False
        with self.file.open("rb") as stream:
            if stream.read(len(self.header)) == self.header:
                return True
        raise ExportError(
            "{file} already exists, from another model or in another format.",
            "Choose another folder with --to, or remove it.",
            file=self.file,
        )

    def require_room(self) -> None:
        """ExportError unless the disk has space for the remaining bytes."""
        there = self.unfinished.stat().st_size if self.unfinished.is_file() else 0
        missing = self.bytes - there
        folder = next(folder for folder in self.file.absolute().parents if folder.is_dir())
        free = shutil.disk_usage(folder).free
        if missing > free:
            raise ExportError(
                "The disk of {parent} has {free:.1f} GB free, but {missing:.1f} GB are needed.",
                "Free some space, or choose a folder on another disk with --to.",
                parent=self.file.parent,
                free=free / 1e9,
                missing=missing / 1e9,
            )

    def write(self, produce: Produce, progress: Progress | None = None) -> None:
        """Write the remaining tensors, under the temporary name.

        Raises ExportError if it cannot be written, and the errors of `produce`.
        """
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.unfinished.open("r+b" if self.unfinished.is_file() else "w+b") as stream:
                first = self._tensors_there(stream)
                for name, end in list(zip(self.names, self.ends, strict=True))[first:]:
                    for values in produce(name):
                        stream.write(_as_bytes(values, self.specs[name].dtype).data)
                    if stream.tell() != len(self.header) + end:
                        raise BundleError(
                            "{name} does not have the size in the model's description.", name=name
                        )
                    if progress is not None:
                        progress(end / self.ends[-1])
                stream.flush()
                os.fsync(stream.fileno())
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # `finish` reads the disk
        except OSError as error:
            raise ExportError(
                "{unfinished} cannot be written: {reason}.",
                "Free some space or choose another folder with --to; the same command resumes where it "
                "stopped.",
                unfinished=self.unfinished,
                reason=error.strerror or error,
            ) from error

    def finish(self, produce: Produce, progress: Progress | None = None) -> None:
        """Compare the file with its source, bit by bit, and rename it.

        An unfinished file that differs is removed. Raises ExportError for that, or if it cannot be read.
        """
        is_finished = self.file.is_file()
        file = self.file if is_finished else self.unfinished
        try:
            with file.open("rb") as stream:
                is_same = file.stat().st_size == self.bytes and stream.read(len(self.header)) == self.header
                for name, end in zip(self.names, self.ends, strict=True):
                    is_same = is_same and self._is_same(stream, name, produce)
                    if progress is not None:
                        progress(end / self.ends[-1])
            if is_same:
                file.replace(self.file)
                return
            if not is_finished:
                file.unlink()
        except OSError as error:
            raise ExportError(
                "{file} cannot be read again: {reason}.",
                "Check the disk and run it again.",
                file=file,
                reason=error.strerror or error,
            ) from error
        if is_finished:
            raise ExportError(
                "{file} is damaged or of other weights.",
                "Remove it and run the same command again.",
                file=file,
            )
        raise ExportError(
            "{file} differs from the data written to it and was removed.",
            "Check the disk and memory of this machine, and run the same command again.",
            file=file,
        )

    def _is_same(self, stream: BinaryIO, name: str, produce: Produce) -> bool:
        for values in produce(name):
            wanted = _as_bytes(values, self.specs[name].dtype)
            found = np.frombuffer(stream.read(wanted.size), np.uint8)
            if not np.array_equal(found, wanted):
                return False
        return True

    def _tensors_there(self, stream: BinaryIO) -> int:
        """Seek to the next tensor; returns the number of complete tensors of an earlier run."""
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        complete = 0
        if stream.read(len(self.header)) == self.header:
            complete = bisect_right(self.ends, size - len(self.header))
        else:
            stream.seek(0)
            stream.truncate()
            stream.write(self.header)
        stream.seek(len(self.header) + (self.ends[complete - 1] if complete else 0))
        stream.truncate()
        return complete


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a small file atomically. ExportError if that fails."""
    unfinished = file.with_name(f"{file.name}.part")
    try:
        unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(file)
    except OSError as error:
        raise ExportError(
            "{file} cannot be written: {reason}.",
            "Free some space and run it again.",
            file=file,
            reason=error.strerror or error,
        ) from error


def _as_bytes(values: Tensor, dtype: torch.dtype) -> NDArray[np.uint8]:
    if values.dtype != dtype:
        raise BundleError(
            "A tensor came in {dtype} where {announced} was announced.", dtype=values.dtype, announced=dtype
        )
    array: NDArray[np.uint8] = values.contiguous().reshape(-1).view(torch.uint8).numpy()
    return array


def _size(spec: CheckpointTensor) -> int:
    return prod(spec.shape) * spec.dtype.itemsize
