"""An engine against the reference: aligned, or the first different row is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_runtime.bench.alignment import Alignment, align, align_checkpoint
from engine_runtime.bench.reference import ReferenceOptions, reference_of
from engine_runtime.bench.teacher_forcing import dialogs
from engine_runtime.bench.verdict import Verdict
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.options import EngineOptions
from engine_runtime.tensorrt.checkpoint.calibrate import Calibration
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint
from engine_runtime.types import Pcm
from tests.factories.engine_folder import EngineWorld
from tests.factories.trt_checkpoints import quantize


def spoken(count: int) -> dict[str, Pcm]:
    generator = np.random.default_rng(0)
    return {f"q{n}": generator.normal(0, 0.1, 14_000).astype(np.float32) for n in range(count)}


def alignment_of(bundle: Path, folder: Path, rows: int = 5) -> Alignment:
    options = EngineOptions(backend="trtllm", engine=folder)
    reference = reference_of(Bundle.open(bundle), options, ReferenceOptions())
    return align(lambda: Engine.load(Bundle.open(bundle), options), reference, dialogs(spoken(1), ()), rows)


@pytest.mark.slow
@pytest.mark.parametrize("contract", ["1.x", "0.13"])
def test_an_engine_of_the_same_weights(
    engine_world: EngineWorld, random_bundle: Path, tmp_path: Path, contract: str
) -> None:
    alignment = alignment_of(random_bundle, engine_world.build(random_bundle, tmp_path / "e", contract))
    checks = {check.name: check for check in alignment.verdict.checks}
    assert alignment.first is None
    assert alignment.verdict.is_aligned
    names = [f"turn {t} {p} {h}" for t in (1, 2) for p in ("prefill", "decode") for h in ("audio", "text")]
    assert list(checks) == [f"{name} {what}" for name in names for what in ("top-1", "cosine")]
    for name, check in checks.items():
        assert check.value == pytest.approx(1.0, abs=1e-5)
        assert check.count == 2 if "prefill" in name else check.count >= 4
    assert engine_world.trt.live_contexts == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "shows_without_cache"),
    [
        ({"paged_context_fmha": False}, False),
        ({"layer_indices": [0, 1, 3, 3]}, False),
        ({"linearised": 100.0}, True),
    ],
)
def test_an_engine_built_wrongly_is_not_aligned(
    engine_world: EngineWorld,
    random_bundle: Path,
    tmp_path: Path,
    build: dict[str, Any],
    shows_without_cache: bool,
) -> None:
    alignment = alignment_of(random_bundle, engine_world.build(random_bundle, tmp_path / "e", **build))
    assert not alignment.verdict.is_aligned
    assert alignment.first is not None
    step = alignment.first.step
    assert (alignment.first.name, step.turn) == ("q0", 1)
    # The first chunk of the first prefill reads no cache: errors appear later.
    assert (step.first == 0) == shows_without_cache
    assert f"q0, turn 1, {step.phase}, position {step.end - 1}: " in str(alignment.first)


@pytest.mark.slow
def test_a_wrong_decode_is_distinguished_from_prefill(
    engine_world: EngineWorld, random_bundle: Path, tmp_path: Path
) -> None:
    def stale(device: dict[str, Any], host: dict[str, Any]) -> None:
        if int(host["host_request_types"]) == 1:
            host["host_past_key_value_lengths"].fill_(3)

    folder = engine_world.build(random_bundle, tmp_path / "e")
    engine_world.trt.tamper = stale
    alignment = alignment_of(random_bundle, folder)
    assert alignment.first is not None
    assert alignment.first.step.phase == "decode"
    checks = {check.name: check for check in alignment.verdict.checks}
    assert checks["turn 1 prefill audio cosine"].value == pytest.approx(1, abs=1e-5)
    assert not checks["turn 1 decode audio cosine"].is_aligned


QUESTIONS = {"a": np.random.default_rng(3).normal(0, 0.1, 14_000).astype(np.float32)}


def _values(verdict: Verdict) -> dict[str, float]:
    return {check.name: check.value for check in verdict.checks}


@pytest.mark.slow
def test_heads_agree_with_themselves_and_less_with_fewer_bits(
    random_bundle: Path, plain: Checkpoint, calibration: Calibration, tmp_path: Path
) -> None:
    bundle = Bundle.open(random_bundle)
    same = _values(align_checkpoint(bundle, plain, plain, EngineOptions(), QUESTIONS))
    assert same["text head top-1"] == same["audio head top-1"] == 1
    assert same["audio head worst"] == pytest.approx(1)
    assert set(same) == {
        f"{head} head {what}" for head in ("text", "audio") for what in ("top-1", "cosine", "worst")
    }
    int8, int4 = (
        _values(align_checkpoint(bundle, plain, checkpoint, EngineOptions(), QUESTIONS))
        for checkpoint in (
            quantize(plain, tmp_path / "int8", "int8", calibration),
            quantize(plain, tmp_path / "int4", "int4", calibration, tails=True),
        )
    )
    for head in ("text head cosine", "audio head cosine"):
        assert 0.9 < int4[head] < int8[head] < 0.9999999
