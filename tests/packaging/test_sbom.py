from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import ModuleType

import pytest

DATE = 1700000000


def package(frozen: Path, name: str, *fields: str) -> None:
    folder = frozen / "_internal" / f"{name}-1.2.dist-info"
    folder.mkdir()
    text = "\n".join(["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.2", *fields])
    (folder / "METADATA").write_text(f"{text}\n")


@pytest.fixture
def bundle(frozen: Path) -> Path:
    """With two packages, a library and a model."""
    package(frozen, "First_One", "License-Expression: MIT OR Apache-2.0", "Requires-Dist: second>=1")
    package(frozen, "second", "Classifier: License :: OSI Approved :: MIT License")
    (frozen / "_internal" / "licenses" / "first_one-1.2").mkdir()
    (frozen / "_internal" / "libodd-of-no-package.so.1").write_bytes(b"library")
    model = frozen / "_internal" / "assets" / "bundles" / "nano"
    model.mkdir(parents=True)
    (model / "bundle.toml").write_text('[bundle]\nname = "nano"\nlicence = "Apache-2.0"\n')
    (model / "lm.safetensors").write_bytes(b"weights")
    return frozen


def test_every_part_of_the_bundle_is_listed(sbom: ModuleType, bundle: Path) -> None:
    sbom.write(bundle, "0.1.0", DATE)
    bill = json.loads((bundle / sbom.SBOM).read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    own = bill["metadata"]["component"]
    assert (own["name"], own["version"], own["type"]) == ("moss-voice", "0.1.0", "application")
    parts = {part["name"]: part for part in bill["components"]}
    assert set(parts) == {"Python", "First_One", "second", "libodd-of-no-package.so.1", "nano"}
    assert parts["First_One"]["purl"] == "pkg:pypi/first-one@1.2"
    assert parts["First_One"]["licenses"] == [{"expression": "MIT OR Apache-2.0"}]
    assert parts["second"]["licenses"] == [{"license": {"id": "MIT"}}]
    library = parts["libodd-of-no-package.so.1"]["hashes"]
    assert library == [{"alg": "SHA-256", "content": hashlib.sha256(b"library").hexdigest()}]
    files = {file["name"]: file["hashes"][0]["content"] for file in parts["nano"]["components"]}
    assert files["lm.safetensors"] == hashlib.sha256(b"weights").hexdigest()


def test_what_was_compiled_of_triton_is_listed(sbom: ModuleType, bundle: Path) -> None:
    inside = bundle / "_internal"
    folder = inside / "engine_runtime" / "cuda" / "launcher"
    folder.mkdir(parents=True)
    (folder / "cuda_utils.so").write_bytes(b"compiled")
    (inside / "licenses" / "triton-3.7.1").mkdir()
    (part,) = sbom.triton(bundle)
    assert (part.name, part.version, part.licence) == ("triton", "3.7.1", "MIT")
    assert [file.sha256 for file in part.files] == [hashlib.sha256(b"compiled").hexdigest()]
    sbom.write(bundle, "0.1.0", DATE)
    rows = (bundle / sbom.REPORT).read_text(encoding="utf-8").splitlines()
    assert ["triton", "3.7.1", "MIT", "triton-3.7.1"] in [row.split() for row in rows]
    # As a package, with torch for the GPU inside.
    package(bundle, "triton", "License-Expression: MIT")
    (inside / "triton-1.2.dist-info").rename(inside / "triton-3.7.1.dist-info")
    assert sbom.triton(bundle) == []


def test_what_needs_what_is_listed(sbom: ModuleType, bundle: Path) -> None:
    sbom.write(bundle, "0.1.0", DATE)
    bill = json.loads((bundle / sbom.SBOM).read_text(encoding="utf-8"))
    needs = {entry["ref"]: entry.get("dependsOn", []) for entry in bill["dependencies"]}
    assert needs["pkg:pypi/first-one@1.2"] == ["pkg:pypi/second@1.2"]
    assert len(needs[bill["metadata"]["component"]["bom-ref"]]) == len(bill["components"])


@pytest.mark.slow
def test_the_same_bundle_gives_the_same_bytes(sbom: ModuleType, bundle: Path) -> None:
    sbom.write(bundle, "0.1.0", DATE)
    first = (bundle / sbom.SBOM).read_bytes()
    sbom.write(bundle, "0.1.0", DATE)
    assert (bundle / sbom.SBOM).read_bytes() == first
    (bundle / "_internal" / "libodd-of-no-package.so.1").write_bytes(b"another")
    sbom.write(bundle, "0.1.0", DATE)
    another = json.loads((bundle / sbom.SBOM).read_text(encoding="utf-8"))
    assert another["serialNumber"] != json.loads(first)["serialNumber"]


def test_the_report_names_licence_and_text(sbom: ModuleType, bundle: Path) -> None:
    sbom.write(bundle, "0.1.0", DATE)
    rows = (bundle / sbom.REPORT).read_text(encoding="utf-8").splitlines()
    line = next(row for row in rows if row.startswith("First_One"))
    assert line.split() == ["First_One", "1.2", "MIT", "OR", "Apache-2.0", "first_one-1.2"]


def test_libraries_inside_of_packages_are_listed_and_what_is_not_is_said(
    sbom: ModuleType, bundle: Path
) -> None:
    inside = bundle / "_internal"
    (inside / "numpy.libs").mkdir()
    names = ("libscipy_openblas64_-1.so", "libgfortran-2.so.5", "libodd.so", "_core.cpython-311-x86.so")
    for name in names:
        (inside / "numpy.libs" / name).write_bytes(name.encode())
    package(bundle, "numpy", "License-Expression: BSD-3-Clause")
    record = "".join(f"numpy.libs/{name},,\n" for name in (*names, "libleft-out.so"))
    (inside / "numpy-1.2.dist-info" / "RECORD").write_text(record)
    sbom.write(bundle, "0.1.0", DATE)
    bill = json.loads((bundle / sbom.SBOM).read_text(encoding="utf-8"))
    parts = {part["name"]: part for part in bill["components"]}
    found = {part["name"].rpartition("/")[2]: part for part in parts["numpy"]["components"]}
    assert set(found) == set(names[:3])
    assert "GCC-exception" in json.dumps(found["libgfortran-2.so.5"]["licenses"])
    assert found["libodd.so"]["hashes"][0]["content"] == hashlib.sha256(b"libodd.so").hexdigest()
    (note,) = bill["metadata"]["properties"]
    assert "linked statically" in note["value"]
    assert note["value"] in (bundle / sbom.REPORT).read_text(encoding="utf-8")


def test_what_is_under_lgpl_or_mpl_has_the_address_of_its_source(sbom: ModuleType, bundle: Path) -> None:
    package(bundle, "PySide6_Essentials", "License-Expression: LGPL-3.0-only OR GPL-2.0-only")
    package(bundle, "soxr", "License-Expression: LGPL-2.1-or-later")
    sbom.write(bundle, "0.1.0", DATE)
    report = (bundle / sbom.REPORT).read_text(encoding="utf-8")
    assert "https://download.qt.io/official_releases/qt/1.2/1.2/" in report
    assert "soxr 1.2: https://pypi.org/project/soxr/1.2/#files" in report
    package(bundle, "soundfile", "License-Expression: BSD-3-Clause")
    library = bundle / "_internal" / "_soundfile_data" / "libsndfile_x86_64.so"
    library.parent.mkdir()
    library.write_bytes(b"sound")
    (bundle / "_internal" / "soundfile-1.2.dist-info" / "RECORD").write_text(
        "_soundfile_data/libsndfile_x86_64.so,,\n"
    )
    sbom.write(bundle, "0.1.0", DATE)
    report = (bundle / sbom.REPORT).read_text(encoding="utf-8")
    assert "_soundfile_data/libsndfile_x86_64.so: LGPL-2.1-or-later" in report
    assert "soundfile 1.2: https://github.com/bastibe/libsndfile-binaries" in report
    package(bundle, "new", "License-Expression: MPL-2.0")
    with pytest.raises(sbom.UnknownLicenceError, match=r"new is under MPL-2\.0: add the address"):
        sbom.write(bundle, "0.1.0", DATE)


def test_a_package_without_a_licence_stops_the_build(sbom: ModuleType, bundle: Path) -> None:
    package(bundle, "silent")
    with pytest.raises(sbom.UnknownLicenceError, match="silent states no licence"):
        sbom.packages(bundle)


def test_a_library_of_the_system_brings_its_licence(
    sbom: ModuleType, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"--search": "libbz2-1.0:amd64: /lib/libodd.so.1", "--show": "1:1.0.8-5"}
    monkeypatch.setattr(sbom, "_debian", lambda *command: answers[command[1]])
    monkeypatch.setattr(sbom.shutil, "copy", lambda source, target: Path(target).write_text(str(source)))
    (part,) = sbom.system_libraries(bundle)
    assert str(part.purl) == "pkg:deb/debian/libbz2-1.0@1:1.0.8-5"
    copied = bundle / "_internal" / "licenses" / "libbz2-1.0-1_1.0.8-5" / "copyright"
    assert copied.read_text() == "/usr/share/doc/libbz2-1.0/copyright"
    assert part.licence == "see libbz2-1.0-1_1.0.8-5/copyright"
