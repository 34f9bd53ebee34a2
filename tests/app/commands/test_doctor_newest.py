from __future__ import annotations

from pathlib import Path

import pytest

from app.cli import main
from app.commands import doctor, doctor_newest
from app.package_index import PYPI, PackageIndex
from tests.doubles.package_server import PackageServer


@pytest.mark.parametrize(
    ("own", "status", "detail"),
    [
        ("0.2.0", "ok", "0.2.0, the newest at"),
        ("0.3.0", "ok", "0.3.0, the newest at"),
        ("0.1.0", "note", "is 0.2.0"),
        ("(not installed)", "note", "is 0.2.0"),
    ],
)
def test_this_version_is_compared_with_the_newest(
    own: str, status: str, detail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "moss_voice-0.2.0-py3-none-any.whl").write_bytes(b"")
    monkeypatch.setattr(doctor_newest, "program_version", lambda: own)
    with PackageServer(tmp_path) as server:
        (finding,) = doctor_newest.newest(server.url)
    assert finding.status == status
    assert detail in finding.detail
    assert bool(finding.what_to_do) == (status == "note")


def test_an_index_that_does_not_answer_is_a_note(tmp_path: Path) -> None:
    with PackageServer(tmp_path) as server:
        (finding,) = doctor_newest.newest(server.url)
        assert "has no release of it" in finding.detail
        assert "--index-url" in finding.what_to_do
        url = server.url
    (finding,) = doctor_newest.newest(url)
    assert finding.status == "note"
    assert "cannot be asked" in finding.detail
    (finding,) = doctor_newest.newest("mirror")
    assert "unknown url type" in finding.detail


def test_the_network_is_used_on_request_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(PackageIndex, "files", lambda index, package: asked.append(index.url) or {})
    monkeypatch.setattr(doctor, "examine", lambda: iter(()))
    assert main(["doctor"]) == 0
    assert not asked
    assert main(["doctor", "--newest"]) == 0
    assert main(["doctor", "--newest", "--index-url", "https://mirror/simple/"]) == 0
    assert asked == [PYPI, "https://mirror/simple"]
    assert f"{PYPI} has no release of it" in capsys.readouterr().out


def test_an_index_without_the_question_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--index-url", "https://mirror"]) == 1
    assert "--index-url goes with --newest" in capsys.readouterr().err
