"""Built-in scenarios: reproducible, and with what their groups are about."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from app import paths
from app.duplex.builtin import FULL, QUICK, draw_scenarios, utter
from app.duplex.clips import load_clips
from app.duplex.room import RATE
from app.duplex.scenario import ECHO_DB, GROUPS, NOISE_SNR_DB, Scenario

CLIPS = load_clips(paths.assets_dir() / "duplex")


def _kinds(scenarios: list[Scenario]) -> Counter[str]:
    said = [cue.utterance for scenario in scenarios for cue in scenario.cues]
    said += [cue.over for scenario in scenarios for cue in scenario.cues if cue.over]
    return Counter(utterance.kind for utterance in said)


def test_a_seed_gives_the_same_scenarios() -> None:
    one, same, other = (list(draw_scenarios(CLIPS, GROUPS, seed, counts=QUICK)) for seed in (1, 1, 2))
    assert [scenario.name for scenario in one] == [scenario.name for scenario in same]
    for first, second in zip(one, same, strict=True):
        assert first.room == second.room
        for left, right in zip(first.cues, second.cues, strict=True):
            assert left.gap_s == right.gap_s
            assert np.array_equal(left.utterance.pcm, right.utterance.pcm)
    assert [scenario.room for scenario in one] != [scenario.room for scenario in other]


def test_a_full_round_has_enough_events_for_every_rate() -> None:
    by_group = {group: list(draw_scenarios(CLIPS, [group], 1, counts=FULL)) for group in GROUPS}
    kinds = _kinds(by_group["backchannels"])
    assert min(kinds["backchannel"], kinds["tic"], kinds["not_directed"]) >= 100
    assert _kinds(by_group["interruptions"])["interruption"] >= 100
    assert _kinds(by_group["echo"])["interruption"] >= 10
    pauses = [
        end - start
        for scenario in by_group["pauses"]
        for cue in scenario.cues
        for start, end in cue.utterance.pauses
    ]
    assert len(pauses) >= 40
    assert 0.3 <= min(pauses) < 0.5
    assert 1.3 < max(pauses) <= 1.5


def test_ten_voices_say_what_is_hard_to_tell_apart() -> None:
    texts: dict[str, set[str]] = {}
    for clip in CLIPS:
        if clip.kind in ("backchannel", "interruption"):
            texts.setdefault(clip.speaker, set()).add(clip.text)
    assert len(texts) == 10
    for said in texts.values():
        assert said >= {"laughter", "mm-hm", "right", "yeah exactly", "wait", "no no", "stop", "what"}


def test_the_users_with_echo_and_noise_change_with_the_seed() -> None:
    rounds = (
        draw_scenarios(CLIPS, ["echo", "noise"], seed, counts=QUICK, echo_db=[6]) for seed in range(1, 6)
    )
    speakers = [[scenario.name.rpartition("-")[2] for scenario in scenarios] for scenarios in rounds]
    assert len({echo for echo, *_ in speakers}) == 5
    assert all(len(set(noise)) == len(NOISE_SNR_DB) for _, *noise in speakers)


def test_rooms_have_the_wanted_echo_and_noise() -> None:
    echo = list(draw_scenarios(CLIPS, ["echo"], 1))
    assert [scenario.room.loss_db for scenario in echo] == list(ECHO_DB)
    assert all(50 <= scenario.room.delay_ms <= 250 for scenario in echo)
    assert all(0 <= scenario.room.skew_ppm <= 300 for scenario in echo)
    noise = [scenario.room.noise_rms for scenario in draw_scenarios(CLIPS, ["noise"], 1)]
    assert len(noise) == len(NOISE_SNR_DB)
    assert noise == sorted(noise)
    (clean,) = draw_scenarios(CLIPS, ["pauses"], 1, users=1)
    assert (clean.room.loss_db, clean.room.noise_rms) == (None, 0.0)


@pytest.mark.parametrize("pause_s", [0.3, 1.5])
def test_a_pause_is_silent_and_annotated(pause_s: float) -> None:
    clip = next(clip for clip in CLIPS if clip.pauses_s)
    plain, paused = utter(clip, "turn", 0.5), utter(clip, "turn", 0.5, pause_s)
    ((start_s, end_s),) = paused.pauses
    assert end_s - start_s == pytest.approx(pause_s)
    assert paused.end_s == pytest.approx(plain.end_s + pause_s)
    assert not np.any(paused.pcm[round(start_s * RATE) + 1 : round(end_s * RATE) - 1])
    assert len(paused.pcm) - len(plain.pcm) == round(pause_s * RATE)
    assert paused.segment(2.0).pauses[0] == (2.0 + start_s, 2.0 + end_s)
