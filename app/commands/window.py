"""moss-voice without a subcommand: the window. Also holds the options that every command with an engine has."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from app import paths
from app.settings import StartSettings
from engine_runtime.errors import MossVoiceError


class NoDisplayError(MossVoiceError):
    """There is no screen to open a window on."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the engine: which bundle, where and with which seed."""
    parser.add_argument(
        "--bundle",
        type=Path,
        metavar="DIR",
        help=f"model bundle (default: ${paths.BUNDLE_VARIABLE}, else the shipped one)",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16", "float16"),
        help="number format of the weights in memory (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, help="seed of the sampling (default: the bundle's)")
    parser.add_argument(
        "--flow-steps", type=int, metavar="N", help="flow steps per chunk (default: the bundle's)"
    )


def start_settings(arguments: argparse.Namespace) -> StartSettings:
    """What `add_options` read, as the value that main.py takes."""
    return StartSettings(
        bundle=arguments.bundle or paths.default_bundle(),
        device=arguments.device,
        dtype=arguments.dtype,
        seed=arguments.seed,
        flow_steps=arguments.flow_steps,
    )


def run(arguments: argparse.Namespace) -> int:
    """Open the window and stay until it is closed."""
    if find_display() is None:
        raise NoDisplayError(
            "There is no display to open a window on. Use `moss-voice talk --in question.wav --out reply.wav` "
            "or `moss-voice demo` here, or set DISPLAY."
        )
    from app.main import open_window

    return open_window(start_settings(arguments))


def find_display() -> str | None:
    """The display a window would open on, or None. Asked before Qt, which ends the process where it has none."""
    if platform := os.environ.get("QT_QPA_PLATFORM"):
        return platform
    if sys.platform != "linux":
        return sys.platform
    return os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY") or None
