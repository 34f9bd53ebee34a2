"""The network of the package, without its training code."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from engine_runtime.models import bigvgan_package

TRAINING_SIDE = ("librosa", "numba", "matplotlib", "scipy", "sklearn", "soundfile")


@pytest.mark.slow
def test_it_needs_nothing_of_the_training_side() -> None:
    """With all of it out of reach, a network is built and run."""
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({TRAINING_SIDE}))\n"
        "import torch\n"
        "from engine_runtime.models.bigvgan import build_bigvgan\n"
        "from tests.engine_runtime.models.test_bigvgan import SMALL\n"
        "pcm = build_bigvgan(SMALL)(torch.zeros(1, SMALL['num_mels'], 4))\n"
        "print(bool(pcm.isfinite().all()), 'bigvgan.meldataset' in sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "False"]


@pytest.mark.slow
def test_a_missing_package_is_said() -> None:
    code = (
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'bigvgan' else find(name, *rest)\n"
        "import engine_runtime.models.bigvgan\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MossVoiceError: The vocoder cannot be built: the package bigvgan is missing." in found.stderr


def test_a_package_that_is_imported_already_is_taken_as_it_is() -> None:
    network = bigvgan_package.BigVGAN
    package = sys.modules["bigvgan"]
    assert importlib.reload(bigvgan_package).BigVGAN is network
    assert sys.modules["bigvgan"] is package


def _functions_of_the_package(*names: str) -> SimpleNamespace:
    """Functions of bigvgan/utils.py, without its imports."""
    spec = find_spec("bigvgan.activations")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / "utils.py").read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    found = SimpleNamespace()
    exec(compile(tree, "utils.py", "exec"), vars(found))
    return found


def test_the_replacement_equals_the_module_of_the_package() -> None:
    own = _functions_of_the_package("init_weights", "get_padding")
    stand_in = sys.modules["bigvgan.utils"]
    for kernel in range(1, 16, 2):
        for dilation in range(1, 8):
            assert stand_in.get_padding(kernel, dilation) == own.get_padding(kernel, dilation)
    for kind in (nn.Conv1d, nn.ConvTranspose1d):
        weights = []
        for init in (stand_in.init_weights, own.init_weights):
            torch.manual_seed(3)
            module = kind(4, 4, 3)
            init(module)
            weights.append(module.weight.detach())
        assert torch.equal(*weights)


@pytest.mark.parametrize("name", ["BigVGAN", "AMPBlock1", "Activation1d", "SnakeBeta"])
def test_classes_are_those_of_the_package(name: str) -> None:
    assert getattr(bigvgan_package, name).__module__.partition(".")[0] == "bigvgan"
