"""Single access point to TensorRT-LLM: supported version, installation, and the names used by this project.

In: nothing but what is installed. Out: a `Library` of names for model.py and build.py, or an
EngineError with install instructions. It is imported inside the functions, so that everything else works
without it, and tests pass a test double. Any thread; the import takes a minute and loads CUDA.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from engine_runtime.errors import EngineError
from engine_runtime.tensorrt.llm.environment import installed_version

VERSION = "1.2.1"
"""The last stable release with TensorRT engines and the Python Model API."""
_RELEASE = Version(VERSION).release[:2]
_PYTHONS = ((3, 10), (3, 12))
_MACHINES = {"x86_64", "aarch64"}


@dataclass(frozen=True, slots=True)
class Library:
    """Names of the library, in its spelling.

    Attributes:
        version: of the library.
        default_net: the network under construction, with its plugin configuration.
        MODEL_MAP: architecture -> class, used to read configurations.
    """

    version: str
    # tensorrt_llm.functional, tensorrt_llm._common
    AttentionMaskType: Any
    LayerNormType: Any
    PositionEmbeddingType: Any
    gather_last_token_logits: Any
    default_net: Any
    # tensorrt_llm.module, tensorrt_llm.layers
    Module: Any
    ModuleList: Any
    Attention: Any
    ColumnLinear: Any
    Embedding: Any
    GatedMLP: Any
    RmsNorm: Any
    # tensorrt_llm.models
    PretrainedConfig: Any
    PretrainedModel: Any
    MODEL_MAP: dict[str, Any]
    # tensorrt_llm.builder, tensorrt_llm.plugin
    BuildConfig: Any
    KVCacheType: Any
    PluginConfig: Any
    build: Any


def load_library() -> Library:
    """Import the names needed to build an engine. EngineError if the library is missing, broken or of another
    version."""
    _check_installed(builds=True)
    try:
        from tensorrt_llm import __version__ as version
        from tensorrt_llm._common import default_net
        from tensorrt_llm.builder import BuildConfig, KVCacheType, build  # the home of KVCacheType has moved
        from tensorrt_llm.functional import (
            AttentionMaskType,
            LayerNormType,
            PositionEmbeddingType,
            gather_last_token_logits,
        )
        from tensorrt_llm.layers import Attention, ColumnLinear, Embedding, GatedMLP, RmsNorm
        from tensorrt_llm.models import MODEL_MAP
        from tensorrt_llm.models.modeling_utils import PretrainedConfig, PretrainedModel
        from tensorrt_llm.module import Module, ModuleList
        from tensorrt_llm.plugin import PluginConfig
    except Exception as error:  # any error: a missing driver, MPI, another release of a dependency
        raise EngineError(how_to_get(error)) from error
    check_version(version)
    return Library(
        version=version,
        AttentionMaskType=AttentionMaskType,
        LayerNormType=LayerNormType,
        PositionEmbeddingType=PositionEmbeddingType,
        gather_last_token_logits=gather_last_token_logits,
        default_net=default_net,
        Module=Module,
        ModuleList=ModuleList,
        Attention=Attention,
        ColumnLinear=ColumnLinear,
        Embedding=Embedding,
        GatedMLP=GatedMLP,
        RmsNorm=RmsNorm,
        PretrainedConfig=PretrainedConfig,
        PretrainedModel=PretrainedModel,
        MODEL_MAP=MODEL_MAP,
        BuildConfig=BuildConfig,
        KVCacheType=KVCacheType,
        PluginConfig=PluginConfig,
        build=build,
    )


def load_plugins() -> None:
    """Register the library's TensorRT plugins, without which its engines cannot be deserialized.

    EngineError if the library is missing or broken, or of a version without engines or never tried.
    """
    _check_installed(builds=False)
    try:
        import tensorrt_llm  # noqa: F401  importing it registers them
    except Exception as error:
        raise EngineError(how_to_get(error)) from error


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
            f"TensorRT-LLM {version} no longer builds TensorRT engines or runs them: {VERSION} is the last "
            f"release that does. {_how_to_install()}"
        )
    if release[0] == 0:
        if builds:
            raise EngineError(
                f"Engines cannot be built with TensorRT-LLM {version}: the attention of 0.13 normalizes "
                "queries and keys wrongly with grouped-query attention, and no release before 1.0 is known "
                f"to be correct. Build with {VERSION}; engines that 0.13 built still run. {_how_to_install()}"
            )
    elif release != _RELEASE or number.is_prerelease:
        raise EngineError(
            f"TensorRT-LLM {version} is not supported: this program was written for {VERSION} and never "
            f"tried with it. {_how_to_install()}"
        )


def how_to_get(error: BaseException | None = None) -> str:
    """Instructions for a working TensorRT-LLM on this machine; `error` is the error of its import."""
    if error is None or (isinstance(error, ModuleNotFoundError) and error.name == "tensorrt_llm"):
        problem = "TensorRT-LLM is not installed"
    else:
        problem = f"TensorRT-LLM cannot be loaded ({type(error).__name__}: {error})"
    return " ".join([f"{problem}.", *_misfits(), _how_to_install()])


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
