"""Segments found by energy, bridged gaps, overlap."""

from __future__ import annotations

import numpy as np
import pytest

from app.duplex.segments import (
    Segment,
    UserSegment,
    bridge,
    find_segments,
    first_start,
    merge,
    overlap_s,
    sounding_at,
    without,
)

RATE = 16_000


def test_sound_is_found_in_whole_frames() -> None:
    pcm = np.zeros(RATE, dtype=np.float32)
    pcm[4_000:8_000] = 0.1
    pcm[12_000:] = 0.1  # sounds at the end
    pcm[9_000:9_100] = 1e-4  # below the threshold
    assert find_segments(pcm, RATE) == [Segment(0.25, 0.5), Segment(0.75, 1.0)]


def test_silence_and_nothing_have_no_segment() -> None:
    assert find_segments(np.zeros(RATE, dtype=np.float32), RATE) == []
    assert find_segments(np.zeros(0, dtype=np.float32), RATE) == []


def test_gaps_up_to_the_limit_are_bridged() -> None:
    segments = [Segment(0, 1), Segment(1.5, 2), Segment(2.51, 3)]
    assert merge(segments, 0.5) == [Segment(0, 2), Segment(2.51, 3)]
    assert merge([], 0.5) == []


@pytest.mark.parametrize(("at_s", "is_apart"), [(0.94, False), (0.96, True), (1.2, True), (1.31, False)])
def test_a_gap_in_which_a_reply_was_cut_is_not_bridged(at_s: float, is_apart: bool) -> None:
    segments = [Segment(0, 1), Segment(1.3, 2)]
    assert merge(segments, 0.5, [at_s]) == (segments if is_apart else [Segment(0, 2)])


def test_a_gap_in_which_the_reply_was_resumed_is_none() -> None:
    segments = [Segment(0, 1), Segment(2, 3), Segment(4, 5)]
    assert bridge(segments, [1.9]) == [Segment(0, 3), Segment(4, 5)]
    assert bridge(segments, [2.5]) == segments
    assert bridge(segments, []) == segments


def test_places_in_segments() -> None:
    segments = [Segment(1, 2), Segment(3, 4)]
    assert sounding_at(segments, 1.0) == Segment(1, 2)
    assert sounding_at(segments, 2.0) is None
    assert first_start(segments, 1.0, 3.0) == 1
    assert first_start(segments, 1.5, 3.0) is None
    assert first_start(segments, 3.0, 3.0) is None


def test_a_long_pause_of_the_user_is_no_overlap() -> None:
    user = UserSegment("interruption", 1.0, 4.0, ((1.5, 2.0), (2.5, 3.5)))
    assert overlap_s(user, [Segment(0.0, 10.0)]) == pytest.approx(2.0)  # 1.0-2.5 and 3.5-4.0
    assert overlap_s(user, [Segment(0.0, 1.2)]) == pytest.approx(0.2)
    assert overlap_s(user, [Segment(2.6, 3.4)]) == 0


def test_spans_are_cut_out_of_segments() -> None:
    sounds = [Segment(1, 3), Segment(4, 5)]
    assert without(sounds, [Segment(2, 2.5)]) == [Segment(1, 2), Segment(2.5, 3), Segment(4, 5)]
    assert without(sounds, [Segment(2.5, 4.5), Segment(0, 1.5)]) == [Segment(1.5, 2.5), Segment(4.5, 5)]
    assert without(sounds, [Segment(3.2, 3.8)]) == sounds
    assert without(sounds, [Segment(0, 9)]) == []
