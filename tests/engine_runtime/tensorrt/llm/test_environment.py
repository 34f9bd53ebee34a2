from __future__ import annotations

from importlib import metadata

import pytest

from engine_runtime.tensorrt.llm import environment
from engine_runtime.tensorrt.llm.environment import Clash, clashes

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
        wanted.name: wanted.specifier
        for wanted in map(environment.Requirement, metadata.requires("moss-voice") or [])
    }
    released = {"torch": "2.9.1", "numpy": "1.26.4", "transformers": "4.57.3", "triton": "3.5.1"}
    theirs = {wanted.name: wanted.specifier for wanted in environment.requirements()}
    for package, version in released.items():
        assert ours[package].contains(version), package
        assert theirs[package].contains(version), package
