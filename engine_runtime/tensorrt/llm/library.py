"""Single access point to TensorRT-LLM: supported version, installation, and the names used by this project.

In: nothing but what is installed. Out: a `Library` of names for model.py and build.py, or an EngineError with
install instructions. It is imported inside the functions, so that everything else works without it, and tests
pass a test double; the import takes a minute and loads CUDA. `clashes` compares the installed packages with
what the library requires (by its metadata, or requirements.txt where it is not installed) and imports
nothing. Any thread.
"""

from __future__ import annotations

import importlib
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, resources
from types import SimpleNamespace

from packaging.requirements import Requirement
from packaging.version import Version

from engine_runtime.errors import EngineError, Problem

VERSION = "1.2.1"
"""The last stable release with TensorRT engines and the Python Model API."""
_RELEASE = Version(VERSION).release[:2]
_PYTHONS = ((3, 10), (3, 12))
_MACHINES = {"x86_64", "aarch64"}


NAMES = {
    "tensorrt_llm._common": ("default_net",),
    "tensorrt_llm.builder": ("BuildConfig", "KVCacheType", "build"),  # the home of KVCacheType has moved
    "tensorrt_llm.functional": (
        "AttentionMaskType",
        "LayerNormType",
        "PositionEmbeddingType",
        "gather_last_token_logits",
    ),
    "tensorrt_llm.layers": ("Attention", "ColumnLinear", "Embedding", "GatedMLP", "RmsNorm"),
    "tensorrt_llm.models": ("MODEL_MAP",),
    "tensorrt_llm.models.modeling_utils": ("PretrainedConfig", "PretrainedModel"),
    "tensorrt_llm.module": ("Module", "ModuleList"),
    "tensorrt_llm.plugin": ("PluginConfig",),
}
"""What an engine is built with, by its module."""


class Library(SimpleNamespace):
    """The `NAMES` of the library, in its spelling, and its `version`. `default_net` is the network under
    construction, with its plugin configuration; `MODEL_MAP` maps an architecture to its class and is used to
    read configurations."""


def load_library() -> Library:
    """Import the names needed to build an engine. EngineError if the library is missing, broken or of another
    version."""
    _check_installed(builds=True)
    try:
        from tensorrt_llm import __version__ as version

        names = {
            name: getattr(importlib.import_module(module), name)
            for module, own in NAMES.items()
            for name in own
        }
    except Exception as error:  # any error: a missing driver, MPI, another release of a dependency
        raise EngineError.from_problem(how_to_get(error)) from error
    check_version(version)
    return Library(version=version, **names)


def load_plugins() -> None:
    """Register the library's TensorRT plugins, without which its engines cannot be deserialized.

    EngineError if the library is missing or broken, or of a version without engines or never tried.
    """
    _check_installed(builds=False)
    try:
        import tensorrt_llm  # noqa: F401  importing it registers them
    except Exception as error:
        raise EngineError.from_problem(how_to_get(error)) from error


def _check_installed(*, builds: bool) -> None:
    """Check the version before the import: a release without engines lacks the modules, too, and would only
    say so."""
    version = installed_version("tensorrt-llm")
    if version is not None:
        check_version(version, builds=builds)


def check_version(version: str, *, builds: bool = True) -> None:
    """Reject a version that cannot build the engine (with `builds`) or run it, or that was never tried."""
    number = Version(version)
    release = number.release[:2]
    if release > _RELEASE:
        raise EngineError(
            "TensorRT-LLM {version} no longer builds TensorRT engines or runs them: {wanted_version} is "
            "the last release that does.",
            "{remedy}",
            version=version,
            wanted_version=VERSION,
            remedy=_how_to_install(),
        )
    if release[0] == 0:
        if builds:
            raise EngineError(
                "Engines cannot be built with TensorRT-LLM {version}: the attention of 0.13 normalizes "
                "queries and keys wrongly with grouped-query attention, and no release before 1.0 is "
                "known to be correct.",
                "Build with {wanted_version}; engines that 0.13 built still run. {remedy}",
                version=version,
                wanted_version=VERSION,
                remedy=_how_to_install(),
            )
    elif release != _RELEASE or number.is_prerelease:
        raise EngineError(
            "TensorRT-LLM {version} is not supported: this program was written for {wanted_version} and "
            "never tried with it.",
            "{remedy}",
            version=version,
            wanted_version=VERSION,
            remedy=_how_to_install(),
        )


def how_to_get(error: BaseException | None = None) -> Problem:
    """Instructions for a working TensorRT-LLM on this machine; `error` is the error of its import."""
    remedy = " ".join([*_misfits(), _how_to_install()])
    if error is None or (isinstance(error, ModuleNotFoundError) and error.name == "tensorrt_llm"):
        return Problem("TensorRT-LLM is not installed.", "{remedy}", remedy=remedy)
    return Problem(
        "TensorRT-LLM cannot be loaded ({kind}: {error}).",
        "{remedy}",
        kind=type(error).__name__,
        error=error,
        remedy=remedy,
    )


def _misfits() -> list[str]:
    """Reasons why the library cannot run on this machine."""
    found = []
    system, machine, python = platform.system(), platform.machine(), sys.version_info[:2]
    if system != "Linux" or machine not in _MACHINES:
        found.append(f"It exists for Linux on x86_64 and aarch64 only, this is {system} on {machine}.")
    if python not in _PYTHONS:
        found.append(f"It has no wheel for Python {python[0]}.{python[1]}.")
    return found


def _how_to_install() -> str:
    return (
        f"It needs an environment of its own with Python 3.12, a driver for CUDA 13 and TensorRT-LLM "
        f"{VERSION}: section 1 of packaging/TENSORRT.md has every command."
    )


_LIBRARY = "tensorrt-llm"


@dataclass(frozen=True, slots=True)
class Clash:
    """An installed package (`installed` is its version, None if it is missing) that does not meet its
    requirement."""

    package: str
    installed: str | None
    required: str


def requirements() -> list[Requirement]:
    """What TensorRT-LLM requires of this environment."""
    try:
        lines = metadata.requires(_LIBRARY) or []
    except metadata.PackageNotFoundError:
        text = resources.files("engine_runtime.tensorrt").joinpath("requirements.txt").read_text("utf-8")
        lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = [Requirement(line) for line in lines]
    return [wanted for wanted in found if wanted.marker is None or wanted.marker.evaluate({"extra": ""})]


def clashes() -> list[Clash]:
    """Every unmet requirement; a missing package counts only if the library is installed."""
    return list(_clashes(is_installed=installed_version(_LIBRARY) is not None))


def installed_version(package: str) -> str | None:
    """The version of an installed package, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _clashes(is_installed: bool) -> Iterator[Clash]:
    for wanted in requirements():
        version = installed_version(wanted.name)
        if version is None:
            if is_installed:
                yield Clash(wanted.name, None, str(wanted.specifier) or "any version")
        elif not wanted.specifier.contains(version, prereleases=True):
            yield Clash(wanted.name, version, str(wanted.specifier))
