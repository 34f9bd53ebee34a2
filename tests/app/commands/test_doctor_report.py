from __future__ import annotations

import getpass
import json
import os
import stat
from importlib import metadata
from pathlib import Path

import pytest

from app import paths
from app.commands import doctor_report
from app.commands.doctor_report import anonymous, without_names, write_report


@pytest.fixture(autouse=True)
def _bundle(random_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSS_VOICE_BUNDLE", str(random_bundle))


def _sections(file: Path) -> dict[str, list[str]]:
    _, *parts = file.read_text(encoding="utf-8").split("\n== ")
    return {lines[0]: lines[1:] for lines in map(str.splitlines, parts)}


def test_it_holds_what_it_says(tmp_path: Path, random_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda")
    engine = tmp_path / "engine"
    engine.mkdir()
    (engine / "config.json").write_text(json.dumps({"version": "1.2.1"}))
    (engine / "rank0.engine").write_bytes(bytes(1234))
    log = paths.log_file()
    log.parent.mkdir(parents=True)
    log.write_text("\n".join(f"line {number}" for number in range(1000)))
    write_report(tmp_path / "report.txt", ["ok   Python  3.12"], [engine])
    text = (tmp_path / "report.txt").read_text(encoding="utf-8")
    assert text.startswith("Report of moss-voice doctor. It holds: ")
    sections = _sections(tmp_path / "report.txt")
    assert sections["doctor"][0] == "ok   Python  3.12"
    assert f"numpy=={metadata.version('numpy')}" in sections["packages"]
    assert "CUDA_HOME=/usr/local/cuda" in sections["environment"]
    hashes = [line for line in sections["bundles"] if "stated SHA-256" in line]
    assert len(hashes) > 4
    assert any(str(Path("lm.safetensors").name) in line for line in hashes)
    described = sections[f"folder {engine}"]
    assert "rank0.engine: 1234 bytes" in described
    assert '{"version": "1.2.1"}' in described
    assert [line for line in sections["log"] if line] == [f"line {number}" for number in range(800, 1000)]


def test_nothing_of_the_user_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "anna"
    home.mkdir()
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.setattr(getpass, "getuser", lambda: "anna")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", "https://anna:word@mirror.example")
    monkeypatch.setenv("CUDA_HOME", f"{home}/cuda")
    write_report(tmp_path / "report.txt", [f"a file in {home}/voices", "another in /media/anna/disk"], [])
    text = (tmp_path / "report.txt").read_text(encoding="utf-8")
    assert "a file in ~/voices" in text
    assert "another in /media/USER/disk" in text
    assert "CUDA_HOME=~/cuda" in text
    assert "HF_ENDPOINT=https://mirror.example" in text
    for private in ("anna", "hf_secret", ":word"):
        assert private not in text


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise OSError("no entry")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert anonymous(f"in {Path.home()}/models and /media/anna") == "in ~/models and /media/anna"


def test_a_section_that_fails_says_so_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("cannot look")

    monkeypatch.setattr(doctor_report, "driver_lines", broken)
    write_report(tmp_path / "report.txt", [], [tmp_path / "nowhere"])
    sections = _sections(tmp_path / "report.txt")
    assert sections["driver and GPU"][0] == "RuntimeError: cannot look"
    assert "FileNotFoundError" in sections[f"folder {tmp_path / 'nowhere'}"][0]
    assert len(sections["packages"]) > 20
    assert sections["log"][0].startswith("no log at ")


def test_what_the_driver_says_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "$@"\necho "| NVIDIA-SMI 580.82  CUDA Version: 13.0 |"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    write_report(tmp_path / "report.txt", [], [])
    found = _sections(tmp_path / "report.txt")["driver and GPU"]
    assert found[0].startswith("--query-gpu=name,driver_version,")
    assert "| NVIDIA-SMI 580.82  CUDA Version: 13.0 |" in found


@pytest.mark.parametrize("home", ["", "/"])
def test_a_root_folder_is_nobodys_home(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(getpass, "getuser", lambda: "anna")
    assert anonymous("/usr/lib and http://host/x") == "/usr/lib and http://host/x"


def test_a_home_folder_is_a_complete_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/srv/ann")
    monkeypatch.setattr(getpass, "getuser", lambda: "anna")
    assert anonymous("/srv/ann/x, /srv/anna/x, '/srv/ann', /srv/ann") == "~/x, /srv/USER/x, '~', ~"


def test_a_linked_home_folder_is_no_less_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk" / "homes").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk" / "homes")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert anonymous(f"{tmp_path}/home/x and {tmp_path}/disk/homes/y") == "~/x and ~/y"


def test_variables_with_secrets_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("HF_AUTH", "HF_TOKEN", "HF_API_KEY", "TRT_PASSWD", "HF_Credentials", "CUDA_COOKIE")
    for name in secrets:
        monkeypatch.setenv(name, "private1")
    monkeypatch.setenv("HF_ENDPOINT", "http://anna:private/2@3?4#5@mirror.example/x")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    os.environb[b"MOSS_VOICE_BUNDLE_NAME"] = b"\xff"
    monkeypatch.setenv("HF_HOME", "/hub")
    try:
        write_report(file := tmp_path / "report.txt", [], [])
    finally:
        del os.environb[b"MOSS_VOICE_BUNDLE_NAME"]
    found = _sections(file)["environment"]
    assert "HF_ENDPOINT=http://mirror.example/x" in found
    assert "HF_HUB_OFFLINE=1" in found
    assert not [line for line in found if "private" in line]


def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "report.txt"
    file.touch(0o644)
    write_report(file, [], [])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_passwords_in_the_log_are_left_out(tmp_path: Path) -> None:
    """Also those of a log that an earlier version wrote."""
    log = paths.log_file()
    log.parent.mkdir(parents=True)
    log.write_text("GET http://anna:secret@host/x\n")
    write_report(tmp_path / "report.txt", ["mirror http://anna:secret@host"], [])
    text = (tmp_path / "report.txt").read_text(encoding="utf-8")
    assert "GET http://host/x" in text
    assert "mirror http://host" in text
    assert "secret" not in text


def test_devices_files_and_servers_are_not_named(tmp_path: Path) -> None:
    log = paths.log_file()
    log.parent.mkdir(parents=True, exist_ok=True)
    early = [
        "12:00 I app.main: the engine is the server voice.anna.example:8443",
        "12:00 I app.session.event_log: microphone: Anna's Buds. Left; loudspeaker: closed",
        "12:00 I app.session.event_log: sample anna's secret (2).wav, 1.2 s",
    ]
    late = [
        "12:01 W event_log: The connection to voice.anna.example:8443 was lost.",
        "12:01 W event_log: The microphone 'Dr. Foo Mic' cannot be opened. Choose another one.",
        "12:01 W event_log: The sound device Anna's Buds. Left was lost.",
        "12:02 I event_log: microphone: Anna's Buds. Left; loudspeaker: Kitchen (HDMI)",
        "12:03 W app.audio: anna's secret (2).wav: cannot open loudspeaker Kitchen (HDMI): busy",
        "12:03 W app.remote: the host voice.anna.example is gone",
    ]
    log.write_text("\n".join([*early, *(f"line {number}" for number in range(300)), *late]), "utf-8")
    write_report(
        tmp_path / "report.txt", ["ok      microphone   Anna's Buds. Left, USB mic", "ok      numpy  2"], []
    )
    text = (tmp_path / "report.txt").read_text("utf-8")
    for private in ("Anna", "anna", "Dr. Foo", "Kitchen", "USB mic", "secret"):
        assert private not in text
    shown = _sections(tmp_path / "report.txt")["log"]
    assert "12:01 W event_log: The microphone 'DEVICE' cannot be opened. Choose another one." in shown
    assert "12:01 W event_log: The connection to SERVER was lost." in shown
    assert "12:02 I event_log: microphone: DEVICE; loudspeaker: DEVICE" in shown
    assert (
        without_names("microphone: closed; loudspeaker: closed") == "microphone: closed; loudspeaker: closed"
    )
