from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from app.cli import main
from app.commands import doctor
from app.commands.doctor import newest_version
from app.package_index import PYPI, PackageIndex
from tests.doubles.package_server import PackageServer

FILES = (
    "moss_voice-0.9.0-py3-none-any.whl",
    "moss_voice-0.10.0.tar.gz",
    "moss_voice-0.11.0rc1-py3-none-any.whl",
    "moss_voice-broken.whl",
    "moss_voice-0.12.exe",
)


def test_the_newest_release_of_an_index(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes(b"")
    with PackageServer(tmp_path) as server:
        assert newest_version(PackageIndex(server.url)) == Version("0.10.0")
        assert not server.asked_for  # the page alone


def test_an_index_without_it(tmp_path: Path) -> None:
    with PackageServer(tmp_path) as server:
        assert newest_version(PackageIndex(server.url)) is None


@pytest.mark.parametrize(
    ("own", "status", "detail"),
    [
        ("0.2.0", "ok", "0.2.0, the newest at"),
        ("0.3.0", "ok", "0.3.0, the newest at"),
        ("0.1.0", "note", "is 0.2.0"),
    ],
)
def test_this_version_is_compared_with_the_newest(
    own: str, status: str, detail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "moss_voice-0.2.0-py3-none-any.whl").write_bytes(b"")
    monkeypatch.setattr(doctor, "VERSION", own)
    with PackageServer(tmp_path) as server:
        (finding,) = doctor.newest(server.url)
    assert finding.status == status
    assert detail in finding.detail
    assert bool(finding.what_to_do) == (status == "note")


def test_an_index_that_does_not_answer_is_a_note(tmp_path: Path) -> None:
    with PackageServer(tmp_path) as server:
        (finding,) = doctor.newest(server.url)
        assert "has no release of it" in finding.detail
        assert "--index-url" in finding.what_to_do
        url = server.url
    (finding,) = doctor.newest(url)
    assert finding.status == "note"
    assert "cannot be asked" in finding.detail
    (finding,) = doctor.newest("mirror")
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
    assert "--index-url needs --newest" in capsys.readouterr().err
