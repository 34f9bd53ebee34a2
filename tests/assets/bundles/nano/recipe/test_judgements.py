"""Shares of right answers, silence and declining."""

from __future__ import annotations


def test_shares_tell_declining_and_silence_apart(recipe, domain) -> None:
    judgements = recipe("judgements")

    def judged(skill, units, said, form="f"):
        dialogue = domain.Dialogue(skill, (domain.Turn("q", units),), form, plain=True)
        return judgements.Judgement("s2t", "seen", dialogue, said)

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
