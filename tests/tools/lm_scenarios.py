"""Scenarios to compare two executors."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.generation import GeneratedToken, Generation, Token, merged_id
from engine_runtime.lm.paged_lm import PagedLM, StepRequest
from engine_runtime.lm.step import StepOutput, Tails
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.types import SamplingParams
from tests.factories.tiny_lm import LOGIT_TOLERANCE, as_tokens, load_special_ids

SPECIAL = load_special_ids()
NAMED_SAMPLINGS = {
    "greedy": SamplingParams(max_new=40),
    "greedy with a penalty": SamplingParams(repetition_penalty=1.3, max_new=40),
    "as released": SamplingParams(True, 0.6, 20, 0.95, 1.1, max_new=40, seed=1),
    "no early end": SamplingParams(True, 1.5, 64, 0.8, 1.0, min_new=30, max_new=40, seed=2),
    "one candidate": SamplingParams(True, 0.9, 1, 1.0, 1.0, max_new=20, seed=3),
    "hot": SamplingParams(True, 2.0, 50, 1.0, 1.2, min_new=10, max_new=60, seed=4),
}
SAMPLINGS = [*NAMED_SAMPLINGS.values()]


def assert_same(got: StepOutput, wanted: StepOutput, tolerance: float = LOGIT_TOLERANCE) -> None:
    for mine, other in ((got.text_logits, wanted.text_logits), (got.audio_logits, wanted.audio_logits)):
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other, atol=tolerance, rtol=0)


def converse(model: MossLM, cuda: PagedLM, plain: PagedLM, seed: int, tolerance: float) -> None:
    """The same turns on both: chunked prefill, replies with deferred tails, rollback, reuse. An executor that
    defers no tails has more complete rows, so that more of them are reused.
    """
    choose = random.Random(seed)
    vocab = model.config.text_vocab + model.config.audio_vocab
    sequences: list[tuple[Sequence, Sequence]] = [(Sequence(), Sequence())]
    for _ in range(6):
        mine, other = choose.choice(sequences)
        for _ in range(choose.randrange(1, 3)):
            ids = [choose.randrange(vocab) for _ in range(choose.randrange(1, 40))]
            tails = Tails(text=choose.random() < 0.7, audio=choose.random() < 0.7)
            assert_same(cuda.prefill(mine, ids, tails), plain.prefill(other, ids, tails), tolerance)
        tails = choose.choice([Tails(), Tails(text=False), Tails(audio=False)])
        for _ in range(choose.randrange(1, 12)):
            token = choose.randrange(vocab)
            assert_same(cuda.decode(mine, token, tails), plain.decode(other, token, tails), tolerance)
        action = choose.randrange(4)
        if action == 0:
            kept = choose.randrange(1, mine.num_tokens + 1)
            cuda.blocks.rollback(mine, kept)
            plain.blocks.rollback(other, kept)
        elif action == 1:
            sequences.append((cuda.blocks.fork(mine), plain.blocks.fork(other)))
        elif action == 2:
            ids = list(mine.ids)
            cuda.blocks.release(mine)
            plain.blocks.release(other)
            held, known = cuda.align(mine, ids), plain.align(other, ids)
            assert held == known or (held > known and not cuda.executor.supports_deferred_tails)
            rest, other_rest = [*ids[held:], 5], [*ids[known:], 5]
            assert_same(cuda.prefill(mine, rest), plain.prefill(other, other_rest), tolerance)
    cuda.blocks.check_integrity([mine for mine, _ in sequences])


def reply(
    model: MossLM,
    paged: PagedLM,
    prompt: torch.Tensor,
    params: SamplingParams,
    *,
    predict_turn_end: bool = False,
) -> list[GeneratedToken]:
    """A complete reply; ids are sampled by the executor if it can, apart from the first of a prediction."""
    rows, special = as_tokens(prompt), load_special_ids()
    generation = Generation(
        rows,
        params,
        special,
        text_vocab=model.config.text_vocab,
        audio_vocab=model.config.audio_vocab,
        want_subtitles=True,
        predict_turn_end=predict_turn_end,
        skip_unused_tails=True,
        samples_on_device=paged.executor.can_sample,
    )
    sequence = Sequence()
    made: list[GeneratedToken] = []
    ids = [merged_id(row, special, model.config.text_vocab) for row in rows]
    logits = paged.prefill(sequence, ids, generation.tails, generation.sampling)
    while True:
        is_predicted = predict_turn_end and not made
        assert (logits.sampled is not None) == (paged.executor.can_sample and not is_predicted)
        made.append(generation.sample(logits))
        if generation.finish_reason is not None:
            return made
        token = merged_id(made[-1].token, special, model.config.text_vocab)
        logits = paged.decode(sequence, token, generation.tails, generation.sampling, exclusive_gpu=True)


def replies_together(
    model: MossLM, paged: PagedLM, prompts: list[torch.Tensor], samplings: list[SamplingParams]
) -> list[list[GeneratedToken]]:
    """The replies of `reply`, each generated in steps that it shares with the others.

    One reply joins per step, so that a step runs the prefill of one beside the decode rows of the others, at
    different lengths and with different tails.
    """
    special, text_vocab = load_special_ids(), model.config.text_vocab
    made: list[list[GeneratedToken]] = [[] for _ in prompts]
    generations = [
        Generation(
            as_tokens(prompt),
            params,
            special,
            text_vocab=text_vocab,
            audio_vocab=model.config.audio_vocab,
            want_subtitles=True,
            skip_unused_tails=True,
            samples_on_device=paged.executor.can_sample,
        )
        for prompt, params in zip(prompts, samplings, strict=True)
    ]
    sequences = [Sequence() for _ in prompts]
    joined = 0
    while any(generation.finish_reason is None for generation in generations):
        joined = min(joined + 1, len(prompts))
        running = [index for index in range(joined) if generations[index].finish_reason is None]
        requests = []
        for index in running:
            generation, rows = generations[index], made[index]
            last = [rows[-1].token] if rows else as_tokens(prompts[index])
            ids = [merged_id(row, special, text_vocab) for row in last]
            request = StepRequest(sequences[index], ids, generation.tails, generation.sampling)
            request.is_prefill, request.ahead = not rows, generation.sampling_ahead if rows else None
            requests.append(request)
        for index, output in zip(running, paged.step(requests) if requests else [], strict=True):
            made[index].append(generations[index].sample(output))
    paged.blocks.check_integrity(sequences)
    return made


@dataclass
class Speaker:
    """A reply, one step at a time; after a `prompt` that ends with sosp it speaks from its first row on."""

    model: MossLM
    paged: PagedLM
    prompt: list[Token]
    params: SamplingParams
    want_subtitles: bool = False
    looks_ahead: bool = True
    sequence: Sequence = field(default_factory=Sequence)
    rows: list[Token] = field(default_factory=list)
    subtitles: list[int | None] = field(default_factory=list)
    generation: Generation = field(init=False)

    def __post_init__(self) -> None:
        config = self.model.config
        self.generation = Generation(
            self.prompt,
            self.params,
            SPECIAL,
            text_vocab=config.text_vocab,
            audio_vocab=config.audio_vocab,
            want_subtitles=self.want_subtitles,
            skip_unused_tails=True,
            samples_on_device=self.paged.executor.can_sample,
        )

    def request(self) -> StepRequest:
        """The next row, or the prompt."""
        generation, vocab = self.generation, self.model.config.text_vocab
        rows = self.rows[-1:] or self.prompt
        ids = [merged_id(row, SPECIAL, vocab) for row in rows]
        request = StepRequest(self.sequence, ids, generation.tails, generation.sampling)
        request.is_prefill = not self.rows
        request.ahead = generation.sampling_ahead if self.rows and self.looks_ahead else None
        return request

    def take(self, output: StepOutput) -> None:
        """Sample from the output of the request."""
        made = self.generation.sample(output)
        self.rows.append(made.token)
        self.subtitles.append(made.subtitle)

    @property
    def is_over(self) -> bool:
        return self.generation.finish_reason is not None

    @property
    def is_in_flight(self) -> bool:
        return self.paged.is_in_flight(self.request())


def step(speakers: list[Speaker]) -> None:
    """One step of all of them."""
    outputs = speakers[0].paged.step([one.request() for one in speakers])
    for one, output in zip(speakers, outputs, strict=True):
        one.take(output)


def noted_takes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each batched step from now on was already in flight."""
    from engine_runtime.executors.cuda.batched_steps import BatchedSteps  # needs Triton

    taken: list[bool] = []
    take = BatchedSteps.take

    def noted(self: BatchedSteps, sequences: Any) -> Any:
        outputs = take(self, sequences)
        taken.append(outputs is not None)
        return outputs

    monkeypatch.setattr(BatchedSteps, "take", noted)
    return taken
