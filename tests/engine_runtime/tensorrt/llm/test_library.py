"""Messages if TensorRT-LLM is missing, broken or of another version. It is not installed here."""

from __future__ import annotations

import builtins
import platform
import sys
from types import ModuleType
from typing import Any

import pytest

from engine_runtime.errors import EngineError
from engine_runtime.tensorrt.llm import library
from engine_runtime.tensorrt.llm.library import Library
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
    homes = {
        "": {"__version__": version},
        "._common": "default_net",
        ".builder": "BuildConfig KVCacheType build",
        ".functional": "AttentionMaskType LayerNormType PositionEmbeddingType gather_last_token_logits",
        ".layers": "Attention ColumnLinear Embedding GatedMLP RmsNorm",
        ".models": "MODEL_MAP",
        ".models.modeling_utils": "PretrainedConfig PretrainedModel",
        ".module": "Module ModuleList",
        ".plugin": "PluginConfig",
    }
    for suffix, names in homes.items():
        module = ModuleType(f"tensorrt_llm{suffix}")
        values = (
            names if isinstance(names, dict) else {name: getattr(stand_in, name) for name in names.split()}
        )
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, module.__name__, module)
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
    text = library.how_to_get()
    assert "this is Windows on AMD64" in text
    assert "no wheel for Python 3.11" in text
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    assert "this is" not in library.how_to_get()
    assert "no wheel" not in library.how_to_get()


def test_a_library_that_does_not_load_is_not_called_missing() -> None:
    text = library.how_to_get(OSError("libcuda.so.1: cannot open shared object file"))
    assert text.startswith("TensorRT-LLM cannot be loaded (OSError: libcuda.so.1")
    text = library.how_to_get(ModuleNotFoundError("No module named 'mpi4py'", name="mpi4py"))
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
