"""Recorded scenarios as files: a folder with NAME.wav (or NAME.flac) and NAME.json for each.

In: such a folder -> scenarios to simulate. Out: a simulated conversation -> such files. app/MANUAL.md
describes them. Any thread.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from app.audio.levels import dbfs
from app.audio.resample import Resampler
from app.audio.wav import SUFFIXES, WavReader, write_wav
from app.duplex.room import RATE
from app.duplex.scenario import RecordedScenario, RoomConditions
from app.duplex.segments import KINDS, UserSegment
from app.duplex.simulator import DuplexRecord
from app.export import ExportFile, in_words
from engine_runtime.errors import AudioInputError

MOST_S = 600.0
RECORDED = "recorded"
"""Group of a scenario that names none."""
_ROOM = {"echo_db": (0, 60), "delay_ms": (0, 500), "skew_ppm": (-1_000, 1_000), "noise_dbfs": (-90, 0)}


def make_folder(folder: Path) -> None:
    """Make the folder for records if it does not exist. ExportError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise in_words(folder, error) from error


def write_record(folder: Path, name: str, record: DuplexRecord) -> None:
    """NAME.wav with user and assistant, and NAME.json. ExportError if they cannot be written."""
    room: dict[str, float] = {}
    if record.room.loss_db is not None:
        room |= {"echo_db": record.room.loss_db, "delay_ms": record.room.delay_ms}
        room |= {"skew_ppm": record.room.skew_ppm}
    if record.room.noise_rms:
        room["noise_dbfs"] = round(dbfs(record.room.noise_rms), 2)
    annotation = {
        "group": record.group,
        "room": room,
        "segments": [asdict(segment) for segment in record.segments],
        "decisions": [{"turn": event.turn_id, **event.attributes} for event in record.decisions],
    }
    write_wav(folder / f"{name}.wav", np.stack([record.user, record.assistant], axis=1), RATE)
    with ExportFile(folder / f"{name}.json") as file:
        file.write(json.dumps(annotation, indent=1).encode())


def read_scenarios(folder: Path) -> list[RecordedScenario]:
    """All scenarios of the folder, by name. AudioInputError states what is wrong with which file."""
    sounds = sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)
    if not sounds:
        raise AudioInputError(
            "There is no WAV or FLAC file in {folder}.",
            "Specify a folder with recorded scenarios; `moss-voice bench --help` describes them.",
            folder=folder,
        )
    return [_read(sound) for sound in sounds]


def _read(sound: Path) -> RecordedScenario:
    path = sound.with_suffix(".json")
    try:
        annotation = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise AudioInputError(
            "{sound} has no annotation.", "Write {path} beside it.", sound=sound, path=path.name
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise AudioInputError(
            "{path} cannot be read as JSON: {error}.", "Correct it.", path=path, error=error
        ) from error
    with WavReader(sound, channel=0) as reader:
        if reader.seconds > MOST_S:
            raise AudioInputError(
                "{sound} lasts more than the {seconds:.0f} s allowed here.",
                "Cut it first.",
                sound=sound,
                seconds=MOST_S,
            )
        pcm, rate = reader.read(reader.frames), reader.sample_rate
    resampler = Resampler(rate, RATE)
    pcm = np.concatenate([resampler.push(pcm), resampler.finish()])
    try:
        return _scenario(sound.stem, annotation, pcm)
    except _Defect as defect:
        raise AudioInputError("{path}: {defect}.", "Correct it.", path=path, defect=defect) from defect


class _Defect(Exception):
    """What is wrong with an annotation."""


def _scenario(name: str, annotation: Any, pcm: np.ndarray[Any, np.dtype[np.float32]]) -> RecordedScenario:
    if not isinstance(annotation, dict) or not isinstance(annotation.get("segments"), list):
        raise _Defect('it needs a list "segments"')
    group = annotation.get("group", RECORDED)
    if not isinstance(group, str):
        raise _Defect("group is not a name")
    length_s = len(pcm) / RATE
    segments = [_segment(entry, place, length_s) for place, entry in enumerate(annotation["segments"])]
    if not segments:
        raise _Defect("segments is empty")
    if [segment.start_s for segment in segments] != sorted(segment.start_s for segment in segments):
        raise _Defect("the segments are not in the order of their start")
    return RecordedScenario(name, group, _room(annotation.get("room", {})), pcm, tuple(segments))


def _segment(entry: Any, place: int, length_s: float) -> UserSegment:
    where = f"segments[{place}]"
    if not isinstance(entry, dict):
        raise _Defect(f"{where} is no object")
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise _Defect(f"{where}: kind is none of {', '.join(KINDS)}")
    start_s, end_s = _span([entry.get("start_s"), entry.get("end_s")], where)
    if start_s < 0 or end_s > length_s + 0.05:
        raise _Defect(f"{where} is not within the {length_s:.2f} s of the recording")
    pauses = entry.get("pauses", [])
    if not isinstance(pauses, list):
        raise _Defect(f"{where}: pauses is no list")
    spans = tuple(_span(pause, f"{where}: pauses[{number}]") for number, pause in enumerate(pauses))
    text = entry.get("text", "")
    if not isinstance(text, str):
        raise _Defect(f"{where}: text is no text")
    edges = [start_s, *(edge for span in spans for edge in span), end_s]
    if edges != sorted(edges):
        raise _Defect(f"{where}: the pauses are not in order within the segment")
    return UserSegment(kind, start_s, end_s, spans, text)


def _span(given: Any, where: str) -> tuple[float, float]:
    if not isinstance(given, list) or len(given) != 2 or not all(map(_is_number, given)):
        raise _Defect(f"{where} needs a start and an end in seconds")
    start_s, end_s = map(float, given)
    if end_s <= start_s:
        raise _Defect(f"{where}: the end {end_s:g} is not after the start {start_s:g}")
    return start_s, end_s


def _room(given: Any) -> RoomConditions:
    if not isinstance(given, dict) or not given.keys() <= _ROOM.keys():
        raise _Defect(f"room is no object with some of {', '.join(_ROOM)}")
    for name, value in given.items():
        least, most = _ROOM[name]
        if not _is_number(value) or not least <= value <= most:
            raise _Defect(f"room: {name} is not a number from {least} to {most}")
    return RoomConditions(
        loss_db=given.get("echo_db"),
        delay_ms=given.get("delay_ms", 0.0),
        skew_ppm=given.get("skew_ppm", 0.0),
        noise_rms=10 ** (given["noise_dbfs"] / 20) if "noise_dbfs" in given else 0.0,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
