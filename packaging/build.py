#!/usr/bin/env python3
"""Make what people install: a PyInstaller bundle, packages of it, a wheel and an sdist.

    python3 packaging/build.py              with the CPU build of torch
    python3 packaging/build.py --gpu        with the CUDA build, for one known machine (several GB)
    python3 packaging/build.py --trial      packages that are only tried: larger, in a fraction of the time

In: a checkout and the package index. Out: files in build/package, and on stdout what takes the room in the
bundle. Everything is installed into an environment of its own, as wheels with the hashes of packaging/locks
(packaging/build_lock.py), from whatever index they come. A bundle runs where glibc is not older than on the
machine it was made on. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import os
import platform
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import bootstrap
import linux_packages
import triton_launcher

ROOT = bootstrap.ROOT
BUNDLE = ROOT / "packaging" / "bundle"
TOOLS = (
    *("build", "cyclonedx-python-lib", "pyinstaller", "pyinstaller-hooks-contrib"),
    *("setuptools", "wheel"),
)
LOCKS = ROOT / "packaging" / "locks"
GPU_LOCK = ROOT / "app" / "gpu_runtime" / "pylock.gpu.toml"
LOCKED = (3, 11)
"""The Python whose wheels are locked."""
HAS_GPU_RUNTIME = sys.platform == "linux" and platform.machine() == "x86_64"
"""Whether its wheels are for this system."""
DOCUMENTS = ("LICENSE", "NOTICE", "CHANGELOG.md")
SBOM = "moss-voice.cdx.json"
"""What packaging/sbom.py writes into the bundle."""
LARGEST_PARTS = 12


def main() -> int:
    """Parse the command line and carry it out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--cpu", action="store_true", help="the CPU build of torch (the default)")
    kind.add_argument("--gpu", action="store_true", help="the CUDA build of torch, about 3 GB to download")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "package", metavar="DIR", help="default: build/package"
    )
    parser.add_argument("--only-wheel", action="store_true", help="stop after the wheel and the sdist")
    parser.add_argument("--trial", action="store_true", help="compress fast: packages to try, not to publish")
    arguments = parser.parse_args()
    if sys.version_info[:2] != LOCKED:
        print("Start this script with python3.11: the hashes of its wheels are locked.", file=sys.stderr)
        return 1
    try:
        build(
            arguments.out.resolve(),
            gpu=arguments.gpu,
            only_wheel=arguments.only_wheel,
            compression=linux_packages.TRIAL if arguments.trial else linux_packages.RELEASE,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"The build failed: {error}. The lines above give the reason.", file=sys.stderr)
        return 1
    return 0


def build(out: Path, *, gpu: bool, only_wheel: bool, compression: linux_packages.Compression) -> None:
    """Make everything in `out`, whose earlier results are replaced; its environment is used again.

    Raises subprocess.CalledProcessError for a tool that fails, OSError for files.
    """
    out.mkdir(parents=True, exist_ok=True)
    environment = out / ("environment-gpu" if gpu else "environment")
    python = make_environment(environment, gpu=gpu, only_tools=only_wheel)
    wheel, sdist = make_wheel(python, out)
    artefacts = [wheel, sdist]
    if not only_wheel:
        pip(python, "install", "--no-deps", "--force-reinstall", str(wheel))
        bundle = freeze(python, out)
        report_sizes(bundle)
        name = f"moss-voice-{version()}-{'gpu-' if gpu else ''}{sys.platform}-{platform.machine()}"
        artefacts.append(Path(shutil.copy(bundle / SBOM, out / f"{name}.cdx.json")))
        if sys.platform == "linux":
            artefacts += linux_packages.make_all(bundle, out, name, version(), source_date(), compression)
    report_hashes(artefacts, out / "SHA256SUMS")


def make_environment(folder: Path, *, gpu: bool, only_tools: bool) -> Path:
    """The interpreter of an environment with the tools and, unless `only_tools`, all that the program has."""
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    mark = folder / "complete"
    wanted = fingerprint(gpu=gpu, only_tools=only_tools)
    if mark.is_file() and wanted in mark.read_text(encoding="utf-8").split():
        return python
    say(f"Making the environment {folder}")
    venv.EnvBuilder(with_pip=True, clear=True).create(folder)
    install_locked(python, LOCKS / "tools.txt")
    if not only_tools:
        install_torch(python, folder, gpu)
        install_locked(python, LOCKS / "program.txt")
    marks = {wanted, fingerprint(gpu=gpu, only_tools=True)}
    mark.write_text("\n".join(sorted(marks)) + "\n", encoding="utf-8")
    return python


def install_torch(python: Path, folder: Path, gpu: bool) -> None:
    """The wanted build of torch, of the first source that has it. Raises subprocess.CalledProcessError."""
    if gpu:
        wanted = folder / "torch-cuda.txt"
        wanted.write_text(requirements_of(GPU_LOCK), encoding="utf-8")
        install_locked(python, wanted)
        return
    *others, last = bootstrap.CPU_TORCH_SOURCES
    for source in others:
        with contextlib.suppress(subprocess.CalledProcessError):
            install_locked(python, LOCKS / "torch-cpu.txt", *source)
            return
        say("The package index has no CPU build of torch; taking it from that of PyTorch.")
    install_locked(python, LOCKS / "torch-cpu.txt", *last)


def requirements_of(lock: Path) -> str:
    """A lock file (PEP 751) as requirements with hashes, which pip of Python 3.11 reads."""
    lines = []
    for package in tomllib.loads(lock.read_text(encoding="utf-8"))["packages"]:
        hashes = [f"--hash=sha256:{wheel['hashes']['sha256']}" for wheel in package["wheels"]]
        lines.append(" ".join([f"{package['name']}=={package['version']}", *hashes]) + "\n")
    return "".join(lines)


def install_locked(python: Path, lock: Path, *options: str) -> None:
    """Install all of a file, and nothing else. pip refuses what has another hash, and sdists, which would run
    code. Raises subprocess.CalledProcessError."""
    pip(
        python,
        *("install", "--require-hashes", "--only-binary", ":all:", "--no-deps"),
        *("--requirement", str(lock), *options),
    )


def fingerprint(*, gpu: bool, only_tools: bool) -> str:
    """A hash of what determines the packages in the environment."""
    digest = hashlib.sha256(f"{sys.version_info[:3]} {gpu} {only_tools}".encode())
    for file in (*sorted(LOCKS.glob("*.txt")), GPU_LOCK, Path(__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def make_wheel(python: Path, out: Path) -> tuple[Path, Path]:
    """The wheel and the sdist in `out`. The wheel is made of the sdist, which shows that that is complete."""
    say("Making the sdist and, of it, the wheel")
    for old in (*out.glob("moss_voice-*.whl"), *out.glob("moss_voice-*.tar.gz")):
        old.unlink()
    shutil.rmtree(ROOT / "moss_voice.egg-info", ignore_errors=True)  # its list of files adds to the sdist's
    run([str(python), "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)], quiet=True)
    wheel, sdist = next(out.glob("moss_voice-*.whl")), next(out.glob("moss_voice-*.tar.gz"))
    normalize_archive(sdist, source_date())
    return wheel, sdist


def normalize_archive(file: Path, date: int) -> None:
    """Give a .tar.gz the same bytes for the same files: in order, of one date (in seconds since 1970)."""
    target = file.with_suffix(".new")
    with (
        tarfile.open(file) as found,
        target.open("wb") as stream,
        gzip.GzipFile("", "wb", fileobj=stream, mtime=date) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as written,
    ):
        for member in sorted(found.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = date, 0, 0, "", ""
            member.mode, member.pax_headers = 0o755 if member.mode & 0o100 else 0o644, {}
            written.addfile(member, found.extractfile(member) if member.isfile() else None)
    target.replace(file)


def freeze(python: Path, out: Path) -> Path:
    """The folder of the bundle: the executables, _internal, documents and bill of materials."""
    say("Freezing (some minutes)")
    command = [str(python), "-m", "PyInstaller", "--noconfirm", "--log-level", "WARN"]
    command += ["--distpath", str(out / "dist"), "--workpath", str(out / "work")]
    run([*command, str(BUNDLE / "moss-voice.spec")], quiet=True, folder=out)
    bundle = out / "dist" / "moss-voice"
    if sys.platform == "linux":  # where a window needs no executable of its own
        (bundle / "moss-voice-window").symlink_to("moss-voice")
    for name in DOCUMENTS:
        shutil.copy(ROOT / name, bundle / name)
    for text in sorted((BUNDLE / "licenses").iterdir()):  # the wheels lack them; LGPL-3 adds to GPL-3
        shutil.copy(text, bundle / "_internal" / "licenses" / text.name)
    if HAS_GPU_RUNTIME:
        triton_launcher.add(download_triton(python, out / "work"), bundle)
    script = ROOT / "packaging" / "sbom.py"
    run([str(python), str(script), str(bundle), version(), str(source_date())], quiet=True)
    return bundle


def download_triton(python: Path, folder: Path) -> Path:
    """The wheel of Triton that the GPU runtime locks. Raises subprocess.CalledProcessError."""
    say("Compiling what starts Triton's kernels")
    lines = requirements_of(GPU_LOCK).splitlines()
    line = next(line for line in lines if line.startswith("triton=="))
    wanted = folder / "triton.txt"
    wanted.write_text(line, encoding="utf-8")
    options = ("--require-hashes", "--only-binary", ":all:", "--no-deps", "--dest", str(folder))
    pip(python, "download", *options, "--requirement", str(wanted))
    return next(folder.glob(f"{line.split()[0].replace('==', '-')}-*.whl"))


def report_sizes(bundle: Path) -> None:
    """Print the size of the bundle, and of its largest parts."""
    sizes: Counter[str] = Counter()
    for file in bundle.rglob("*"):
        if file.is_file() and not file.is_symlink():
            sizes[part_of(file.relative_to(bundle))] += file.stat().st_size
    say(f"{bundle}: {sizes.total() / 1e6:.0f} MB, of which")
    for name, size in sizes.most_common(LARGEST_PARTS):
        say(f"{size / 1e6:8.1f} MB  {name}")


def part_of(file: Path) -> str:
    """What a file of the bundle counts as: its package, with torch's main library by itself."""
    if file.name.startswith("libtorch_"):
        return file.name
    inside = file.parts[1:] if file.parts[0] == "_internal" else file.parts
    return inside[0] if len(inside) > 1 else "Python, other libraries, executables"


def report_hashes(files: Iterable[Path], target: Path) -> None:
    """Print name and size of each file, and write their hashes to `target`."""
    lines = []
    for file in files:
        with file.open("rb") as stream:
            lines.append(f"{hashlib.file_digest(stream, 'sha256').hexdigest()}  {file.name}\n")
        say(f"{file.stat().st_size / 1e6:8.1f} MB  {file}")
    target.write_text("".join(lines), encoding="utf-8")


def version() -> str:
    """The version of the program."""
    return str(runpy.run_path(str(ROOT / "app" / "version.py"))["VERSION"])


def source_date() -> int:
    """Seconds since 1970 that files in the packages carry: SOURCE_DATE_EPOCH, else the last commit's."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return int(found) if found else int((ROOT / "pyproject.toml").stat().st_mtime)


def pip(python: Path, command: str, *words: str) -> None:
    """Run pip. Raises subprocess.CalledProcessError."""
    run([str(python), "-m", "pip", command, "-q", "--disable-pip-version-check", *words])


def run(command: list[str], *, quiet: bool = False, folder: Path = ROOT) -> None:
    """Run a tool, with dates and hashes fixed; `quiet` shows its output only if it fails."""
    sys.stdout.flush()
    fixed = {"SOURCE_DATE_EPOCH": str(source_date()), "PYTHONHASHSEED": "1"}
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    output = subprocess.PIPE if quiet else None
    done = subprocess.run(
        command, cwd=folder, env=environment | fixed, stdout=output, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode != 0:
        sys.stdout.buffer.write(done.stdout or b"")
        sys.stdout.flush()
    done.check_returncode()


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
