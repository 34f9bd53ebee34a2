"""Whether the packages fit Ubuntu: what is read from ELF files, and what is refused."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import package_smoke_ubuntu as ubuntu
from tests.tools.checks import Checks

HEADERS = """
libQt6Core.so.6:     file format elf64-x86-64

Dynamic Section:
  NEEDED               libzstd.so.1
  NEEDED               libc.so.6
  SONAME               libQt6Core.so.6

Version definitions:
1 0x01 0x0cac86f6 libQt6Core.so.6
2 0x00 0x00058a16 Qt_6

Version References:
  required from libc.so.6:
    0x06969194 0x00 35 GLIBC_2.14
    0x069691b5 0x00 16 GLIBC_2.35
  required from libicuuc.so.73:
    0x0a1b2c3d 0x00 04 ICU_99
"""
needs_binutils = pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
needs_dpkg = pytest.mark.skipif(shutil.which("dpkg") is None, reason="dpkg is not installed")


def binary(*versions: str, library: str = "libc.so.6", path: str = "x.so") -> ubuntu.Binary:
    return ubuntu.Binary(Path(path), frozenset({library}), {library: frozenset(versions)})


def test_headers_say_what_a_file_asks_of_which_library() -> None:
    read = ubuntu.read_headers(Path("x"), HEADERS)
    assert read.libraries == {"libzstd.so.1", "libc.so.6"}
    assert read.versions == {"libc.so.6": {"GLIBC_2.14", "GLIBC_2.35"}, "libicuuc.so.73": {"ICU_99"}}
    assert not list(ubuntu.newer_versions([read], {"libicuuc.so.73"}))
    assert ubuntu.newest_asked([read], {"libicuuc.so.73"}) == ["GLIBC_2.35"]


@pytest.mark.parametrize(
    "version",
    ["GLIBC_2.36", "GLIBC_PRIVATE", "GLIBC_ABI_DT_RELR", "GLIBCXX_3.4.31", "CXXABI_1.3.14", "OPENSSL_3.0.0"],
)
def test_a_version_that_22_04_lacks_is_refused_unless_the_bundle_has_the_library(version: str) -> None:
    asking = binary("GLIBC_2.2.5", version)
    assert list(ubuntu.newer_versions([asking], set())) == [f"x.so asks libc.so.6 for {version}"]
    assert not list(ubuntu.newer_versions([asking], {"libc.so.6"}))


@pytest.mark.parametrize(
    "version", ["GLIBC_2.35", "GLIBC_2.4", "GLIBCXX_3.4.30", "CXXABI_1.3.13", "GCC_7.0.0"]
)
def test_a_version_of_22_04_is_not(version: str) -> None:
    assert not list(ubuntu.newer_versions([binary(version)], set()))


def test_a_library_of_the_system_is_in_a_package_of_the_field() -> None:
    linked = [binary(library=name) for name in ("libc.so.6", "libz.so.1", "libQt6Core.so.6", "libcuda.so.1")]
    own = {"libQt6Core.so.6"}
    assert not list(ubuntu.unpackaged(linked, own, ["libc6", "zlib1g"]))
    missing = "no package of Depends has libz.so.1, to which 1 are linked, as x.so is"
    assert list(ubuntu.unpackaged(linked, own, ["libc6"])) == [missing]
    plugin = binary(library="libmlx5.so.1", path="nvidia/cu13/lib/libcufile_rdma.so.1")
    assert not list(ubuntu.unpackaged([plugin], own, []))


@needs_dpkg
def test_a_package_is_refused_that_ubuntu_lacks_or_has_in_an_older_version() -> None:
    asked = ubuntu.parse_depends("libc6 (>= 2.35), libpulse0, libx11-xcb1 (>= 2:1.8.4), libnew5")
    assert asked == {"libc6": "2.35", "libpulse0": None, "libx11-xcb1": "2:1.8.4", "libnew5": None}
    assert list(ubuntu.too_old(asked)) == [
        "libx11-xcb1 is wanted in 2:1.8.4, and Ubuntu 22.04 has 2:1.7.5-1",
        "libnew5 is in no table of Ubuntu's packages",
    ]
    with pytest.raises(ValueError, match="is not understood"):
        ubuntu.parse_depends("libc6 (>= 2.35), a | b")


def test_packages_that_the_set_up_installs_exist_there(repository: Path) -> None:
    libraries = runpy.run_path(str(repository / "packaging" / "system_libraries.py"))["RUN_LIBRARIES"]
    assert len(libraries) > 10
    assert libraries.keys() <= ubuntu.PACKAGES.keys()


@pytest.fixture
def qt(tmp_path: Path) -> Path:
    """A folder with Qt's core, which calls zstd, and what it is linked to of its own wheel."""
    pyside = pytest.importorskip("PySide6")
    folder = tmp_path / "bundle"
    folder.mkdir()
    for file in (Path(pyside.__file__).parent / "Qt" / "lib").glob("lib*"):
        if file.name.startswith(("libQt6Core.so", "libicu")):
            (folder / file.name).hardlink_to(file)
    return folder


@needs_binutils
@needs_dpkg
@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files")
def test_a_bundle_is_read_and_compared_with_the_field(
    qt: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    depends = "libc6 (>= 2.34), libgcc-s1, libglib2.0-0, libstdc++6, libzstd1 (>= 1.3), zlib1g"
    checks = Checks()
    ubuntu.check_ubuntu(checks, qt, depends)
    printed = capsys.readouterr().out
    assert (checks.failures, checks.total) == (0, 3), printed
    assert "GLIBC_2." in printed
    assert "libglib2.0-0 is provided by libglib2.0-0t64" in printed
    monkeypatch.setattr(ubuntu, "ZSTD_FUNCTIONS", set())
    ubuntu.check_ubuntu(checks, qt, depends.replace("1.3", "1.5.2"))
    printed = capsys.readouterr().out
    assert checks.failures == 2, printed
    assert "calls ZSTD_decompress" in printed
    assert "libzstd1 is wanted in 1.5.2" in printed


@needs_binutils
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_a_program_that_was_linked_here_is_read(tmp_path: Path) -> None:
    source = '#include <stdlib.h>\nint main(void) { return (int) strtol(getenv("X"), 0, 10); }\n'
    (tmp_path / "x.c").write_text(source)
    subprocess.run(["gcc", "-o", tmp_path / "x", tmp_path / "x.c"], check=True)
    (read,) = ubuntu.read_binaries(tmp_path)
    assert read.libraries == {"libc.so.6"}
    assert any(name.startswith("GLIBC_2.") for name in read.versions["libc.so.6"])
