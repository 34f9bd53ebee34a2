"""Messages if TensorRT-LLM or what it requires is missing, broken or of another version. It is not
installed here."""

from __future__ import annotations

import builtins
import platform
import sys
from importlib import metadata
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

from engine_runtime.errors import EngineError
from engine_runtime.tensorrt.llm import library
from engine_runtime.tensorrt.llm.library import Clash, Library, clashes
from tests.doubles.tensorrt.model_api import make_library


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without it, also where it is there."""
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> ModuleType:
        if name.partition(".")[0] == "tensorrt_llm":
            raise ModuleNotFoundError("No module named 'tensorrt_llm'", name="tensorrt_llm")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.usefixtures("without_library")
@pytest.mark.parametrize("load", [library.load_library, library.load_plugins])
def test_without_the_library_it_says_how_to_get_it(load: Any) -> None:
    with pytest.raises(EngineError) as caught:
        load()
    text = str(caught.value)
    assert text.startswith("TensorRT-LLM is not installed.")
    for needed in ("TensorRT-LLM 1.2.1", "packaging/TENSORRT.md", "Python 3.12", "CUDA 13"):
        assert needed in text


def install(monkeypatch: pytest.MonkeyPatch, version: str) -> Library:
    """The double under the documented module names of the library."""
    stand_in = make_library()
    root = ModuleType("tensorrt_llm")
    vars(root)["__version__"] = version
    monkeypatch.setitem(sys.modules, "tensorrt_llm", root)
    for home, names in library.NAMES.items():
        module = ModuleType(home)
        vars(module).update({name: getattr(stand_in, name) for name in names})
        monkeypatch.setitem(sys.modules, home, module)
    return stand_in


def test_the_library_is_taken_from_where_it_has_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = install(monkeypatch, library.VERSION)
    assert library.load_library() == stand_in
    library.load_plugins()


def test_another_release_is_refused_for_building_but_may_bring_its_plugins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, "0.13.0")
    library.load_plugins()
    with pytest.raises(EngineError, match=r"Engines cannot be built with TensorRT-LLM 0\.13\.0"):
        library.load_library()


def test_it_names_what_of_this_machine_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    monkeypatch.setattr(sys, "version_info", (3, 11, 4))
    text = str(library.how_to_get())
    assert "this is Windows on AMD64" in text
    assert "no wheel for Python 3.11" in text
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    assert "this is" not in str(library.how_to_get())
    assert "no wheel" not in str(library.how_to_get())


def test_a_library_that_does_not_load_is_not_called_missing() -> None:
    text = str(library.how_to_get(OSError("libcuda.so.1: cannot open shared object file")))
    assert text.startswith("TensorRT-LLM cannot be loaded (OSError: libcuda.so.1")
    text = str(library.how_to_get(ModuleNotFoundError("No module named 'mpi4py'", name="mpi4py")))
    assert text.startswith("TensorRT-LLM cannot be loaded (ModuleNotFoundError: No module named 'mpi4py'")


@pytest.mark.parametrize("version", ["1.2.0", "1.2.1"])
def test_the_release_that_this_was_written_for_is_taken(version: str) -> None:
    library.check_version(version)
    library.check_version(version, builds=False)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("0.13.0", "normalizes queries and keys wrongly"),
        ("0.21.0", "no release before 1.0"),
        ("1.0.0", "never tried"),
        ("1.1.0", "never tried"),
        ("1.2.0rc4", "never tried"),
        ("1.3.0rc20", "no longer builds TensorRT engines"),
        ("1.4.0rc1", "no longer builds TensorRT engines"),
    ],
)
def test_other_releases_are_refused_with_the_reason(version: str, reason: str) -> None:
    with pytest.raises(EngineError, match=reason) as caught:
        library.check_version(version)
    assert library.VERSION in caught.value.what_to_do
    if not version.startswith("0."):
        with pytest.raises(EngineError, match=reason):
            library.check_version(version, builds=False)


@pytest.mark.usefixtures("without_library")
@pytest.mark.parametrize("load", [library.load_library, library.load_plugins])
def test_a_release_without_engines_is_named_before_its_modules_are_missed(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "installed_version", lambda package: "1.4.0rc1")
    with pytest.raises(EngineError, match=r"TensorRT-LLM 1\.4\.0rc1 no longer builds TensorRT engines"):
        load()


REQUIRED = ["numpy<2", "torch<=2.10.0a0,>=2.9.1", "openai", 'colored; extra == "devel"', "h5py==3.12.1"]


def _install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(name: str) -> str:
        try:
            return versions[name.replace("-", "_")]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    def requires(name: str) -> list[str]:
        version(name)
        return REQUIRED

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", requires)


def test_the_set_that_the_library_was_released_with_has_no_clash(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(
        monkeypatch,
        torch="2.9.1+cu130",
        numpy="1.26.4",
        transformers="4.57.3",
        triton="3.5.1",
        tensorrt="10.14.1.48",
        onnx="1.19.1",
        cuda_python="13.1.0",
        setuptools="79.0.1",
    )
    assert clashes() == []


@pytest.mark.parametrize(
    ("package", "version", "required"),
    [
        ("numpy", "2.0.0", "<2"),
        ("torch", "2.10.0", "<=2.10.0a0,>=2.9.1"),
        ("torch", "2.9.0+cu130", "<=2.10.0a0,>=2.9.1"),
        ("transformers", "4.57.1", "==4.57.3"),
        ("tensorrt", "10.15.1.29", "~=10.14.1"),
        ("onnx", "1.20.0", "<1.20.0,>=1.18.0"),
        ("setuptools", "84.2.1", "<80"),
    ],
)
def test_every_other_version_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, version: str, required: str
) -> None:
    _install(monkeypatch, **{package: version})
    assert clashes() == [Clash(package, version, required)]


def test_an_installed_library_speaks_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metadata is used, and missing packages are reported, except those for development."""
    _install(monkeypatch, tensorrt_llm="1.2.1", numpy="2.4.6", torch="2.9.1", h5py="3.12.1", triton="3.7.0")
    assert clashes() == [Clash("numpy", "2.4.6", "<2"), Clash("openai", None, "any version")]


def test_our_own_ranges_admit_that_set() -> None:
    """For the packages that both name, some version satisfies both."""
    ours = {
        wanted.name: wanted.specifier for wanted in map(Requirement, metadata.requires("moss-voice") or [])
    }
    released = {"torch": "2.9.1", "numpy": "1.26.4", "transformers": "4.57.3", "triton": "3.5.1"}
    theirs = {wanted.name: wanted.specifier for wanted in library.requirements()}
    for package, version in released.items():
        assert ours[package].contains(version), package
        assert theirs[package].contains(version), package
