"""The tensors of a bundle against its manifest: every kind of difference is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.released import assembly, layout
from engine_runtime.inventory import Inventory, take_inventory
from engine_runtime.tensorrt.checkpoint.convert import make_bundle
from tests.factories.trt_checkpoints import convert

NORM = "model.shared_block.layers.0.input_layernorm.weight"


@pytest.fixture
def bundle(random_bundle: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(random_bundle, tmp_path / "bundle"))


def change(file: Path, edit: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)


def taken(folder: Path) -> dict[str, Inventory]:
    return {found.network: found for found in take_inventory(Bundle.open(folder, verify="none"))}


def test_a_bundle_is_as_described(random_bundle: Path) -> None:
    found = taken(random_bundle)
    assert list(found) == ["language model", "speech encoder", "flow", "vocoder"]
    for network in found.values():
        assert network.differences == ()
        assert network.found == network.expected > 0
        assert network.dtype == "float16"


def test_each_kind_of_difference_is_named_at_once(bundle: Path) -> None:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors[NORM] = torch.ones(65).half()
        head = tensors.pop("audio_lm_head.weight")
        tensors["audio_head.weight"] = head
        tensors["model.text_norm.weight"] = tensors["model.text_norm.weight"].float()

    change(bundle / "lm.safetensors", edit)
    found = taken(bundle)
    size = found["language model"].expected
    assert found["language model"].differences == (
        "missing: audio_lm_head.weight",
        "unexpected: audio_head.weight",
        f"wrong shape: {NORM} is [65], expected [64]",
        "wrong dtype: model.text_norm.weight is float32, expected float16",
    )
    assert found["language model"].found == size - 1
    assert not any(found[name].differences for name in ("speech encoder", "flow", "vocoder"))


def test_a_file_that_cannot_be_read_is_a_difference(bundle: Path) -> None:
    (bundle / "flow.safetensors").write_bytes(b"not a header")
    (bundle / "vocoder.safetensors").unlink()
    found = taken(bundle)
    assert "flow.safetensors" in found["flow"].differences[0]
    assert "vocoder.safetensors is missing" in found["vocoder"].differences[0]
    assert not found["language model"].differences


def test_the_released_files_have_the_dtype_of_their_config(released_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(released_folder, tmp_path / "released")
    released = layout.find_released(*layout.locate(folder))
    to = assembly.assemble(released, tmp_path / "bundle").path
    found = taken(to)
    assert all(not network.differences for network in found.values())
    assert (found["language model"].dtype, found["language model"].source) == ("bfloat16", "config.json")
    shard = released.lm / released.lm_weights[0]
    name = sorted(load_file(shard))[0]
    change(shard, lambda tensors: tensors.update({name: tensors[name].float()}))
    assert taken(to)["language model"].differences == (f"wrong dtype: {name} is float32, expected bfloat16",)


def test_a_converted_checkpoint_is_compared_with_its_own_layout(random_bundle: Path, tmp_path: Path) -> None:
    checkpoint = convert(random_bundle, tmp_path / "checkpoint").directory
    folder = make_bundle(random_bundle, checkpoint, tmp_path / "bundle").path
    found = taken(folder)["language model"]
    assert found.differences == ()
    assert found.found == found.expected > 0


def test_differences_are_those_of_all_kinds() -> None:
    empty = Inventory("flow", (), 0, 0, "", "")
    assert empty.differences == ()
    assert replace(empty, problem="it is damaged").differences == ("it is damaged",)
