"""Overlapped steps on a real GPU, by captured graphs: replies are those of the same steps launched one by
one, when the ids of the step before are known."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from engine_runtime.cuda.graphs import padded_size
from engine_runtime.executors.cuda.executor import CudaExecutor
from engine_runtime.lm.generation import Mode, Token
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.options import BlockFormats, WeightFormat
from engine_runtime.types import SamplingParams
from tests.doubles.interpreted_triton import needs_triton
from tests.factories.tiny_lm import (
    RELEASED,
    as_tokens,
    load_special_ids,
    load_tiny,
    make_cuda_paged,
    make_paged,
)
from tests.tools.lm_scenarios import Speaker, noted_takes, step

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    needs_triton,
]
SPECIAL = load_special_ids()
WIDE = replace(
    RELEASED,
    shared_layers=4,
    text_layers=1,
    audio_layers=1,
    text_vocab=2000,
    audio_vocab=512,
    modality_pad=SPECIAL.modality_pad,
)
"""Layers of the released width."""
PARAMS = SamplingParams(True, 1.5, 60, 0.98, 1.2, min_new=20, max_new=60)
"""With a penalty; some replies end their speech by themselves."""


@pytest.fixture(scope="module")
def wide() -> Iterator[MossLM]:
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = MossLM(WIDE)
        model.reset_parameters()
    yield model.to(torch.bfloat16).eval()
    torch.cuda.empty_cache()


def speakers_of(model: MossLM, paged: PagedLM, count: int) -> list[Speaker]:
    """Replies of different lengths, with and without subtitles."""
    rows, found = as_tokens(load_tiny()[1]["a.rows"]), []
    for index in range(count):
        prompt = [*rows[index % 7 : 9 + 2 * (index % 9)], Token(SPECIAL.sosp, SPECIAL.audio_pad)]
        params = replace(PARAMS, max_new=PARAMS.max_new - index, seed=index)
        found.append(Speaker(model, paged, prompt, params, want_subtitles=index % 4 == 1))
    return found


def hold(speakers: list[Speaker], *, looks_ahead: bool) -> None:
    """All replies, until half of them have ended their speech: so all steps have one captured size. Now and
    then some of them only, so that steps are dropped, taken in part, and in another order."""
    choose = random.Random(1)
    for one in speakers:
        one.looks_ahead = looks_ahead
        step([one])
    least = padded_size(len(speakers)) // 2 + 1
    while True:
        running = [one for one in speakers if not one.is_over and one.generation.mode is Mode.AUDIO]
        if len(running) < least:
            return
        if choose.random() < 0.2:
            choose.shuffle(running)
            running = running[: choose.randrange(least, len(running) + 1)]
        step(running)


@pytest.mark.parametrize("count", [4, 8, 40])
@pytest.mark.parametrize("weight_format", ["native", "fp8"])
def test_replies_at_full_width_are_those_of_steps_one_by_one(
    wide: MossLM, weight_format: WeightFormat, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    paged = make_cuda_paged(
        wide,
        num_blocks=16 * count,
        max_seq_len=512,
        formats=BlockFormats(weight_format),
        dtype=torch.bfloat16,
        device="cuda",
        uses_triton=True,
        max_batch_size=count,
    )
    made: list[list[tuple[list[Token], list[int | None]]]] = []
    taken = noted_takes(monkeypatch)
    for looks_ahead in (False, True, True):
        taken.clear()
        speakers = speakers_of(wide, paged, count)
        hold(speakers, looks_ahead=looks_ahead)
        made.append([(one.rows, one.subtitles) for one in speakers])
        assert sum(taken) > 8 if looks_ahead else not any(taken)
        paged.blocks.check_integrity([one.sequence for one in speakers])
        for one in speakers:
            paged.blocks.release(one.sequence)
    assert made[0] == made[1] == made[2]
    assert len({row.audio for rows, _ in made[0] for row in rows}) > 20
    assert isinstance(paged.executor, CudaExecutor)
    assert paged.executor.num_captured > 0


def test_replies_are_those_of_single_steps_of_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, on the CPU."""
    model, _ = load_tiny()
    taken = noted_takes(monkeypatch)
    paged = make_cuda_paged(model, num_blocks=128, device="cuda", uses_triton=True, max_batch_size=8)
    together = speakers_of(model, paged, 8)
    hold(together, looks_ahead=True)
    assert sum(taken) > 10
    plain = make_paged(model, num_blocks=128)
    for one, alone in zip(together, speakers_of(model, plain, 8), strict=True):
        while len(alone.rows) < len(one.rows):
            step([alone])
        assert one.rows == alone.rows
        assert one.subtitles == alone.subtitles
        plain.blocks.release(alone.sequence)
