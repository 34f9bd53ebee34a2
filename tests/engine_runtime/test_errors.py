"""Errors as users read them: cause and remedy, and no credentials in any text."""

from __future__ import annotations

import pickle

import pytest

from engine_runtime.errors import ExportError, MossVoiceError, Problem, redact, split_sentences

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


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "The microphone 'Dr. Foo Mic' cannot be opened. Choose. Or not.",
            ("cannot be opened.", "Choose. Or not."),
        ),
        ('The microphone "Bob\'s Mic. Two" is lost. Wait.', ("is lost.", "Wait.")),
        ("The server's key isn't right. It's 'a. B' now.", ("isn't right.", "It's 'a. B' now.")),
        ("One sentence", ("One sentence", "")),
    ],
)
def test_a_quoted_value_is_not_split(text: str, parts: tuple[str, str]) -> None:
    error = MossVoiceError(text)
    assert error.what_is_wrong.endswith(parts[0])
    assert error.what_to_do == parts[1]
    assert str(error) == f"{error.what_is_wrong} {error.what_to_do}".strip()


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


def test_sentences_of_a_message() -> None:
    text = "One. Two 'a. B' there? Three"
    assert split_sentences(text) == ["One.", "Two 'a. B' there?", "Three"]
    assert split_sentences(text, 1) == ["One.", "Two 'a. B' there? Three"]


@pytest.mark.timeout(20)
def test_a_quoted_value_that_was_cut_off_among_backslashes_is_read_at_once() -> None:
    value = repr("\\" * 2_000)[:2_000]
    assert split_sentences(f"The name is {value}. Choose another one.") == [
        f"The name is {value}.",
        "Choose another one.",
    ]
