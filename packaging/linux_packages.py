"""Packages of a frozen bundle for Linux: .tar.zst, .deb, and the AppDir of an AppImage.

In: the folder that PyInstaller made. Out: files and folders beside it. What a package says about itself is in
packaging/bundle/linux, with @NAMES@ that are replaced here. Used by packaging/build.py; needs tar and zstd
and, for .deb, dpkg-dev. Standard library only.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

FILES = Path(__file__).resolve().parent / "bundle" / "linux"
ICON = Path(__file__).resolve().parent.parent / "assets" / "icons" / "moss-voice.svg"
NAME = "moss-voice"
APPLICATION_ID = "io.github.moss_voice.MossVoice"
EXECUTABLES = ("moss-voice", "moss-voice-window")
PROGRAMS = (
    *(f"usr/lib/{NAME}/{name}" for name in EXECUTABLES),
    f"usr/lib/{NAME}/_internal/torch/bin/torch_shm_manager",
)
_DRIVER = ("libcuda.so", "libnvidia-ml.so")
# Opened by name at run time, so that no library of the bundle lists them: sound, fonts, key maps.
OPENED_BY_NAME = ("fonts-dejavu-core", "libasound2-plugins", "libportaudio2", "libpulse0", "xkb-data")
_SONAME = re.compile(r"(.+)\.so\.(.+)")


class Compression(NamedTuple):
    """How the files of a package are compressed."""

    archive: str
    """The command for the .tar.zst."""
    deb: tuple[str, ...]
    """Options of dpkg-deb."""


# Higher levels take minutes more for a few percent. lintian refuses .deb files with zstd.
RELEASE = Compression("zstd -12 -T0 --long=27", ("-Zxz", "-z3"))
# 8 and 16 % larger, in 17 seconds of processor time instead of nine minutes; all supported systems read both.
TRIAL = Compression("zstd -3 -T0 --long=27", ("-Zzstd", "-z3"))


def make_all(
    bundle: Path, out: Path, name: str, version: str, date: int, compression: Compression = RELEASE
) -> list[Path]:
    """All packages that can be made here, as files in `out`; `date` is given to files, in seconds since 1970.

    Raises subprocess.CalledProcessError for a tool that fails.
    """
    made = [make_archive(bundle, out / f"{name}.tar.zst", date, compression)]
    make_appdir(bundle, out / f"{name}.AppDir", version, date)
    print(f"{name}.AppDir is finished by {FILES / 'make-appimage.sh'}", flush=True)
    if shutil.which("dpkg-shlibdeps"):
        made.append(make_deb(bundle, out, version, date, compression))
    else:
        print("No .deb: install dpkg-dev to make one.", flush=True)
    return made


def make_archive(bundle: Path, target: Path, date: int, compression: Compression = RELEASE) -> Path:
    """The bundle as .tar.zst, with the same bytes for the same files."""
    options = [
        "--sort=name",
        f"--mtime=@{date}",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mode=u+w,go-w",
    ]
    command = ["tar", *options, "-I", compression.archive, "-cf", str(target)]
    command += ["-C", str(bundle.parent), bundle.name]
    subprocess.run(command, check=True)
    return target


def make_appdir(bundle: Path, folder: Path, version: str, date: int) -> Path:
    """The folder that appimagetool turns into an AppImage."""
    shutil.rmtree(folder, ignore_errors=True)
    _install(bundle, folder, version, date)
    shutil.copy(FILES / "AppRun", folder)
    shutil.copy(FILES / f"{APPLICATION_ID}.desktop", folder)
    shutil.copy(ICON, folder / f"{APPLICATION_ID}.svg")
    return folder


def make_deb(bundle: Path, out: Path, version: str, date: int, compression: Compression = RELEASE) -> Path:
    """The Debian package. Its dependencies are what the libraries in the bundle are linked to and lack."""
    architecture = _output("dpkg", "--print-architecture")
    with tempfile.TemporaryDirectory(dir=out) as name:
        root = Path(name) / "root"
        _install(bundle, root, version, date)
        control = root / "DEBIAN"
        control.mkdir()
        documents = root / "usr/share/doc" / NAME
        documents.mkdir(parents=True)
        shutil.copy(FILES / "copyright", documents)
        _compress(_changelog(version, date), documents / "changelog.gz")
        _place(FILES / "lintian-overrides", root / "usr/share/lintian/overrides" / NAME)
        fields = {
            "VERSION": version,
            "ARCHITECTURE": architecture,
            "SIZE_KIB": str(sum(file.lstat().st_size for file in root.rglob("*")) // 1024),
            "DEPENDS": ", ".join(dependencies(root / "usr/lib" / NAME, Path(name))),
        }
        (control / "control").write_text(fill(FILES / "control", fields), encoding="utf-8")
        (control / "md5sums").write_text("".join(_md5_lines(root)), encoding="utf-8")
        _set_modes(root)
        target = out / f"{NAME}_{version}_{architecture}.deb"
        command = ["dpkg-deb", "--root-owner-group", *compression.deb, "--build", str(root), str(target)]
        subprocess.run(command, check=True, env=os.environ | {"SOURCE_DATE_EPOCH": str(date)})
    return target


def dependencies(folder: Path, work: Path) -> list[str]:
    """The Debian packages, with versions, that the program in `folder` needs on this system."""
    (work / "debian").mkdir()
    (work / "debian" / "control").write_text(f"Source: {NAME}\n\nPackage: {NAME}\nArchitecture: any\n")
    (work / "debian" / "shlibs.local").write_text(_shlibs(folder), encoding="utf-8")
    files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
    binaries = [file for file in files if _is_elf(file)]
    private = sorted({f"-l{file.parent}" for file in binaries})
    asked = [file for file in binaries if not _is_of_cuda(file, folder)]
    command = ["dpkg-shlibdeps", "-O", "--ignore-missing-info", *private, *map(str, asked)]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error:" in line]
        print(*errors, "Install the packages of these libraries.", sep="\n", flush=True)
        done.check_returncode()
    linked = done.stdout.strip().partition("=")[2].split(", ")
    return sorted({*linked, *OPENED_BY_NAME})


def _shlibs(folder: Path) -> str:
    """Entries that dpkg-shlibdeps prefers to Debian's: those of shlibs.local, and one without a package
    for each library of the bundle, which it would otherwise look for in the system as well."""
    names = {file.name for file in folder.rglob("*.so.*")}
    own = [found.expand(r"\1 \2\n") for name in sorted(names) if (found := _SONAME.fullmatch(name))]
    return (FILES / "shlibs.local").read_text(encoding="utf-8") + "".join(own)


def _is_of_cuda(binary: Path, folder: Path) -> bool:
    """Whether it needs the driver of an NVIDIA GPU, which is in no package, or is one of NVIDIA's libraries,
    which need glibc alone beside it and load their plugins where they can."""
    if "nvidia" in binary.relative_to(folder).parts:
        return True
    done = subprocess.run(["objdump", "-p", str(binary)], capture_output=True, text=True, check=False)
    needed = re.findall(r"^\s+NEEDED\s+(\S+)", done.stdout, re.MULTILINE)
    return any(name.startswith(_DRIVER) for name in needed)


def fill(template: Path, fields: dict[str, str]) -> str:
    """The text of a template with its @NAMES@ replaced. KeyError for a name that `fields` lacks."""
    return re.sub(r"@([A-Z_]+)@", lambda found: fields[found[1]], template.read_text(encoding="utf-8"))


def _install(bundle: Path, root: Path, version: str, date: int) -> None:
    """Put the program below `root`, as a distribution does; its large files are linked, not copied."""
    program, share = root / "usr/lib" / NAME, root / "usr/share"
    program.parent.mkdir(parents=True)
    shutil.copytree(bundle, program, symlinks=True, copy_function=os.link)
    commands = root / "usr/bin"
    commands.mkdir()
    fields = {"VERSION": version, "DATE": datetime.fromtimestamp(date, UTC).date().isoformat()}
    manual = fill(FILES / "moss-voice.1", fields)
    for name in EXECUTABLES:
        (commands / name).symlink_to(f"../lib/{NAME}/{name}")
        _compress(manual, share / "man/man1" / f"{name}.1.gz")
    _place(FILES / f"{APPLICATION_ID}.desktop", share / "applications" / f"{APPLICATION_ID}.desktop")
    _place(ICON, share / "icons/hicolor/scalable/apps" / f"{APPLICATION_ID}.svg")
    metainfo = share / "metainfo" / f"{APPLICATION_ID}.metainfo.xml"
    metainfo.parent.mkdir()
    metainfo.write_text(fill(FILES / metainfo.name, fields), encoding="utf-8")


def _place(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def _compress(text: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(text.encode(), mtime=0))


def _changelog(version: str, date: int) -> str:
    stamp = datetime.fromtimestamp(date, UTC).strftime("%a, %d %b %Y %H:%M:%S +0000")
    maintainer = re.search(r"^Maintainer: (.*)$", (FILES / "control").read_text(encoding="utf-8"), re.M)
    assert maintainer is not None
    return (
        f"{NAME} ({version}) stable; urgency=medium\n\n"
        f"  * See /usr/lib/{NAME}/CHANGELOG.md.\n\n"
        f" -- {maintainer[1]}  {stamp}\n"
    )


def _md5_lines(root: Path) -> Iterator[str]:
    for file in sorted((root / "usr").rglob("*")):
        if file.is_file() and not file.is_symlink():
            with file.open("rb") as stream:
                yield f"{hashlib.file_digest(stream, 'md5').hexdigest()}  {file.relative_to(root)}\n"


def _set_modes(root: Path) -> None:
    """Folders and programs 755, other files 644, whatever the umask and the wheels say."""
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            is_program = path.is_dir() or str(path.relative_to(root)) in PROGRAMS
            path.chmod(0o755 if is_program else 0o644)


def _is_elf(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
