"""Shares of right answers, silence and declining."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tests.assets.conftest import Recipe


def _judged(
    judgements: ModuleType,
    domain: ModuleType,
    mode: str,
    skill: str,
    units: tuple[str, ...],
    said: str,
    **more: bool,
) -> Any:
    dialogue = domain.Dialogue(skill, (domain.Turn("q", units),), "f", plain=True)
    return judgements.Judgement(mode, "seen", dialogue, said, **more)


def test_shares_tell_declining_and_silence_apart(recipe: Recipe, domain: ModuleType) -> None:
    judgements = recipe("judgements")

    def judged(skill: str, units: tuple[str, ...], said: str) -> Any:
        return _judged(judgements, domain, "s2t", skill, units, said)

    unknown = recipe("topics").UNKNOWN_ANSWER
    shares = judgements.summary(
        [
            judged("plus", ("three", "plus four", "is seven"), "three plus four is seven"),
            judged("plus", ("three", "plus four", "is seven"), ""),
            judged("plus", ("three", "plus four", "is seven"), judgements.DECLINED),
            judged("unknown", unknown, judgements.DECLINED),
            judged("unknown", unknown, "hello"),
            judged("unfinished", (), ""),
            judged("unfinished", (), "hello"),
        ]
    )["s2t seen"]
    assert shares["right"] == "2/5 = 0.400"
    assert shares["complete questions without a reply"] == "1/5 = 0.200"
    assert shares["of the declined, out of domain"] == "1/2 = 0.500"
    assert shares["of what is out of domain, declined"] == "1/2 = 0.500"
    assert shares["skill unfinished"] == "1/2 = 0.500"
    assert shares["held-out forms"] == "-"
    assert shares["two turns"] == "-"
    assert shares["right, of answers recognized as synthesized"] == "-"


def test_answers_that_are_misheard_as_synthesized_are_left_out_of_one_share(
    recipe: Recipe, domain: ModuleType
) -> None:
    judgements = recipe("judgements")

    def judged(said: str, *, original_is_recognized: bool) -> Any:
        return _judged(
            judgements,
            domain,
            "s2s",
            "number",
            ("seven", "eight"),
            said,
            original_is_recognized=original_is_recognized,
        )

    shares = judgements.summary(
        [
            judged("seven eight", original_is_recognized=True),
            judged("seven ten", original_is_recognized=True),
            judged("seven ten", original_is_recognized=False),
            judged("seven eight", original_is_recognized=False),
            judged("seven", original_is_recognized=False),
        ]
    )["s2s seen"]
    assert shares["right"] == "2/5 = 0.400"
    assert shares["right, of answers recognized as synthesized"] == "1/2 = 0.500"
