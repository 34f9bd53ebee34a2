"""Recorded scenarios: written and read back, and every defect named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from app.audio.wav import write_wav
from app.duplex.room import RATE
from app.duplex.scenario import RoomConditions
from app.duplex.scenario_folder import make_folder, read_scenarios, write_record
from app.duplex.segments import UserSegment
from app.duplex.simulator import DuplexRecord
from engine_runtime.errors import AudioInputError, ExportError
from engine_runtime.timing import TimingEvent

TURN = {"kind": "turn", "start_s": 0.5, "end_s": 1.5}


def write(folder: Path, annotation: Any, *, rate: int = RATE) -> None:
    write_wav(folder / "mine.wav", np.full(2 * rate, 0.25, dtype=np.float32), rate)
    (folder / "mine.json").write_text(json.dumps(annotation))


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    user = np.linspace(0, 0.5, 3 * RATE, dtype=np.float32)
    segment = UserSegment("turn", 0.5, 2.5, ((1.0, 1.5),))
    room = RoomConditions(12.0, 100.0, 50.0, noise_rms=0.01)
    record = DuplexRecord("x", "echo", user, np.zeros_like(user), (segment,), room)
    record.decisions.append(TimingEvent("decision", 4, 0, 0, "dialog", {"kind": "confirm", "at_s": 2.75}))
    make_folder(tmp_path / "new" / "folder")
    write_record(tmp_path / "new" / "folder", "01-x", record)
    (scenario,) = read_scenarios(tmp_path / "new" / "folder")
    assert (scenario.name, scenario.group, scenario.segments) == ("01-x", "echo", (segment,))
    assert (scenario.room.loss_db, scenario.room.delay_ms, scenario.room.skew_ppm) == (12, 100, 50)
    assert scenario.room.noise_rms == pytest.approx(0.01, rel=0.01)
    assert np.allclose(scenario.pcm, user, atol=1e-3)  # the left channel alone
    written = json.loads((tmp_path / "new" / "folder" / "01-x.json").read_text())
    assert written["decisions"] == [{"turn": 4, "kind": "confirm", "at_s": 2.75}]


def test_a_recording_of_ones_own_needs_only_segments(tmp_path: Path) -> None:
    write(tmp_path, {"segments": [TURN]}, rate=44_100)
    (scenario,) = read_scenarios(tmp_path)
    assert (scenario.group, scenario.room) == ("recorded", RoomConditions())
    assert len(scenario.pcm) == pytest.approx(2 * RATE, abs=2)


@pytest.mark.parametrize(
    ("annotation", "defect"),
    [
        ([], 'needs a list "segments"'),
        ({"segments": "none"}, 'needs a list "segments"'),
        ({"segments": []}, "segments is empty"),
        ({"segments": [7]}, r"segments\[0\] is no object"),
        ({"segments": [TURN | {"kind": "song"}]}, r"segments\[0\]: kind is none of turn"),
        ({"segments": [TURN | {"kind": ["turn"]}]}, "kind is none of"),
        ({"segments": [TURN | {"end_s": None}]}, r"segments\[0\] needs a start and an end"),
        ({"segments": [TURN | {"end_s": True}]}, "needs a start and an end"),
        ({"segments": [TURN | {"end_s": 0.5}]}, "the end 0.5 is not after the start 0.5"),
        ({"segments": [TURN | {"end_s": 7.0}]}, "not within the 2.00 s"),
        ({"segments": [TURN | {"start_s": -1}]}, "not within the 2.00 s"),
        ({"segments": [TURN | {"pauses": 1}]}, "pauses is no list"),
        ({"segments": [TURN | {"pauses": [[1.0]]}]}, r"pauses\[0\] needs a start"),
        ({"segments": [TURN | {"pauses": [[1.0, 1.8]]}]}, "not in order within the segment"),
        ({"segments": [TURN, TURN | {"start_s": 0.2}]}, "not in the order of their start"),
        ({"segments": [TURN], "group": 3}, "group is not a name"),
        ({"segments": [TURN], "room": {"walls": 4}}, "room is no object with some of echo_db"),
        ({"segments": [TURN], "room": {"echo_db": "loud"}}, "echo_db is not a number from 0 to 60"),
        ({"segments": [TURN], "room": {"delay_ms": 900}}, "delay_ms is not a number from 0 to 500"),
    ],
)
def test_defects_are_named(tmp_path: Path, annotation: Any, defect: str) -> None:
    write(tmp_path, annotation)
    with pytest.raises(AudioInputError, match=f"mine.json: .*{defect}"):
        read_scenarios(tmp_path)


def test_a_scenario_may_be_flac(tmp_path: Path) -> None:
    write(tmp_path, {"segments": [TURN]})
    (expected,) = read_scenarios(tmp_path)
    soundfile.write(tmp_path / "mine.flac", *soundfile.read(tmp_path / "mine.wav"))
    (tmp_path / "mine.wav").unlink()
    (found,) = read_scenarios(tmp_path)
    assert (found.name, found.segments) == (expected.name, expected.segments)
    assert np.array_equal(found.pcm, expected.pcm)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(AudioInputError, match="WAV or FLAC"):
        read_scenarios(tmp_path)
    write(tmp_path, {})
    (tmp_path / "mine.json").write_text("{")
    with pytest.raises(AudioInputError, match=r"mine\.json .*JSON"):
        read_scenarios(tmp_path)
    (tmp_path / "mine.json").unlink()
    with pytest.raises(AudioInputError, match=r"annotation.*mine\.json"):
        read_scenarios(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ExportError):
        make_folder(tmp_path / "file" / "folder")
