"""Memory, threads and descriptors of the window while a user asks a question every few seconds. Run by hand:

    python -m tests.tools.window_memory --minutes 60 --json report.json --pictures FOLDER

The program runs as people start it, on an X server and a PulseAudio daemon of its own; the sample questions
are played into its microphone in real time, and its loudspeaker is heard by nobody. The parent reads the
process from outside. Reported are the minutes, and resident memory in the last minute over that in the
minute after the tenth (medians), with the highest number of threads and descriptors after it over that in it.
Exit status 1 if memory grew by more than --limit-mb, if there are more threads or descriptors, or if
fewer than nine in ten questions were answered. Needs Xvfb and PulseAudio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import psutil

from app import paths
from app.audio.wav import read_wav, write_wav
from app.duplex.null_sinks import NullSinks
from engine_runtime.table import Cell, Section
from tests.doubles.x_server import XServer
from tests.tools.tool_report import parse, tool_report

_COLUMNS = {
    "minute": "since the first question",
    "rss_mb": "resident memory, median of the minute (10^6 bytes)",
    "threads": "most of the minute",
    "descriptors": "most of the minute",
    "replies": "heard until its end",
}
_SETTLED_MINUTES = 10
"""Until then caches fill: fonts, plots, the allocator, kernels that are chosen at their first use."""
_READY_S = 90.0
_PICTURE_MINUTES = (1, 5, 9)
"""Before it: the other theme, which is drawn too, adds some MB at once."""


@dataclass(frozen=True)
class Reading:
    """The process at one moment."""

    minute: float
    rss_mb: float
    threads: int
    descriptors: int
    replies: int


def main() -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument(
        "--every-s", type=float, default=8, help="seconds between the starts of two questions"
    )
    parser.add_argument("--limit-mb", type=float, default=10)
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="of the window in both themes")
    arguments = parse(parser)
    with tempfile.TemporaryDirectory() as home:
        for name in ("CONFIG", "DATA", "STATE", "CACHE"):
            os.environ[f"XDG_{name}_HOME"] = str(Path(home) / name.lower())
        server = XServer("1500x950x24")
        server.start()
        os.environ |= {"DISPLAY": server.display, "QT_QPA_PLATFORM": "xcb"}
        try:
            with NullSinks():
                readings, asked = observe(arguments, Path(home) / "replies")
        finally:
            server.stop()
    is_kept, note = judge(readings, asked, arguments.limit_mb)
    with tool_report("window_memory", arguments) as report:
        report.add(Section("minutes", _COLUMNS, list(minutes_of(readings)), note))
    return 0 if is_kept else 1


def observe(arguments: argparse.Namespace, counter: Path) -> tuple[list[Reading], int]:
    """Start the window, ask, and read the process before each question."""
    counter.write_text("0", encoding="utf-8")
    command = [sys.executable, "-m", "tests.tools.window_memory_user", str(counter)]
    if arguments.pictures is not None:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
        command += [str(arguments.pictures), *map(str, _PICTURE_MINUTES)]
    questions = list(one_voice(counter.parent))
    readings: list[Reading] = []
    with subprocess.Popen(command) as child:
        try:
            _wait_until_ready(child, counter.with_suffix(".ready"))
            process = psutil.Process(child.pid)
            began_s = time.monotonic()
            asked = printed = 0
            while (passed_s := time.monotonic() - began_s) < arguments.minutes * 60:
                reading = Reading(
                    round(passed_s / 60, 2),
                    round(process.memory_info().rss / 1e6, 1),
                    process.num_threads(),
                    process.num_fds(),
                    int(counter.read_text(encoding="utf-8") or 0),
                )
                readings.append(reading)
                if passed_s >= printed * 300:
                    printed += 1
                    say(
                        f"minute {reading.minute:5.1f}: {reading.rss_mb:6.1f} MB, {reading.threads} threads, "
                        f"{reading.descriptors} descriptors, {reading.replies} of {asked} answered"
                    )
                question = questions[asked % len(questions)]
                asked += 1
                subprocess.run(["paplay", "--device=user", str(question)], check=True)
                time.sleep(max(0.0, began_s + asked * arguments.every_s - time.monotonic()))
        finally:
            child.terminate()
    return readings, asked


def one_voice(folder: Path) -> Iterator[Path]:
    """The sample questions, as loud as each other: quiet ones among loud ones are a bystander's."""
    for path in sorted((paths.assets_dir() / "samples").glob("*.wav")):
        sound, rate = read_wav(path)
        write_wav(folder / path.name, 0.3 * sound / np.abs(sound).max(), rate)
        yield folder / path.name


def _wait_until_ready(child: subprocess.Popen[bytes], mark: Path) -> None:
    give_up_s = time.monotonic() + _READY_S
    while not mark.exists():
        if child.poll() is not None or time.monotonic() > give_up_s:
            raise TimeoutError(f"The window does not listen (exit status {child.poll()}).")
        time.sleep(0.2)


def minutes_of(readings: list[Reading]) -> Iterator[dict[str, Cell]]:
    """A row for each minute."""
    for minute, group in groupby(readings, key=lambda one: int(one.minute)):
        found = list(group)
        yield {
            "minute": minute,
            "rss_mb": statistics.median(one.rss_mb for one in found),
            "threads": max(one.threads for one in found),
            "descriptors": max(one.descriptors for one in found),
            "replies": found[-1].replies,
        }


def judge(readings: list[Reading], asked: int, limit_mb: float) -> tuple[bool, str]:
    """Whether the limits are kept after minute ten, and the growth in words."""
    settled = [one for one in readings if one.minute >= _SETTLED_MINUTES]
    if not settled or settled[-1].minute < _SETTLED_MINUTES + 2:
        text = f"Too short to judge: memory settles for {_SETTLED_MINUTES} minutes. Increase --minutes."
        return False, text
    first = [one for one in settled if one.minute < _SETTLED_MINUTES + 1]
    last = [one for one in settled if one.minute > settled[-1].minute - 1]
    grown_mb = statistics.median(one.rss_mb for one in last) - statistics.median(one.rss_mb for one in first)
    threads = max(one.threads for one in settled) - max(one.threads for one in first)
    descriptors = max(one.descriptors for one in settled) - max(one.descriptors for one in first)
    answered = settled[-1].replies
    text = (
        f"minutes {_SETTLED_MINUTES} to {settled[-1].minute:.0f}: {grown_mb:+.1f} MB, {threads:+d} threads, "
        f"{descriptors:+d} descriptors; {answered} of {asked} questions answered"
    )
    is_kept = grown_mb <= limit_mb and threads <= 0 and descriptors <= 0
    return is_kept and answered >= 0.9 * (asked - 1), text


def say(text: str) -> None:
    """Tell who waits how far it is."""
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
