"""The report says what happened, and nothing of whose machine it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.audio.devices import Device, DeviceList
from app.commands import acceptance_report
from app.commands.acceptance_report import Names, document, lines, result_of, summary_line, write_reports
from app.commands.acceptance_steps import AcceptanceStep, Figure, StepOutcome

OUT = Path("/data/try")
STEPS = [
    AcceptanceStep(name, f"what {name} does", lambda did: StepOutcome("passed"))
    for name in ("one", "two", "three")
]
OUTCOMES = {
    "one": StepOutcome(
        "passed", (Figure("speed", 2.5, "<= 3", True), Figure("size", 7)), did=("moss-voice x",)
    ),
    "two": StepOutcome(
        "failed",
        (Figure("gap", 9.0, "<= 3", False),),
        "limit not kept: gap\nsecond line",
        "Close others.",
        seconds=61.0,
    ),
    "three": StepOutcome.skip("there is no library"),
}


def test_each_step_has_what_was_done_figures_limits_and_the_next_step() -> None:
    text = "\n".join(lines(STEPS, OUTCOMES, Names(OUT, [])))
    assert "failed (1 passed, 1 failed, 1 skipped)" in text
    assert "FAILED   two               61 s  limit not kept: gap\n" in text
    assert "$ moss-voice x\n  speed  2.5  limit <= 3  kept\n  size   7\n" in text
    why = "reason:\n  limit not kept: gap\n  second line\nnext step:\n  Close others."
    assert f"  gap  9  limit <= 3  NOT KEPT\n{why}" in text
    assert "== three: skipped\n# what three does\nreason:\n  there is no library" in text


def test_the_document_says_the_same() -> None:
    found = document(STEPS, OUTCOMES, Names(OUT, []))
    assert (found["result"], found["passed"], found["failed"], found["skipped"]) == ("failed", 1, 1, 1)
    assert [step["name"] for step in found["steps"]] == ["one", "two", "three"]
    assert found["steps"][1]["figures"] == [{"name": "gap", "value": 9.0, "limit": "<= 3", "is_met": False}]
    assert json.loads(json.dumps(found)) == found


def test_an_acceptance_without_a_result_is_none() -> None:
    skipped = StepOutcome.skip("not wanted this time")
    assert result_of({"a": skipped}) == "skipped"
    assert result_of({"a": skipped, "b": StepOutcome("passed")}) == "passed"
    assert result_of({"a": StepOutcome("failed"), "b": StepOutcome("passed")}) == "failed"


def test_the_report_holds_no_private_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home, recordings = tmp_path / "home" / "alice", tmp_path / "alices voice.wav"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGNAME", "alice")
    monkeypatch.setattr(acceptance_report, "node", lambda: "alices-pc")
    out = tmp_path / "out"
    out.mkdir()
    names = Names(out, [recordings])
    machine = StepOutcome(
        "passed",
        (
            Figure("microphone: ok", "Blue Yeti, alices headset"),
            Figure("loudspeaker: note", "none; plug one in"),
            Figure("Python: ok", f"3.12 at {home}/env/bin/python on alices-pc, used by default"),
        ),
    )
    devices = [
        Device(-1, "alsa_input.usb", "pulse", 48_000, True, "Blue Yeti"),
        Device(-1, "alices headset", "pulse", 48_000, False),
        Device(0, "default", "ALSA", 48_000, False),
    ]
    names.add_devices(DeviceList(tuple(devices), ()))
    failed = StepOutcome(
        "failed",
        reason="The microphone Blue Yeti was lost at /media/alice/x.",
        did=(f"moss-voice verify --voice={recordings} --engine={out}/trt/engine",),
        next_step="Look at https://alice:secret@hub.example/x?token=abc",
    )
    files = write_reports(out, STEPS, {"one": machine, "two": failed}, names)
    for file in files:
        text = file.read_text()
        for private in ("alice", "Blue Yeti", "secret", "token=abc", str(tmp_path)):
            assert private not in text, private
        assert "~/env/bin/python on HOST, used by default" in text
        assert "--voice=FILE --engine=OUT/trt/engine" in text
        assert "The microphone DEVICE was lost at /media/USER/x." in text
        assert "none; plug one in" in text
    assert "no name of yours" in files[0].read_text()


def test_a_report_without_all_steps_is_unfinished() -> None:
    outcomes = {"one": OUTCOMES["one"]}
    assert document(STEPS, outcomes, Names(OUT, []))["result"] == "unfinished"
    text = "\n".join(lines(STEPS, outcomes, Names(OUT, [])))
    assert "unfinished (1 passed, 0 failed, 0 skipped)" in text
    assert "not done yet: two, three" in text
    outcomes["two"] = OUTCOMES["two"]
    assert document(STEPS, outcomes, Names(OUT, []))["result"] == "failed"


def test_a_step_in_one_line() -> None:
    step = {"name": "bench", "status": "passed", "seconds": 44.4, "reason": "", "what": "speed"}
    assert summary_line(step) == "passed   bench             44 s  speed"
