"""Whether the packages fit Ubuntu 22.04 and 24.04, without a bare machine of these: part of package_smoke.

In: the bundle of an archive, and what the .deb depends on. Out: checks that read the ELF files of the bundle.
Ubuntu 22.04 must have each symbol version that they ask of the system, a package of Depends each library of
the system, and both releases these packages, new enough. The tables below say what Ubuntu has, since its
archives cannot be read here; what is not in them fails. Main thread.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.tools.checks import Checks, require

NEWEST = {
    # glibc 2.35 and GCC 12.3, which manylinux_2_35 (PEP 600) allows as well.
    "GLIBC": "2.35",
    "GLIBCXX": "3.4.30",
    "CXXABI": "1.3.13",
    "GCC": "12.0.0",
    "GOMP": "5.1",
    "OMP": "5.1",
    "ZLIB": "1.2.9",
    "V": "1.0.0",  # of libxkbcommon
    "LIBDBUS_1": "3",
    "LIBFFI_BASE": "8.0",
    "LIBFFI_CLOSURE": "8.0",
    "XZ": "5.0",
}
"""Prefix of a symbol version -> the newest one of Ubuntu 22.04."""


class UbuntuPackage(NamedTuple):
    """A package of Ubuntu."""

    jammy: str
    """Its version in 22.04."""
    noble: str | None = None
    """Its name in 24.04 if the 64-bit time_t has changed it; it provides the older name, with a version."""
    libraries: tuple[str, ...] = ()
    """The libraries in it that programs are linked to."""


GLIBC = (
    *(
        "ld-linux-x86-64.so.2",
        "libc.so.6",
        "libdl.so.2",
        "libm.so.6",
        "libmvec.so.1",
        "libpthread.so.0",
        "libresolv.so.2",
    ),
    *("librt.so.1", "libutil.so.1"),
)
PACKAGES = {
    "fonts-dejavu-core": UbuntuPackage("2.37-2build1"),
    "libasound2-plugins": UbuntuPackage("1.2.6-1"),
    "libc6": UbuntuPackage("2.35-0ubuntu3", libraries=GLIBC),
    "libdbus-1-3": UbuntuPackage("1.12.20-2ubuntu4", libraries=("libdbus-1.so.3",)),
    "libegl1": UbuntuPackage("1.4.0-1", libraries=("libEGL.so.1",)),
    "libffi8": UbuntuPackage("3.4.2-4", libraries=("libffi.so.8",)),
    "libfontconfig1": UbuntuPackage("2.13.1-4.2ubuntu5", libraries=("libfontconfig.so.1",)),
    "libfreetype6": UbuntuPackage("2.11.1+dfsg-1build1", libraries=("libfreetype.so.6",)),
    "libgcc-s1": UbuntuPackage("12-20220319-1ubuntu1", libraries=("libgcc_s.so.1",)),
    "libgl1": UbuntuPackage("1.4.0-1", libraries=("libGL.so.1",)),
    "libglib2.0-0": UbuntuPackage(
        "2.72.1-1", "libglib2.0-0t64", libraries=("libglib-2.0.so.0", "libgthread-2.0.so.0")
    ),
    "libgomp1": UbuntuPackage("12-20220319-1ubuntu1", libraries=("libgomp.so.1",)),
    "liblzma5": UbuntuPackage("5.2.5-2ubuntu1", libraries=("liblzma.so.5",)),
    "libportaudio2": UbuntuPackage("19.6.0-1.1"),
    "libpulse0": UbuntuPackage("1:15.99.1+dfsg1-1ubuntu1"),
    "libstdc++6": UbuntuPackage("12-20220319-1ubuntu1", libraries=("libstdc++.so.6",)),
    "libwayland-client0": UbuntuPackage("1.20.0-1", libraries=("libwayland-client.so.0",)),
    "libwayland-cursor0": UbuntuPackage("1.20.0-1", libraries=("libwayland-cursor.so.0",)),
    "libwayland-egl1": UbuntuPackage("1.20.0-1", libraries=("libwayland-egl.so.1",)),
    "libx11-6": UbuntuPackage("2:1.7.5-1", libraries=("libX11.so.6",)),
    "libx11-xcb1": UbuntuPackage("2:1.7.5-1", libraries=("libX11-xcb.so.1",)),
    "libxcb-cursor0": UbuntuPackage("0.1.1-4ubuntu1", libraries=("libxcb-cursor.so.0",)),
    "libxcb-glx0": UbuntuPackage("1.14-3ubuntu3", libraries=("libxcb-glx.so.0",)),
    "libxcb-icccm4": UbuntuPackage("0.4.1-1.1build2", libraries=("libxcb-icccm.so.4",)),
    "libxcb-image0": UbuntuPackage("0.4.0-2", libraries=("libxcb-image.so.0",)),
    "libxcb-keysyms1": UbuntuPackage("0.4.0-1build3", libraries=("libxcb-keysyms.so.1",)),
    "libxcb-randr0": UbuntuPackage("1.14-3ubuntu3", libraries=("libxcb-randr.so.0",)),
    "libxcb-render-util0": UbuntuPackage("0.3.9-1build3", libraries=("libxcb-render-util.so.0",)),
    "libxcb-render0": UbuntuPackage("1.14-3ubuntu3", libraries=("libxcb-render.so.0",)),
    "libxcb-shape0": UbuntuPackage("1.14-3ubuntu3", libraries=("libxcb-shape.so.0",)),
    "libxcb-shm0": UbuntuPackage("1.14-3ubuntu3", libraries=("libxcb-shm.so.0",)),
    "libxcb-sync1": UbuntuPackage("1.14-3ubuntu3", libraries=("libxcb-sync.so.1",)),
    "libxcb-util1": UbuntuPackage("0.4.0-1build2", libraries=("libxcb-util.so.1",)),
    "libxcb-xfixes0": UbuntuPackage("1.14-3ubuntu3", libraries=("libxcb-xfixes.so.0",)),
    "libxcb-xkb1": UbuntuPackage("1.14-3ubuntu3", libraries=("libxcb-xkb.so.1",)),
    "libxcb1": UbuntuPackage("1.14-3ubuntu3", libraries=("libxcb.so.1",)),
    "libxkbcommon-x11-0": UbuntuPackage("1.4.0-1", libraries=("libxkbcommon-x11.so.0",)),
    "libxkbcommon0": UbuntuPackage("1.4.0-1", libraries=("libxkbcommon.so.0",)),
    "libzstd1": UbuntuPackage("1.4.8+dfsg-3build1", libraries=("libzstd.so.1",)),
    "xkb-data": UbuntuPackage("2.33-1"),
    "zlib1g": UbuntuPackage("1:1.2.11.dfsg-2ubuntu9", libraries=("libz.so.1",)),
}
"""What the .deb may depend on; of libraries without symbol versions, the version says what they have."""
ZSTD_FUNCTIONS = {"ZSTD_decompress", "ZSTD_getErrorName", "ZSTD_getFrameContentSize", "ZSTD_isError"}
"""The functions for which packaging/bundle/linux/shlibs.local states a version of libzstd."""
_DRIVER = ("libcuda.so", "libnvidia-ml.so")


@dataclass(frozen=True, slots=True)
class Binary:
    """An ELF file, and what it asks of others.

    Attributes:
        libraries: names of the libraries that it is linked to.
        versions: symbol versions that it asks of each of them.
    """

    path: Path
    libraries: frozenset[str]
    versions: dict[str, frozenset[str]]


def check_ubuntu(checks: Checks, bundle: Path, depends: str) -> None:
    """Read every ELF file of a bundle; `depends` is the field of the .deb."""
    binaries = list(read_binaries(bundle))
    own = {file.name for file in bundle.rglob("*.so*")}
    asked = parse_depends(depends)
    with checks.check("ubuntu 22.04: has the symbol versions") as notes:
        _require_none(newer_versions(binaries, own))
        notes.append(f"{len(binaries)} ELF files ask for at most {', '.join(newest_asked(binaries, own))}")
    with checks.check("ubuntu: all libraries of the system are in Depends"):
        _require_none(unpackaged(binaries, own, asked))
        _require_none(other_functions(binaries))
    with checks.check("ubuntu 22.04, 24.04: have the packages of Depends") as notes:
        _require_none(too_old(asked))
        notes.append(f"{len(asked)} packages")
        notes += [f"{name} is provided by {PACKAGES[name].noble}" for name in asked if PACKAGES[name].noble]


def _require_none(faults: Iterable[str]) -> None:
    found = list(faults)
    require(not found, "; ".join(found))


def parse_depends(field: str) -> dict[str, str | None]:
    """The packages of a field Depends, each with its least version or None. Raises ValueError."""
    asked: dict[str, str | None] = {}
    for entry in field.split(", "):
        found = re.fullmatch(r"(\S+)(?: \(>= (\S+)\))?", entry)
        if found is None:
            raise ValueError(f"{entry!r} is not understood")
        asked[found[1]] = found[2]
    return asked


def read_binaries(folder: Path) -> Iterator[Binary]:
    """All ELF files of a folder, as objdump shows them."""
    for file in sorted(folder.rglob("*")):
        if file.is_symlink() or not file.is_file():
            continue
        with file.open("rb") as stream:
            if stream.read(4) != b"\x7fELF":
                continue
        shown = subprocess.run(["objdump", "-p", file], capture_output=True, text=True, check=True)
        yield read_headers(file, shown.stdout)


def read_headers(file: Path, headers: str) -> Binary:
    """What `objdump -p` printed of a file."""
    needed = re.findall(r"^\s+NEEDED\s+(\S+)", headers, re.MULTILINE)
    versions: dict[str, set[str]] = {}
    for line in headers.partition("Version References:")[2].splitlines():
        if found := re.match(r"\s+required from (\S+):", line):
            names = versions.setdefault(found[1], set())
        elif found := re.match(r"\s+0x\w+ 0x\w+ \d+ (\S+)", line):
            names.add(found[1])
    return Binary(file, frozenset(needed), {name: frozenset(of) for name, of in versions.items()})


def newer_versions(binaries: Iterable[Binary], own: set[str]) -> Iterator[str]:
    """A sentence for each symbol version that Ubuntu 22.04 lacks; libraries of the bundle have their own."""
    for binary in binaries:
        for library, names in sorted(binary.versions.items()):
            for name in sorted(names) if library not in own else ():
                prefix, number = split_version(name)
                if prefix not in NEWEST or not number or number > _numbers(NEWEST[prefix]):
                    yield f"{binary.path.name} asks {library} for {name}"


def newest_asked(binaries: Iterable[Binary], own: set[str]) -> list[str]:
    """The newest symbol version of each prefix, of libraries that are not in the bundle."""
    names: set[str] = set()
    for binary in binaries:
        names.update(*(of for library, of in binary.versions.items() if library not in own))
    newest = {split_version(name)[0]: name for name in sorted(names, key=lambda name: split_version(name)[1])}
    return sorted(newest.values())


def split_version(name: str) -> tuple[str, tuple[int, ...]]:
    """`GLIBC_2.35` as ("GLIBC", (2, 35)); no numbers for a name without, as GLIBC_PRIVATE."""
    prefix, _, number = name.rpartition("_")
    return (prefix, _numbers(number)) if re.fullmatch(r"\d+(\.\d+)*", number) else (name, ())


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def unpackaged(binaries: Iterable[Binary], own: set[str], depends: Iterable[str]) -> Iterator[str]:
    """A sentence for each library that is neither in the bundle nor in a package of `depends`.

    NVIDIA's libraries load their plugins where they can, and a driver brings what they are linked to.
    """
    there = own.union(*(PACKAGES[name].libraries for name in depends if name in PACKAGES))
    linked: dict[str, list[str]] = {}
    for binary in binaries:
        if "nvidia" not in binary.path.parts:
            for library in binary.libraries - there:
                linked.setdefault(library, []).append(binary.path.name)
    for library, names in sorted(linked.items()):
        if not library.startswith(_DRIVER):
            yield f"no package of Depends has {library}, to which {len(names)} are linked, as {names[0]} is"


def other_functions(binaries: Iterable[Binary]) -> Iterator[str]:
    """A sentence for each function of zstd whose version nobody has looked up."""
    for binary in binaries:
        if "libzstd.so.1" in binary.libraries:
            shown = subprocess.run(["objdump", "-T", binary.path], capture_output=True, text=True, check=True)
            called = re.findall(r"\*UND\*.*\b((?:ZSTD|ZDICT)_\w+)$", shown.stdout, re.MULTILINE)
            for name in sorted(set(called) - ZSTD_FUNCTIONS):
                yield f"{binary.path.name} calls {name}: state in shlibs.local which libzstd has it"


def too_old(depends: dict[str, str | None]) -> Iterator[str]:
    """A sentence for each package that Ubuntu 22.04 lacks, or has in an older version."""
    for name, wanted in depends.items():
        if name not in PACKAGES:
            yield f"{name} is in no table of Ubuntu's packages"
        elif wanted is not None:
            compare = ["dpkg", "--compare-versions", PACKAGES[name].jammy, "ge", wanted]
            if subprocess.run(compare, check=False).returncode != 0:
                yield f"{name} is wanted in {wanted}, and Ubuntu 22.04 has {PACKAGES[name].jammy}"
