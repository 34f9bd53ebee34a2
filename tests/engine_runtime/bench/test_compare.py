from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine_runtime.bench.ceilings import Ceilings
from engine_runtime.bench.stages import StageBench, load_timed
from engine_runtime.bench.teacher_forcing import Dialog
from engine_runtime.bench.transformers_reference import ComparisonError, TransformersLM
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.random_weights import fill_random, random_voice
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.loading import load_flow
from engine_runtime.engine import Engine
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.options import Dtype, EngineOptions
from engine_runtime.table import Section
from tests.engine_runtime.test_table import number

BENCH = StageBench(Ceilings(2e10, 1e11, 1, 1, "float32"), repeats=2, replies=1, params=None)


@pytest.fixture(scope="module")
def engine(random_bundle: Path) -> Iterator[Engine]:
    engine = Engine.load(Bundle.open(random_bundle))
    yield engine
    engine.close()


def _said_to_be_random(engine: Engine, seed: int) -> Engine:
    """With other weights than those that the comparison will load."""
    return Engine(replace(engine.stages, options=EngineOptions(random_weights=seed)))


def _model() -> MossLM:
    model = MossLM(MossLMConfig(64, 192, 4, 2, 16, 3, 1, 2, 96, 80, modality_pad=4))
    fill_random(model, 0)
    return model.eval()


@torch.inference_mode()
def test_transformers_blocks_yield_the_same_logits() -> None:
    pytest.importorskip("transformers")
    model = _model()
    codes = torch.randint(0, 80, (24,), generator=torch.Generator().manual_seed(1))
    rows = torch.stack((torch.full_like(codes, 4), codes), dim=-1)[None]
    text, audio = model(rows)
    theirs = TransformersLM(model)
    ids = (96 + codes).tolist()
    theirs.run(ids[:16])
    for position in (16, 17, 16):
        theirs.crop(position) if theirs.num_tokens > position else None
        found = theirs.run(ids[position : position + 1])
        assert torch.allclose(found[0], text[0, position], atol=1e-5)
        assert torch.allclose(found[1], audio[0, position], atol=1e-5)
    with pytest.raises(ComparisonError, match="empty cache"):
        theirs.run(ids[:2])


def _compared(engine: Engine) -> Callable[[], list[Section]]:
    return BENCH.transformers(engine, [Dialog("typed", ("what is two plus three", "and plus two"))])


@pytest.mark.slow
def test_transformers_side_by_side(engine: Engine) -> None:
    pytest.importorskip("transformers")
    agreement, section = _compared(engine)()
    checks = {row["check"]: row for row in agreement.rows}
    for head in ("text", "audio"):
        assert checks[f"{head} head top-1"]["value"] == 1
        assert number(checks[f"{head} head top-1"]["of"]) >= 2 * (2 + 12)
    assert "transformers' Qwen3 modules in float32, one layer at a time" in agreement.note
    assert [row["what"] for row in section.rows] == ["prefill 512", "step 512"]
    for row in section.rows:
        assert row["times_faster"] == pytest.approx(number(row["theirs_ms"]) / number(row["ours_ms"]))
    assert "smallest cosine 1.0000" in section.note or "smallest cosine 0.9999" in section.note


@pytest.mark.slow
def test_other_weights_yield_no_times(engine: Engine) -> None:
    pytest.importorskip("transformers")
    finish = _compared(_said_to_be_random(engine, 5))
    with pytest.raises(ComparisonError, match=r"differ: text head top-1 0.*, first at typed, turn 1"):
        finish()


@pytest.mark.slow
def test_a_model_that_does_not_fit_whole_is_not_timed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr("engine_runtime.bench.compare.free_bytes", lambda device: 1_000_000_000)
    monkeypatch.setattr("engine_runtime.bench.compare.load_lm_weights", lambda *_: pytest.fail("loaded"))
    agreement, section = _compared(engine)()
    assert agreement.rows[0]["value"] == 1
    assert [row["theirs_ms"] for row in section.rows] == [None, None]
    assert all(number(row["ours_ms"]) > 0 for row in section.rows)
    assert section.note == ("transformers was not timed: the whole model needs 1.0 GB, and 1.0 GB are free")


def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ComparisonError, match=r"moss-voice\[compare\]"):
        TransformersLM(_model())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("packets", [(5, 5), (5, 5, 10, 15)])
def test_a_flow_that_recomputes_makes_the_same_mel(
    random_bundle: Path, seed: int | None, packets: tuple[int, ...]
) -> None:
    bundle = describe(random_bundle)
    bundle = replace(bundle, flow=replace(bundle.flow, packet_codes=packets))
    engine = Engine.load(bundle, EngineOptions(random_weights=seed))
    section = BENCH.recompute(engine)
    assert [row["packet"] for row in section.rows] == [1, 2, 3, 4, 5, 6]
    sizes = [*packets, *(packets[-1:] * 4)]
    assert [row["codes"] for row in section.rows] == sizes[:6]
    assert f"voice prompt of {0 if seed is None else 50} codes" in section.note
    assert all(number(row["recompute_ms"]) > 0 for row in section.rows)


@pytest.mark.slow
@pytest.mark.parametrize("static_bytes", [None, 1 << 30])
def test_the_other_flow_has_the_engine_s_voice_and_schedule(
    random_bundle: Path, static_bytes: int | None
) -> None:
    options = EngineOptions(random_weights=0, flow_schedule="uniform", flow_steps=3)
    engine = Engine.load(describe(random_bundle), options)
    stages = engine.stages
    flow, _ = load_flow(stages.bundle, torch.device("cpu"), options)
    voice = random_voice(flow.config, stages.bundle.flow.mel.frame_rate, seed=3)
    token2mel = Token2Mel(
        flow,
        stages.bundle.flow.mel,
        steps=3,
        cfg_rate=stages.bundle.flow.cfg_rate,
        schedule="uniform",
        packet_codes=(5, 5, 10),
        prompt=voice,
        static_bytes=static_bytes,
    )
    engine = Engine(replace(stages, token2mel=token2mel))
    assert len(BENCH.recompute(engine).rows) == 6


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("codec_dtype", ["float32", "float16"])
def test_a_captured_flow_makes_the_same_mel(random_bundle: Path, codec_dtype: Dtype) -> None:
    bundle = describe(random_bundle)
    bundle = replace(bundle, flow=replace(bundle.flow, packet_codes=(5, 5, 10)))
    options = EngineOptions(random_weights=0, device="cuda", codec_dtype=codec_dtype)
    engine, _ = load_timed(lambda: Engine.load(bundle, options), options)
    assert engine.stages.token2mel.is_static
    section = StageBench(Ceilings(2e10, 1e11, 1, 1, "bfloat16"), repeats=2, replies=1, params=None).recompute(
        engine
    )
    engine.close()
    assert [row["codes"] for row in section.rows] == [5, 5, 10, 10, 10, 10]


@pytest.mark.slow
@pytest.mark.parametrize("codec_dtype", ["float16", "bfloat16"])
def test_a_rounded_flow_is_near_enough(nano_bundle: Path, codec_dtype: Dtype) -> None:
    options = EngineOptions(codec_dtype=codec_dtype)
    engine = Engine.load(Bundle.open(nano_bundle), options)
    assert len(BENCH.recompute(engine).rows) == 6
    engine.close()


@pytest.mark.slow
def test_another_flow_yields_no_times(engine: Engine) -> None:
    with pytest.raises(ComparisonError, match=r"the 0.0001 of float32\. No times are reported; check"):
        BENCH.recompute(_said_to_be_random(engine, 1))
