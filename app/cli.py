"""moss-voice: the command line. Without a subcommand it opens the window.

Errors that a user can do something about are one sentence on stderr and exit status 1, wrong usage is 2, an
interrupt 130. Results go to stdout, progress and notes to stderr. Torch and Qt are imported by the
subcommand that needs them, so that --help is instant. Main thread.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from app import paths
from app.commands import bench, demo, doctor, fetch, inspect, talk, trt, verify, window
from app.commands.engine_options import add_engine_options
from app.logging_setup import set_up_logging
from engine_runtime.errors import MossVoiceError

_log = logging.getLogger(__name__)
_EXAMPLES = """\
examples:
  moss-voice                                        open the window
  moss-voice talk --in question.wav --out reply.wav answer a recording
  moss-voice talk --text "what is two plus three" --reply text
  moss-voice bench --json                           measure every stage
  moss-voice fetch moss-speech                      download the released model
  moss-voice doctor                                 what is there, what is missing, what to do
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands; each sets `run` to what carries it out."""
    parser = argparse.ArgumentParser(
        prog="moss-voice",
        description="A local speech-to-speech assistant: a spoken question in, a spoken answer out.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"moss-voice {_version()}")
    parser.add_argument("--verbose", action="store_true", help="show what the program logs, and tracebacks")
    add_engine_options(parser, of_subcommand=False)
    parser.set_defaults(run=window.run)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for command in (talk, demo, bench, verify, inspect, fetch, trt, doctor):
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    arguments = build_parser().parse_args(argv)
    set_up_logging(paths.log_file(), arguments.verbose)
    try:
        return int(arguments.run(arguments))
    except MossVoiceError as error:
        return _fail(str(error), arguments.verbose)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `moss-voice inspect | head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        _log.info("unexpected error", exc_info=error)
        return _fail(
            f"Unexpected {type(error).__name__}: {error}. Details are in {paths.log_file()}; "
            "`moss-voice doctor` tells whether something is missing.",
            False,
        )


def _fail(text: str, verbose: bool) -> int:
    if verbose:
        _log.exception("failed")
    print(f"moss-voice: {text}", file=sys.stderr)
    return 1


def _version() -> str:
    try:
        return metadata.version("moss-voice")
    except metadata.PackageNotFoundError:
        return "(not installed)"
