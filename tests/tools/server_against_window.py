"""What a server adds to the latency of a spoken turn: the same recordings in a session of the window whose
engine is in this process, in one that is a client of `moss-voice serve`, and in a client with semantic_vad.

python -m tests.tools.server_against_window [--rounds 3] [--scripted] [--json FILE]

All with nano or, with --scripted, an engine that takes set times, which a busy machine hardly changes; over
loopback, in real time, without sound devices. Every round plays each recording once on each way, as the first
turn of a conversation; the order changes from recording to recording. Voice-to-voice compares the two
windows, endpointing the window with semantic_vad; a difference is that of one recording in one round. Exit
status 1 if the median of the differences is above its target.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from websockets.sync.client import ClientConnection, connect

from app import paths
from app.audio.device_streams import DEVICE_RATE_HZ
from app.audio.devices import DeviceList
from app.audio.wav_streams import WavSpeaker
from app.audio.wire_format import PCM16
from app.main import engine_source, load_turn_end_detector
from app.progress import note
from app.server.run import serve
from app.server.service import ServeSettings
from app.session.clocks import RealClock
from app.session.commands import NewConversation, PlaySample
from app.session.engine_slot import EngineSource
from app.session.events import EngineReady, ErrorRaised, Event, SampleFinished
from app.session.report import ConversationReport
from app.session.session import Session
from app.session.session_settings import SessionSettings
from app.settings import StartSettings
from engine_runtime.bench.measuring import BenchError, summarize, summary_section
from engine_runtime.engine import Engine
from engine_runtime.table import Section
from tests.app.server.test_endpointing import BLOCK_S, SEMANTIC, blocks
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.tools.server_churn import served
from tests.tools.server_faults import await_quiet
from tests.tools.session_driver import NoMicrophone
from tests.tools.tool_report import parse, tool_report

FOLLOW_UP = "04"
"""Number of the recording that is no first turn: it asks about the answer before it."""
VOICE_TO_VOICE, ENDPOINTING = "voice_to_voice_ms", "endpointing_ms"
WINDOW, CLIENT, SEMANTIC_VAD = "window", "window as a client", "semantic_vad"
TARGETS_MS = {CLIENT: 60.0, SEMANTIC_VAD: 50.0}
_WAYS = {
    WINDOW: "the engine in the process of the window",
    CLIENT: "the window connected to `moss-voice serve`",
    SEMANTIC_VAD: "a client that sends its microphone to `moss-voice serve` and lets it find the turns",
}
SCRIPT = Script(chunks=3, chunk_s=0.4, step_s=0.15, predictions=(0.98,), predict_s=0.03)
"""About the times of nano on a processor without other work."""
_LIMIT_S = 120.0
_LOOK_S = 0.01
_REST_S = 0.3
"""Between two turns, so that none is measured beside the end of another."""
Figures = Mapping[str, float]


class Window:
    """A session of the window, without sound devices."""

    def __init__(self, source: EngineSource) -> None:
        """Loads the engine, or connects to it."""
        self._session = Session(
            source,
            replace(SessionSettings.of(StartSettings()), hear_samples=False),
            NoMicrophone(),
            WavSpeaker(DEVICE_RATE_HZ),
            clock=RealClock(),
            end_of_turn=load_turn_end_detector,
            find_devices=lambda: DeviceList((), ()),
            look_for_devices=lambda: None,
        )
        self._session.start()
        self._until(EngineReady, ConversationReport())

    def turn(self, recording: Path) -> Figures:
        """The latencies of this question, in ms. BenchError if it was not answered."""
        report = ConversationReport()
        self._session.send(PlaySample(recording))
        self._until(SampleFinished, report)
        turns = report.document()["turns"]
        self._session.send(NewConversation())
        if len(turns) != 1 or turns[0]["reply"]["finish_reason"] != "stop":
            raise BenchError("{file} was not answered: {turns}.", file=recording.name, turns=turns)
        return {name: turns[0]["timings"][name] for name in (VOICE_TO_VOICE, ENDPOINTING)}

    def close(self) -> None:
        """End the session."""
        self._session.stop()

    def _until(self, kind: type[Event], report: ConversationReport) -> None:
        end_s, is_over = time.monotonic() + _LIMIT_S, False
        while not is_over:
            for event in self._session.poll():
                report.add(event)
                if isinstance(event, ErrorRaised):
                    raise BenchError.from_problem(event.problem)
                is_over = is_over or isinstance(event, kind)
            if time.monotonic() > end_s:
                raise BenchError("No {event} came.", event=kind.__name__)
            time.sleep(_LOOK_S)


def semantic_turn(url: str, recording: Path) -> Figures:
    """The same for a client with semantic_vad: from the moment at which the last speech was spoken to that at
    which the client is told of the commit. BenchError if it was not answered."""
    with connect(url) as connection:
        session = {"audio": {"input": {"turn_detection": SEMANTIC}}, "moss_voice": {"timings": True}}
        connection.send(json.dumps({"type": "session.update", "session": session}))
        while (event := _next_event(connection))["type"] != "session.updated":
            pass
        committed_ms = 0.0
        with _speaking(connection, recording) as elapsed_ms:
            while (event := _next_event(connection))["type"] != "moss_voice.response.timings":
                if event["type"] == "input_audio_buffer.committed":
                    committed_ms = elapsed_ms()
        return {ENDPOINTING: committed_ms - event["speech_end_ms"]}


def _next_event(connection: ClientConnection) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(connection.recv(_LIMIT_S))
    if event["type"] == "error":
        raise BenchError("The server refused: {event}.", event=event)
    return event


@contextmanager
def _speaking(connection: ClientConnection, recording: Path) -> Iterator[Callable[[], float]]:
    """Send the recording as a microphone would: a block once it was spoken. Gives the time since its
    beginning, in ms."""
    messages = [
        json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()})
        for data in map(PCM16.encode, blocks(recording))
    ]
    is_over, began_s = threading.Event(), time.perf_counter()

    def speak() -> None:
        for number, message in enumerate(messages, start=1):
            if is_over.wait(max(began_s + number * BLOCK_S - time.perf_counter(), 0.0)):
                return
            connection.send(message)

    thread = threading.Thread(target=speak)
    thread.start()
    try:
        yield lambda: (time.perf_counter() - began_s) * 1e3
    finally:
        is_over.set()
        thread.join()


def alternated(
    ways: Mapping[str, Callable[[Path], Figures]], recordings: Sequence[Path], rounds: int
) -> dict[str, list[Figures]]:
    """The figures of every way, turn by turn; each turn is taken on all ways before the next one."""
    found: dict[str, list[Figures]] = {way: [] for way in ways}
    order = list(ways)
    for _ in range(rounds):
        for recording in recordings:
            for way in order:
                found[way].append(ways[way](recording))
                time.sleep(_REST_S)
            order = [*order[1:], order[0]]
    return found


def compared(
    figure: str, found: Mapping[str, Sequence[Figures]], other: str, recordings: Sequence[Path]
) -> tuple[Section, float]:
    """The figure of the window and of the other way, and the median of their differences in ms."""
    times = {way: [each[figure] for each in found[way]] for way in (WINDOW, other)}
    differences = np.subtract(times[other], times[WINDOW])
    median = float(np.median(differences))
    low, high = median_interval(differences.tolist())
    by_recording = differences.reshape(-1, len(recordings))
    each = [
        f"{recording.stem} {value:+.0f}"
        for recording, value in zip(recordings, np.median(by_recording, axis=0), strict=True)
    ]
    section = summary_section(
        figure, {way: summarize(values) for way, values in times.items()}, {way: _WAYS[way] for way in times}
    )
    section.note = (
        f"difference, median: {median:+.1f} ms (95 % interval {low:+.1f} to {high:+.1f}), "
        f"{'within' if median <= TARGETS_MS[other] else 'above'} {TARGETS_MS[other]:g} ms; median of each "
        f"recording: {', '.join(each)}"
    )
    return section, median


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval that holds the median of what at least one value was drawn from, with 95 %: the values of
    the ranks that a fair coin bounds."""
    ordered = sorted(values)
    rank = max(math.floor(len(ordered) / 2 - 0.98 * math.sqrt(len(ordered))), 0)
    return ordered[rank], ordered[-1 - rank]


def scripted() -> AbstractContextManager[Engine]:
    """The engine of --scripted."""
    return nullcontext(ScriptedEngine(SCRIPT))


def serve_scripted(conversations: int) -> int:
    """The server of --scripted, in a process of its own."""
    settings = ServeSettings(port=0, conversations=conversations)
    return serve(settings, scripted, load_turn_end_detector, lambda address: note(f"listening on {address}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scripted", action="store_true", help="without a model")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    for name in ("--port", "--conversations"):
        parser.add_argument(name, type=int, default=0, help=argparse.SUPPRESS)
    arguments = parse(parser)
    if arguments.serve:
        return serve_scripted(arguments.conversations)
    program = ("app", "serve")
    local: EngineSource = engine_source(StartSettings())
    if arguments.scripted:
        program, local = (f"{__package__}.server_against_window", "--serve"), scripted
    samples = sorted((paths.assets_dir() / "samples").glob("*.wav"))
    recordings = [sample for sample in samples if not sample.name.startswith(FOLLOW_UP)]
    with tool_report("server_against_window", arguments) as report, ExitStack() as stack:
        address, _ = stack.enter_context(served(2, program=program))
        url = f"ws://{address}/v1/realtime"
        windows = {}
        for way, source in ((WINDOW, local), (CLIENT, engine_source(StartSettings(server=url)))):
            windows[way] = Window(source)
            stack.callback(windows[way].close)

        def semantic(recording: Path) -> Figures:
            await_quiet(address, most=1)  # the client before has left, the window is there
            return semantic_turn(url, recording)

        ways = {way: window.turn for way, window in windows.items()} | {SEMANTIC_VAD: semantic}
        for turn in ways.values():  # what comes first is slower
            turn(recordings[0])
        found = alternated(ways, recordings, arguments.rounds)
        medians = {}
        for figure, other in ((VOICE_TO_VOICE, CLIENT), (ENDPOINTING, SEMANTIC_VAD)):
            section, medians[other] = compared(figure, found, other, recordings)
            report.add(section)
    return int(any(median > TARGETS_MS[other] for other, median in medians.items()))


if __name__ == "__main__":
    raise SystemExit(main())
