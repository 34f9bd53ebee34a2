"""What the vocoder is finished on: answers of every skill, segments whose edges do not count, both losses."""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from engine_runtime.models.bigvgan import build_bigvgan
from tests.assets.conftest import Recipe

TOTAL = 160  # frames of an answer of the pool with its silence


@pytest.fixture
def finish(recipe: Recipe) -> ModuleType:
    """The module."""
    return recipe("finish_vocoder")


@pytest.fixture
def small(recipe: Recipe, finish: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module with a generator of a few channels."""
    train_vocoder = recipe("train_vocoder")
    config = {**train_vocoder.CONFIG, "upsample_initial_channel": 32}
    for module in (train_vocoder, finish):
        monkeypatch.setattr(module, "CONFIG", config)
    torch.manual_seed(0)
    return finish


@pytest.fixture
def pool(finish: ModuleType) -> Any:
    """Two answers of 150 and 40 frames in which each frame has its number; the first is held aside."""
    torch.manual_seed(0)
    numbers = torch.arange(TOTAL, dtype=torch.float32)
    mels = numbers.expand(2, 2, 80, TOTAL).clone()
    mels[1] += 1_000  # what the flow makes
    waves = torch.arange(TOTAL).repeat_interleave(480).short().expand(2, -1)
    return finish.Pool(waves, mels, torch.full((2, 1), 2.0), torch.tensor([40, 150]), aside=1)


def test_the_answers_are_of_every_skill_and_none_is_judged(
    finish: ModuleType, domain: ModuleType, dialogues: list[Any]
) -> None:
    piles = finish.answers_by_skill(dialogues, random.Random(0))
    answered = [d for d in dialogues if len(d.turns) == 1 and d.turns[0].units]
    assert set(piles) == {dialogue.skill for dialogue in answered} | {"joints"}
    held_out = [d for d in answered if d.held_out]
    judged = {d.turns[0].units for d in domain.balanced(held_out, finish.JUDGED, random.Random(4))}
    assert {skill for skill, pile in piles.items() if set(pile) & judged} == {"cannot", "unknown"}
    trained = {unit for d in answered if not d.held_out for unit in d.turns[0].units}
    assert {unit for answer in piles["joints"] for unit in answer} <= trained


def test_balanced_draws_the_same_number_of_every_skill(domain: ModuleType, dialogues: list[Any]) -> None:
    drawn = domain.balanced(dialogues, 40, random.Random(0))
    counts = [sum(d.skill == skill for d in drawn) for skill in {d.skill for d in dialogues}]
    assert len(drawn) == 40
    assert max(counts) - min(counts) == 1


def test_a_segment_has_the_same_frames_of_mel_and_wave(finish: ModuleType, pool: Any) -> None:
    mel, wave, counts = pool.batch(12)
    flow = round(12 * finish.FLOW_SHARE)
    frame = mel[:, 0].clone()
    assert frame[:flow].min() >= 1_000 > frame[flow:].max()
    frame[:flow] -= 1_000
    samples = wave[:, ::480] * 32767
    samples[flow:] /= 2  # the gain, that of the flow's mels is 1
    torch.testing.assert_close(samples, frame)
    assert counts[frame >= 150].sum() == 0


def test_only_an_edge_that_is_no_cut_counts(finish: ModuleType, pool: Any) -> None:
    mel, _, counts = pool.batch(64)
    at_start = mel[:, 0, 0] % 1_000 == 0
    assert 0 < at_start.sum() < 64
    assert counts[at_start, : finish.EDGE].all()
    assert not counts[~at_start, : finish.EDGE].any()
    assert not counts[:, -finish.EDGE :].any()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_frames_that_count_do_not_depend_on_what_was_cut_off(small: ModuleType) -> None:
    generator, codec_mel = build_bigvgan(small.CONFIG), small.CodecMel(small.MEL)
    mel = torch.randn(1, 80, small.FRAMES + 40)
    inner = slice(small.EDGE, small.FRAMES - small.EDGE)
    with torch.no_grad():
        whole = codec_mel(generator(mel)[:, 0])[..., 20 : 20 + small.FRAMES]
        cut = codec_mel(generator(mel[..., 20 : 20 + small.FRAMES])[:, 0])
    torch.testing.assert_close(cut[..., inner], whole[..., inner], atol=2e-3, rtol=1e-3)
    assert (cut - whole)[..., : small.EDGE].abs().max() > 0.05


def test_the_mean_leaves_out_frames_that_do_not_count(finish: ModuleType) -> None:
    error = torch.zeros(1, 3, 8)
    error[..., :4] = 2.0
    error[..., 4:] = 5.0
    assert finish.mean(error, torch.tensor([[1.0, 0.0]])).item() == 2.0
    assert finish.mean(error, torch.tensor([[1.0] * 4 + [0.0] * 4])).item() == 2.0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_both_steps_train_and_the_result_is_written(
    small: ModuleType, recipe: Recipe, pool: Any, tmp_path: Path
) -> None:
    first, last = tmp_path / "vocoder.safetensors", tmp_path / "finished.safetensors"
    recipe("stage").save_weights(build_bigvgan(small.CONFIG), first)
    finishing = small.Finishing(first, "cpu")
    before = finishing.validate(pool)
    for step in (finishing.spectral_step, finishing.gan_step):
        weights = [parameter.detach().clone() for parameter in finishing.generator.parameters()]
        assert small.train(finishing, pool, step, 1e-3, minutes=0.01, batch=2) > 0
        assert any(
            not torch.equal(p, q) for p, q in zip(finishing.generator.parameters(), weights, strict=True)
        )
    assert finishing.validate(pool) != before
    recipe("stage").save_weights(small.without_weight_norm(finishing.generator), last)
    assert small.Finishing(last, "cpu").validate(pool) == pytest.approx(finishing.validate(pool), abs=0.02)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_average_with_the_weights_before_is_written(
    small: ModuleType, recipe: Recipe, tmp_path: Path
) -> None:
    stage = recipe("stage")
    first, last = tmp_path / "vocoder.safetensors", tmp_path / "blend.safetensors"
    stage.save_weights(build_bigvgan(small.CONFIG), first)
    generator, before = build_bigvgan(small.CONFIG, weight_norm=True), stage.read_weights(first)
    small.save_blend(generator, before, 0.75, last)
    finished, blend = small.without_weight_norm(generator).state_dict(), stage.read_weights(last)
    assert set(blend) == set(before)
    assert not torch.equal(finished["conv_pre.weight"], before["conv_pre.weight"])
    for name, value in blend.items():
        torch.testing.assert_close(value, 0.25 * before[name] + 0.75 * finished[name], atol=1e-3, rtol=1e-3)
