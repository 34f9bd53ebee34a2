"""`bench --server`: simulated users, and no times without replies."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from app.cli import main
from app.commands.bench_server import measured, questions_at, turns_at, users_section
from app.remote.dialect import ServerSession
from app.remote.load_user import LoadReply
from engine_runtime.errors import MossVoiceError
from tests.doubles.realtime_server import RealtimeServer
from tests.doubles.scripted_engine import Script


def reply(**values: object) -> LoadReply:
    known = {"ttfa_ms": 100.0, "network_ms": 5.0, "audio_s": 1.0, "text": "Seven.", "level": 0.1}
    return LoadReply("a.wav", **(known | values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"audio_s": 0.0}, "no audio came"),
        ({"level": 0.0}, "the audio is silent"),
        ({"error": "the response was failed"}, "the response was failed"),
    ],
)
def test_no_times_without_replies(wrong: dict[str, object], problem: str) -> None:
    with pytest.raises(MossVoiceError, match=rf"User 2 .*a\.wav: {problem}"):
        measured([[reply()], [reply(), reply(**wrong)]])


def test_quantities_of_all_users() -> None:
    document = measured([[reply(), reply(gaps=2, lateness_ms=40.0)], [reply(ttfa_ms=200.0)]])
    assert (document["users"], document["replies"], document["audio_s"]) == (2, 3, 3.0)
    assert document["ttfa_ms"]["p50"] == 100.0
    assert (document["gaps"], document["replies_with_gaps"]) == (2, 1)
    section = users_section(document)
    (row,) = section.rows
    assert set(row) <= set(section.columns)
    assert row["network_share"] == pytest.approx(5.0)
    assert (row["gaps"], row["replies_with_gaps"], row["gap_ms"]) == (2, 1, 40.0)


def test_the_audio_of_a_reply_is_as_long_as_its_codes() -> None:
    """However it ended: a reply at its limit may have gone over to text before."""
    replies = [reply(codes=50, audio_s=4.0), reply(codes=100, audio_s=8.0), reply(audio_s=1.3)]
    assert measured([replies])["replies"] == 3
    with pytest.raises(MossVoiceError, match=r"5.00 s of audio for 100 codes of 0.080 s"):
        measured([[*replies, reply(codes=100, audio_s=5.0)]])


def test_a_server_without_timings_has_no_network_share() -> None:
    (row,) = users_section(measured([[reply(network_ms=None)]])).rows
    assert not {"network_ms", "network_ms_p95", "network_share"} & set(row)


def test_users_ask_in_different_orders_and_nano_is_checked() -> None:
    first, second = (questions_at(place, ServerSession("nano")) for place in range(2))
    assert [question.name for question in first] != [question.name for question in second]
    assert sorted(question.name for question in first) == sorted(question.name for question in second)
    assert all(question.expected for question in first)
    assert not any(question.expected for question in questions_at(0, ServerSession("another")))


def test_lengths_are_drawn_for_each_user() -> None:
    session = ServerSession("nano")
    first, again, second = (turns_at(place, (5, 10), (62, 125), session) for place in (0, 0, 1))
    seconds = [len(turn.pcm) / session.input_format.sample_rate for turn in first]
    assert all(5 <= length <= 10 for length in seconds)
    assert len(set(seconds)) > 10
    assert {turn.most_tokens for turn in first} <= set(range(62, 126))
    assert not any(turn.expected for turn in first), "no reply has to have all of its words"
    lengths = [
        [(turn.name, len(turn.pcm), turn.most_tokens) for turn in user] for user in (first, again, second)
    ]
    assert lengths[0] == lengths[1] != lengths[2]


def test_without_lengths_the_samples_are_asked_as_they_are() -> None:
    session = ServerSession("nano")
    asked = turns_at(2, None, None, session)
    assert [turn.name for turn in asked] == [turn.name for turn in questions_at(2, session)]
    assert all(turn.expected and turn.most_tokens is None for turn in asked)


@pytest.mark.slow
def test_no_times_if_audio_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    dropped: list[dict[str, Any]] = []

    def without_a_delta(event: dict[str, Any]) -> dict[str, Any]:
        if event["type"] != "response.output_audio.delta" or dropped:
            return event
        dropped.append(event)
        return event | {"delta": ""}

    words = ["--users", "2", "--minutes", "0.01"]
    with RealtimeServer(Script(chunks=4), change=without_a_delta) as server:
        assert main(["bench", "--server", server.url, *words]) == 1
    assert re.search(r"s of audio for 20 codes of 0\.\d+ s", capsys.readouterr().err)


@pytest.mark.slow
def test_replies_that_have_to_be_ended_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Each reply of this server ends at the limit, which is an error where none was asked for."""

    def ended(event: dict[str, Any]) -> dict[str, Any]:
        if event["type"] != "response.done":
            return event
        details = {"type": "incomplete", "reason": "max_output_tokens"}
        return event | {"response": event["response"] | {"status": "incomplete", "status_details": details}}

    words = ["--users", "2", "--minutes", "0.01", "--json"]
    with RealtimeServer(Script(chunks=2), change=ended) as server:
        assert main(["bench", "--server", server.url, *words]) == 1
        assert "the response was incomplete" in capsys.readouterr().err
        limits = ["--question-seconds", "1", "--reply-tokens", "20"]
        assert main(["bench", "--server", server.url, *words, *limits]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["replies"] == 2


@pytest.mark.slow
def test_users_talk_to_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    with RealtimeServer(Script(chunks=2)) as server:
        words = ["bench", "--server", server.url, "--users", "2", "--minutes", "0.01", "--json"]
        assert main(words) == 0
        assert len(server.clients) == 2
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (document["users"], document["replies"]) == (2, 2)
    assert document["audio_s"] == pytest.approx(1.6)
    assert document["ttfa_ms"]["p50"] > document["network_ms"]["p50"] > 0


def test_a_refusal_is_an_error_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with RealtimeServer() as server:
        server.refusal = (503, "All seats are taken.")
        assert main(["bench", "--server", server.url, "--minutes", "0.01"]) == 1
    assert "All seats are taken" in capsys.readouterr().err
