"""Measures from what a session reported, on recordings made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from app.audio.ring import DUCK_S, FADE_S
from app.duplex.room import RATE
from app.duplex.segments import UserSegment
from app.duplex.session_measures import TOLERANCE_MS, fall_ms, lowered, measure_sessions, shift_ms, yielded_s
from app.duplex.simulator import Committed, DuplexRecord
from engine_runtime.timing import TimingEvent
from engine_runtime.types import Pcm


def decision(kind: str, at_s: float, turn_id: int = 1, **details: float | str) -> TimingEvent:
    return TimingEvent("decision", turn_id, 0, 0, "dialog", {"kind": kind, "at_s": at_s, **details})


def recording(
    *decisions: TimingEvent,
    sounds: tuple[tuple[float, float], ...] = (),
    segments: tuple[UserSegment, ...] = (),
    committed: tuple[Committed, ...] = (),
) -> DuplexRecord:
    pcm: Pcm = np.zeros(20 * RATE, dtype=np.float32)
    for start_s, end_s in sounds:
        pcm[round(start_s * RATE) : round(end_s * RATE)] = 0.1
    return DuplexRecord(
        "test", "echo", pcm, pcm, segments, decisions=list(decisions), committed=list(committed)
    )


def test_lags_are_taken_from_the_record() -> None:
    decisions = [
        decision(kind, at_s, overlap=overlap)
        for start_s, end_s, overlap in (
            (0.5, 1.0, "pause"),
            (2.5, 3.0, "pause"),
            (5, 6, "duck"),
            (7, 8, "pause"),
        )
        for kind, at_s in (("interrupt", start_s), ("resume", end_s))
    ]
    found = measure_sessions([recording(*decisions, sounds=((1.2, 2.0), (3.1, 4.0), (6.1, 6.5)))])
    resume = found.spreads["resume -> sound"]
    assert (resume.count, resume.p50) == (2, pytest.approx(150))
    assert measure_sessions([recording()]).spreads["resume -> sound"].count == 0


def test_a_reply_that_is_paused_again_before_it_sounds_has_no_lag() -> None:
    decisions = (decision("resume", 1.0), decision("interrupt", 1.06), decision("cut", 1.7))
    found = measure_sessions([recording(*decisions, sounds=((2.5, 4.0),))])
    assert found.spreads["resume -> sound"].count == 0


def test_a_resumed_reply_is_compared_with_its_sound() -> None:
    made = (0.1 * np.random.default_rng(1).standard_normal(4 * RATE)).astype(np.float32)
    found = recording(decision("interrupt", 2.0), decision("resume", 3.0))
    found.assistant[RATE : 2 * RATE] = made[:RATE]
    found.assistant[3 * RATE : 5 * RATE] = made[RATE + RATE // 10 : 3 * RATE + RATE // 10]  # 100 ms left out
    found.replies[1] = made
    measured = measure_sessions([found]).spreads
    assert measured["lost at a resume"].p50 == pytest.approx(90, abs=1)
    assert measured["doubled at a resume"].p50 == 0


def test_a_ducked_reply_is_compared_as_one_that_went_on() -> None:
    made = (0.1 * np.random.default_rng(1).standard_normal(6 * RATE)).astype(np.float32)
    found = recording(decision("interrupt", 2.0, overlap="duck"), decision("resume", 3.0))
    found.assistant[RATE : 6 * RATE] = made[: 5 * RATE]
    found.assistant[2 * RATE : 3 * RATE] *= 0.18
    found.replies[1] = made
    measured = measure_sessions([found]).spreads
    assert measured["lost at a resume"].count == 1
    assert measured["lost at a resume"].p50 == measured["doubled at a resume"].p50 == 0


def test_the_clocks_of_speech_over_a_reply() -> None:
    found = recording(
        decision("interrupt", 1.1, overlap="duck"),
        decision("resume", 1.6),
        decision("interrupt", 5.2, overlap="pause"),
        decision("cut", 6.0),
        decision("interrupt", 9.0, overlap="off"),
        decision("resume", 9.5),
        decision("interrupt", 11.0, overlap="duck"),
        decision("resume", 11.3),
        segments=(
            UserSegment("backchannel", 1.0, 1.3),
            UserSegment("interruption", 5.0, 6.5),
            UserSegment("tic", 8.9, 9.1),
            UserSegment("not_directed", 10.7, 12.0),
        ),
    )
    spreads = measure_sessions([found]).spreads
    clocks = [(100 + DUCK_S * 1e3), (200 + FADE_S * 1e3)]
    assert (spreads["ducked"].count, spreads["ducked"].p50) == (2, pytest.approx(np.mean(clocks)))
    assert (spreads["undone"].count, spreads["undone"].p50) == (2, pytest.approx(600 + DUCK_S * 1e3))
    span, _ = lowered(found)
    assert (span.start_s, span.end_s) == pytest.approx((1.1 + DUCK_S, 1.6 + DUCK_S))


@pytest.mark.parametrize(
    ("gain_db", "after_ms", "took_ms"), [(-15, 40, 45), (-15, 62, 70), (-9, 40, 200), (-120, 10, 15)]
)
def test_the_fall_of_a_reply_is_measured_against_its_sound(
    gain_db: float, after_ms: float, took_ms: float
) -> None:
    made = (0.1 * np.random.default_rng(1).standard_normal(6 * RATE)).astype(np.float32)
    found = recording(
        decision("interrupt", 2.0, overlap="duck"),
        decision("resume", 3.0),
        decision("interrupt", 4.0, overlap="off"),
        decision("resume", 4.5),
    )
    found.assistant[RATE : 6 * RATE] = made[: 5 * RATE]
    found.assistant[2 * RATE + round(after_ms * RATE / 1e3) : 3 * RATE] *= 10 ** (gain_db / 20)
    found.replies[1] = made
    spread = measure_sessions([found]).spreads["fall"]
    assert (spread.count, spread.p95) == (1, pytest.approx(took_ms))


def test_a_fall_from_an_unknown_level_is_not_measured() -> None:
    made = (0.1 * np.random.default_rng(1).standard_normal(3 * RATE)).astype(np.float32)
    silent_from = np.concatenate([made[:RATE], np.zeros(RATE, dtype=np.float32)])
    assert fall_ms(made, 1.0, silent_from) is None
    assert fall_ms(made, 1.0, made, since_s=0.9) is None
    pausing, soft = made.copy(), made.copy()
    pausing[RATE + RATE // 100 : RATE + RATE // 20] = 0
    soft[RATE + RATE // 25 :] *= 0.1
    assert fall_ms(soft, 1.0, pausing) is None
    assert fall_ms(soft, 1.0, made) == pytest.approx(45)
    assert fall_ms(made, 1.0, made[::-1].copy()) is None


def test_a_reply_is_given_up_when_it_is_paused_for_good_or_cut_at_once() -> None:
    found = recording(
        decision("interrupt", 1.0, 1),
        decision("resume", 1.5, 1),
        decision("interrupt", 2.0, 1),
        decision("cut", 2.8, 1),
        decision("interrupt", 4.0, 2),
        decision("resume", 4.4, 2),
        decision("cut", 7.0, 3),
    )
    assert yielded_s(found) == [2.0, 7.0]


def test_an_interruption_without_a_speaker_is_one_by_the_assistant_itself() -> None:
    spoken = UserSegment("interruption", 5.0, 6.0)
    found = measure_sessions(
        [
            recording(
                decision("interrupt", 2.0, 1),
                decision("cut", 2.2, 1, reason="barge_in"),  # the same one
                decision("cut", 5.3, 2, reason="barge_in"),
                decision("cut", 9.0, 3, reason="user"),
                segments=(spoken,),
            )
        ]
    )
    assert found.counts["self-interruptions"] == 1
    assert (found.counts["interrupts"], found.counts["cuts"]) == (1, 3)


def test_a_turn_that_nobody_spoke_is_an_answer_to_itself() -> None:
    spoken = UserSegment("turn", 5.0, 6.0)
    turns = (Committed(1, 4.9, 6.1), Committed(2, 8.0, 9.0))
    found = measure_sessions([recording(segments=(spoken,), committed=turns)])
    assert found.counts["answers to itself"] == 1


def test_losses_and_timings_are_summed() -> None:
    one = recording(
        decision("speculate", 1.0),
        decision("roll_back", 1.5, is_speculative=1),
        decision("roll_back", 4.0, is_speculative=0),
    )
    other = recording()
    one.underruns, other.underruns, other.blocks_lost = 1, 2, 3
    other.timings.append(TimingEvent("voice_to_voice", 1, 0, 400_000_000, "dialog"))
    found = measure_sessions([one, other])
    assert found.counts["under-runs"] == 3
    assert found.counts["KV blocks lost"] == 3
    assert (found.counts["speculative replies"], found.counts["rolled back"]) == (1, 1)
    assert found.counts["reopened turns"] == 1
    assert found.spreads["voice-to-voice"].p50 == 400


FADE = round(FADE_S * RATE)
PAUSED_S, RESUMED_S = 1.5, 2.0


def reply() -> Pcm:
    rng = np.random.default_rng(1)
    return (0.1 * rng.standard_normal(3 * RATE)).astype(np.float32)


def record(made: Pcm, lost_ms: int = 0) -> Pcm:
    """The reply from half a second on, faded out from 1.5 s on, faded in at 2 s where the fade began, or
    later by `lost_ms`."""
    resumed_at = RATE + lost_ms * RATE // 1000
    before, after = made[: RATE + FADE].copy(), made[resumed_at:].copy()
    before[-FADE:] *= np.linspace(1, 0, FADE)
    after[:FADE] *= np.linspace(0, 1, FADE)
    parts: list[np.ndarray] = [np.zeros(RATE // 2), before, np.zeros(RATE // 2 - FADE), after, np.zeros(RATE)]
    return np.concatenate(parts).astype(np.float32)


def test_a_reply_that_goes_on_where_the_fade_began_has_lost_nothing() -> None:
    made = reply()
    assert shift_ms(record(made), PAUSED_S, RESUMED_S, made) == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("lost_ms", [-100, 50])
def test_lost_and_doubled_samples_are_found(lost_ms: int) -> None:
    made = reply()
    assert shift_ms(record(made, lost_ms), PAUSED_S, RESUMED_S, made) == pytest.approx(lost_ms, abs=0.1)
    assert abs(lost_ms) > TOLERANCE_MS


def test_a_pause_of_the_reply_itself_is_no_loss() -> None:
    made = reply()
    made[RATE - RATE // 10 : RATE + RATE // 5] = 0.0
    assert shift_ms(record(made), PAUSED_S, RESUMED_S, made) == pytest.approx(0, abs=0.1)


def test_a_second_pause_soon_after_is_not_taken_for_a_place_in_the_reply() -> None:
    """The user goes on to speak: what is heard between both pauses resembles another place with a gap."""
    made = reply()
    again = made[RATE : RATE + RATE // 5]
    made[RATE // 4 : RATE // 4 + len(again)] = again
    made[RATE // 4 + len(again) : RATE // 4 + 3 * len(again)] = 0.0
    channel = record(made)
    paused_again_s = RESUMED_S + 0.24
    channel[round(paused_again_s * RATE) :] = 0.0
    assert shift_ms(channel, PAUSED_S, RESUMED_S, made) == pytest.approx(-750, abs=0.1)
    assert shift_ms(channel, PAUSED_S, RESUMED_S, made, until_s=paused_again_s) is None
    assert shift_ms(record(made), PAUSED_S, RESUMED_S, made, since_s=PAUSED_S - 0.1) is None


def test_what_cannot_be_found_is_not_judged() -> None:
    made = reply()
    channel = record(made)
    assert shift_ms(channel, PAUSED_S, RESUMED_S, made[::-1].copy()) is None  # another reply
    assert shift_ms(channel, 0.3, 0.4, made) is None  # nothing before it
    assert shift_ms(channel, PAUSED_S, len(channel) / RATE - 0.1, made) is None  # nothing after it
    assert shift_ms(np.zeros(4 * RATE, dtype=np.float32), PAUSED_S, RESUMED_S, made) is None
