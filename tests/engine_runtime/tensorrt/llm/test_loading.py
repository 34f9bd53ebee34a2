"""An engine as the language model of a bundle: loaded, used by one or several, or rejected."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.conversation.turn import Conversation
from engine_runtime.engine import Engine
from engine_runtime.errors import EngineError, MossVoiceError
from engine_runtime.hardware import AcceleratorError
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import EngineOptions
from engine_runtime.scheduler import Scheduler
from engine_runtime.tensorrt.llm import loading
from engine_runtime.tensorrt.llm.executor import TrtllmExecutor
from engine_runtime.types import Modality, ReplyDone
from engine_runtime.work import Task, run_alone
from tests.doubles.tensorrt.llm_engine import CapturedCalls
from tests.factories.engine_folder import EngineWorld, edit_config


def with_engine(folder: Path, **choices: Any) -> EngineOptions:
    return EngineOptions(backend="trtllm", engine=folder, **choices)


def open_for(bundle_folder: Path, options: EngineOptions, codec_bytes: int = 0) -> None:
    bundle = Bundle.open(bundle_folder, needs_lm_weights=False)
    config = MossLMConfig.from_dict(bundle.lm.config)
    loading.open_engine(bundle, config, torch.device("cpu"), options, codec_bytes)


def talk(engine: Engine) -> list[tuple[int, ...]]:
    """Codes of three turns of one conversation, in speech, text and speech."""
    conversation, said = engine.new_conversation(), []
    generator = np.random.default_rng(5)
    for number, reply in enumerate((Modality.SPEECH, Modality.TEXT, Modality.SPEECH)):
        turn = run_alone(engine.open_turn(conversation, number, reply))
        run_alone(turn.push(generator.normal(0, 0.1, 12_000).astype(np.float32)))
        run_alone(turn.push(generator.normal(0, 0.1, 9_000).astype(np.float32)))
        done = list(run_alone(turn.commit(reply)))[-1]
        assert isinstance(done, ReplyDone)
        said.append((*done.codes, *done.text.encode()))
    engine.end_conversation(conversation)
    return said


@pytest.mark.slow
@pytest.mark.parametrize("contract", ["1.x", "0.13"])
def test_conversations_of_a_bundle_are_the_same_with_its_engine(
    engine_world: EngineWorld, random_bundle: Path, tmp_path: Path, contract: str
) -> None:
    folder = engine_world.build(random_bundle, tmp_path / "engine", contract)
    wanted = Engine.load(Bundle.open(random_bundle))
    engine = Engine.load(Bundle.open(random_bundle), with_engine(folder))
    engine.warm_up()
    assert talk(engine) == talk(wanted)
    assert engine.stats.used == 0
    assert engine_world.trt.live_contexts == 1
    engine.close()
    assert engine_world.trt.live_contexts == 0


@pytest.mark.slow
def test_the_weights_of_the_bundle_need_not_be_there(
    engine_world: EngineWorld, random_bundle: Path, tmp_path: Path
) -> None:
    folder = engine_world.build(random_bundle, tmp_path / "engine")
    copy = shutil.copytree(random_bundle, tmp_path / "bundle")
    (copy / "lm.safetensors").unlink()
    shares: list[float] = []
    bundle = Bundle.open(copy, needs_lm_weights=False)
    engine = Engine.load(bundle, with_engine(folder), progress=shares.append)
    assert talk(engine)[0]
    assert shares[-1] == 1.0
    with pytest.raises(MossVoiceError, match=r"lacks lm\.safetensors"):
        Bundle.open(copy)
    (copy / "vocoder.safetensors").unlink()
    with pytest.raises(MossVoiceError, match=r"lacks vocoder\.safetensors"):
        Bundle.open(copy, needs_lm_weights=False)


@pytest.mark.slow
def test_as_many_rows_as_the_bundle_wants_in_blocks_of_the_engine(
    engine_world: EngineWorld, random_bundle: Path, tmp_path: Path
) -> None:
    folder = engine_world.build(random_bundle, tmp_path / "engine", tokens_per_block=64, max_seq_len=600)
    stages = Engine.load(Bundle.open(random_bundle), with_engine(folder)).stages
    lm = stages.lm
    assert (lm.blocks.num_blocks, lm.blocks.tokens_per_block) == (128 * 16 // 64, 64)
    assert lm.max_tokens == 600
    assert lm.executor.limits.max_num_tokens == 128
    (note,) = map(str, stages.notes)
    assert "holds conversations of 600 tokens, but bundle random allows 1024" in note
    fewer = Engine.load(Bundle.open(random_bundle), with_engine(folder, kv_blocks=16)).stages.lm
    assert fewer.blocks.num_blocks == 4
    assert fewer.max_tokens == 256


@pytest.mark.slow
def test_decode_steps_are_captured_before_the_first_reply(
    engine_world: EngineWorld, random_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = CapturedCalls(engine_world.trt)
    made: list[TrtllmExecutor] = []

    class Capturing(TrtllmExecutor):
        def __init__(self, *words: Any, **named: Any) -> None:
            super().__init__(*words, **named, calls=calls)
            made.append(self)

    monkeypatch.setattr(loading, "TrtllmExecutor", Capturing)
    folder = engine_world.build(random_bundle, tmp_path / "engine")
    engine = Engine.load(Bundle.open(random_bundle), with_engine(folder))
    lm = engine.stages.lm
    loading.capture_decode(lm)
    assert made[0].num_graphs == 4
    lm.blocks.check_integrity([])
    assert (lm.blocks.num_free, lm.blocks.num_cached) == (lm.blocks.num_blocks, 0)
    assert talk(engine) == talk(Engine.load(Bundle.open(random_bundle)))
    assert made[0].num_graphs == len(calls.captured_graphs) == 4
    assert calls.num_replays > 40


@pytest.mark.parametrize(
    ("table", "changes", "said"),
    [
        ("pretrained_config", {"hidden_size": 128}, "hidden_size is 128 in the engine and 64 in the bundle"),
        ("pretrained_config", {"rotary_base": 1e4}, "rotary_base is 10000.0 in the engine"),
        ("pretrained_config", {"norm_epsilon": 1e-5}, "norm_epsilon is 1e-05 in the engine"),
        (
            "pretrained_config",
            {"num_audio_layers": 2, "num_hidden_layers": 5},
            "num_audio_layers is 2 in the engine",
        ),
        ("pretrained_config", {"text_vocab_size": 3, "vocab_size": 83}, "text_vocab_size is 3 in the engine"),
        ("pretrained_config", {"qk_layernorm": False}, "qk_layernorm"),
        (
            "pretrained_config",
            {"quantization": {"quant_algo": "W8A16", "kv_cache_quant_algo": "FP8"}},
            "without FP8 products, which keys and values in FP8 go with",
        ),
        ("build_config.plugin_config", {"use_paged_context_fmha": False}, "use_paged_context_fmha"),
        ("build_config.plugin_config", {"remove_input_padding": False}, "without packed input"),
        ("build_config", {"kv_cache_type": "CONTINUOUS"}, "without a paged KV cache"),
    ],
)
def test_an_engine_of_something_else(
    engine_world: EngineWorld,
    random_bundle: Path,
    tmp_path: Path,
    table: str,
    changes: dict[str, Any],
    said: str,
) -> None:
    folder = engine_world.build(random_bundle, tmp_path / "engine")
    open_for(random_bundle, with_engine(folder))
    edit_config(folder, table, **changes)
    with pytest.raises(EngineError, match=said):
        open_for(random_bundle, with_engine(folder))


def test_everything_that_differs_is_reported_at_once(
    engine_world: EngineWorld, random_bundle: Path, nano_bundle: Path, tmp_path: Path
) -> None:
    folder = engine_world.build(random_bundle, tmp_path / "engine")
    with pytest.raises(EngineError, match=r"does not fit bundle nano: hidden_size is 64 .* head_size is 16"):
        open_for(nano_bundle, with_engine(folder))


@pytest.mark.slow
def test_an_engine_of_other_weights(
    engine_world: EngineWorld,
    random_bundle: Path,
    tmp_path: Path,
) -> None:
    from tests.factories.bundle import make_random_bundle

    other = make_random_bundle(tmp_path / "other", seed=1)
    folder = engine_world.build(other, tmp_path / "engine")
    with pytest.raises(EngineError, match=r"other weights \(of bundle random\) than bundle random has"):
        open_for(random_bundle, with_engine(folder))
    open_for(random_bundle, with_engine(folder, random_weights=0))
    unknown = engine_world.build(random_bundle, tmp_path / "unknown", with_provenance=False)
    stages = Engine.load(Bundle.open(random_bundle), with_engine(unknown)).stages
    assert str(stages.notes[0]).startswith(f"The weights of {unknown}")
    assert "moss-voice trt verify" in str(stages.notes[0])


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"weight_format": "fp8"}, "--weights fp8 cannot be set for an engine"),
        ({"prefill_tokens": 65}, r"--prefill-tokens 65 cannot be set .*, and \d+ tokens a call"),
        ({"kv_dtype": "fp8", "dtype": "bfloat16"}, "--kv fp8 and --dtype bfloat16 cannot be set"),
    ],
)
def test_what_an_engine_was_built_with_cannot_be_chosen(
    engine_world: EngineWorld, random_bundle: Path, tmp_path: Path, choices: dict[str, Any], said: str
) -> None:
    folder = engine_world.build(random_bundle, tmp_path / "engine")
    open_for(random_bundle, with_engine(folder, dtype="float32"))
    with pytest.raises(EngineError, match=said):
        open_for(random_bundle, with_engine(folder, **choices))


def test_too_little_memory_is_reported_before_anything_is_loaded(
    engine_world: EngineWorld, random_bundle: Path, tmp_path: Path
) -> None:
    folder = engine_world.build(random_bundle, tmp_path / "engine")
    open_for(random_bundle, with_engine(folder, gpu_memory_gb=8), codec_bytes=6_000_000_000)
    with pytest.raises(
        AcceleratorError, match=r"has 8\.0 GB .* 8\.5 GB are needed: engine 0\.0, .*codec 7\.0"
    ):
        open_for(random_bundle, with_engine(folder, gpu_memory_gb=8), codec_bytes=7_000_000_000)


@pytest.mark.slow
def test_without_a_gpu_or_the_library(random_bundle: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        folder = EngineWorld(patch).build(random_bundle, tmp_path / "engine")
    with pytest.raises(EngineError, match=r"runs on an NVIDIA GPU only\. Add --device cuda"):
        open_for(random_bundle, with_engine(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "check_device", lambda device: None)
        patch.setattr(loading, "bound", lambda device, gigabytes: 24_000_000_000)
        with pytest.raises(EngineError, match="TensorRT-LLM"):
            Engine.load(Bundle.open(random_bundle), with_engine(folder))


def test_an_engine_needs_its_backend_and_the_other_way_round(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="--engine DIR"):
        EngineOptions(backend="trtllm")
    with pytest.raises(EngineError, match="Add --backend trtllm"):
        EngineOptions(engine=tmp_path)
    options = with_engine(tmp_path)
    assert replace(options, backend="torch", engine=None) == EngineOptions()


REPLIES = (Modality.SPEECH, Modality.TEXT)


def open_engine(bundle: Path, folder: Path, most: int) -> Engine:
    options = EngineOptions(backend="trtllm", engine=folder, max_batch_size=most, kv_blocks=512)
    return Engine.load(Bundle.open(bundle), options)


def talk_task(engine: Engine, conversation: Conversation, seed: int, said: list[object]) -> Task[None]:
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
        task = noted(talk_task(together, together.new_conversation(), seed, said), works)
        scheduler.start(task, partial(len, works))  # who has had least is first
    while not scheduler.is_idle:
        scheduler.run_once()
    calls = {key: time.calls for key, time in scheduler.times.summary().items()}
    for stage in ("prefill", "step"):
        assert max(size for its, size in calls if its == stage) == 3
    assert calls["step", 3] > 20
    for seed, said in enumerate(replies):
        wanted = list[object]()
        run_alone(talk_task(alone, alone.new_conversation(), seed, wanted))
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
        is_noted = any("takes 3 of the up to 64 conversations" in str(note) for note in stages.notes)
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
