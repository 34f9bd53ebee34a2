from __future__ import annotations

import hashlib
import os
import re
import sys
import tarfile
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.factories.gpu_wheels import make_wheel


@pytest.fixture
def asked(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What pip was asked for; nothing is installed."""
    words: list[str] = []
    monkeypatch.setattr(build, "pip", lambda python, *command: words.append(" ".join(command)))
    monkeypatch.setattr(
        build.venv, "EnvBuilder", lambda **_: type("Builder", (), {"create": lambda self, f: f.mkdir()})()
    )
    return words


def test_the_tools_are_pinned(build: ModuleType) -> None:
    pins = set(re.findall(r"^([\w.-]+)==", build.bootstrap.CONSTRAINTS.read_text(), re.MULTILINE))
    assert {*build.TOOLS, "altgraph", "pyproject_hooks"} <= pins


@pytest.mark.slow
def test_a_package_with_another_hash_is_not_installed(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    make_wheel(tmp_path, "wanted", "1.0", {"wanted.py": "x = 1"})
    lock = tmp_path / "lock.txt"
    lock.write_text(f"wanted==1.0 --hash=sha256:{64 * '0'}\n")
    with pytest.raises(build.subprocess.CalledProcessError):
        build.install_locked(Path(sys.executable), lock, "--target", str(tmp_path / "installed"))
    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().out
    assert not (tmp_path / "installed" / "wanted.py").exists()


@pytest.mark.parametrize(("gpu", "torch"), [(False, "torch-cpu.txt"), (True, "torch-cuda.txt")])
def test_an_environment_is_made_once_with_one_build_of_torch(
    build: ModuleType, asked: list[str], tmp_path: Path, gpu: bool, torch: str
) -> None:
    python = build.make_environment(tmp_path / "environment", gpu=gpu, only_tools=False)
    assert python.is_relative_to(tmp_path)
    files = [Path(line.partition("--requirement ")[2].split()[0]) for line in asked]
    assert [file.name for file in files] == ["tools.txt", torch, "program.txt"]
    for line, file in zip(asked, files, strict=True):
        assert "--require-hashes --only-binary :all: --no-deps" in line
        entries = [entry for entry in re.split(r"\n(?! )", file.read_text()) if "==" in entry]
        assert entries
        assert all("--hash=sha256:" in entry for entry in entries), file
    asked.clear()
    build.make_environment(tmp_path / "environment", gpu=gpu, only_tools=False)
    build.make_environment(tmp_path / "environment", gpu=gpu, only_tools=True)
    assert not asked


def test_a_wheel_has_every_source_in_cuda_cpp(repository: Path) -> None:
    """NVRTC compiles them where the program runs."""
    settings = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    kernels = repository / "engine_runtime" / "cuda" / "kernels"
    patterns = settings["tool"]["setuptools"]["package-data"]["engine_runtime.cuda.kernels"]
    packaged = {file for pattern in patterns for file in kernels.glob(pattern)}
    sources = {file for file in (repository / "engine_runtime").rglob("*") if file.suffix in (".cu", ".cuh")}
    assert sources
    assert sources == packaged


def test_the_triton_of_the_gpu_runtime_is_compiled(
    build: ModuleType, asked: list[str], tmp_path: Path
) -> None:
    locked = tomllib.loads(build.GPU_LOCK.read_text(encoding="utf-8"))["packages"]
    (triton,) = (package for package in locked if package["name"] == "triton")
    for version in ("1.2.3", triton["version"]):
        (tmp_path / f"triton-{version}-cp311-cp311-linux_x86_64.whl").touch()
    wheel = build.download_triton(Path(sys.executable), tmp_path)
    assert wheel.name.startswith(f"triton-{triton['version']}-")
    (line,) = asked
    assert "--require-hashes --only-binary :all: --no-deps" in line
    wanted = Path(line.partition("--requirement ")[2]).read_text()
    assert all(wheel["hashes"]["sha256"] in wanted for wheel in triton["wheels"])
    assert wanted.count("==") == 1


def test_a_wheel_needs_the_tools_only(build: ModuleType, asked: list[str], tmp_path: Path) -> None:
    build.make_environment(tmp_path / "environment", gpu=False, only_tools=True)
    assert len(asked) == 1
    assert "tools.txt" in asked[0]
    tools = (build.LOCKS / "tools.txt").read_text()
    assert "pyinstaller==" in tools
    assert "torch" not in tools


@pytest.mark.skipif(sys.platform != "linux", reason="Windows has a second executable")
def test_the_bundle_gets_its_documents_and_the_name_of_the_window(
    build: ModuleType, frozen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = []

    def run(command: list[str], **_: object) -> None:
        if "PyInstaller" not in command:
            scripts.append(command[1:3])
            return
        assert command[command.index("--distpath") + 1] == str(frozen.parent)
        (frozen / "moss-voice-window").unlink()

    monkeypatch.setattr(build, "run", run)
    monkeypatch.setattr(build, "HAS_GPU_RUNTIME", False)
    bundle = build.freeze(Path(sys.executable), frozen.parent.parent)
    assert (bundle / "moss-voice-window").resolve() == bundle / "moss-voice"
    assert "Apache License" in (bundle / "LICENSE").read_text(encoding="utf-8")
    assert (bundle / "NOTICE").is_file()
    texts = {file.name for file in (bundle / "_internal" / "licenses").iterdir()}
    assert {"GPL-3.txt", "LGPL-3.txt", "LGPL-2.1.txt", "MPL-2.0.txt"} <= texts, "wherever it is built"
    assert scripts == [[str(build.ROOT / "packaging" / "sbom.py"), str(frozen)]]


def test_the_largest_parts_are_listed_first(
    build: ModuleType, frozen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build.report_sizes(frozen)
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].split() == ["3.0", "MB", "libtorch_cpu.so"]
    assert printed[2].split() == ["1.0", "MB", "torch"]


def test_hashes_are_written_as_sha256sum_reads_them(build: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "file.deb"
    file.write_bytes(b"packed")
    build.report_hashes([file], tmp_path / "SHA256SUMS")
    assert (tmp_path / "SHA256SUMS").read_text() == f"{hashlib.sha256(b'packed').hexdigest()}  file.deb\n"


def test_files_carry_the_date_that_was_given(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert build.source_date() == 1700000000


def test_a_tool_that_fails_ends_the_build_with_its_words(
    build: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(build.subprocess.CalledProcessError):
        build.run([sys.executable, "-c", "print('the reason'); raise SystemExit(3)"], quiet=True)
    assert "the reason" in capfd.readouterr().out


def test_an_sdist_has_the_same_bytes_whenever_it_is_made(build: ModuleType, tmp_path: Path) -> None:
    made = []
    for date, names in ((1_000, ("a", "b")), (2_000, ("b", "a"))):
        archive = tmp_path / f"{date}.tar.gz"
        with tarfile.open(archive, "w:gz") as written:
            for name in names:
                (tmp_path / name).write_text(name)
                (tmp_path / name).chmod(0o700 if name == "a" else 0o600)
                os.utime(tmp_path / name, (date, date))
                written.add(tmp_path / name, name)
        build.normalize_archive(archive, 5_000)
        made.append(archive.read_bytes())
    assert made[0] == made[1]
    with tarfile.open(archive) as found:
        members = found.getmembers()
        assert [found.extractfile(member).read() for member in members] == [b"a", b"b"]  # type: ignore[union-attr]
    assert [(member.mode, member.mtime) for member in members] == [(0o755, 5_000), (0o644, 5_000)]
