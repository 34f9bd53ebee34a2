"""Which compiled file Triton is given; tests/packaging/test_triton_launcher.py compiles one and starts it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from engine_runtime.cuda import triton_launcher
from tests.doubles.interpreted_triton import needs_triton

pytestmark = needs_triton


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a packaged program has, for the Triton that is installed here."""
    import triton
    from triton import knobs

    monkeypatch.setattr(knobs.build, "impl", None)
    monkeypatch.setattr(triton_launcher, "FOLDER", tmp_path)
    source = Path(triton.__file__).parent / "backends" / "nvidia" / "driver.c"
    (tmp_path / "driver.c").write_bytes(source.read_bytes())
    (tmp_path / "cuda_utils.so").write_bytes(b"compiled")
    return tmp_path


def test_triton_is_given_what_was_compiled_of_its_source(folder: Path) -> None:
    from triton.runtime import build

    assert triton_launcher.use_packaged_launcher()
    assert build._build("cuda_utils", "driver.c", "", [], [], [], []) == str(folder / "cuda_utils.so")


def test_another_triton_is_given_none(folder: Path) -> None:
    from triton import knobs

    (folder / "driver.c").write_bytes(b"another")
    assert not triton_launcher.use_packaged_launcher()
    assert knobs.build.impl is None


def test_a_checkout_has_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_launcher, "FOLDER", folder / "launcher")
    assert not triton_launcher.use_packaged_launcher()
    monkeypatch.undo()
    assert not triton_launcher.FOLDER.exists()


def test_without_triton_there_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not triton_launcher.use_packaged_launcher()


def test_a_compiler_does_as_well(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_launcher, "has_compiler", lambda: False)
    assert triton_launcher.has_launcher()
    (folder / "cuda_utils.so").unlink()
    assert not triton_launcher.has_launcher()
    monkeypatch.setattr(triton_launcher, "has_compiler", lambda: True)
    assert triton_launcher.has_launcher()
