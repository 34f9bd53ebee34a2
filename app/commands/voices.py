"""moss-voice voices: show or remove the voice prints that --voice has kept.

A voice print is computed from a recording once and kept in the user's cache, since it takes seconds. It
describes how a person sounds; the recording itself is not copied.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from app import paths
from app.progress import say
from engine_runtime.errors import ExportError


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "voices", help="show or remove the voice prints that --voice has kept", description=__doc__
    )
    parser.add_argument("--remove", action="store_true", help="delete all voice prints")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the folder and how many it holds, or delete them. Raises ExportError where that fails."""
    folder = paths.voices_dir()
    try:
        kept = sorted(folder.iterdir()) if folder.is_dir() else []
        if arguments.remove:
            _delete(kept)
            say(f"Removed {_count(kept)} from {folder}.")
            return 0
        size = sum(file.stat().st_size for file in kept)
    except OSError as error:
        raise ExportError(
            "{file} cannot be removed or read: {reason}.",
            "Check its permissions.",
            file=error.filename,
            reason=error.strerror,
        ) from error
    print(f"{folder}: {_count(kept)}, {size / 1e6:.1f} MB")
    if kept:
        say("Remove them with: moss-voice voices --remove")
    return 0


def _count(files: list[Path]) -> str:
    return "1 voice print" if len(files) == 1 else f"{len(files)} voice prints"


def _delete(files: list[Path]) -> None:
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # a running program has just renamed it
            file.unlink()
