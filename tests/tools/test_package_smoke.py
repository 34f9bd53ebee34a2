"""The smoke test of the packages: what it takes for right, and how it enters a bare machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import wave
from pathlib import Path

import numpy as np
import pytest

from app import paths
from tests.tools import package_smoke
from tests.tools.bare_root import BareRoot, CompletedRun, Mount, unroutable
from tests.tools.checks import CheckFailed, Checks, require
from tests.tools.package_smoke_window import loud_seconds, trouble

REPLIES = [
    *("Hello how can I help you.", "I am the nano voice a small speech model.", "Three plus four is seven."),
    *("Seven plus two is nine.", "After Monday comes Tuesday.", "The capital of France is Paris."),
    *("The opposite of hot is cold.", "Grass is green.", "Nine, eight, seven, six, five."),
    *("Yellow bicycle.", "I am sorry I do not know that."),
]


def printed(replies: list[str], status: int = 0) -> CompletedRun:
    lines = [f"{n}. you      Question?\n   reply    {text}\n" for n, text in enumerate(replies, 1)]
    return CompletedRun(status, "".join(lines), "", 0)


def test_every_sample_question_has_an_answer() -> None:
    assert len(package_smoke.ANSWERS) == len(paths.sample_questions()) == len(REPLIES)
    assert package_smoke.right_answers(printed(REPLIES)) == "11 of 11 answers right"


@pytest.mark.parametrize(
    ("replies", "reason"),
    [(REPLIES[:-1], "10 replies"), ([*REPLIES[:2], "Three plus four is eight.", *REPLIES[3:]], "eight")],
)
def test_a_missing_or_wrong_answer_fails(replies: list[str], reason: str) -> None:
    with pytest.raises(CheckFailed, match=reason):
        package_smoke.right_answers(printed(replies))


def test_a_program_that_fails_or_shows_a_traceback_fails() -> None:
    with pytest.raises(CheckFailed, match="exit status 3"):
        package_smoke.succeeded(CompletedRun(3, "", "reason", 0))
    with pytest.raises(CheckFailed, match="Traceback"):
        package_smoke.succeeded(CompletedRun(0, "", "Traceback (most recent call last):", 0))


def test_a_failed_check_is_counted_and_the_next_one_runs(capsys: pytest.CaptureFixture[str]) -> None:
    checks = Checks()
    with checks.check("first"):
        require(False, "the reason")
    with checks.check("second") as notes:
        notes.append("a figure")
    assert (checks.failures, checks.total) == (1, 2)
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[:2] == ["FAILED", "first"]
    assert first.endswith("the reason")
    assert second.split()[:2] == ["ok", "second"]
    assert second.endswith("a figure")


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_the_machine_gets_what_the_package_names(tmp_path: Path) -> None:
    older = package_smoke.older_version(tmp_path, "all")
    assert package_smoke.field(older, "Version") == "0.0.1"
    control = tmp_path / "older" / "DEBIAN" / "control"
    more = "Depends: libc6 (>= 2.34), libpulse0\nRecommends: fonts-noto-cjk, xdg-desktop-portal\n"
    control.write_text(control.read_text() + more)
    subprocess.run(["dpkg-deb", "--build", tmp_path / "older", tmp_path / "x.deb"], check=True)
    assert package_smoke.needed_packages(tmp_path / "x.deb") == ["libc6", "libpulse0", "fonts-noto-cjk"]


def test_what_is_missing_is_said_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "Xvfb" else name)
    assert package_smoke.refusal(tmp_path) == "Install what is missing: Xvfb"
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "as root" in str(package_smoke.refusal(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "moss-voice.tar.zst").touch()
    assert str(package_smoke.refusal(tmp_path)).startswith("There is no .deb in ")
    (tmp_path / "moss-voice.deb").touch()
    assert package_smoke.refusal(tmp_path) is None


def test_refused_packets_are_read_from_the_counters() -> None:
    assert unroutable("Ip: Forwarding OutNoRoutes InHdrErrors\nIp: 2 7 0\nTcp: OutNoRoutes\nTcp: 9\n") == 7


def test_what_packages_leave_is_seen_and_what_users_keep_is_not(tmp_path: Path) -> None:
    for name in ("usr/lib/left", "etc/conf", "home/user/file", "var/lib/dpkg/status", "var/lib/other"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = BareRoot(tmp_path).files()
    assert {"/usr/lib/left", "/etc/conf", "/var/lib/other"} <= found
    assert not [path for path in found if path.startswith(("/home", "/var/lib/dpkg"))]


def _can_enter() -> bool:
    try:
        words = ["unshare", "--net", "--mount", "--pid", "--fork", "true"]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix" or not _can_enter(), reason="needs root")
def test_a_program_runs_as_a_user_without_environment_and_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "seen")
    root = BareRoot(Path("/"))
    place = Path("/mnt/Prüf stand")
    source = tmp_path / "shown"
    source.mkdir()
    (source / "file").write_text("inside")
    script = 'id -u; env; cat "$0/file"; touch "$0/new" 2>/dev/null || echo refused; exit 3'
    ended = root.run(
        ["bash", "-c", f"echo >/dev/udp/192.0.2.1/9; {script}", str(place)],
        environment={"CHOSEN": "yes"},
        mounts=(Mount(source, place, is_read_only=True),),
        is_root=True,
    )
    assert ended.status == 3
    assert ended.unroutable > 0
    assert "SECRET" not in ended.stdout
    assert {"0", "CHOSEN=yes", "insiderefused"} <= set(ended.stdout.splitlines())
    assert not (place / "file").exists()


def test_silence_is_not_counted_as_speech(tmp_path: Path) -> None:
    tone = np.sin(np.arange(24_000) * 0.1) * 10_000
    pcm = np.concatenate([np.zeros(48_000), tone]).astype(np.int16)
    with wave.open(str(tmp_path / "heard.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(48_000)
        file.writeframes(pcm.tobytes())
    assert loud_seconds(tmp_path / "heard.wav") == 0.5


def test_trouble_in_the_log_is_found_and_under_runs_are_none() -> None:
    fine = "2026-01-01 WARNING dialog app.session.event_log: under-runs 1, dropped input 0 samples"
    bad = "2026-01-01 WARNING MainThread app.gui.common.translation: no translation zh_CN in /x"
    log = "\n".join(
        ["2026-01-01 INFO engine x: 0 ERROR codes", fine, bad, "Traceback (most recent call last):"]
    )
    assert trouble(log) == [bad, "Traceback (most recent call last):"]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix" or not _can_enter(), reason="needs root")
@pytest.mark.parametrize("has_loopback", [False, True])
def test_a_program_reaches_its_own_machine_where_it_asks_for_that(has_loopback: bool) -> None:
    sent = BareRoot(Path("/")).run(
        ["bash", "-c", "echo >/dev/udp/127.0.0.1/9 && echo >/dev/udp/192.0.2.1/9"],
        is_root=True,
        has_loopback=has_loopback,
    )
    assert ("127.0.0.1" in sent.stderr) is not has_loopback
    assert "192.0.2.1" in sent.stderr or not has_loopback
    assert sent.unroutable > 0
