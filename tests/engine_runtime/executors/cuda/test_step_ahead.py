"""Overlapped steps, by the kernels in Triton's interpreter: replies are those of single steps of plain
torch, whatever becomes of the steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.errors import ExecutorError
from engine_runtime.executors.cuda.batch_inputs import SLOTS
from engine_runtime.executors.cuda.executor import CudaExecutor
from engine_runtime.executors.cuda.prefill import TorchRowOperations
from engine_runtime.executors.cuda.sampler import AUDIO, AUDIO_MAGNITUDE
from engine_runtime.executors.cuda.step_ahead import StepAhead
from engine_runtime.executors.cuda.weights import Tail
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.generation import Mode, Token
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.sequence_runner import SequenceRunner
from engine_runtime.lm.step import (
    BOTH_TAILS,
    ReplySampling,
    SamplingMetadata,
    ScheduledSequence,
    StepOutput,
    Tails,
)
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.scheduler import Scheduler
from engine_runtime.types import SamplingParams
from engine_runtime.work import Task
from tests.doubles.interpreted_triton import HAS_TRITON, needs_triton, patch_interpreter
from tests.factories.tiny_lm import (
    as_tokens,
    load_special_ids,
    load_tiny,
    make_cuda_paged,
    make_paged,
    make_thin,
)
from tests.tools.lm_scenarios import Speaker, step

pytestmark = needs_triton
patch_interpreter()
if HAS_TRITON:
    from engine_runtime.executors.cuda import triton_linear, triton_prefill
    from engine_runtime.executors.cuda.batched_backend import BatchedBackend, BatchShape
    from engine_runtime.executors.cuda.batched_steps import BatchedSteps
    from engine_runtime.executors.cuda.triton_linear import KernelConfig

SPECIAL = load_special_ids()
GREEDY = SamplingParams(min_new=40, max_new=40)
SAMPLED = SamplingParams(True, 1.2, 30, 0.95, 1.3, min_new=40, max_new=40, seed=1)
"""Neither ends by itself."""


@pytest.fixture(scope="module")
def model() -> MossLM:
    return make_thin()


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the interpreter, which runs one after the other; also plain torch for prefill."""
    monkeypatch.setattr(triton_linear, "default_config", lambda key: KernelConfig(32, 4, 1, 2))
    monkeypatch.setattr(triton_prefill, "TritonRowOperations", TorchRowOperations)


def make_batched(model: MossLM, num_blocks: int = 32, max_seq_len: int = 64) -> tuple[PagedLM, BatchedSteps]:
    """The executor with its kernels for decode."""
    paged = make_cuda_paged(
        model,
        num_blocks=num_blocks,
        tokens_per_block=4,
        max_seq_len=max_seq_len,
        uses_triton=True,
        max_batch_size=4,
    )
    executor = paged.executor
    assert isinstance(executor, CudaExecutor)
    assert executor.batched is not None
    return paged, executor.batched


def start(
    model: MossLM, paged: PagedLM, count: int, params: SamplingParams = GREEDY, *, subtitles: bool = False
) -> list[Speaker]:
    """Replies after prompts of different lengths, whose first row was sampled."""
    rows = as_tokens(load_tiny()[1]["a.rows"])
    speakers = []
    for index in range(count):
        prompt = [*rows[index : 9 + 2 * index], Token(SPECIAL.sosp, SPECIAL.audio_pad)]
        speakers.append(Speaker(model, paged, prompt, replace(params, seed=index + 1), subtitles))
    for one in speakers:
        step([one])
    return speakers


def assert_as_alone(speakers: list[Speaker]) -> None:
    """The rows so far are those of the reference implementation in single steps."""
    for one in speakers:
        plain = make_paged(one.model, num_blocks=32, tokens_per_block=4, max_seq_len=64)
        alone = Speaker(one.model, plain, one.prompt, one.params, one.want_subtitles)
        while len(alone.rows) < len(one.rows):
            step([alone])
        assert one.rows == alone.rows
        assert one.subtitles == alone.subtitles


def check_blocks(speakers: list[Speaker]) -> None:
    """No block is lost, and none is left when all sequences are released."""
    blocks = speakers[0].paged.blocks
    blocks.check_integrity([one.sequence for one in speakers])
    for one in speakers:
        blocks.release(one.sequence)
    blocks.check_integrity([])
    assert blocks.num_used == 0


def end_at(one: Speaker, index: int) -> int:
    """Make the code that a reply samples at its row `index` the one that ends its speech."""
    plain = make_paged(one.model, num_blocks=32, tokens_per_block=4, max_seq_len=64)
    alone = Speaker(one.model, plain, one.prompt, one.params)
    while len(alone.rows) <= index:
        step([alone])
    eosp = alone.rows[index].audio
    assert eosp not in [row.audio for row in alone.rows[:index]]
    generation, reply = one.generation, one.generation._reply_sampling
    assert reply is not None
    object.__setattr__(reply, "eosp", eosp)
    generation._special = replace(SPECIAL, eosp=eosp)
    one.params = generation._params = replace(one.params, min_new=0)
    return eosp


def in_flight(speakers: list[Speaker]) -> list[bool]:
    return [one.is_in_flight for one in speakers]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of the shared forwards, as they are launched."""
    rows: list[int] = []
    forward = BatchedBackend.forward

    def noted(self: BatchedBackend, shape: BatchShape) -> None:
        rows.append(shape.rows)
        forward(self, shape)

    monkeypatch.setattr(BatchedBackend, "forward", noted)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(("params", "subtitles"), [(GREEDY, False), (SAMPLED, False), (SAMPLED, True)])
def test_steps_launched_ahead_give_the_same_replies(
    model: MossLM, params: SamplingParams, subtitles: bool, launches: list[int]
) -> None:
    """Over block boundaries, with and without a penalty and the text tail."""
    paged, _ = make_batched(model)
    speakers = start(model, paged, 3, params, subtitles=subtitles)
    assert in_flight(speakers) == [False] * 3
    for _ in range(7):
        step(speakers)
        assert in_flight(speakers) == [True] * 3
    assert launches == [4] * 8, "each forward once, and one that nobody has asked for"
    assert_as_alone(speakers)
    check_blocks(speakers)


@pytest.mark.slow
def test_the_next_step_is_launched_before_the_ids_are_waited_for(
    model: MossLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    paged, steps = make_batched(model)
    happened: list[tuple[str, int]] = []
    launch, wait = steps._launch, steps._inputs.wait

    def launched(shape: Any) -> int:
        slot = launch(shape)
        happened.append(("launch", slot))
        return slot

    def waited(slot: int) -> None:
        happened.append(("wait", slot))
        wait(slot)

    monkeypatch.setattr(steps, "_launch", launched)
    monkeypatch.setattr(steps._inputs, "wait", waited)
    speakers = start(model, paged, 2)
    for _ in range(3):
        step(speakers)
    first, second = happened[0][1], happened[1][1]
    assert first != second
    assert happened == [
        ("launch", first),
        ("launch", second),
        ("wait", first),
        ("launch", first),
        ("wait", second),
        ("launch", second),
        ("wait", first),
    ]


@pytest.mark.slow
def test_who_ends_by_himself_leaves_the_others_in_flight(model: MossLM) -> None:
    """In the step launched before that was known, its row is padding."""
    paged, _ = make_batched(model)
    speakers = start(model, paged, 3)
    ending = speakers[1]
    eosp = end_at(ending, 3)
    step(speakers)
    step(speakers)
    before = paged.cache.pool.clone()
    step(speakers)
    assert ending.rows[-1].audio == eosp
    assert in_flight(speakers) == [True, False, True]
    size, trunk = paged.blocks.tokens_per_block, paged.executor.limits.num_layers
    for one in speakers:
        block, slot = divmod(one.sequence.num_tokens, size)
        at = one.sequence.block_table[block], slice(trunk), slice(None), slice(None), slot
        assert torch.equal(paged.cache.pool[at], before[at]) == (one is ending)
    others = [speakers[0], speakers[2]]
    step(others)
    assert in_flight(others) == [True, True]
    step([*others, ending])
    assert_as_alone(others)
    check_blocks(speakers)


@pytest.mark.slow
def test_when_all_end_at_once_nothing_is_in_flight(model: MossLM, launches: list[int]) -> None:
    paged, _ = make_batched(model)
    speakers = start(model, paged, 2)
    for one in speakers:
        end_at(one, 2)
    step(speakers)
    assert in_flight(speakers) == [True, True]
    step(speakers)
    assert in_flight(speakers) == [False, False]
    assert launches == [2, 2, 2], "the last one computes padding"
    assert [one.generation.mode for one in speakers] == [Mode.TEXT] * 2
    assert [one.generation.sampling_ahead for one in speakers] == [None] * 2
    step(speakers)
    assert in_flight(speakers) == [False, False]
    check_blocks(speakers)


@pytest.mark.slow
def test_beside_a_text_reply_nothing_is_launched_ahead(model: MossLM, launches: list[int]) -> None:
    paged, _ = make_batched(model)
    speakers = start(model, paged, 2)
    text = Speaker(model, paged, speakers[0].prompt[1:5], GREEDY)
    step([text])
    assert text.generation.mode is Mode.TEXT
    step([*speakers, text])
    assert launches == [4]
    step(speakers)
    assert in_flight([*speakers, text]) == [True, True, False]
    step([text, *speakers])
    assert launches == [4, 2, 2, 4]
    assert_as_alone([*speakers, text])
    check_blocks([*speakers, text])


@pytest.mark.slow
@pytest.mark.parametrize("releases", [False, True])
def test_blocks_of_a_dropped_step_serve_another_sequence(model: MossLM, releases: bool) -> None:
    """A reply is truncated while its step is in flight, and its reserved block is written by another one."""
    paged, _ = make_batched(model)
    speakers = start(model, paged, 3)
    while True:
        step(speakers)
        gone = speakers[0].sequence
        if gone.num_tokens % 4 == 0:
            break
    reserved = gone.block_table[-1]
    assert len(gone.block_table) == gone.num_tokens // 4 + 1
    paged.blocks.rollback(gone, 0 if releases else gone.num_tokens)
    assert len(gone.block_table) == gone.num_tokens // 4
    paged.blocks._free.remove(reserved)
    paged.blocks._free.appendleft(reserved)  # given out next
    others, late = speakers[1:], Speaker(model, paged, speakers[1].prompt[1:], GREEDY)
    for _ in range(3):
        step([*others, late])
    assert reserved in late.sequence.block_table
    assert_as_alone([*others, late])
    check_blocks([*speakers, late])


@pytest.mark.slow
def test_a_prefill_beside_steps_in_flight_drops_them(model: MossLM, launches: list[int]) -> None:
    """With a penalty: the ids that the dropped step marked as seen are those that the next one marks."""
    paged, _ = make_batched(model)
    speakers = start(model, paged, 2, SAMPLED)
    step(speakers)
    late = Speaker(model, paged, speakers[0].prompt[2:], SAMPLED)
    step([*speakers, late])
    assert in_flight(speakers) == [False, False], "rows of a prompt do not go on as one row"
    step([*speakers, late])
    assert in_flight([*speakers, late]) == [True] * 3
    step([late, speakers[0]])
    assert in_flight([*speakers, late]) == [True, False, True]
    step([*speakers, late])
    step([speakers[0]])
    step([speakers[0]])
    assert launches == [2, 2, 16, 4, 4, 2, 4, 4], "in the end one alone, by other kernels"
    assert_as_alone([*speakers, late])
    check_blocks([*speakers, late])


@pytest.mark.slow
def test_a_batch_that_shrinks_to_one_takes_its_result(model: MossLM, launches: list[int]) -> None:
    paged, _ = make_batched(model)
    speakers = start(model, paged, 2)
    step(speakers)
    step(speakers[:1])
    assert launches == [2, 2]
    assert in_flight(speakers) == [False, False], "one alone is not overlapped"
    step(speakers[:1])
    step(speakers)
    assert_as_alone(speakers)


@pytest.mark.slow
def test_without_room_for_the_following_row_nothing_is_launched_ahead(model: MossLM) -> None:
    paged, _ = make_batched(model)
    speakers = start(model, paged, 2)
    step(speakers)
    assert in_flight(speakers) == [True, True]
    other = Sequence()
    paged.blocks.reserve(other, 0, 4 * paged.blocks.num_free)
    while any(in_flight(speakers)):
        step(speakers)
    assert any(one.sequence.num_tokens % 4 == 0 for one in speakers)
    paged.blocks.check_integrity([other, *(one.sequence for one in speakers)])
    paged.blocks.release(other)
    step(speakers)
    assert in_flight(speakers) == [True, True]
    assert_as_alone(speakers)
    check_blocks(speakers)


@pytest.mark.slow
def test_a_full_context_is_not_exceeded(model: MossLM) -> None:
    paged, _ = make_batched(model, max_seq_len=15)
    speakers = start(model, paged, 2)
    seen = []
    while speakers[1].sequence.num_tokens < 15:
        step(speakers)
        seen.append(in_flight(speakers)[0])
    assert seen == [True, True, True, False]
    assert_as_alone(speakers)
    check_blocks(speakers)


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
def test_a_refused_result_drops_the_step_after_it(
    model: MossLM, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a penalty: that step marked ids as seen which no reply has got."""
    paged, steps = make_batched(model)
    speakers = start(model, paged, 3, SAMPLED)
    launch = steps._launch

    def spoiled(shape: Any) -> int:
        slot = launch(shape)
        steps._sampler._result[slot, 1, AUDIO], steps._sampler._result[slot, 1, AUDIO_MAGNITUDE] = -1, np.nan
        return slot

    step(speakers)
    step(speakers)
    with monkeypatch.context() as context:
        context.setattr(steps, "_launch", spoiled)
        step(speakers)
    assert in_flight(speakers) == [True] * 3
    before = [one.sequence.num_tokens for one in speakers]
    with pytest.raises(ExecutorError, match="audio_logits: values are not finite"):
        paged.step([one.request() for one in speakers])
    assert in_flight(speakers) == [False] * 3
    assert [one.sequence.num_tokens for one in speakers] == before
    for together in [[one] for one in speakers] if alone else [speakers]:  # alone as by the scheduler
        step(together)
    step(speakers)
    step(speakers)
    assert_as_alone(speakers)
    check_blocks(speakers)


class LateDevice(GraphedCalls):
    """Runs what is launched only when somebody waits for it, as late as a GPU may."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.waiting: deque[Callable[[], object]] = deque()
        self.num_launched = 0

    def run(
        self,
        key: Hashable,
        function: Callable[..., Any],
        *inputs: torch.Tensor,
        changes: Iterable[torch.Tensor] = (),
        kind: Hashable = None,
    ) -> Any:
        self.launch(function)

    def launch(self, function: Callable[[], object]) -> None:
        self.waiting.append(function)
        self.num_launched += 1

    def wait(self, until: int | None = None) -> None:
        """Until all, or the first ones that were launched, have ended."""
        while self.waiting and (until is None or self.num_launched - len(self.waiting) < until):
            self.waiting.popleft()()


class LateUse:
    """An event."""

    def __init__(self, device: LateDevice) -> None:
        self._device, self._at = device, 0

    def note(self) -> None:
        self._at = self._device.num_launched

    def wait(self) -> None:
        self._device.wait(self._at)


@pytest.mark.slow
def test_a_step_that_runs_late_reads_what_it_was_launched_with(
    model: MossLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps taken in another order, by some only, dropped, and over block boundaries."""
    paged, steps = make_batched(model)
    device, inputs, executor = LateDevice(), steps._inputs, paged.executor
    assert isinstance(executor, CudaExecutor)
    copy, execute, fill, take = inputs._copy_table, executor._execute, executor._fill, inputs._take

    def execute_later(scheduled: ScheduledSequence, exclusive_gpu: bool) -> StepOutput:
        device.wait()
        return execute(scheduled, exclusive_gpu)

    def fill_later(tail: Tail, first: int, end: int) -> None:
        device.wait()
        fill(tail, first, end)

    monkeypatch.setattr(steps, "_graphs", device)
    monkeypatch.setattr(inputs, "_take", lambda *fields: device.launch(partial(take, *fields)))
    monkeypatch.setattr(inputs, "_copy_table", lambda: device.launch(copy))
    monkeypatch.setattr(inputs, "_uses", [LateUse(device) for _ in range(SLOTS)])
    monkeypatch.setattr(inputs, "_table_use", LateUse(device))
    # Other calls of the same stream.
    monkeypatch.setattr(executor, "_execute", execute_later)
    monkeypatch.setattr(executor, "_fill", fill_later)
    a, b, c = speakers = start(model, paged, 3, SAMPLED)
    orders = ([a, b, c], [c, a, b], [b, c, a], [a, c, b], [c, b], [a, b, c], [a, b], [a, c, b], [a], [b, c])
    for together in orders:
        step(together)
        assert bool(device.waiting) == (len(together) > 1), "the overlapped step"
    assert_as_alone(speakers)


def speak(runner: SequenceRunner, one: Speaker, rows: int) -> Task[None]:
    """A reply as a task."""
    generation = one.generation
    output, _ = yield from runner.prefill(one.sequence, one.prompt, generation.tails, generation.sampling)
    one.take(output)
    while len(one.rows) < rows:
        sampling, ahead = generation.sampling, generation.sampling_ahead
        one.take((yield from runner.decode(one.sequence, one.rows[-1], generation.tails, sampling, ahead)))


@pytest.mark.slow
def test_replies_in_the_scheduler_beside_a_listener(model: MossLM, launches: list[int]) -> None:
    paged, _ = make_batched(model)
    runner, scheduler = SequenceRunner(paged, SPECIAL, model.config.text_vocab), Scheduler()
    prompts = [one.prompt for one in start(model, make_batched(model)[0], 2)]
    speakers = [Speaker(model, paged, prompt, SAMPLED) for prompt in prompts]
    for one in speakers:
        scheduler.start(speak(runner, one, 7), lambda: 0)
    for _ in range(4):
        scheduler.run_once()
    assert in_flight(speakers) == [True, True]
    listener = Sequence()
    heard = scheduler.start(
        runner.prefill(listener, prompts[0][3:6], BOTH_TAILS, wants_output=False), lambda: 10**18
    )
    scheduler.run_once()
    assert not heard.is_over
    assert in_flight(speakers) == [False, False]
    scheduler.run_once()
    assert heard.is_over
    assert launches[-1] == 8, "two rows of the replies and three of the listener"
    while not scheduler.is_idle:
        scheduler.run_once()
    assert_as_alone(speakers)
    paged.blocks.check_integrity([listener, *(one.sequence for one in speakers)])


@pytest.mark.slow
def test_batch_invariant_replies_are_not_launched_ahead(model: MossLM, launches: list[int]) -> None:
    paged, _ = make_batched(model)
    runner = SequenceRunner(paged, SPECIAL, model.config.text_vocab)
    scheduler = Scheduler(is_batching=False)
    prompts = [one.prompt for one in start(model, make_batched(model)[0], 2)]
    speakers = [Speaker(model, paged, prompt, SAMPLED) for prompt in prompts]
    for one in speakers:
        scheduler.start(speak(runner, one, 4), lambda: 0)
    while not scheduler.is_idle:
        scheduler.run_once()
        assert not any(in_flight(speakers))
    assert not launches
    assert_as_alone(speakers)


def test_a_row_that_does_not_end_goes_on_with_its_code(model: MossLM) -> None:
    """Without the kernels: what is asked for next must be what was launched."""
    seen = torch.zeros(4, dtype=torch.bool)

    def scheduled(reply: ReplySampling, position: int, code: int, draw: float) -> ScheduledSequence:
        sampling = SamplingMetadata(reply, draw, draw, 503, code, False, False)
        ahead = SamplingMetadata(reply, draw + 0.1, draw + 0.1, 503, 5, False, False)
        row = ScheduledSequence([512 + code], position, [7, 3, 9], 0, position, 2, is_prefill=False)
        return replace(row, tails=Tails(text=False), sampling=sampling, ahead=ahead)

    replies = [ReplySampling(GREEDY, 129, 128, seen, seen) for _ in range(4)]
    rows = [scheduled(reply, 6 + index, 11, 0.25) for index, reply in enumerate(replies)]
    assert StepAhead.after(rows[:1], 512, 4) is None
    assert StepAhead.after([rows[0], replace(rows[1], ahead=None)], 512, 4) is None
    step = StepAhead.after(rows, 512, 4)
    assert step is not None
    assert replies[0] not in step
    step.begin(np.array([[0, 40, 0, 1, 1], [0, 128, 0, 1, 1], [0, 41, 0, 1, 1], [0, 42, 0, 1, np.inf]]))
    assert [reply in step for reply in replies] == [True, False, True, False]
    asked = [scheduled(replies[2], 9, 41, 0.35), scheduled(replies[0], 7, 40, 0.35)]
    assert step.places(asked) == [2, 0]
    first, sampling = asked[0], asked[0].sampling
    assert sampling is not None
    for changed in (
        replace(first, token_ids=[554]),
        replace(first, first_position=10),
        replace(first, tails=Tails()),
        replace(first, block_table=[7, 3, 8]),
        replace(first, sampling=None),
        replace(first, sampling=replace(sampling, bans_eosp=True)),
        replace(first, sampling=replace(sampling, draw_audio=0.36)),
    ):
        assert step.places([changed, asked[1]]) is None
