"""Timing events as files: CSV for a spreadsheet, Chrome trace JSON for chrome://tracing and Perfetto.

In: timing events of a session. Out: a file (ExportError if it cannot be written). Any thread.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from app.export import ExportFile
from engine_runtime.timing import TimingEvent

_FIXED = ("name", "turn_id", "start_ms", "duration_ms", "thread")


def write_csv(path: Path, events: Iterable[TimingEvent]) -> None:
    """One line per event, by start; times in milliseconds since the first one, then one column per
    attribute."""
    ordered = sorted(events, key=lambda event: event.start_ns)
    origin_ns = ordered[0].start_ns if ordered else 0
    names = dict.fromkeys(name for event in ordered for name in event.attributes)
    table = io.StringIO()
    writer = csv.DictWriter(table, [*_FIXED, *names], lineterminator="\n")
    writer.writeheader()
    for event in ordered:
        fixed = {
            "name": event.name,
            "turn_id": event.turn_id,
            "start_ms": f"{(event.start_ns - origin_ns) / 1e6:.3f}",
            "duration_ms": f"{event.duration_ms:.3f}",
            "thread": event.thread,
        }
        writer.writerow(fixed | {name: event.attributes.get(name, "") for name in names})
    with ExportFile(path) as file:
        file.write(table.getvalue().encode())


def write_chrome_trace(path: Path, events: Iterable[TimingEvent]) -> None:
    """Spans by thread, moments without length as instants, the playback buffer as a curve."""
    ordered = sorted(events, key=lambda event: event.start_ns)
    origin_ns = ordered[0].start_ns if ordered else 0
    threads = {
        name: number for number, name in enumerate(dict.fromkeys(event.thread for event in ordered), 1)
    }
    entries: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": name}}
        for name, number in threads.items()
    ]
    entries += [_entry(event, origin_ns, threads[event.thread]) for event in ordered]
    with ExportFile(path) as file:
        file.write(json.dumps({"traceEvents": entries, "displayTimeUnit": "ms"}).encode())


def _entry(event: TimingEvent, origin_ns: int, thread: int) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": event.name,
        "cat": f"turn {event.turn_id}",
        "ts": (event.start_ns - origin_ns) / 1e3,
        "pid": 1,
        "tid": thread,
    }
    if event.name == "playback_buffer":
        return entry | {"ph": "C", "args": {"ms": event.attributes.get("level_ms", 0)}}
    arguments = {"turn_id": event.turn_id, **event.attributes}
    if event.duration_ns == 0:
        return entry | {"ph": "i", "s": "p", "args": arguments}
    return entry | {"ph": "X", "dur": event.duration_ns / 1e3, "args": arguments}
