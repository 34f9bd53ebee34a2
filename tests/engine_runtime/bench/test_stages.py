from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine_runtime.bench import codec, language_model, stages
from engine_runtime.bench.ceilings import Ceilings
from engine_runtime.bench.codec import CodecBench
from engine_runtime.bench.conversation import question_of
from engine_runtime.bench.language_model import LMBench, impossible_share
from engine_runtime.bench.measuring import BenchError
from engine_runtime.bench.replies import measure_reply
from engine_runtime.bench.stages import StageBench, is_complete, load_timed, side_by_side
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.random_weights import random_source
from engine_runtime.engine import Engine
from engine_runtime.executors.cuda.executor import CudaExecutor
from engine_runtime.executors.cuda.weights import build_network
from engine_runtime.hardware import AcceleratorError
from engine_runtime.lm.block_manager import BlockManager, Sequence
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.step import StepOutput
from engine_runtime.options import BlockFormats, EngineOptions
from engine_runtime.table import Section
from engine_runtime.types import Pcm
from engine_runtime.work import Task, run_alone
from tests.engine_runtime.test_table import number

CEILINGS = Ceilings(2e10, 1e11, 1, 1, "float32")
OPTIONS = EngineOptions()


@pytest.fixture(scope="module")
def engine(random_bundle: Path) -> Iterator[Engine]:
    engine = Engine.load(Bundle.open(random_bundle), OPTIONS)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def question() -> Pcm:
    return np.random.default_rng(0).normal(0, 0.1, 12_000).astype(np.float32)


@pytest.mark.slow
def test_every_stage_has_its_table(engine: Engine, question: Pcm) -> None:
    bench = StageBench(CEILINGS, repeats=2, replies=1, params=None)
    sections = {section.title: section for section in bench.run(engine, question, load_s=1.5)}
    assert list(sections) == [
        "load and memory",
        "prefill",
        "decode step",
        "speech encoder",
        "flow",
        "vocoder",
        "question to reply",
        "exact encoding",
    ]
    exact = sections.pop("exact encoding")
    assert not exact.rows
    assert "changes nothing" in exact.note
    for section in sections.values():
        assert section.rows
        assert set().union(*section.rows) <= set(section.columns)
    assert sections["load and memory"].rows[0]["load_s"] == 1.5
    assert "does not apply on a CPU" in sections["load and memory"].note
    assert [row["tokens"] for row in sections["prefill"].rows] == [64, 512]
    assert "2048 tokens; context and KV pool hold 1024" in sections["prefill"].note
    assert [row["cached_tokens"] for row in sections["decode step"].rows] == [512]
    assert [row["steps"] for row in sections["flow"].rows] == [2, 2, 10, 10, 5, 5]
    assert [row["question"] for row in sections["question to reply"].rows] == ["while spoken", "at once"]


def test_ratios_come_from_the_ceilings(engine: Engine) -> None:
    bench = LMBench(engine.stages, CEILINGS, repeats=2)
    used = engine.stats.used
    step, prefill = bench.step().rows[0], bench.prefill().rows[0]
    assert engine.stats.used == used
    assert step["floor_ms"] == pytest.approx(_number(step, "gbytes") / 20 * 1000)
    assert step["ratio"] == pytest.approx(_number(step, "ms") / _number(step, "floor_ms"))
    rate = _number(prefill, "tflop") / _number(prefill, "ms") * 1000
    assert prefill["matrix_share"] == pytest.approx(rate / 0.1)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"ratio": 0.5}, "200% of the copy bandwidth"),
        ({"ratio": 0.97}, ""),
        ({"ratio": 1.3, "matrix_share": None}, ""),
        ({"matrix_share": 1.31}, "131% of the matrix rate"),
        ({"matrix_share": 1.0}, ""),
        ({"valid": "no: it failed"}, ""),
    ],
)
def test_a_share_above_what_a_gpu_can_is_impossible(row: dict[str, Any], said: str) -> None:
    assert impossible_share(row) == said


def test_an_impossible_row_of_a_gpu_is_not_valid(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = LMBench(engine.stages, replace(CEILINGS, copy_bytes_per_s=1.0), repeats=2)
    assert bench.step().rows[0]["valid"] == "yes"  # on a CPU the caches may be faster than the memory
    monkeypatch.setattr(LMBench, "device", torch.device("cuda"))
    monkeypatch.setattr(language_model, "times_ms", lambda run, *_: [run() or 1.0 for _ in range(4)])
    row = bench.step().rows[0]
    assert str(row["valid"]).startswith("no: impossible, ")
    assert str(row["valid"]).endswith(" of the copy bandwidth")


def _number(row: dict[str, Any], name: str) -> float:
    value = row[name]
    assert isinstance(value, int | float)
    return float(value)


def test_no_time_for_logits_that_are_not_finite(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = LMBench(engine.stages, CEILINGS, repeats=1)
    for bad in (torch.full((80,), torch.nan), torch.zeros(80)):
        monkeypatch.setattr(engine.stages.lm, "prefill", lambda *a, bad=bad: StepOutput(None, bad))
        with pytest.raises(BenchError, match="not finite or all equal"):
            bench.prefill_times(4)


def test_no_time_for_a_model_that_says_one_thing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = LMBench(engine.stages, CEILINGS, repeats=4)
    peaked = torch.full((80,), -1e4)
    peaked[3] = 0
    lm = engine.stages.lm
    step = lm.step

    def always_three(*words: Any, **options: Any) -> list[StepOutput]:
        return [StepOutput(None, peaked) for _ in step(*words, **options)]

    monkeypatch.setattr(lm, "step", always_three)
    with pytest.raises(BenchError, match="same code"):
        bench.step_times(8)
    with pytest.raises(BenchError, match="do not depend on the last token"):
        bench.prefill_times(4)


def test_a_row_that_does_not_fit_loses_no_other(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_model, "CACHED_TOKENS", (4, 40))
    bench = LMBench(engine.stages, CEILINGS, repeats=2)
    prefill = engine.stages.lm.prefill

    def short(sequence: Sequence, ids: list[int], *words: Any) -> StepOutput:
        if len(ids) > 20:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return prefill(sequence, ids, *words)

    monkeypatch.setattr(engine.stages.lm, "prefill", short)
    assert [row["valid"] for row in bench.step().rows] == ["yes", "no: the GPU has too little memory for it"]
    assert engine.stats.used == 0


@pytest.mark.slow
def test_a_table_that_does_not_fit_loses_no_other(
    engine: Engine, question: Pcm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*given: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 758.00 MiB. Some more words.")

    monkeypatch.setattr(CodecBench, "flow", short)
    bench = StageBench(CEILINGS, repeats=1, replies=1, params=None)
    sections = {section.title: section for section in bench.run(engine, question, load_s=1.5)}
    assert [title for title, section in sections.items() if section.is_missing] == ["flow"]
    text = "\n".join(sections["flow"].lines())
    assert "== flow\n# not measured: The GPU has too little memory with --weights native (CUDA out of" in text
    assert list(sections)[-1] == "exact encoding"


@pytest.mark.slow
def test_a_missing_table_has_its_title(
    engine: Engine, question: Pcm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*given: Any) -> Section:
        raise AcceleratorError("The GPU has too little memory.")

    def titles() -> list[str]:
        bench = StageBench(CEILINGS, repeats=1, replies=1, params=None)
        return [section.title for section in bench.run(engine, question, load_s=1.5)]

    reference = titles()
    monkeypatch.setattr(stages, "explain_out_of_memory", short)
    assert titles() == reference


def test_a_step_follows_the_one_before_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = LMBench(engine.stages, CEILINGS, repeats=4, warm_up_steps=1)
    lm = engine.stages.lm
    decode, rows = lm.decode, []

    def noting(sequence: Sequence, *words: Any, **options: Any) -> StepOutput:
        rows.append(sequence.num_tokens)
        return decode(sequence, *words, **options)

    monkeypatch.setattr(lm, "decode", noting)
    assert len(bench.step_times(8)[0]) == 4
    assert rows == [8, 9, 10, 11, 12]
    rows.clear()
    bench.step_times(lm.max_tokens - 2)
    assert rows == [lm.max_tokens - 2, lm.max_tokens - 1] * 2 + [
        lm.max_tokens - 2
    ]  # back where the context ends


def test_a_question_at_once_counts_what_comes_before_the_commit(engine: Engine, question: Pcm) -> None:
    pushed: list[int] = []
    turn_class = type(run_alone(engine.open_turn(engine.new_conversation(), 1)))
    original = turn_class.push

    def push(turn: Any, pcm: Pcm) -> Task[int]:
        pushed.append(len(pcm))
        return original(turn, pcm)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turn_class, "push", push)
        reply = measure_reply(engine, question, 1, while_spoken=False)
        encoded = sum(reply.values["encode_ms"]) + sum(reply.values["prefill_ms"])
    assert pushed == [12_000]
    assert reply.values["ttfa_ms"][0] > encoded - sum(reply.values["prefill_ms"][:1])


def test_a_question_of_a_given_length() -> None:
    pcm = np.arange(10, dtype=np.float32)
    assert question_of(pcm, 2.5, 10).tolist() == [*range(10), *range(10), *range(5)]
    assert question_of(pcm, 0.5, 10).tolist() == [*range(5)]


@pytest.mark.slow
def test_loading_is_timed_with_its_warm_up(random_bundle: Path) -> None:
    options = replace(OPTIONS, kv_blocks=16)
    engine, seconds = load_timed(lambda: Engine.load(Bundle.open(random_bundle), options), options)
    assert seconds > 0.01
    assert engine.stats.total == 16
    engine.close()


def test_definitions_stand_for_every_column() -> None:
    for columns in (language_model.PREFILL_COLUMNS, language_model.STEP_COLUMNS, codec.FLOW_COLUMNS):
        lines = Section("any", columns).lines()
        assert all(any(line.startswith(f"# {name}") for line in lines) for name in columns)


def test_steps_that_pick_on_the_device_are_measured_alike(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor for GPUs, on the CPU, without a file."""
    stages, cpu = engine.stages, torch.device("cpu")
    config, section = stages.lm_config, engine.bundle.lm
    network = build_network(
        config,
        random_source(config, 0, torch.float32, cpu),
        formats=BlockFormats(trunk="int8"),
        dtype=torch.float32,
        device=cpu,
        max_seq_len=section.context_tokens,
    )
    cache = KVCache(config, section.kv_blocks, section.tokens_per_block)
    executor = CudaExecutor(network, cache, max_seq_len=section.context_tokens)
    lm = PagedLM(executor, cache, BlockManager(section.kv_blocks, section.tokens_per_block))
    options = replace(OPTIONS, weight_format="int8")
    bench = LMBench(replace(stages, lm=lm, options=options), CEILINGS, repeats=4)
    rows = bench.step().rows
    assert [row["cached_tokens"] for row in rows] == [512]
    per_row = 2 * 2 * 16 * 4 * 3
    norms = 4 * (3 * (2 * 64 + 2 * 16) + 64) + 4 * 64
    read = network.step_bytes(text=False, audio=True) + 512 * per_row + norms
    assert rows[0]["gbytes"] == pytest.approx(read / 1e9)
    assert rows[0]["tokens_per_s"] == pytest.approx(1000 / number(rows[0]["ms"]))
    assert number(rows[0]["sampling_ms"]) < number(rows[0]["ms"])
    assert [row["tokens"] for row in bench.prefill().rows] == [64, 512]
    monkeypatch.setattr(LMBench, "step_times", lambda self, cached_tokens: ([5.0, 9.0, 6.0], []))
    for unsampled_ms, sampling_ms in ((4.0, 2.0), (7.0, 0.0)):
        monkeypatch.setattr(LMBench, "_unsampled_times", lambda self, count, ms=unsampled_ms: [ms] * 3)
        assert bench.sampling_in_step_ms(512) == sampling_ms


def table(rows_name: str, rows: int, **cells: object) -> dict[str, object]:
    return {"rows": [{rows_name: rows, **cells}], "note": ""}


def test_every_variant_and_what_has_no_time() -> None:
    stages: dict[str, dict[str, object]] = {
        "trtllm": {
            "prefill": table("tokens", 64, ms=9.0, ms_p95=9.5, device_ms=8.0, valid="yes", tflop=1.0),
            "decode step": table("cached_tokens", 512, valid="no: a step failed"),
            "flow": table("steps", 4, ms=1.0),
        },
        "native": {"decode step": table("cached_tokens", 512, ms=11.0, ms_p95=12.0, ratio=1.2, valid="yes")},
        "int4": {"error": "no memory"},
    }
    section = side_by_side(stages)
    assert [(row["variant"], row["work"], row.get("ms"), row["valid"]) for row in section.rows] == [
        ("trtllm", "prefill 64", 9.0, "yes"),
        ("trtllm", "step 512", None, "no: a step failed"),
        ("native", "step 512", 11.0, "yes"),
        ("int4", "the rest", None, "no: no memory"),
    ]
    assert set().union(*section.rows) <= set(section.columns)
    assert not is_complete(section)
    assert is_complete(side_by_side({"native": stages["native"]}))
    lines = section.lines()
    assert any(line.split()[:3] == ["trtllm", "step", "512"] and line.count("-") >= 4 for line in lines)
