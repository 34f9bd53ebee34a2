"""Command lines of real options with odd values: done, or refused with a message and exit status 1 or 2."""

from __future__ import annotations

import argparse

from hypothesis import strategies as st

from app.cli import build_parser
from tests.tools.fuzz_worker import Limits, Outcome, Worker
from tests.tools.fuzzing import fuzz

_COMMANDS = ("talk",) * 5 + ("inspect",) * 2 + ("verify", "bench", "demo", "fetch", "doctor", "")
_VALUES = st.one_of(
    st.sampled_from(
        ("speech.wav", "link.wav", "text.wav", "pipe", "folder", "none", "bundle", "none/x", ".", "~", "")
    ),
    st.sampled_from(
        ("x" * 5_000, "~nosuch/x", "a\nb", "模型", "\udcff", "-", "--", "/dev/zero", "speech.wav/x")
    ),
    st.sampled_from(
        ("0", "1", "-1", "2.5", "nan", "inf", "1e309", "9" * 5_000, "0x10", "1_000", "٣", " 5", "1,2")
    ),
    st.sampled_from(
        ("text", "speech", "cpu", "cuda", "meta", "cuda:99", "cpu:1", "float16", "int4", "moss-speech")
    ),
    st.text(max_size=6).filter(lambda text: "\0" not in text and text.isprintable()),
)


def _options() -> dict[str, list[str]]:
    """The long options of each command, "" for those before a command."""
    parser = build_parser()
    found = {"": _long(parser)}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {name: _long(command) for name, command in action.choices.items()}
    return found


def _long(parser: argparse.ArgumentParser) -> list[str]:
    return sorted(option for option in parser._option_string_actions if option.startswith("--"))


@st.composite
def _lines(draw: st.DrawFn, options: dict[str, list[str]]) -> list[str]:
    command = draw(st.sampled_from(_COMMANDS))
    words = [command] if command else []
    for option in draw(st.lists(st.sampled_from(options[command]), max_size=4)):
        kind = draw(st.integers(0, 5))
        value = draw(_VALUES)
        words += {0: [option], 1: [f"{option}={value}"], 2: [option[:-1], value]}.get(kind, [option, value])
    if draw(st.booleans()):
        words.append(draw(_VALUES))
    if command == "talk" and draw(st.booleans()):
        words += ["--in", draw(_VALUES)]
    return words


def _judge(case: list[str], outcome: Outcome) -> None:
    assert outcome.kind == "returned", outcome.detail
    status, out, errors = outcome.value
    assert status in (0, 1, 2), outcome.value
    assert "Traceback" not in errors
    if status == 1:
        assert errors.rpartition("moss-voice: ")[2].strip(), errors
        assert "Unexpected" not in errors, errors
    if status == 2:
        assert "error: " in errors, errors
    if status == 0 and "--help" not in case:
        assert "Traceback" not in out


def test_command_lines_are_carried_out_or_refused() -> None:
    worker = Worker()  # of its own: the target replaces parts of the program
    fuzz(
        "cli",
        "tests.tools.fuzz_targets:run_command",
        _lines(_options()),
        _judge,
        limits=Limits(cpu_s=6.0),
        growth=None,
        worker=worker,
    )
    worker.close()
