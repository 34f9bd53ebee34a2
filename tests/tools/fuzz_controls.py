"""Targets that misbehave, to verify that the fuzz tests detect it."""

from __future__ import annotations

import ctypes
import os
import time

from engine_runtime.errors import BundleError

_kept: list[bytes] = []


def behave(value: object) -> object:
    """Return the input."""
    return value


def refuse() -> None:
    """End as bad input should."""
    raise BundleError("It is bad.", "Use another one.")


def fail() -> None:
    """End in an error that is none of ours."""
    raise KeyError("x")


def fail_beyond_exception() -> None:
    """What a Rust library raises when it panics is no Exception."""
    raise BaseException("panic")


def work_without_end() -> None:
    """Take processor time."""
    while True:
        pass


def work_long() -> None:
    """Take more processor time than a case may, but not for ever."""
    until = time.process_time() + 0.6
    while time.process_time() < until:
        pass


def wait_without_end() -> None:
    """Block without using the CPU, as on a pipe without a writer."""
    os.mkfifo("pipe")
    with open("pipe", "rb") as file:  # noqa: PTH123
        file.read()


def allocate() -> None:
    """Allocate memory immediately."""
    bytearray(1 << 30)


def keep(case: object) -> None:
    """Take memory bit by bit."""
    _kept.append(os.urandom(1 << 20))


def abort() -> None:
    """End the process, as a library in C does."""
    ctypes.CDLL(None).abort()
