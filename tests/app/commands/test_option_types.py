from __future__ import annotations

import argparse

import pytest

from app.cli import main
from app.commands.shared_options import integer, number, span


def test_numbers_in_range_are_taken() -> None:
    assert [integer(0, 9)(text) for text in ("0", "9", " 3 ")] == [0, 9, 3]
    assert [number(0, 9)(text) for text in ("0", "9", "1e-3")] == [0.0, 9.0, 0.001]


def test_a_span_is_one_integer_or_two() -> None:
    assert [span(1, 9)(text) for text in ("4", "2-7", "3-3")] == [(4, 4), (2, 7), (3, 3)]


@pytest.mark.parametrize("text", ["0", "7-2", "1-10", "-3", "2-", "2-3-4"])
def test_a_span_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        span(1, 9)(text)


@pytest.mark.parametrize("text", ["-1", "10", "x", "", "nan", "inf", "-inf", "9" * 5000, "٠٫٥"])
def test_all_else_is_refused(text: str) -> None:
    for read in (integer(0, 9), number(0, 9)):
        with pytest.raises(argparse.ArgumentTypeError, match="from 0 to 9") as caught:
            read(text)
        assert len(str(caught.value)) < 100


@pytest.mark.parametrize(
    "words",
    [
        *(f"talk --flow-steps {steps}" for steps in ("0", "-5", "101", "1000000000", "two")),
        *(f"talk --seed {seed}" for seed in ("-1", "9223372036854775808")),
        *(f"bench --random-weights {seed}" for seed in ("-1", "1e3")),
        *(f"bench --realtime-minutes {minutes}" for minutes in ("nan", "-1", "inf", "1e9")),
        *(f"bench --endurance-minutes {minutes}" for minutes in ("nan", "-1")),
        *(f"talk --gpu-memory-gb {gb}" for gb in ("0", "-24", "nan")),
        "bench --warm-up -1",
        "bench --runs 10000000000",
        "bench --reply-codes 0",
        "trt build x --check --max-seq-len 0",
        "trt build x --check --opt-num-tokens -1",
        "trt codec --compute-capability ../x",
        "trt quantize x --to y --prompts 0",
        "trt quantize x --to y --reply-tokens -1",
        "trt verify x --tokens 0",
    ],
)
def test_options_out_of_range_are_wrong_usage(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    assert caught.value.code == 2
    assert f"argument {words.split()[-2]}: " in capsys.readouterr().err
