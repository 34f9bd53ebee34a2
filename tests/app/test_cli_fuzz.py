"""Command lines of real options with odd values: success, or a message and exit status 1 or 2."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st

from app.cli import build_parser
from tests.tools.fuzz_worker import Limits, Outcome, Worker
from tests.tools.fuzzing import fuzz

pytestmark = pytest.mark.slow


TARGET = "tests.tools.fuzz_targets:run_command"
LIMITS = Limits(cpu_s=6.0)
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


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One of its own: the target replaces parts of the program."""
    worker = Worker()
    yield worker
    worker.close()


@pytest.mark.parametrize("line", ["talk --text x", "demo", "bench", "verify", "verify --encoder"])
def test_no_command_line_loads_a_network(worker: Worker, line: str) -> None:
    """Their work is no part of a case, and would use up its time."""
    outcome = worker.run(TARGET, line.split(), limits=LIMITS)
    _judge(line.split(), outcome)
    assert "Here the engine would be loaded" in outcome.value[2]


def test_command_lines_are_carried_out_or_refused(worker: Worker) -> None:
    fuzz("cli", TARGET, _lines(_options()), _judge, limits=LIMITS, growth=None, worker=worker)
