"""Turns for the tests of engine and conversation: speech, exchanges, scripts, and checks after them."""

from __future__ import annotations

import numpy as np

from engine_runtime.bundle.weights import load_weights
from engine_runtime.conversation.turn import Conversation, Turn
from engine_runtime.engine import Engine
from engine_runtime.executors.torch.executor import TorchExecutor
from engine_runtime.lm.block_manager import BlockManager
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.types import Modality, Pcm, ReplyAudio, ReplyDone, ReplyEvent, SamplingParams
from engine_runtime.work import run_alone

GREEDY = SamplingParams(min_new=14, max_new=20)
LONG = SamplingParams(min_new=60, max_new=60)


def speech(seconds: float, seed: int = 0) -> Pcm:
    """Noise that rises and falls, at the 16 kHz of the random bundle."""
    generator = np.random.default_rng(seed)
    count = int(seconds * 16000)
    swell = 0.2 + 0.2 * np.sin(np.arange(count) / 900.0 + seed)
    return (generator.normal(0.0, 0.3, count) * swell).astype(np.float32)


def ask(turn: Turn, question: Pcm | str, block: int = 1280) -> None:
    """Speak or type the question."""
    if isinstance(question, str):
        run_alone(turn.push_text(question))
        return
    for start in range(0, len(question), block):
        run_alone(turn.push(question[start : start + block]))


def exchange(
    engine: Engine,
    conversation: Conversation,
    question: Pcm | str,
    reply: Modality = Modality.SPEECH,
    params: SamplingParams = GREEDY,
    turn_id: int = 1,
) -> list[ReplyEvent]:
    """One complete turn."""
    turn = run_alone(engine.open_turn(conversation, turn_id, reply))
    ask(turn, question)
    return list(run_alone(turn.commit(reply, params)))


def done(events: list[ReplyEvent]) -> ReplyDone:
    """The last event."""
    last = events[-1]
    assert isinstance(last, ReplyDone)
    assert not any(isinstance(event, ReplyDone) for event in events[:-1])
    return last


def sound(events: list[ReplyEvent]) -> Pcm:
    """All PCM of a reply."""
    parts = [event.pcm for event in events if isinstance(event, ReplyAudio)]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def reply_script(engine: Engine, codes: list[int]) -> list[tuple[int, int]]:
    """Codes, end of speech, end of turn."""
    special = engine.bundle.lm.special_ids
    return [*((0, code) for code in codes), (0, special.eosp), (special.im_end, 0)]


def check(engine: Engine) -> None:
    """Every block of the pool is accounted for by the conversations that live."""
    engine.stages.lm.blocks.check_integrity(engine.stages.sequences.sequences)


def fresh_pool(engine: Engine) -> PagedLM:
    """The same language model over an empty pool of its own."""
    lm = engine.stages.lm
    assert isinstance(lm.executor, TorchExecutor)
    config, limits = engine.stages.lm_config, lm.executor.limits
    model = MossLM(config)
    load_weights(model, engine.bundle.lm.weights)
    cache = KVCache(config, limits.num_blocks, limits.tokens_per_block)
    executor = TorchExecutor(model, cache, max_seq_len=limits.max_seq_len)
    return PagedLM(executor, cache, BlockManager(limits.num_blocks, limits.tokens_per_block))
