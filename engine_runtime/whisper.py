"""Whisper models in CTranslate2's format, run by the optional package faster-whisper; nothing is downloaded.

In: a folder. Out: a loaded model. As a program (`python -m engine_runtime.whisper FOLDER SOCKET`) the child
of `app.session.transcriber`: it reads one request after the other from an inherited socket, a line of JSON
and then samples, and answers each with a line of JSON. It runs at the lowest priority, so that whoever makes
a reply has the processors first.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from engine_runtime import installation
from engine_runtime.errors import MossVoiceError

SAMPLE_RATE = 16_000
LANGUAGE = re.compile(r"[a-z]{2,3}")
"""A language by its code."""
_FILES = ("model.bin", "config.json", "tokenizer.json")
"""Without its tokenizer the library would download one."""
_LOWEST = 19
_AUTOGROUP = Path("/proc/self/autogroup")
_ATTEMPTS, _ATTEMPT_S = 10, 0.15
_MOST_THREADS = 4


class WhisperError(MossVoiceError):
    """A Whisper model cannot be used."""


def check_model(folder: Path, extra: str) -> None:
    """Raise WhisperError without faster-whisper, which is part of this `extra`, or for a folder that lacks a
    file. Loads neither."""
    if find_spec("faster_whisper") is None:
        raise _without_library("it is not installed", extra)
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise WhisperError(
            "{folder} has no {missing}.",
            "Give the folder of a Whisper model in CTranslate2's format.",
            folder=folder,
            missing=missing[0],
        )


def load_model(folder: Path, extra: str, **options: Any) -> Any:
    """A `faster_whisper.WhisperModel` on the CPU with these options. Raises WhisperError as `check_model`, or
    if it cannot be loaded."""
    check_model(folder, extra)
    try:
        from faster_whisper import WhisperModel
    except ImportError as error:
        raise _without_library(str(error), extra) from error
    try:
        return WhisperModel(str(folder), device="cpu", local_files_only=True, **options)
    except Exception as error:  # of CTranslate2 or tokenizers
        raise WhisperError(
            "The Whisper model in {folder} cannot be loaded ({error}).",
            "Download it again.",
            folder=folder,
            error=error,
        ) from error


def _without_library(reason: str, extra: str) -> WhisperError:
    return WhisperError(
        "Whisper needs the package faster-whisper: {reason}.",
        "{remedy}",
        reason=reason,
        remedy=installation.add(extra),
    )


def text_of(segments: Any) -> str:
    """The words of what `transcribe` found."""
    return " ".join(segment.text.strip() for segment in segments)


# ---- the child process ----


def main(words: Sequence[str]) -> int:
    """Answer requests until the other side closes the socket."""
    folder, descriptor = Path(words[0]), int(words[1])
    _yield_to_others()
    with socket.socket(fileno=descriptor) as line, line.makefile("rwb") as stream:
        try:
            threads = min(max((os.cpu_count() or 1) // 4, 1), _MOST_THREADS)
            model = load_model(folder, "transcribe", compute_type="int8", cpu_threads=threads)
        except WhisperError as error:
            _answer(stream, {"problem": error.problem.to_json()})
            return 1
        while header := stream.readline():
            request = json.loads(header)
            pcm = np.frombuffer(stream.read(4 * request["samples"]), np.float32)
            _answer(stream, _transcribed(model, pcm, request["language"], request["prompt"]))
    return 0


def _transcribed(model: Any, pcm: np.ndarray[Any, Any], language: str | None, prompt: str) -> dict[str, Any]:
    try:
        segments, about = model.transcribe(
            pcm,
            language=language,
            initial_prompt=prompt or None,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return {"text": text_of(segments), "language": about.language}
    except Exception as error:  # a language that the model does not know, for example
        return {"error": f"{type(error).__name__}: {error}"}


def _answer(stream: Any, document: dict[str, Any]) -> None:
    stream.write(json.dumps(document).encode() + b"\n")
    stream.flush()


def _yield_to_others() -> None:
    """Work only while a processor would be idle, where the system can do that."""
    os.nice(_LOWEST)
    with contextlib.suppress(AttributeError, OSError):  # not on Linux, or not allowed
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # With autogroups, as on most desktops, priorities count only among the processes of a session: one of its
    # own would get as much of the processors as the session of whoever makes a reply (a TTFA of 0.9 s became
    # 1.7 s). A group has a priority, too.
    is_alone = os.getsid(0) == os.getpid()
    for _ in range(_ATTEMPTS if is_alone else 0):
        try:
            _AUTOGROUP.write_text(str(_LOWEST))
        except BlockingIOError:  # another process has just changed its own
            time.sleep(_ATTEMPT_S)
        except OSError:  # no autogroups
            return
        else:
            return


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
        sys.exit(main(sys.argv[1:]))
