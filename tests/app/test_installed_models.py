"""The models on this computer: shipped, fetched, begun; and removal."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from app import paths
from app.installed_models import RELEASED, ModelError, find_models, free_bytes, remove
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.released.assembly import assemble
from engine_runtime.bundle.released.layout import DOWNLOAD_BYTES, find_released, locate


@pytest.fixture
def fetched(released_folder: Path) -> Path:
    """The released model, linked as by `fetch --from`."""
    folder = paths.user_bundles_dir() / RELEASED
    assemble(find_released(*locate(released_folder)), folder)
    return folder


def test_what_can_be_downloaded_is_listed_after_what_is_there(nano_bundle: Path) -> None:
    nano, released = find_models()
    assert (nano.name, nano.folder, nano.is_shipped, nano.is_installed) == ("nano", nano_bundle, True, True)
    assert nano.licence == "Apache-2.0"
    assert nano.bytes == sum(
        (nano_bundle / name).stat().st_size for name in Bundle.open(nano_bundle, verify="none").files
    )
    assert not nano.is_removable
    assert (released.name, released.bytes, released.loaded_bytes) == (RELEASED, DOWNLOAD_BYTES, 0)
    assert not released.is_installed
    assert not released.is_removable


def test_a_download_that_was_begun_is_measured_and_removed(nano_bundle: Path) -> None:
    folder = paths.user_bundles_dir() / RELEASED
    (folder / "MOSS-Speech").mkdir(parents=True)
    (folder / "MOSS-Speech" / "model.safetensors.part").write_bytes(bytes(300))
    released = find_models()[-1]
    assert (released.loaded_bytes, released.is_installed, released.is_removable) == (300, False, True)
    remove(folder)
    assert not folder.exists()
    assert find_models()[-1].loaded_bytes == 0


@pytest.mark.slow
def test_a_fetched_model_is_removed_and_what_it_links_to_stays(fetched: Path, released_folder: Path) -> None:
    model = find_models()[-1]
    assert (model.folder, model.is_installed, model.is_removable) == (fetched, True, True)
    assert "without a licence file" in model.licence
    assert model.bytes > 0
    remove(fetched)
    assert not fetched.exists()
    assert (released_folder / "MOSS-Speech" / "config.json").is_file()


@pytest.mark.slow
def test_a_damaged_model_says_what_is_wrong(fetched: Path) -> None:
    (fetched / "MOSS-Speech").unlink()
    model = find_models()[-1]
    assert model.is_installed
    assert model.is_removable
    assert "lacks" in str(model.problem)


def test_only_what_was_fetched_is_removed(nano_bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "nano"
    shutil.copytree(nano_bundle, copy)
    for folder in (copy, paths.user_bundles_dir(), paths.user_bundles_dir() / ".." / "bundles"):
        with pytest.raises(ModelError, match="not fetched"):
            remove(folder)
    assert (copy / "bundle.toml").is_file()
    remove(paths.user_bundles_dir() / "nothing there")


def test_the_free_space_is_that_of_the_first_folder_that_is_there(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not" / "yet") == pytest.approx(free_bytes(tmp_path), rel=0.01)
