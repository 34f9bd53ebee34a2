from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_runtime.bench.teacher_forcing import (
    Agreement,
    Dialog,
    Lesson,
    Recorded,
    Step,
    dialogs,
    record,
    teach,
)
from engine_runtime.bench.verdict import VerifyError
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.conversation.turn import Turn
from engine_runtime.engine import Engine
from engine_runtime.types import Modality, Pcm, ReplyDone, ReplyEvent, SamplingParams
from engine_runtime.work import Task

RECORDINGS: dict[str, Pcm] = {
    name: np.random.default_rng(seed).normal(0, 0.1, 14_000).astype(np.float32)
    for seed, name in enumerate(("a", "b"))
}


@pytest.fixture(scope="module")
def engine(random_bundle: Path) -> Iterator[Engine]:
    engine = Engine.load(Bundle.open(random_bundle))
    yield engine
    engine.close()


def test_conversations_mix_spoken_and_typed_questions() -> None:
    found = dialogs(RECORDINGS, ["x", "y", "z"])
    assert [(dialog.name, len(dialog.questions), dialog.reply) for dialog in found] == [
        ("a", 3, Modality.SPEECH),
        ("b", 3, Modality.SPEECH),
        ("'x'", 2, Modality.TEXT),
        ("'y'", 2, Modality.TEXT),
        ("'z'", 2, Modality.TEXT),
    ]
    assert found[1].questions[1] is RECORDINGS["a"]
    assert [dialog.questions[2] for dialog in found[:2]] == ["x", "y"]
    assert [len(dialog.questions) for dialog in dialogs(RECORDINGS, ())] == [2, 2]
    with pytest.raises(VerifyError, match="--wavs"):
        dialogs({}, ["x"])


@pytest.mark.slow
@pytest.mark.parametrize("reply", list(Modality))
def test_every_row_of_a_conversation_is_run_once(engine: Engine, reply: Modality) -> None:
    (lesson,) = teach(engine, [Dialog("one", (RECORDINGS["a"], "what is that"), reply)], rows_per_reply=6)
    ends = [step.end for step in lesson.steps]
    assert [step.first for step in lesson.steps] == [0, *ends[:-1]]
    assert ends[-1] == len(lesson.ids) - 1, "the last row of a reply has no rows after it"
    phases = [(step.turn, step.phase) for step in lesson.steps]
    for turn in (1, 2):
        assert phases.count((turn, "prefill")) == 2
        assert phases.count((turn, "decode")) >= 5
    assert lesson.rows == [end - 1 for end in ends]


@pytest.mark.slow
def test_what_gets_no_reply_is_left_out(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = iter([True, False, True, True])
    commit = Turn.commit

    def commit_or_say_nothing(
        turn: Turn, reply: Modality, params: SamplingParams
    ) -> Task[Iterator[ReplyEvent]]:
        if next(silent):
            return iter([ReplyDone(1, reply, "stop", "")])
        return (yield from commit(turn, reply, params))

    monkeypatch.setattr(Turn, "commit", commit_or_say_nothing)
    asked = [Dialog("none", ("a",)), Dialog("one", ("b",))]
    assert [lesson.name for lesson in teach(engine, asked)] == ["one"]
    with pytest.raises(VerifyError, match="none of the questions"):
        teach(engine, asked)


@pytest.mark.slow
def test_turns_that_do_not_fit_together_are_left_out(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [Dialog("one", ("a", "b"))]
    (both,) = teach(engine, asked, rows_per_reply=6)
    monkeypatch.setattr(type(engine.stages.lm), "max_tokens", property(lambda lm: len(both.ids) - 1))
    (one,) = teach(engine, asked, rows_per_reply=6)
    assert {step.turn for step in both.steps} == {1, 2}
    assert {step.turn for step in one.steps} == {1}
    assert both.ids[: len(one.ids)] == one.ids


@pytest.mark.slow
def test_logits_of_both_heads_are_recorded_after_each_call(engine: Engine) -> None:
    lessons = teach(engine, [Dialog("one", ("a",))], rows_per_reply=4)
    recorded = list(record(engine, lessons))
    special = engine.bundle.lm.special_ids
    assert [one.step for one in recorded] == list(range(len(lessons[0].steps)))
    for text, audio in (one.logits for one in recorded):
        assert text.shape == (engine.stages.lm_config.text_vocab,)
        assert audio.shape == (special.audio_forbidden_from,)
    assert engine.stages.lm.blocks.num_free == engine.stages.lm.blocks.num_blocks


def _agreement(*, is_together: bool = False, changed: int | None = None) -> Agreement:
    """Two rows; in row `changed` the audio head says another id."""
    lesson = Lesson("q", [1, 2, 3, 4], [Step(1, "prefill", 0, 2), Step(1, "decode", 2, 3)])
    wanted = torch.eye(4)[:2]
    recorded = []
    for number in range(2):
        audio = wanted[number] if number != changed else torch.eye(4)[3]
        recorded.append(Recorded(0, number, (wanted[number], audio), is_together))
    agreement = Agreement([lesson], recorded)
    agreement.add("audio", 0, torch.cat((wanted, torch.ones(2, 3)), dim=1))  # ids that are never sampled
    agreement.add("text", 0, wanted)
    return agreement


def test_rows_are_counted_by_head_and_by_phase() -> None:
    same = _agreement()
    assert same.first is None
    assert [(check.name, check.value, check.count) for check in same.heads("int8 ")] == [
        ("int8 text head top-1", 1, 2),
        ("int8 text head cosine", 1, 2),
        ("int8 text head worst", 1, 2),
        ("int8 audio head top-1", 1, 2),
        ("int8 audio head cosine", 1, 2),
        ("int8 audio head worst", 1, 2),
    ]
    other = _agreement(changed=1, is_together=True)
    checks = {check.name: check.value for check in other.phases()}
    assert checks["turn 1 decode audio together top-1"] == checks["turn 1 decode audio together cosine"] == 0
    assert checks["turn 1 prefill audio together top-1"] == checks["turn 1 decode text together top-1"] == 1
    assert str(other.first) == (
        "q, turn 1, decode, in a step with others, position 2: audio head 3 where the reference says 1, "
        "cosine 0.0000"
    )


def test_the_first_difference_is_that_of_the_earliest_row() -> None:
    lesson = Lesson("q", [1, 2, 3], [Step(1, "prefill", 0, 1), Step(1, "decode", 1, 2)])
    wanted, found = torch.eye(4)[:2], torch.eye(4)[2:]
    recorded = [Recorded(0, number, (found[number], wanted[number])) for number in (1, 0)]
    agreement = Agreement([lesson], recorded)
    agreement.add("text", 0, wanted)
    agreement.add("audio", 0, wanted)
    assert agreement.first is not None
    assert (agreement.first.head, agreement.first.step.first) == ("text", 0)


def test_a_value_that_is_no_number_is_a_difference() -> None:
    lesson = Lesson("q", [1, 2], [Step(1, "prefill", 0, 1)])
    broken = torch.full((4,), float("nan"))
    agreement = Agreement([lesson], [Recorded(0, 0, (broken, broken))])
    for head in ("text", "audio"):
        agreement.add(head, 0, torch.eye(4)[:1])
    assert agreement.first is not None
    assert not any(check.is_aligned for check in agreement.heads() if "cosine" in check.name)
