"""An engine that was built for several sequences: its limit, and conversations that share its steps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.conversation.turn import Conversation
from engine_runtime.engine import Engine
from engine_runtime.hardware import AcceleratorError
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import EngineOptions
from engine_runtime.scheduler.scheduler import Scheduler
from engine_runtime.tensorrt.llm import loading
from engine_runtime.types import Modality, ReplyDone
from engine_runtime.work import Task, run_alone
from tests.factories.engine_folder import EngineWorld

REPLIES = (Modality.SPEECH, Modality.TEXT)


def open_engine(bundle: Path, folder: Path, most: int) -> Engine:
    options = EngineOptions(backend="trtllm", engine=folder, max_batch_size=most, kv_blocks=512)
    return Engine.load(Bundle.open(bundle), options)


def talk(engine: Engine, conversation: Conversation, seed: int, said: list[object]) -> Task[None]:
    """Two turns, whose speech, lengths and replies depend on the seed."""
    generator = np.random.default_rng(seed)
    for number in range(2):
        reply = REPLIES[(number + seed) % 2]
        turn = yield from engine.open_turn(conversation, number, reply)
        for _ in range(1 + seed % 3):
            yield from turn.push(generator.normal(0, 0.1, 9_000).astype(np.float32))
        events = yield from turn.commit(reply)
        while (event := (yield from events.next_event())) is not None:
            if isinstance(event, ReplyDone):
                said.append((*event.codes, *event.text.encode()))


def noted(task: Task[None], works: list[str]) -> Task[None]:
    """The task, with the stages of its works."""
    result = None
    while True:
        try:
            work = task.send(result)
        except StopIteration:
            return
        works.append(work.stage)
        result = yield work


@pytest.mark.slow
@pytest.mark.parametrize("contract", ["1.x", "0.13"])
def test_conversations_in_the_scheduler_are_those_of_torch_alone(
    engine_world: EngineWorld, random_bundle: Path, tmp_path: Path, contract: str
) -> None:
    """Five conversations over an engine that takes three."""
    folder = engine_world.build(random_bundle, tmp_path / "engine", contract, max_batch_size=3)
    together, alone = open_engine(random_bundle, folder, 64), Engine.load(Bundle.open(random_bundle))
    scheduler, replies = Scheduler(), [list[object]() for _ in range(5)]
    for seed, said in enumerate(replies):
        works: list[str] = []
        task = noted(talk(together, together.new_conversation(), seed, said), works)
        scheduler.start(task, partial(len, works))  # who has had least is first
    while not scheduler.is_idle:
        scheduler.run_once()
    calls = {key: time.calls for key, time in scheduler.times.summary().items()}
    for stage in ("prefill", "step"):
        assert max(size for its, size in calls if its == stage) == 3
    assert calls["step", 3] > 20
    for seed, said in enumerate(replies):
        wanted = list[object]()
        run_alone(talk(alone, alone.new_conversation(), seed, wanted))
        assert said == wanted
        assert all(said)
    assert len({str(said) for said in replies}) == 5


@pytest.mark.slow
def test_a_step_takes_what_the_engine_and_the_options_allow(
    engine_world: EngineWorld, random_bundle: Path, tmp_path: Path
) -> None:
    folder = engine_world.build(random_bundle, tmp_path / "engine", max_batch_size=3)
    found = {}
    for most in (1, 2, 3, 64):
        stages = open_engine(random_bundle, folder, most).stages
        found[most] = stages.lm.executor.limits.max_batch_size
        is_noted = any("takes 3 of the up to 64 conversations" in note for note in stages.notes)
        assert is_noted == (most == 64)
    assert found == {1: 1, 2: 2, 3: 3, 64: 3}
    few_rows = engine_world.build(random_bundle, tmp_path / "few", max_batch_size=64, max_num_tokens=40)
    limits = open_engine(random_bundle, few_rows, 64).stages.lm.executor.limits
    assert (limits.max_batch_size, limits.max_num_tokens) == (40, 40)


def test_the_memory_of_a_batch_is_counted(
    engine_world: EngineWorld, random_bundle: Path, tmp_path: Path
) -> None:
    folder = engine_world.build(random_bundle, tmp_path / "engine", max_batch_size=100_000)
    bundle = Bundle.open(random_bundle)
    config = MossLMConfig.from_dict(bundle.lm.config)
    options = EngineOptions(backend="trtllm", engine=folder, gpu_memory_gb=2)
    device = torch.device("cpu")
    loading.open_engine(bundle, config, device, options, 0)
    many = replace(options, max_batch_size=100_000)
    with pytest.raises(AcceleratorError, match=r"activations and libraries 2\.5"):
        loading.open_engine(bundle, config, device, many, 0)
