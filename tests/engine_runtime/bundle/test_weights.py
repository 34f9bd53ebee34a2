from __future__ import annotations

import math
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from engine_runtime.bundle.weights import (
    TensorReader,
    Uninitialized,
    find_tensors,
    load_weights,
    read_checkpoint,
    stored_tensors,
    stream_tensors,
)
from engine_runtime.errors import BundleError


def _net(out: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, out), nn.BatchNorm1d(out))


def _weight(module: nn.Module) -> torch.Tensor:
    """The weight of the first layer of `_net`."""
    return module.get_parameter("0.weight")


def _save(module: nn.Module, file: Path, **changes: torch.Tensor | None) -> Path:
    tensors = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in module.state_dict().items()
    }
    for name, tensor in changes.items():
        key = name.replace("__", ".")
        if tensor is None:
            tensors.pop(key)
        else:
            tensors[key] = tensor
    safetensors.torch.save_file(tensors, file)
    return file


def test_weights_are_loaded_and_cast(tmp_path: Path) -> None:
    source, target = _net(), _net()
    load_weights(target, _save(source, tmp_path / "w.safetensors"), torch.float64)
    assert _weight(target).dtype == torch.float64
    assert torch.equal(_weight(target), _weight(source).half().double())
    assert target[1].num_batches_tracked.dtype == torch.int64


def test_a_module_on_the_meta_device_is_filled(tmp_path: Path) -> None:
    source = _net()
    with torch.device("meta"):
        target = _net()
    load_weights(target, _save(source, tmp_path / "w.safetensors"))
    assert torch.equal(target.get_parameter("0.bias"), source.get_parameter("0.bias").half().float())


def test_modules_can_be_built_without_random_values(tmp_path: Path) -> None:
    source = nn.Sequential(nn.Embedding(3, 4), nn.Conv1d(4, 4, 3), nn.LayerNorm(4))
    state = torch.random.get_rng_state()
    with Uninitialized():
        target = nn.Sequential(nn.Embedding(3, 4), nn.Conv1d(4, 4, 3), nn.LayerNorm(4))
    assert torch.equal(torch.random.get_rng_state(), state)
    load_weights(target, _save(source, tmp_path / "w.safetensors"))
    for name, tensor in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], tensor.half().float())


@pytest.mark.slow
def test_building_on_the_meta_device_imports_no_compiler(repository: Path) -> None:
    code = (
        "import sys, torch\n"
        "from engine_runtime.bundle.weights import Uninitialized\n"
        "with torch.device('meta'), Uninitialized(): torch.nn.Embedding(3, 4)\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_all_problems_are_named_at_once_and_nothing_changes(tmp_path: Path) -> None:
    module = _net()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    file = _save(
        _net(),
        tmp_path / "w.safetensors",
        **{"0__bias": None, "extra": torch.ones(1), "1__weight": torch.ones(9)},
    )
    with pytest.raises(BundleError) as caught:
        load_weights(module, file)
    text = str(caught.value)
    assert "missing: 0.bias" in text
    assert "unexpected: extra" in text
    assert "1.weight is [9], expected [3]" in text
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_shards_are_joined_and_may_not_overlap(tmp_path: Path) -> None:
    source, target = _net(), _net()
    tensors = source.state_dict()
    names = sorted(tensors)
    safetensors.torch.save_file({name: tensors[name] for name in names[:2]}, tmp_path / "a.safetensors")
    safetensors.torch.save_file({name: tensors[name] for name in names[2:]}, tmp_path / "b.safetensors")
    load_weights(target, [tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    assert torch.equal(_weight(target), _weight(source))
    with pytest.raises(BundleError, match="repeats"):
        load_weights(target, [tmp_path / "a.safetensors", tmp_path / "a.safetensors"])


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="missing"):
        load_weights(_net(), tmp_path / "none.safetensors")
    file = _save(_net(), tmp_path / "w.safetensors")
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(BundleError, match="damaged"):
        load_weights(_net(), file)
    (tmp_path / "empty.safetensors").write_bytes(b"")
    with pytest.raises(BundleError, match="damaged"):
        load_weights(_net(), tmp_path / "empty.safetensors")


class _Code:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("ran",))


def test_a_pickle_with_code_is_refused_and_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"0.weight": _Code()}, tmp_path / "w.pt")
    with pytest.raises(BundleError, match="can run code"):
        read_checkpoint(tmp_path / "w.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(_Code()))
    with pytest.raises(BundleError):
        read_checkpoint(tmp_path / "plain.pt")
    assert capsys.readouterr().out == ""


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("zipped", [True, False])
def test_damaged_checkpoints_raise_one_error(tmp_path: Path, zipped: bool) -> None:
    file = tmp_path / "w.pt"
    torch.save(_net().state_dict(), file, _use_new_zipfile_serialization=zipped)
    content, random = file.read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(content)
        for place in random.integers(0, len(content), 6):
            damaged[place] = random.integers(0, 256)
        file.write_bytes(bytes(damaged))
        try:
            read_checkpoint(file)
        except BundleError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize(
    "tensor", [torch.zeros(3, device="meta"), torch.zeros(3).to_sparse()], ids=["meta", "sparse"]
)
def test_tensors_without_values_of_their_own_are_refused(tmp_path: Path, tensor: torch.Tensor) -> None:
    torch.save({"0.weight": tensor}, tmp_path / "w.pt")
    with pytest.raises(BundleError, match=r"holds 0\.weight where tensors were expected"):
        read_checkpoint(tmp_path / "w.pt")


@pytest.mark.slow
def test_very_many_misfits_are_cut_short(tmp_path: Path) -> None:
    extra = {f"layer{index}": torch.ones(1) for index in range(9_000)}
    safetensors.torch.save_file(extra, tmp_path / "w.safetensors")
    with pytest.raises(BundleError, match="and 8,960 more") as caught:
        load_weights(nn.Linear(1, 1), tmp_path / "w.safetensors")
    assert len(str(caught.value)) < 1_000


def test_a_checkpoint_of_plain_tensors_may_carry_its_step(tmp_path: Path) -> None:
    source, target = _net(), _net()
    torch.save({**source.state_dict(), "epoch": 3, "step": 100}, tmp_path / "w.pt")
    load_weights(target, tmp_path / "w.pt")
    assert torch.equal(_weight(target), _weight(source))
    torch.save({**source.state_dict(), "optimizer": {"lr": 1}, "loss": 0.5}, tmp_path / "o.pt")
    with pytest.raises(BundleError, match="loss, optimizer"):
        read_checkpoint(tmp_path / "o.pt")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("meta", [True, False])
def test_values_that_are_no_numbers_are_refused(
    tmp_path: Path, value: float, suffix: str, dtype: torch.dtype, meta: bool
) -> None:
    file = tmp_path / f"w{suffix}"
    tensors = {name: tensor.to(dtype) for name, tensor in _net().state_dict().items()}
    tensors["0.weight"][2, 3] = value
    (torch.save if suffix == ".pt" else safetensors.torch.save_file)(tensors, file)
    with torch.device("meta" if meta else "cpu"):
        target = _net()
    with pytest.raises(
        BundleError, match=r"tensor 0\.weight holds NaN or infinity.*moss-voice inspect"
    ) as error:
        load_weights(target, file)
    assert str(file) in str(error.value)


def test_values_that_are_no_numbers_are_refused_in_float8_too(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    good = torch.tensor([1.0, -448.0, 0.0]).to(torch.float8_e4m3fn)
    bad = torch.tensor([1.0, math.nan]).to(torch.float8_e4m3fn)
    safetensors.torch.save_file({"good": good, "bad": bad}, file)
    read = TensorReader(find_tensors(file, {"good": (3,), "bad": (2,)}))
    assert read("good").float().tolist() == [1.0, -448.0, 0.0]
    with pytest.raises(BundleError, match="tensor bad holds NaN"):
        read("bad")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_large_values_whose_sum_overflows_are_read(tmp_path: Path, dtype: torch.dtype) -> None:
    file, large = tmp_path / "w.safetensors", torch.full((64,), torch.finfo(dtype).max, dtype=dtype)
    safetensors.torch.save_file({"large": large, "none": torch.empty(0)}, file)
    read = TensorReader(find_tensors(file, {"large": (64,), "none": (0,)}))
    assert torch.equal(read("large"), large)
    assert read("none").shape == (0,)


def test_values_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, looks = _save(_net(), tmp_path / "w.safetensors"), []
    read = TensorReader(find_tensors(file, {"0.weight": (3, 4)}, partial=True))
    monkeypatch.setattr(
        "engine_runtime.bundle.weights._is_finite", lambda tensor: looks.append(tensor.shape) or True
    )
    for _ in range(2):
        read("0.weight")
    assert looks == [(3, 4)]


@pytest.mark.parametrize("old_in_file", [True, False])
def test_both_styles_of_weight_norm(tmp_path: Path, old_in_file: bool) -> None:
    new = torch.nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 3, 3))
    with pytest.warns(FutureWarning, match="deprecated"):
        old = torch.nn.utils.weight_norm(nn.Conv1d(2, 3, 3))
    source, target = (old, new) if old_in_file else (new, old)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.copy_(torch.rand_like(parameter))
    file = tmp_path / "w.safetensors"
    safetensors.torch.save_file({k: v.contiguous() for k, v in source.state_dict().items()}, file)
    with pytest.raises(BundleError, match="unexpected"):
        load_weights(target, file)
    load_weights(target, file, either_weight_norm_style=True)
    x = torch.rand(1, 2, 8)
    assert torch.allclose(source(x), target(x), atol=1e-6)


def test_files_that_hold_more_are_taken_where_that_is_allowed(tmp_path: Path) -> None:
    source, target = _net(), _net()
    file = _save(source, tmp_path / "w.safetensors", decoder__weight=torch.ones(5))
    with pytest.raises(BundleError, match=r"unexpected: decoder\.weight"):
        load_weights(target, file)
    load_weights(target, file, partial=True)
    assert torch.equal(_weight(target), _weight(source).half().float())
    _save(source, file, decoder__weight=torch.ones(5), **{"0__bias": None})
    with pytest.raises(BundleError, match=r"missing: 0\.bias"):
        load_weights(target, file, partial=True)


def test_every_misfit_is_named(tmp_path: Path) -> None:
    module = nn.Linear(1, 1)
    extra = {f"layer{index}": torch.ones(1) for index in range(40)}
    safetensors.torch.save_file({**module.state_dict(), **extra}, tmp_path / "w.safetensors")
    with pytest.raises(BundleError) as caught:
        load_weights(module, tmp_path / "w.safetensors")
    assert all(name in str(caught.value) for name in extra)


def test_nothing_is_read_before_all_files_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _save(_net(), tmp_path / "w.safetensors")
    expected = {"0.weight": (3, 4), "nowhere": (1,)}
    read: list[str] = []
    monkeypatch.setattr("engine_runtime.bundle.weights._opened", lambda file: read.append(file.name))
    with pytest.raises(BundleError, match="missing: nowhere"):
        stream_tensors(file, expected, partial=True)
    assert not read


def test_tensors_come_one_by_one_with_the_share_that_is_done(tmp_path: Path) -> None:
    source = _net()
    names = sorted(source.state_dict())
    shards = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for file, part in zip(shards, (names[:3], names[3:]), strict=True):
        safetensors.torch.save_file({name: source.state_dict()[name] for name in part}, file)
    expected = {name: tuple(tensor.shape) for name, tensor in source.state_dict().items()}
    shares: list[float] = []
    came = dict(stream_tensors(shards, expected, progress=shares.append))
    assert came.keys() == expected.keys()
    assert all(torch.equal(came[name], tensor) for name, tensor in source.state_dict().items())
    assert shares == sorted(shares)
    assert len(shares) == len(names)
    assert shares[-1] == 1.0


def test_tensors_are_read_by_name_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = {f"layer{index}": torch.full((8, 8), float(index)) for index in range(6)}
    files = [tmp_path / "a.safetensors", tmp_path / "b.pt"]
    safetensors.torch.save_file({name: source[name] for name in ("layer0", "layer2", "layer4")}, files[0])
    torch.save({name: source[name] for name in ("layer1", "layer3", "layer5")}, files[1])
    # Each tensor is read from a new mapping of the file.
    monkeypatch.setattr("engine_runtime.bundle.weights._MAPPED_AT_MOST", 1)
    read = TensorReader(find_tensors(files, dict.fromkeys(source, (8, 8))))
    kept = {name: read(name) for name in ("layer5", "layer0", "layer3", "layer4", "layer1", "layer2")}
    assert all(torch.equal(kept[name], tensor) for name, tensor in source.items())


def test_headers_tell_shapes_of_both_kinds_of_file(tmp_path: Path) -> None:
    source = _net()
    torch.save({**source.state_dict(), "step": 3}, tmp_path / "w.pt")
    _save(source, tmp_path / "w.safetensors")
    expected = {name: tuple(tensor.shape) for name, tensor in source.state_dict().items()}
    for file in (tmp_path / "w.pt", tmp_path / "w.safetensors"):
        assert {name: tensor.shape for name, tensor in stored_tensors([file]).items()} == expected


@pytest.mark.parametrize("meta", [True, False])
def test_weights_stay_when_their_file_changes(tmp_path: Path, meta: bool) -> None:
    """Nothing is cast here, so only a copy keeps the weights apart from the mapped file."""
    file = tmp_path / "w.safetensors"
    safetensors.torch.save_file({"weight": torch.ones(64, 64), "bias": torch.ones(64)}, file)
    with torch.device("meta" if meta else "cpu"):
        module = nn.Linear(64, 64)
    load_weights(module, file)
    with file.open("r+b") as stream:
        size = stream.seek(0, 2)
        stream.seek(size // 2)
        stream.write(bytes(size - size // 2))
    assert torch.equal(module.weight, torch.ones(64, 64))


@pytest.mark.slow
def test_a_large_file_takes_little_memory(tmp_path: Path, repository: Path) -> None:
    """The memory of the process grows by what is mapped at a time, not by the size of the file."""
    file = tmp_path / "large.safetensors"
    tensors = {f"layer{index}": torch.ones(2048, 2048) for index in range(16)}
    safetensors.torch.save_file(tensors, file)
    code = (
        "import resource, sys, pathlib, torch\n"
        "from engine_runtime.bundle import weights\n"
        "weights._MAPPED_AT_MOST = 32 << 20\n"
        "expected = {f'layer{index}': (2048, 2048) for index in range(16)}\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10\n"
        "before = peak()\n"
        "tensors = weights.stream_tensors(pathlib.Path(sys.argv[1]), expected)\n"
        "total = sum(float(tensor.sum()) for _, tensor in tensors)\n"
        "print(int(total), peak() - before)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(file)], cwd=repository, capture_output=True, text=True, check=True
    )
    total, growth = map(int, result.stdout.split())
    assert total == 16 * 2048 * 2048
    assert growth < 96 << 20 < file.stat().st_size
