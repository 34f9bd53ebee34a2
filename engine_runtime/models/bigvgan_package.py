"""Imports the network of the package bigvgan without its training code. All imports of the package go through
here.

`import bigvgan` imports its dataset module, and with it librosa and numba; its `utils` imports matplotlib and
SciPy. numba compiles at import and fails if neither the home folder nor site-packages is writable. The
network needs only two functions of `utils`, so the package is registered without running its `__init__`, and
its `utils` is replaced by a module with these two functions. Runs at import, in any thread.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import cast

from torch import Tensor, nn

from engine_runtime import installation
from engine_runtime.errors import MossVoiceError

_PACKAGE = "bigvgan"


def _init_weights(module: nn.Module, mean: float = 0.0, std: float = 0.01) -> None:
    if "Conv" in type(module).__name__:
        nn.init.normal_(cast(Tensor, module.weight), mean, std)


def _get_padding(kernel_size: int, dilation: int = 1) -> int:
    return (kernel_size * dilation - dilation) // 2


def _register_network_only() -> None:
    """Make `bigvgan.X` importable without `bigvgan/__init__.py`, unless the package is already imported."""
    if _PACKAGE in sys.modules:
        return
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None:
        raise MossVoiceError(
            "The vocoder cannot be built: the package bigvgan is missing.",
            "{remedy}",
            remedy=installation.remedy(),
        )
    utils = ModuleType(f"{_PACKAGE}.utils", "Replaces the module of the package, see bigvgan_package.")
    utils.__dict__.update(init_weights=_init_weights, get_padding=_get_padding)
    sys.modules[utils.__name__] = utils
    sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)


_register_network_only()

from bigvgan.activations import SnakeBeta  # noqa: E402
from bigvgan.alias_free_activation.torch.act import Activation1d  # noqa: E402
from bigvgan.bigvgan import AMPBlock1, AMPBlock2, BigVGAN  # noqa: E402
from bigvgan.env import AttrDict  # noqa: E402

__all__ = ["AMPBlock1", "AMPBlock2", "Activation1d", "AttrDict", "BigVGAN", "SnakeBeta"]
