"""moss-voice without a subcommand: the window."""

from __future__ import annotations

import argparse
import os
import sys

from app import paths
from app.commands.shared_options import start_settings
from app.instance import Answer, InstanceError, Knock, claim
from app.progress import note
from engine_runtime.errors import MossVoiceError


class NoDisplayError(MossVoiceError):
    """There is no display, or it cannot be used."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that only the window has; it is no subcommand."""
    parser.add_argument(
        "--minimised",
        "--minimized",
        action="store_true",
        help="start the window minimised, in the tray where there is one",
    )
    parser.add_argument(
        "--present",
        action="store_true",
        help="cover the screen with captions, waterfall and plots that can be read from afar (F11, Escape)",
    )
    parser.add_argument(
        "--new-instance",
        action="store_true",
        help="open a second window beside a running one; it saves neither settings nor conversations",
    )


def run(arguments: argparse.Namespace) -> int:
    """Open the window and stay until it is closed, or bring the one that is open to the front.

    InstanceError if that one does not answer.
    """
    if find_display() is None:
        raise NoDisplayError(
            "There is no display to open a window on.",
            "Set DISPLAY, or work without a window: `moss-voice talk --in question.wav --out reply.wav` "
            "or `moss-voice demo`.",
        )
    from app.main import open_window

    settings, is_minimised = start_settings(arguments), arguments.minimised and not arguments.present
    shown = {"is_minimised": is_minimised, "is_presenting": arguments.present}
    if arguments.new_instance:
        return open_window(settings, **shown, keeps_settings=False)
    knock = Knock.of_environment(raises=not is_minimised)
    try:
        found = claim(paths.settings_dir(), knock)
    except InstanceError as error:
        if knock.token and not sys.stderr.isatty():  # from a menu of the desktop: nobody reads stderr
            from app.gui.window.run import show_failure

            show_failure(error)
        raise
    if isinstance(found, Answer):
        ignored = [word for word in arguments.words if not word.startswith("--minimi")]
        note(found.sentence(knock, ignored))
        return 0
    try:
        return open_window(settings, **shown, instance=found)
    finally:
        found.close()


def find_display() -> str | None:
    """The display a window would open on, or None.

    Asked before Qt is started, because Qt aborts the process if it finds none.
    """
    if platform := os.environ.get("QT_QPA_PLATFORM"):
        return platform
    if sys.platform != "linux":
        return sys.platform
    return os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY") or None
