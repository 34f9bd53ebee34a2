"""An engine under the paged runtime equals the torch executor, and rejects invalid input."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.errors import EngineError, ExecutorError
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.step import ScheduledBatch, StepOutput, Tails
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.tensorrt.llm.executor import EngineStream, TrtllmExecutor
from tests.doubles.tensorrt.runtime import DataType
from tests.factories.engine_lm import executor_of, make_engine_paged
from tests.factories.steps import next_row, step_tensors
from tests.factories.tiny_lm import LOGIT_TOLERANCE, as_ids, load_tiny, make_paged
from tests.tools.lm_scenarios import SAMPLINGS, assert_same, converse, reply


def test_without_a_gpu_work_is_done_at_once_and_not_measured() -> None:
    stream, done = EngineStream(torch.device("cpu")), []
    with stream.working(), stream.timed():
        done.append(1)
    assert done == [1]
    assert (stream.handle, stream.last_ms) == (0, None)


class FakeStream:
    def __init__(self, log: list[str], name: str) -> None:
        self.cuda_stream, self.device, self._log, self.name = 77, "cuda:0", log, name

    def wait_stream(self, other: FakeStream) -> None:
        self._log.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        self._log.append(f"{self.name} done")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """CUDA as far as a stream of it goes; what happened in which order."""
    log: list[str] = []
    own, default = FakeStream(log, "own"), FakeStream(log, "default")

    class FakeEvent:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: FakeStream) -> None:
            log.append(f"event on {stream.name}")

        def elapsed_time(self, end: Any) -> float:
            assert log[-1] == "own done", "the time is asked for before the work is done"
            return 12.5

    @contextlib.contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        log.append(f"on {stream.name}")
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: own)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: default)
    monkeypatch.setattr(torch.cuda, "stream", on)
    return log


def test_events_are_recorded_on_the_stream_that_works(log: list[str]) -> None:
    """On another stream they would measure nothing of the step."""
    stream = EngineStream(torch.device("cuda"))
    assert stream.handle == 77
    with stream.working():
        log.append("copy")
        with stream.timed():
            log.append("step")
    wanted = ["own waits for default", "on own", "copy", "event on own", "step", "event on own", "own done"]
    assert log == wanted
    assert stream.last_ms == 12.5


def test_a_step_that_failed_has_no_time(log: list[str]) -> None:
    stream = EngineStream(torch.device("cuda"))
    with stream.working(), stream.timed():
        pass

    def fail() -> None:
        with stream.working(), stream.timed():
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert stream.last_ms is None
    assert log[-1] == "own done"


Tiny = tuple[MossLM, dict[str, torch.Tensor]]


CONTRACTS = ("1.x", "0.13")


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return load_tiny()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@pytest.mark.slow
@pytest.mark.parametrize("captures", [False, True])
@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("seed", range(4))
def test_conversations_are_those_of_the_torch_executor(
    tiny: Tiny, folder: Path, contract: str, captures: bool, seed: int
) -> None:
    """Chunked turns, unused tails, rollback, forks, cached prefixes."""
    model, _ = tiny
    paged, _ = make_engine_paged(model, folder, contract, captures=captures)
    converse(model, paged, make_paged(model), seed, LOGIT_TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("contract", CONTRACTS)
def test_replies_are_those_of_the_torch_executor(tiny: Tiny, folder: Path, contract: str) -> None:
    model, cases = tiny
    for params in SAMPLINGS[:: 1 if contract == "1.x" else 2]:
        paged, _ = make_engine_paged(model, folder, contract, captures=True)
        wanted = reply(model, make_paged(model), cases["a.rows"][:50], params)
        assert reply(model, paged, cases["a.rows"][:50], params) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("tokens_per_block", [8, 16, 32, 64])
def test_blocks_of_any_size(tiny: Tiny, folder: Path, contract: str, tokens_per_block: int) -> None:
    model, _ = tiny
    blocks = 1024 // tokens_per_block
    paged, _ = make_engine_paged(
        model, folder, contract, chunk=100, num_blocks=blocks, tokens_per_block=tokens_per_block
    )
    plain = make_paged(model, num_blocks=blocks, tokens_per_block=tokens_per_block)
    converse(model, paged, plain, 3, LOGIT_TOLERANCE)


@pytest.mark.slow
def test_the_stored_logits_of_a_long_conversation(tiny: Tiny, folder: Path) -> None:
    model, cases = tiny
    ids = as_ids(cases["c.rows"], model)
    paged, _ = make_engine_paged(model, folder, captures=True)
    sequence = Sequence()
    paged.prefill(sequence, ids[:240])
    for row in range(240, 530):
        logits = paged.decode(sequence, ids[row])
        assert logits.text_logits is not None
        torch.testing.assert_close(
            logits.text_logits, cases["c.text_logits"][row], atol=LOGIT_TOLERANCE, rtol=0
        )
    assert executor_of(paged).num_graphs == 3


def test_every_row_has_its_own_graph_bucket_and_no_more(tiny: Tiny, folder: Path) -> None:
    model, _ = tiny
    paged, trt = make_engine_paged(model, folder, captures=True, max_seq_len=300)
    executor, sequence = executor_of(paged), Sequence()
    paged.prefill(sequence, [3] * 255)
    assert executor.num_graphs == 0
    contexts = trt.live_contexts
    stated: list[int] = []
    trt.tamper = lambda device, host: stated.extend(host["host_past_key_value_lengths"].tolist())
    for expected in (1, 2, 2, 2):
        paged.decode(sequence, 7)
        assert executor.num_graphs == expected
    trt.tamper = None
    assert trt.live_contexts == contexts + 2
    assert set(stated) == {256, 299}, "the grid has to cover the last row of the bucket"
    paged.blocks.rollback(sequence, 100)
    plain, other = make_paged(model, max_seq_len=300), Sequence()
    plain.prefill(other, [3] * 100)
    assert_same(paged.decode(sequence, 9), plain.decode(other, 9))
    paged.prefill(sequence, [4] * 198)
    plain.prefill(other, [4] * 198)
    assert_same(paged.decode(sequence, 5), plain.decode(other, 5))  # the last row that fits


def test_a_step_that_cannot_be_captured_is_launched(
    tiny: Tiny, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = tiny

    def no_capture(key: Hashable, function: Callable[[], object]) -> None:
        function()
        raise RuntimeError("operation not permitted when stream is capturing")

    calls = GraphedCalls("cpu")
    calls.is_capturing = True
    monkeypatch.setattr(calls, "run", no_capture)
    paged, trt = make_engine_paged(model, folder)
    from engine_runtime.tensorrt.llm.session import EngineSession

    executor = TrtllmExecutor(
        EngineSession(folder / "rank0.engine", trt.library, trt.memory),
        model.config,
        paged.cache,
        trt.memory,
        max_seq_len=1024,
        max_num_tokens=512,
        calls=calls,
    )
    captured = PagedLM(executor, paged.cache, paged.blocks)
    plain, mine, other = make_paged(model), Sequence(), Sequence()
    with caplog.at_level(logging.WARNING):
        for token in range(3):
            assert_same(captured.decode(mine, token), plain.decode(other, token))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "stream is capturing" in caplog.text
    assert "without graphs" in str(executor.note)


def test_tails_that_are_not_wanted_are_computed_and_not_given(tiny: Tiny, folder: Path) -> None:
    model, _ = tiny
    paged, _ = make_engine_paged(model, folder)
    sequence = Sequence()
    logits = paged.prefill(sequence, list(range(20)), Tails(text=False))
    assert logits.text_logits is None
    assert logits.audio_logits is not None
    assert sequence.complete_tokens == 20
    row = next_row(paged, sequence, [1])
    with pytest.raises(ExecutorError, match="cannot fill positions of a skipped tail"):
        paged.executor.execute(ScheduledBatch((replace(row, text_computed=19),)))
    tensors = step_tensors(paged, sequence, [1])
    with pytest.raises(ExecutorError, match=r"^host_tail_start: unknown input"):
        executor_of(paged).run(tensors | {"host_tail_start": torch.tensor([21, 20], dtype=torch.int32)})


def test_profiles_for_one_row_and_for_many(tiny: Tiny, folder: Path) -> None:
    model, _ = tiny
    ranges = ((1, 512), (1, 1), (2, 64))
    paged, trt = make_engine_paged(model, folder, rows_of_profiles=ranges)
    plain, mine, other = make_paged(model), Sequence(), Sequence()
    for count in (1, 40, 200):
        ids = list(range(count))
        assert_same(paged.prefill(mine, ids), plain.prefill(other, ids))
        assert_same(paged.decode(mine, 9), plain.decode(other, 9))
    assert trt.live_contexts == 3


@pytest.mark.parametrize("dtype", [DataType.HALF, DataType.BF16])
def test_logits_in_half_precision_come_up_as_float32(tiny: Tiny, folder: Path, dtype: DataType) -> None:
    model, _ = tiny
    paged, _ = make_engine_paged(model, folder, logits=dtype)
    mine, wanted = paged.prefill(Sequence(), [1, 2, 3]), make_paged(model).prefill(Sequence(), [1, 2, 3])
    assert_same(mine, wanted, tolerance=0.05)
    assert mine.text_logits is not None
    assert mine.text_logits.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("captures", [False, True])
def test_closing_lets_everything_go(tiny: Tiny, folder: Path, captures: bool) -> None:
    model, _ = tiny
    paged, trt = make_engine_paged(model, folder, captures=captures)
    sequence = Sequence()
    paged.prefill(sequence, [1, 2, 3])
    paged.decode(sequence, 4)
    assert trt.live_contexts == 1 + captures
    paged.close()
    paged.close()
    gc.collect()
    assert trt.live_contexts == 0
    with pytest.raises(ExecutorError, match="closed"):
        paged.decode(sequence, 4)


@pytest.mark.parametrize("contract", CONTRACTS)
def test_a_prefill_continues_where_the_contract_lets_it(
    tiny: Tiny, folder: Path, contract: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.13 starts at a block; rows of the block that is not full are run once more."""
    model, _ = tiny
    paged, _ = make_engine_paged(model, folder, contract, chunk=50)
    starts: list[tuple[int, int]] = []
    run = paged.executor.execute

    def spy(batch: ScheduledBatch) -> list[StepOutput]:
        starts.extend((row.first_position, len(row.token_ids)) for row in batch.sequences)
        return run(batch)

    monkeypatch.setattr(paged.executor, "execute", spy)
    sequence, other, plain = Sequence(), Sequence(), make_paged(model)
    for count in (20, 3, 80):
        assert_same(paged.prefill(sequence, [count] * count), plain.prefill(other, [count] * count))
    if contract == "1.x":
        assert starts == [(0, 20), (20, 3), (23, 50), (73, 30)]
    else:
        assert starts == [(0, 20), (16, 7), (16, 48), (64, 39)]
    assert sequence.ids == other.ids
    paged.blocks.check_integrity([sequence])


def one_step(paged: PagedLM) -> dict[str, torch.Tensor]:
    """Tensors of a good decode step after 20 rows."""
    sequence = Sequence()
    paged.prefill(sequence, list(range(20)))
    return step_tensors(paged, sequence, [5])


def test_a_refused_step_is_an_error_and_no_row(tiny: Tiny, folder: Path) -> None:
    model, _ = tiny
    paged, trt = make_engine_paged(model, folder)
    plain, mine, other = make_paged(model), Sequence(), Sequence()
    assert_same(paged.prefill(mine, [1, 2, 3]), plain.prefill(other, [1, 2, 3]))
    trt.refuses = "Error Code 1: Myelin (no kernel image)"
    with pytest.raises(ExecutorError, match=r"did not start \(Error Code 1: Myelin \(no kernel image\)\)"):
        paged.decode(mine, 4)
    assert mine.num_tokens == 3
    trt.refuses = None
    assert_same(paged.decode(mine, 4), plain.decode(other, 4))


def test_a_step_that_writes_nothing_is_no_result(
    tiny: Tiny, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old logits still lie in the buffers; they must not pass for new ones."""
    model, _ = tiny
    paged, _ = make_engine_paged(model, folder)
    sequence = Sequence()
    paged.prefill(sequence, [1, 2, 3])
    monkeypatch.setattr("tests.doubles.tensorrt.llm_engine.compute", lambda *_: {})
    with pytest.raises(ExecutorError, match="not finite"):
        paged.decode(sequence, 4)


def test_an_engine_without_weights_is_found_out(folder: Path) -> None:
    model, _ = load_tiny()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    paged, _ = make_engine_paged(model, folder)
    with pytest.raises(ExecutorError, match="only zeros"):
        paged.prefill(Sequence(), [1, 2, 3])


def test_an_error_of_the_gpu_is_one_sentence(
    tiny: Tiny, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = tiny
    paged, _ = make_engine_paged(model, folder)

    def fail(*_: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might")

    monkeypatch.setattr("tests.doubles.tensorrt.llm_engine.compute", fail)
    with pytest.raises(ExecutorError, match=r"\(CUDA error: an illegal memory access .*\)\. Restart"):
        paged.prefill(Sequence(), [1])


def test_outputs_of_every_row_are_refused(tiny: Tiny, folder: Path) -> None:
    """TensorRT would write them past the end of the buffers."""
    model, _ = tiny
    paged, trt = make_engine_paged(model, folder, gathers_last_row=False)
    with pytest.raises(ExecutorError, match=r"logits: the engine returns \[3, .* must gather the last token"):
        paged.prefill(Sequence(), [1, 2, 3])
    assert trt.num_enqueues == 0


def test_a_second_pool_is_refused(tiny: Tiny, folder: Path) -> None:
    model, _ = tiny
    paged, _ = make_engine_paged(model, folder)
    tensors = one_step(paged)
    name = "host_kv_cache_pool_pointers"
    address = int(tensors[name][0, 0])
    for pointers in ([[address, address]], [[address + 4096, 0]]):
        with pytest.raises(ExecutorError, match=f"^{name}: "):
            executor_of(paged).run(tensors | {name: torch.tensor(pointers)})


def test_a_call_of_less_than_a_block_cannot_go_on_from_one(tiny: Tiny, folder: Path) -> None:
    model, _ = tiny
    make_engine_paged(model, folder, "1.x", chunk=8)
    with pytest.raises(EngineError, match="takes 8 tokens at once, fewer than a block of 16"):
        make_engine_paged(model, folder, "0.13", chunk=8)
