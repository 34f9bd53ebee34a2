from __future__ import annotations

import configparser
import gzip
import shutil
import subprocess
import tarfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import pytest

from app import paths
from app.cli import build_parser

DATE = 1700000000


def _needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def test_desktop_metainfo_and_window_have_one_name(linux_packages: ModuleType) -> None:
    name = linux_packages.APPLICATION_ID
    desktop = configparser.ConfigParser(interpolation=None)
    desktop.optionxform = str  # type: ignore[assignment]
    desktop.read(linux_packages.FILES / f"{name}.desktop", encoding="utf-8")
    entry = desktop["Desktop Entry"]
    metainfo = ElementTree.parse(linux_packages.FILES / f"{name}.metainfo.xml").getroot()
    assert name == paths.APPLICATION_ID == entry["Icon"] == metainfo.findtext("id")
    assert metainfo.findtext("launchable") == f"{name}.desktop"
    assert entry["Exec"] in linux_packages.EXECUTABLES
    assert [binary.text for binary in metainfo.findall("provides/binary")] == list(linux_packages.EXECUTABLES)


def test_the_manual_names_every_command(linux_packages: ModuleType) -> None:
    manual = (linux_packages.FILES / "moss-voice.1").read_text(encoding="utf-8")
    commands = next(action.choices for action in build_parser()._actions if isinstance(action.choices, dict))
    assert len(commands) > 5
    assert not [name for name in commands if f"\n.TP\n.B {name}\n" not in manual]


def test_a_placeholder_without_a_value_is_an_error(linux_packages: ModuleType, tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.write_text("a @ONE@ b@c.example @TWO@")
    assert linux_packages.fill(template, {"ONE": "1", "TWO": "2"}) == "a 1 b@c.example 2"
    with pytest.raises(KeyError, match="TWO"):
        linux_packages.fill(template, {"ONE": "1"})


def test_an_appdir_starts_the_program_that_lies_in_it(
    linux_packages: ModuleType, frozen: Path, tmp_path: Path
) -> None:
    folder = linux_packages.make_appdir(frozen, tmp_path / "with space" / "x.AppDir", "1.2", DATE)
    assert subprocess.run([folder / "AppRun"], check=False).returncode == 0
    assert subprocess.run([folder / "AppRun", "--version"], check=False).returncode == 0
    for name in linux_packages.EXECUTABLES:
        assert (folder / "usr/bin" / name).resolve() == (folder / "usr/lib/moss-voice" / name).resolve()
        assert (folder / "usr/bin" / name).is_file()
        assert b"MOSS Voice 1.2" in gzip.decompress((folder / f"usr/share/man/man1/{name}.1.gz").read_bytes())
    icon = f"{linux_packages.APPLICATION_ID}.svg"
    assert (folder / icon).is_file()
    assert (folder / "usr/share/icons/hicolor/scalable/apps" / icon).is_file()


@_needs("zstd")
def test_an_archive_is_the_same_for_the_same_files(
    linux_packages: ModuleType, frozen: Path, tmp_path: Path
) -> None:
    first = linux_packages.make_archive(frozen, tmp_path / "first.tar.zst", DATE)
    (frozen / "moss-voice").touch()
    second = linux_packages.make_archive(frozen, tmp_path / "second.tar.zst", DATE)
    assert first.read_bytes() == second.read_bytes()
    plain = tmp_path / "plain.tar"
    subprocess.run(["zstd", "-q", "-d", "--long=27", first, "-o", plain], check=True)
    with tarfile.open(plain) as archive:
        member = archive.getmember("moss-voice/moss-voice")
    assert (member.uid, member.mtime) == (0, DATE)


@_needs("dpkg-deb")
@pytest.mark.parametrize(("compression", "member"), [("RELEASE", "data.tar.xz"), ("TRIAL", "data.tar.zst")])
def test_a_deb_says_what_it_is_and_depends_on(
    linux_packages: ModuleType,
    frozen: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compression: str,
    member: str,
) -> None:
    monkeypatch.setattr(linux_packages, "dependencies", lambda *_: ["libc6 (>= 2.34)", "libportaudio2"])
    deb = linux_packages.make_deb(frozen, tmp_path, "1.2", DATE, getattr(linux_packages, compression))
    assert member.encode() in deb.read_bytes()
    fields = ["Package", "Version", "Depends", "Installed-Size"]
    shown = subprocess.run(
        ["dpkg-deb", "-f", deb, *fields], capture_output=True, text=True, check=True
    ).stdout
    said = dict(line.split(": ", 1) for line in shown.splitlines())
    assert (said["Package"], said["Version"]) == ("moss-voice", "1.2")
    assert said["Depends"] == "libc6 (>= 2.34), libportaudio2"
    assert int(said["Installed-Size"]) > 3900
    listed = subprocess.run(["dpkg-deb", "-c", deb], capture_output=True, text=True, check=True).stdout
    modes = {line.split()[5]: line.split()[:2] for line in listed.splitlines()}
    assert modes["./usr/lib/moss-voice/moss-voice"] == ["-rwxr-xr-x", "root/root"]
    assert modes["./usr/lib/moss-voice/_internal/torch/version.py"] == ["-rw-r--r--", "root/root"]
    assert "./usr/share/doc/moss-voice/copyright" in modes
    assert not [entry.name for entry in tmp_path.iterdir() if entry.name not in {"dist", deb.name}]


@_needs("dpkg-shlibdeps")
@pytest.mark.slow
def test_what_programs_are_linked_to_is_found(
    linux_packages: ModuleType, frozen: Path, tmp_path: Path
) -> None:
    found = linux_packages.dependencies(frozen, tmp_path)
    assert any(package.startswith("libc6") for package in found)
    assert set(linux_packages.OPENED_BY_NAME) <= set(found)


@_needs("dpkg-shlibdeps")
@pytest.mark.slow
def test_no_newer_zstd_is_asked_for_than_qt_calls_and_nothing_that_the_bundle_has(
    linux_packages: ModuleType, frozen: Path, tmp_path: Path
) -> None:
    """Debian 12 asks for its own zstd 1.5.2 or newer, which Ubuntu 22.04 lacks."""
    pyside = pytest.importorskip("PySide6")
    for file in (Path(pyside.__file__).parent / "Qt" / "lib").glob("lib*"):
        if file.name.startswith(("libQt6Core.so", "libicu")):
            (frozen / file.name).hardlink_to(file)
    found = linux_packages.dependencies(frozen, tmp_path)
    assert "libzstd1 (>= 1.3)" in found
    assert any(package.startswith("zlib1g") for package in found)
    (library,) = {str(file) for file in Path("/usr/lib").glob("*/libz.so.1")}
    shutil.copy(library, frozen)
    shutil.rmtree(tmp_path / "debian")
    found = linux_packages.dependencies(frozen, tmp_path)
    assert not any(package.startswith("zlib1g") for package in found)


@pytest.mark.parametrize(
    ("name", "needed", "is_of_cuda"),
    [
        ("nvidia/cu13/lib/libcufile_rdma.so.1", "libmlx5.so.1", True),
        ("torch/lib/libcaffe2_nvrtc.so", "libcuda.so.1", True),
        ("torch/lib/libtorch_cpu.so", "libgomp.so.1", False),
    ],
)
def test_no_package_is_asked_for_what_the_driver_brings(
    name: str, needed: str, is_of_cuda: bool, linux_packages: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = SimpleNamespace(
        stdout=f"Dynamic Section:\n  NEEDED               {needed}\n  SONAME  libcuda.so.1\n"
    )
    monkeypatch.setattr(linux_packages.subprocess, "run", lambda *_, **__: shown)
    assert linux_packages._is_of_cuda(Path("/bundle", name), Path("/bundle")) == is_of_cuda


@_needs("appstreamcli")
def test_the_metainfo_is_valid(linux_packages: ModuleType, frozen: Path, tmp_path: Path) -> None:
    folder = linux_packages.make_appdir(frozen, tmp_path / "x.AppDir", "1.2", DATE)
    file = next((folder / "usr/share/metainfo").iterdir())
    done = subprocess.run(
        ["appstreamcli", "validate", "--no-net", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
