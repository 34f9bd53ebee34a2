"""moss-voice: the command line. Without a subcommand it opens the window.

Errors that the user can correct are one sentence on stderr with exit status 1; wrong usage is 2, a signal 128
plus its number (130 for Ctrl-C). Results go to stdout, progress and notes to stderr. Torch and Qt are
imported by the subcommands that need them, so --help is fast. Main thread.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from platform import platform, python_version
from typing import NoReturn, TypeGuard

from app import paths, process
from app.commands import (
    acceptance,
    bench,
    console,
    demo,
    devices,
    doctor,
    fetch,
    gpu,
    inspect,
    replay,
    serve,
    talk,
    trt,
    verify,
    voices,
    window,
)
from app.commands.shared_options import (
    add_engine_options,
    add_microphone_options,
    add_server_options,
    add_turn_options,
)
from app.gpu_runtime.activation import take_notice
from app.logging_setup import set_up_logging
from app.progress import note, print_problem
from app.version import VERSION
from engine_runtime.errors import MossVoiceError, redact

_log = logging.getLogger(__name__)
_FULL_OR_GONE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_SHOWN_CHARACTERS = 200
_EXAMPLES = """\
examples:
  moss-voice                                        open the window
  moss-voice talk --in question.wav --out reply.wav answer a recording
  moss-voice talk --text "what is two plus three" --reply text
  moss-voice console                                talk in a terminal, without a window
  moss-voice serve                                  serve the OpenAI Realtime protocol
  moss-voice talk --server ws://127.0.0.1:8000 --text "hello"
  moss-voice replay FOLDER                          replay a recorded conversation and compare
  moss-voice bench --json                           measure every stage
  moss-voice fetch moss-speech                      download the released model
  moss-voice gpu install                            let the packaged program use an NVIDIA GPU
  moss-voice doctor                                 check the installation
  moss-voice acceptance --out DIR                   try everything on this machine, write one report
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line: a summary of forty options would push the error out of sight."""

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        self.exit(2, f"{self.prog}: error: {message}. See `{self.prog} --help`.\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands; each sets `run` to the function that executes it."""
    parser = _Parser(
        prog="moss-voice",
        description="A local speech-to-speech assistant: a spoken question in, a spoken answer out.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"moss-voice {VERSION}")
    parser.add_argument("--verbose", action="store_true", help="print log records and tracebacks")
    add_engine_options(parser, of_subcommand=False)
    add_turn_options(parser, of_subcommand=False)
    add_microphone_options(parser, of_subcommand=False)
    add_server_options(parser, of_subcommand=False)
    window.add_options(parser)
    parser.set_defaults(run=window.run)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for command in (
        talk,
        console,
        serve,
        demo,
        replay,
        bench,
        verify,
        inspect,
        devices,
        fetch,
        voices,
        gpu,
        trt,
        doctor,
        acceptance,
    ):
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    arguments = _parsed(sys.argv[1:] if argv is None else list(argv))
    paths.require_home()
    set_up_logging(paths.log_file(), arguments.verbose)
    command = arguments.command or "window"
    system = f"Python {python_version()} on {platform()}"
    _log.info("moss-voice %s, %s: %s", VERSION, command, system)
    try:
        with process.stopped_by_signals():
            _require_current_folder()
            _report_gpu_runtime(command)
            status = int(arguments.run(arguments))
            sys.stdout.flush()
            return status
    except KeyboardInterrupt as error:
        return error.status if isinstance(error, process.Stopped) else 130
    except BrokenPipeError:  # the reader of our output has gone, as in `moss-voice inspect | head`
        process.discard_output()
        return 141
    except MossVoiceError as error:
        print_problem(error.problem)
        return _fail(str(error), arguments.verbose)
    except Exception as error:
        _log.info("unexpected error", exc_info=error)
        if _is_of_output(error):
            process.discard_output()
            return _fail(f"The output could not be written: {error.strerror}. Write it elsewhere.", False)
        if isinstance(error, OSError) and error.filename is not None:
            return _fail(f"{_shown(error.filename)} cannot be used: {error.strerror}. Check the name.", False)
        return _fail(
            f"Unexpected {type(error).__name__}: {error}. Details are in {paths.log_file()}; "
            "`moss-voice doctor` shows what is missing.",
            False,
        )


def _parsed(words: list[str]) -> argparse.Namespace:
    """The parsed arguments, and what they were parsed from; exits with status 2 if they are invalid."""
    parser = build_parser()
    # NOTE: argparse of Python 3.11 drops the value of `--option=--` and leaves an empty list in its place.
    for word in words[: words.index("--") if "--" in words else None]:
        option, _, value = word.partition("=")
        if option.startswith("--") and value == "--":
            parser.error(f"argument {option}: -- is no value")
    arguments = parser.parse_args(words)
    arguments.words = words
    return arguments


def _require_current_folder() -> None:
    """MossVoiceError if it was deleted: relative names are invalid then, and MKL aborts the process."""
    try:
        Path.cwd()
    except OSError as error:
        raise MossVoiceError(
            "The current folder cannot be used: {reason}.",
            "Change to another folder and start again.",
            reason=error.strerror,
        ) from error


def _report_gpu_runtime(command: str) -> None:
    """Say once that the GPU runtime cannot be used; the window shows that itself."""
    if command not in ("window", "gpu") and (notice := take_notice()):
        _log.warning("%s", notice)
        note(str(notice))


def _is_of_output(error: Exception) -> TypeGuard[OSError]:
    """Whether the error comes from a print: an error of a named file would carry its name."""
    return isinstance(error, OSError) and error.filename is None and error.errno in _FULL_OR_GONE


def _shown(name: object) -> str:
    """A file name as a user can read it: one that is too long for the system would fill the screen."""
    text = os.fsdecode(name) if isinstance(name, (str, bytes)) else str(name)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} ..."


def _fail(text: str, verbose: bool) -> int:
    text = redact(text)
    if verbose:
        _log.exception("failed")
    note(text)
    return 1
