"""Argument types of numeric options, which reject values out of range.

In: the text of an option. Out: a number, or an ArgumentTypeError, which argparse reports. Main thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from engine_runtime.options import CAPABILITY

LARGEST_COUNT = 1_000_000


def integer(least: int, most: int) -> Callable[[str], int]:
    """The type of an option that takes an integer from `least` to `most`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if least <= value <= most:
            return value
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not an integer from {least} to {most}")

    return read


def integers(least: int, most: int) -> Callable[[str], list[int]]:
    """The type of an option that takes integers from `least` to `most`, separated by commas."""
    read_one = integer(least, most)
    return lambda text: [read_one(part) for part in text.split(",")]


def span(least: int, most: int) -> Callable[[str], tuple[int, int]]:
    """The type of an option that takes an integer, or two with a hyphen: from the one to the other."""
    read_one = integer(least, most)

    def read(text: str) -> tuple[int, int]:
        first, hyphen, last = text.partition("-")
        low = read_one(first)
        high = read_one(last) if hyphen else low
        if low <= high:
            return low, high
        raise argparse.ArgumentTypeError(f"{_shown(text)}: {high} is less than {low}")

    return read


def number(least: float, most: float) -> Callable[[str], float]:
    """The type of an option that takes any number from `least` to `most`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if least <= value <= most:  # never true of nan
            return value
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a number from {least:g} to {most:g}")

    return read


def compute_capability(text: str) -> str:
    """The type of an option that takes the compute capability of a GPU."""
    if CAPABILITY.fullmatch(text) is None:
        raise argparse.ArgumentTypeError("give it as 8.9 or 12.0")
    return text


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
