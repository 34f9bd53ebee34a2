"""A safetensors file written in chunks: read by the library, resumed, and verified."""

from __future__ import annotations

import resource
import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine_runtime.errors import BundleError, ExportError
from engine_runtime.tensorrt.checkpoint.format import CheckpointTensor
from engine_runtime.tensorrt.checkpoint.tensor_file import TensorFile

VALUES = {
    "odd": torch.arange(7, dtype=torch.uint8),
    "wide": torch.randn(5, 3, generator=torch.Generator().manual_seed(0)),
    "scale": torch.tensor([0.25]),
    "half": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
    "eighth": torch.arange(8).float().to(torch.float8_e4m3fn),
    "last": torch.arange(20, dtype=torch.int8).view(4, 5),
}


class _Source:
    """Yields tensors row by row, and records the requested ones."""

    def __init__(self, values: dict[str, Tensor], stop_at: str | None = None) -> None:
        self.values, self.stop_at, self.asked = values, stop_at, list[str]()

    def __call__(self, name: str) -> Iterator[Tensor]:
        self.asked.append(name)
        for row in self.values[name]:
            if name == self.stop_at:
                raise KeyboardInterrupt
            yield row


def _file(folder: Path, **metadata: str) -> TensorFile:
    specs = {name: CheckpointTensor(tuple(value.shape), value.dtype) for name, value in VALUES.items()}
    return TensorFile(folder / "rank0.safetensors", specs, {"format": "pt", **metadata})


def _convert(file: TensorFile, source: _Source) -> None:
    file.write(source)
    file.finish(_Source(VALUES))


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    file, shares = _file(tmp_path / "new"), list[float]()
    file.write(_Source(VALUES), shares.append)
    assert not file.file.exists()
    assert not file.is_written()
    file.finish(_Source(VALUES), shares.append)
    read = load_file(file.file)
    assert read.keys() == VALUES.keys()
    for name, value in VALUES.items():
        assert read[name].dtype == value.dtype
        assert torch.equal(read[name].view(torch.uint8), value.view(torch.uint8)), name
    assert file.is_written()
    assert file.bytes == file.file.stat().st_size
    assert not file.unfinished.exists()
    assert len(shares) == 2 * len(VALUES)
    assert shares[len(VALUES) - 1] == shares[-1] == 1.0


def test_an_interrupted_run_is_resumed_after_the_last_complete_tensor(tmp_path: Path) -> None:
    file = _file(tmp_path)
    stop_at = file.names[3]
    with pytest.raises(KeyboardInterrupt):
        file.write(_Source(VALUES, stop_at))
    assert file.unfinished.stat().st_size >= len(file.header) + file.ends[2]
    source = _Source(VALUES)
    _convert(file, source)
    assert source.asked == file.names[3:]
    again = _Source(VALUES)
    _convert(_file(tmp_path / "whole"), again)
    assert file.file.read_bytes() == (tmp_path / "whole" / file.file.name).read_bytes()


@pytest.mark.parametrize("left", [0, 3, 8, 100])
def test_a_file_cut_anywhere_is_completed(tmp_path: Path, left: int) -> None:
    file = _file(tmp_path)
    file.write(_Source(VALUES))
    content = file.unfinished.read_bytes()
    file.unfinished.write_bytes(content[:left])
    _convert(file, _Source(VALUES))
    assert file.file.read_bytes() == content


def test_a_partial_file_of_another_model_is_restarted_but_a_complete_one_is_kept(tmp_path: Path) -> None:
    _file(tmp_path, source="other").write(_Source(VALUES))
    source = _Source(VALUES)
    _convert(_file(tmp_path, source="mine"), source)
    assert source.asked == _file(tmp_path).names
    with pytest.raises(ExportError, match="from another model"):
        _file(tmp_path, source="third").is_written()


def test_what_the_disk_changed_is_found_and_removed(tmp_path: Path) -> None:
    file = _file(tmp_path)
    file.write(_Source(VALUES))
    content = bytearray(file.unfinished.read_bytes())
    content[-1] ^= 1
    file.unfinished.write_bytes(content)
    with pytest.raises(ExportError, match="was removed"):
        file.finish(_Source(VALUES))
    assert not file.unfinished.exists()
    assert not file.file.exists()
    file.file.write_bytes(content)
    with pytest.raises(ExportError, match="damaged or of other weights"):
        file.finish(_Source(VALUES))
    assert file.file.exists()


def test_a_disk_that_is_too_small_is_reported_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    file = _file(tmp_path / "not" / "there")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(100, 90, file.bytes - 1))
    with pytest.raises(ExportError, match=r"Free some space, or choose a folder on another disk with --to"):
        file.require_room()
    assert not file.file.parent.exists()
    file.unfinished.parent.mkdir(parents=True)
    file.unfinished.write_bytes(b"x")
    file.require_room()


def test_a_full_disk_is_reported_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    file = _file(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(file.header) + file.ends[2], hard))
    try:
        with pytest.raises(ExportError, match=r"cannot be written: File too large.*resumes where it stopped"):
            file.write(_Source(VALUES))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    source = _Source(VALUES)
    _convert(file, source)
    assert source.asked == file.names[3:]


def test_values_that_were_not_announced(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="float64"):
        _file(tmp_path).write(_Source(VALUES | {"wide": VALUES["wide"].double()}))
    with pytest.raises(BundleError, match="wide does not have the size"):
        _file(tmp_path / "b").write(_Source(VALUES | {"wide": VALUES["wide"][:4]}))
