"""Errors as users read them: cause and remedy, and no credentials in any text."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from engine_runtime.errors import ExportError, MossVoiceError, Problem, redact

TOKEN = "hf_" + "aB3" * 12


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://anna:secret@mirror.example/x", "http://mirror.example/x"),
        ("http://anna:se@cret@mirror.example", "http://mirror.example"),
        ("HF_ENDPOINT=https://token@mirror:8080", "HF_ENDPOINT=https://mirror:8080"),
        ("proxy 'http://:pw@[::1]:3128/' refused", "proxy 'http://[::1]:3128/' refused"),
        ("two: http://a:b@c/ and ftp://d:e@f/", "two: http://c/ and ftp://f/"),
        ("GET https://cdn/x?Signature=abc&Key-Pair-Id=1 200", "GET https://cdn/x?... 200"),
        (f"token {TOKEN}.", "token hf_...."),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ..."),
        ("mail anna@example.org about https://host/a", "mail anna@example.org about https://host/a"),
        ("hf_hub_download(repo) at /home/x?", "hf_hub_download(repo) at /home/x?"),
        ("", ""),
    ],
)
def test_credentials_are_taken_out(text: str, expected: str) -> None:
    assert redact(text) == expected
    assert redact(expected) == expected


def test_cause_and_remedy_are_kept_apart() -> None:
    error = pickle.loads(
        pickle.dumps(ExportError("/home/Dr. Foo/a was not written.", "Choose another folder."))
    )
    assert (error.what_is_wrong, error.what_to_do) == (
        "/home/Dr. Foo/a was not written.",
        "Choose another folder.",
    )
    assert str(error) == "/home/Dr. Foo/a was not written. Choose another folder."


def test_values_are_data() -> None:
    error = MossVoiceError(
        "There is no {device!r} of {seconds:.1f} s.", "Use {other}.", device="{a}. B", seconds=2, other="{}"
    )
    assert error.what_is_wrong == "There is no '{a}. B' of 2.0 s."
    assert error.what_to_do == "Use {}."
    again = pickle.loads(pickle.dumps(error))
    assert again.problem == error.problem
    assert str(again) == str(error)


def test_a_problem_keeps_no_exception() -> None:
    inner = ExportError("{path} is full.", "Free some space.", path="/a")
    problem = Problem("It failed: {inner} {error}", inner=inner, error=ValueError("a {brace}"))
    assert problem.values == {"inner": inner.problem, "error": "a {brace}"}
    assert str(problem) == "It failed: /a is full. Free some space. a {brace}"


def test_a_value_may_hold_the_end_of_a_sentence() -> None:
    error = MossVoiceError(
        "The microphone {device!r} cannot be opened.", "Choose another one.", device="Dr. Foo Mic"
    )
    assert error.what_is_wrong == "The microphone 'Dr. Foo Mic' cannot be opened."
    assert error.what_to_do == "Choose another one."


def test_an_error_can_be_made_of_a_problem() -> None:
    problem = Problem("There is no {what}.", "Get one.", what="{engine}")
    assert ExportError.from_problem(problem).problem == problem
    other = problem.with_remedy("Wait.")
    assert str(other) == "There is no {engine}. Wait."


def test_a_problem_crosses_to_another_process_without_credentials() -> None:
    inner = Problem("it is {share:.0%} full", share=0.9)
    problem = Problem(
        "{file} of {url} cannot be kept: {reason}.",
        "Free {gb:.1f} GB.",
        file=Path("/a{b}"),
        url="http://anna:secret@mirror.example",
        reason=inner,
        gb=1.25,
    )
    again = Problem.from_json(json.loads(json.dumps(problem.to_json())))
    assert str(again) == str(problem).replace("anna:secret@", "")
    assert again.values["reason"] == inner


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"cause": "a", "remedy": 1, "values": {}},
        {"cause": "a", "remedy": "", "values": []},
        {"cause": "{missing}", "remedy": "", "values": {}},
        {"cause": "{a.__class__}", "remedy": "", "values": {"a": 1}},
        {"cause": "{a:999999999}", "remedy": "", "values": {"a": 1}},
        {"cause": "{a:{b}}", "remedy": "", "values": {"a": 1, "b": "999999999"}},
        {"cause": "{a:d}", "remedy": "", "values": {"a": "text"}},
        {"cause": "{a", "remedy": "", "values": {"a": 1}},
        {"cause": "{a}", "remedy": "", "values": {"a": [1]}},
        {"cause": "{a}", "remedy": "", "values": {"a": {"cause": 1}}},
    ],
)
def test_what_describes_no_problem_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"problem|value|expected|format"):
        Problem.from_json(document)
