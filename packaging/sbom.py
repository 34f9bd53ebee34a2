"""Software bill of materials (CycloneDX) and licence report of a frozen bundle.

In: the folder that PyInstaller made, with the .dist-info of every package in it. Out, in that folder:
moss-voice.cdx.json and THIRD-PARTY-LICENSES.txt; the licences of libraries of the system go to
_internal/licenses beside those of the packages. Run by packaging/build.py with the interpreter of its
environment, which has cyclonedx-python-lib:

    python packaging/sbom.py BUNDLE VERSION DATE
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

import triton_launcher

SBOM, REPORT = "moss-voice.cdx.json", "THIRD-PARTY-LICENSES.txt"
OWN = "moss-voice"
OWN_LICENCE = "Apache-2.0"
MODELS = Path("_internal", "assets", "bundles")
# What a package does not say, or not as an SPDX expression; from the licence file that it brings.
KNOWN = {
    "bigvgan": "MIT",
    "cuda-toolkit": "LicenseRef-NVIDIA-Proprietary",  # no files: it only requires the wheels that have them
    "protobuf": "BSD-3-Clause",
    "pyinstaller": "GPL-2.0-or-later WITH Bootloader-exception",
    "python-xlib": "LGPL-2.1-or-later",
}
CLASSIFIED = {"Apache Software License": "Apache-2.0", "MIT License": "MIT", "BSD License": "BSD-3-Clause"}
LIBRARIES = {
    "libQt6": "LGPL-3.0-only",
    "libgfortran": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libgomp": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libicu": "Unicode-3.0",
    "libpyside6": "LGPL-3.0-only",
    "libquadmath": "LGPL-2.1-or-later",
    "libscipy_openblas": "BSD-3-Clause",
    "libshiboken6": "LGPL-3.0-only",
    "libsndfile": "LGPL-2.1-or-later",
}
"""Of libraries inside of packages, by the beginning of their names; the others have that of their package."""
SOURCES = {
    "numpy": "https://ftp.gnu.org/gnu/gcc/ (libquadmath)",
    "pyside6-essentials": (
        "https://download.qt.io/official_releases/QtForPython/pyside6/PySide6-{version}-src/ and, for Qt "
        "itself, https://download.qt.io/official_releases/qt/{minor}/{version}/"
    ),
    "shiboken6": "https://download.qt.io/official_releases/QtForPython/pyside6/PySide6-{version}-src/",
    "python-xlib": "_internal/Xlib, and https://pypi.org/project/python-xlib/{version}/#files",
    "soundfile": (
        "https://github.com/bastibe/libsndfile-binaries (of libsndfile with all that is linked into it)"
    ),
    "soxr": "https://pypi.org/project/soxr/{version}/#files (with libsoxr inside)",
    "tqdm": "_internal/tqdm, and https://pypi.org/project/tqdm/{version}/#files",
}
"""Where the source of packages under LGPL or MPL is, or of such libraries inside of them. The build fails for
one that is not listed."""
COPYLEFT = re.compile(r"LGPL|MPL")
INCOMPLETE = (
    "Not listed: what is linked statically into these files, such as OpenSSL into Python's ssl module where "
    "its build does so, oneDNN and others into torch, abseil and others into onnxruntime, Rust crates into "
    "tokenizers, safetensors, hf-xet and pydantic-core, WebRTC into pywebrtc-audio, FLAC, Ogg, Vorbis, "
    "Opus, mpg123 and LAME into libsndfile."
)
_LIBRARY = re.compile(r"\.so(\.|$)")


class UnknownLicenceError(Exception):
    """A package states no licence."""


@dataclass(frozen=True)
class Part:
    """Something that the bundle contains."""

    name: str
    version: str
    licence: str
    """An SPDX expression where the maker gives one."""
    purl: PackageURL
    kind: ComponentType = ComponentType.LIBRARY
    sha256: str | None = None
    needs: tuple[str, ...] = ()
    """Normalized names of the packages that it requires."""
    files: tuple[Part, ...] = field(default=())


def main() -> int:
    """Write both files."""
    bundle, version, date = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    try:
        write(bundle, version, date)
    except UnknownLicenceError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def write(bundle: Path, version: str, date: int) -> None:
    """Write both files into the bundle; `date` is what they carry, in seconds since 1970.

    Raises UnknownLicenceError.
    """
    found = [*packages(bundle), *triton(bundle)]
    parts = [python(), *found, *system_libraries(bundle), *models(bundle, version)]
    (bundle / SBOM).write_text(render(parts, version, date), encoding="utf-8")
    (bundle / REPORT).write_text(report(parts, bundle), encoding="utf-8")


# ---- what is inside ----


def python() -> Part:
    """The interpreter and its standard library."""
    version = platform.python_version()
    return Part("Python", version, "PSF-2.0", PackageURL("generic", None, "python", version))


def packages(bundle: Path) -> list[Part]:
    """The Python packages, by the metadata that is in the bundle."""
    found = metadata.distributions(path=[str(bundle / "_internal")])
    parts = (_package(one, bundle / "_internal") for one in found if one.name != OWN)
    return sorted(parts, key=lambda part: part.name.lower())


def _package(found: metadata.Distribution, inside: Path) -> Part:
    requirements = [Requirement(text) for text in found.requires or []]
    needed = [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    licence = licence_of(found)
    return Part(
        found.name,
        found.version,
        licence,
        PackageURL("pypi", None, normalized(found.name), found.version),
        files=tuple(_inner_libraries(found, inside, licence)),
        needs=tuple(sorted({normalized(one.name) for one in needed})),
    )


def _inner_libraries(found: metadata.Distribution, inside: Path, licence: str) -> Iterator[Part]:
    """The shared libraries that a package brings along, other than its own modules."""
    for name in sorted(str(file) for file in found.files or ()):
        file = inside / name
        is_module = "cpython" in file.name or ".abi3." in file.name
        if _LIBRARY.search(file.name) and not is_module and file.is_file():
            own = next((text for start, text in LIBRARIES.items() if file.name.startswith(start)), licence)
            purl = PackageURL("generic", normalized(found.name), file.name)
            yield Part(name, "", own, purl, sha256=sha256(file))


def licence_of(found: metadata.Distribution) -> str:
    """The licence that a package states: as an expression, else in words. Raises UnknownLicenceError."""
    fields = found.metadata
    classes = [
        text.split(" :: ")[-1] for text in fields.get_all("Classifier") or [] if text.startswith("License")
    ]
    stated = _field(fields, "License-Expression") or KNOWN.get(normalized(found.name))
    stated = stated or (CLASSIFIED.get(classes[0]) if len(classes) == 1 else None)
    words = _field(fields, "License").splitlines()
    if licence := stated or (words[0] if words else None) or " AND ".join(classes):
        return licence
    raise UnknownLicenceError(
        f"{found.name} states no licence: read its licence file and add it to KNOWN in sbom.py."
    )


def _field(fields: metadata.PackageMetadata, name: str) -> str:
    return fields[name].strip() if name in fields else ""


def system_libraries(bundle: Path) -> list[Part]:
    """The libraries that came from the machine that froze the bundle, by the package they belong to."""
    inside = bundle / "_internal"
    files = [
        file for file in sorted(inside.iterdir()) if _LIBRARY.search(file.name) and not file.is_symlink()
    ]
    names = [file for file in files if "cpython" not in file.name and not file.name.startswith("libpython")]
    return [_system_library(file, inside / "licenses") for file in names]


def _system_library(file: Path, licences: Path) -> Part:
    digest = sha256(file)
    package = _debian("dpkg-query", "--search", f"*/{file.name}").partition(":")[0]
    if not package:
        return Part(file.name, "", "unknown", PackageURL("generic", None, file.name), sha256=digest)
    version = _debian("dpkg-query", "--show", "--showformat=${Version}", package)
    text = Path("/usr/share/doc", package, "copyright")
    target = licences / f"{package}-{version.replace(':', '_')}"
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(text, target / "copyright")
    purl = PackageURL("deb", "debian", package, version)
    return Part(file.name, version, f"see {target.name}/copyright", purl, sha256=digest)


def triton(bundle: Path) -> list[Part]:
    """Triton, of which the bundle has what was compiled for the GPU runtime; none where it is a package."""
    inside = bundle / "_internal"
    file = bundle / triton_launcher.FOLDER / triton_launcher.COMPILED
    if not file.is_file() or any(inside.glob("triton-*.dist-info")):
        return []
    (licence,) = (inside / "licenses").glob("triton-*")
    name, _, version = licence.name.partition("-")
    purl = PackageURL("generic", name, file.name)
    own = Part(str(file.relative_to(inside)), "", "MIT", purl, sha256=sha256(file))
    return [Part(name, version, "MIT", PackageURL("pypi", None, name, version), files=(own,))]


def _debian(*command: str) -> str:
    """The first line that a tool of dpkg prints; "" where there is none, or nothing is found."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.partition("\n")[0].strip()


def models(bundle: Path, version: str) -> list[Part]:
    """The model bundles, with the hash of each of their files."""
    return [_model(folder, version) for folder in sorted((bundle / MODELS).iterdir()) if folder.is_dir()]


def _model(folder: Path, version: str) -> Part:
    manifest = tomllib.loads((folder / "bundle.toml").read_text(encoding="utf-8"))["bundle"]
    name, licence = str(manifest["name"]), str(manifest["licence"])
    files = tuple(
        Part(file.name, "", licence, PackageURL("generic", OWN, file.name), ComponentType.FILE, sha256(file))
        for file in sorted(folder.iterdir())
        if file.is_file()
    )
    kind = ComponentType.MACHINE_LEARNING_MODEL
    return Part(name, version, licence, PackageURL("generic", OWN, name, version), kind, files=files)


# ---- what is written ----


def render(parts: list[Part], version: str, date: int) -> str:
    """The bill of materials as JSON, the same for the same parts."""
    bom = Bom()
    bom.metadata.timestamp = datetime.fromtimestamp(date, UTC)
    own = Part(
        OWN, version, OWN_LICENCE, PackageURL("generic", None, OWN, version), ComponentType.APPLICATION
    )
    bom.metadata.component = _component(own)
    bom.metadata.properties.add(Property(name="moss-voice:incomplete", value=INCOMPLETE))
    components = {normalized(part.name): _component(part) for part in parts}
    for component in components.values():
        bom.components.add(component)
    for part in parts:
        needed = [components[name] for name in part.needs if name in components]
        bom.register_dependency(components[normalized(part.name)], needed)
    bom.register_dependency(bom.metadata.component, components.values())
    identity = " ".join(f"{part.purl} {part.sha256}" for part in parts)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"{own.purl} {date} {identity}")
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _component(part: Part) -> Component:
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=part.sha256)] if part.sha256 else []
    return Component(
        name=part.name,
        version=part.version or None,
        type=part.kind,
        bom_ref=str(part.purl) + (f"#{part.sha256}" if part.sha256 else ""),
        purl=part.purl,
        licenses=[LicenseFactory().make_from_string(part.licence)],
        hashes=hashes,
        components=[_component(file) for file in part.files],
    )


def report(parts: list[Part], bundle: Path) -> str:
    """The licence report: a line for each part, and where its licence text is."""
    texts = {folder.name for folder in (bundle / "_internal" / "licenses").iterdir()}
    rows = [(part.name, part.version, part.licence, _folder_of(part, texts)) for part in parts]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join(word.ljust(width) for word, width in zip(row, (*widths, 0), strict=True)) for row in rows
    ]
    head = (
        "What MOSS Voice contains besides its own code: name, version, licence as its maker states it, and\n"
        "the folder of _internal/licenses with the text. MOSS Voice itself is under Apache-2.0: LICENSE.\n"
    )
    inner = [f"  {file.name}: {file.licence}" for part in parts if not _is_model(part) for file in part.files]
    return "\n".join(
        [
            head,
            *(line.rstrip() for line in lines),
            "\nLibraries inside of these packages:\n",
            *inner,
            f"\n{INCOMPLETE}",
            "\nSource code of what is under the LGPL or the MPL:\n",
            *sources(parts),
            "\nThose under the LGPL lie in files of their own, which you may replace with versions that"
            "\nyou have changed; for that you may also take MOSS Voice apart. Nothing here checks them.\n",
        ]
    )


def _is_model(part: Part) -> bool:
    return part.kind == ComponentType.MACHINE_LEARNING_MODEL


def sources(parts: list[Part]) -> Iterator[str]:
    """A line for each package under the LGPL or the MPL. UnknownLicenceError for one without an address."""
    for part in parts:
        licences = [one.licence for one in (part, *part.files) if COPYLEFT.search(one.licence)]
        if part.purl.type != "pypi" or not licences:
            continue
        address = SOURCES.get(normalized(part.name))
        if address is None:
            raise UnknownLicenceError(
                f"{part.name} is under {licences[0]}: add the address of its source to SOURCES in sbom.py."
            )
        minor = ".".join(part.version.split(".")[:2])
        yield f"  {part.name} {part.version}: {address.format(version=part.version, minor=minor)}"


def _folder_of(part: Part, folders: set[str]) -> str:
    if part.name == "Python":
        return "python"
    wanted = normalized(f"{part.name}-{part.version}")
    return next((name for name in sorted(folders) if normalized(name) == wanted), "")


def normalized(name: str) -> str:
    """A name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def sha256(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
