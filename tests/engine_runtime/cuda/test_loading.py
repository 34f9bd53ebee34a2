"""The bundle's language model behind the executor for GPUs, here on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine_runtime.bundle import Bundle
from engine_runtime.cuda.loading import load_lm
from engine_runtime.engine import Engine
from engine_runtime.lm.sequence import Sequence
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import EngineOptions


@pytest.mark.parametrize("weight_format", ["native", "int8", "int4"])
def test_the_options_reach_the_executor(random_bundle: Path, weight_format: str) -> None:
    bundle = Bundle.open(random_bundle)
    options = EngineOptions(weight_format=weight_format, kv_dtype="fp8", kernels="torch", kv_blocks=8)
    tensors = {name: value for file in bundle.lm.weights for name, value in load_file(file).items()}
    paged = load_lm(
        bundle.lm, MossLMConfig.from_dict(bundle.lm.config), torch.device("cpu"), options, tensors.__getitem__
    )
    plain = Engine.load(bundle, options).stages.lm
    ids = list(range(20))
    mine, other = paged.prefill(Sequence(), ids), plain.prefill(Sequence(), ids)
    assert mine.text is not None
    assert other.text is not None
    torch.testing.assert_close(mine.text, other.text, atol=5e-3, rtol=0)
    assert paged.blocks.num_blocks == 8
    assert paged.cache.pool.dtype == torch.float8_e4m3fn
