from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.weights import LoadProgress
from engine_runtime.codec import loading
from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.runtime import CodecRuntime
from engine_runtime.options import Dtype, EngineOptions


@pytest.mark.parametrize(
    ("dtype", "has_kernels"), [("float32", False), ("float16", True), ("bfloat16", True)]
)
def test_the_flow_s_kernels_are_for_two_bytes(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch, dtype: Dtype, has_kernels: bool
) -> None:
    chosen: list[bool] = []

    def making(*parts: Any, triton: bool, **options: Any) -> Token2Mel:
        chosen.append(triton)
        return Token2Mel(*parts, **options)

    monkeypatch.setattr(loading, "Token2Mel", making)
    bundle, device = Bundle.open(random_bundle), torch.device("cpu")
    for triton in (False, True):
        stage = loading.load_token2mel(
            bundle,
            device,
            EngineOptions(codec_dtype=dtype),
            CodecRuntime(triton=triton),
            None,
            LoadProgress([bundle.flow.weights], None),
        )
        assert stage.estimator.pack.dtype == getattr(torch, dtype)
    assert chosen == [False, has_kernels]
