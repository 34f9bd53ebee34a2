"""Smoke test of the packages on a bare machine. Run by hand, as root, after packaging/build.py:

    python -m tests.tools.package_smoke build/package

In: the .tar.zst and the .deb of that folder. Out: a line for each check, pictures of the window, and exit
status 1 if a check failed. The machine is a root file system of Debian with nothing but the packages that the
.deb names, without Python, in a network namespace without a route (bare_root). Needs root, mmdebstrap and a
Debian mirror, zstd, dpkg-dev, Xvfb, pulseaudio, python-xlib. Main thread.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.tools.bare_root import HOME, PATH, BareRoot, CompletedRun, Mount
from tests.tools.checks import Checks, require
from tests.tools.package_smoke_gpu import check_gpu_runtime
from tests.tools.package_smoke_server import check_server
from tests.tools.package_smoke_ubuntu import check_ubuntu
from tests.tools.package_smoke_window import hold_window

ANSWERS = (
    *("help", "nano voice", "seven", "nine", "tuesday", "paris", "cold", "green"),
    *("nine, eight, seven, six, five", "yellow bicycle", "do not know"),
)
"""What the replies to the sample questions contain, in their order."""
DEMO = HOME / "demo"
# Blanks, umlauts and another script in the path.
ODD_FOLDER = Path("/srv/Prüf stand 测试")
SUFFIXES = (".tar.zst", ".deb")
NEEDED = ("mmdebstrap", "dpkg-deb", "objdump", "zstd", "Xvfb", "pulseaudio", "paplay", "unshare", "chroot")
OLD_FILE = "usr/lib/moss-voice/_internal/of_an_older_version"
_REPLY = re.compile(r"^ +reply +(\S.*)$", re.MULTILINE)


def main() -> int:
    """Make the machine and check both packages on it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", type=Path, help="the folder with the .tar.zst and the .deb")
    parser.add_argument("--suite", default="bookworm", help="release of Debian (default: %(default)s)")
    parser.add_argument(
        "--pictures", type=Path, metavar="DIR", help="where to put them (default: PACKAGES/smoke)"
    )
    arguments = parser.parse_args()
    if reason := refusal(arguments.packages):
        sys.stderr.write(f"{reason}\n")
        return 2
    archive, deb = (max(arguments.packages.glob(f"*{suffix}")) for suffix in SUFFIXES)
    pictures = arguments.pictures or arguments.packages / "smoke"
    pictures.mkdir(parents=True, exist_ok=True)
    os.environ["QT_QPA_PLATFORM"] = "offscreen"  # of this process, which draws the texts to look for
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="moss-voice-smoke-") as folder:
        Path(folder).chmod(0o755)
        root = BareRoot(Path(folder) / "root")
        root.make(arguments.suite, needed_packages(deb))
        bundle = unpack(archive, Path(folder))
        check_ubuntu(checks, bundle, field(deb, "Depends"))
        check_machine(checks, root)
        check_archive(checks, root, bundle, pictures)
        check_server(checks, root, bundle)
        check_gpu_runtime(checks, root, bundle, Path(folder))
        check_deb(checks, root, deb, pictures)
    sys.stdout.write(f"{checks.total - checks.failures} of {checks.total} checks passed\n")
    return 1 if checks.failures else 0


def refusal(packages: Path) -> str | None:
    """Why the test cannot be made here, if it cannot."""
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        return f"Install what is missing: {' '.join(missing)}"
    if os.geteuid() != 0:
        return "Start this as root: it makes a root file system and enters it."
    if lacking := [suffix for suffix in SUFFIXES if not list(packages.glob(f"*{suffix}"))]:
        return f"There is no {' and no '.join(lacking)} in {packages}: run packaging/build.py."
    return None


def needed_packages(deb: Path) -> list[str]:
    """What the .deb depends on, and the fonts among what it recommends, which are installed by default."""
    depends = field(deb, "Depends").split(", ")
    fonts = [name for name in field(deb, "Recommends").split(", ") if name.startswith("fonts-")]
    return [re.split(r"[ (|]", name)[0] for name in (*depends, *fonts)]


def field(deb: Path, name: str) -> str:
    """A field of the package's description."""
    shown = subprocess.run(["dpkg-deb", "-f", deb, name], capture_output=True, text=True, check=True)
    return shown.stdout.strip()


def unpack(archive: Path, folder: Path) -> Path:
    """The bundle of an archive."""
    command = ["tar", "-I", "zstd -d --long=27", "-xf", str(archive), "-C", str(folder)]
    subprocess.run(command, check=True)
    return folder / "moss-voice"


# ---- the machine ----


def check_machine(checks: Checks, root: BareRoot) -> None:
    """The conditions that the other checks rest on."""
    with checks.check("the machine has no Python"):
        require(root.run(["sh", "-c", "command -v python3 python"]).status != 0, "there is one")
    with checks.check("what is sent to the network is refused and counted"):
        sent = root.run(["bash", "-c", "echo >/dev/udp/192.0.2.1/9"])
        require(sent.status != 0 and sent.unroutable > 0, f"{sent.unroutable} counted")
        asked = root.run(["getent", "hosts", "debian.org"])
        require(asked.status != 0 and asked.unroutable > 0, f"{asked.unroutable} counted for a name")


# ---- the archive ----


def check_archive(checks: Checks, root: BareRoot, bundle: Path, pictures: Path) -> None:
    """The bundle where somebody unpacked it."""
    program = ODD_FOLDER / "moss-voice"
    mounts = (Mount(bundle, ODD_FOLDER, is_read_only=True),)
    with checks.check("archive: the sample conversation") as notes:
        ended = root.run([str(program), "demo", "--out-dir", str(DEMO)], mounts=mounts)
        notes.append(right_answers(ended))
        require(root.inside(DEMO / "reply.wav").stat().st_size > 500_000, "reply.wav is too short")
    with checks.check("archive: no use of the network"):
        require(ended.unroutable == 0, f"{ended.unroutable} attempts")
    with checks.check("archive: with another Python in PATH"):
        check_other_python(root, str(program), mounts)
    with checks.check("archive: doctor") as notes:
        notes.append(succeeded(root.run([str(program), "doctor"], mounts=mounts)).splitlines()[-1])
    with checks.check("archive: the window, in English") as notes:
        notes += hold_window(root, [str(program)], "en", pictures / "window-en.png", mounts)


def check_other_python(root: BareRoot, program: str, mounts: tuple[Mount, ...]) -> None:
    """Neither an interpreter in PATH nor Python's variables reach the frozen program."""
    traps = root.inside(HOME / "traps")
    traps.mkdir(exist_ok=True)
    for name in ("python", "python3"):
        (traps / name).write_text("#!/bin/sh\necho trapped >&2\nexit 7\n")
        (traps / name).chmod(0o755)
    for module in ("sitecustomize", "torch", "numpy"):
        (traps / f"{module}.py").write_text("raise SystemExit('trapped')\n")
    inside = str(HOME / "traps")
    variables = {
        "PATH": f"{inside}:{PATH}",
        "PYTHONPATH": inside,
        "PYTHONHOME": inside,
        "PYTHONSTARTUP": inside,
    }
    ended = root.run(
        [program, "talk", "--text", "what is two plus three", "--reply", "text"],
        mounts=mounts,
        environment=variables,
    )
    require("five" in succeeded(ended).lower(), ended.stdout)


def right_answers(ended: CompletedRun) -> str:
    """How many replies are right; CheckFailed unless all are."""
    replies = _REPLY.findall(succeeded(ended))
    wrong = [reply for reply, part in zip(replies, ANSWERS, strict=False) if part not in reply.lower()]
    require(len(replies) == len(ANSWERS), f"{len(replies)} replies")
    require(not wrong, f"wrong: {wrong}")
    return f"{len(replies)} of {len(ANSWERS)} answers right"


# ---- the package ----


def check_deb(checks: Checks, root: BareRoot, deb: Path, pictures: Path) -> None:
    """Installed over an older version, used, removed."""
    before = root.files()
    with checks.check("deb: an older version is installed"):
        install(root, older_version(root.folder.parent, field(deb, "Architecture")))
        require(root.inside(Path("/") / OLD_FILE).is_file(), "its files are missing")
    with checks.check("deb: upgrades it") as notes:
        install(root, deb)
        require(not root.inside(Path("/") / OLD_FILE).exists(), "a file of the older version is left")
        notes.append(succeeded(root.run(["moss-voice", "--version"])).strip())
    with checks.check("deb: answers"):
        ended = root.run(["moss-voice", "talk", "--text", "what is the capital of france", "--reply", "text"])
        require("paris" in succeeded(ended).lower(), ended.stdout)
    with checks.check("deb: the window, in Chinese") as notes:
        notes += hold_window(root, ["moss-voice-window"], "zh_CN", pictures / "window-zh.png")
    with checks.check("deb: is removed without residue"):
        succeeded(root.run(["dpkg", "--purge", "moss-voice"], is_root=True))
        left = sorted(root.files() - before)
        require(not left, f"{len(left)} left: {left[:5]}")


def install(root: BareRoot, deb: Path) -> None:
    """Hand a package to dpkg, which refuses it where a dependency is missing."""
    folder = Path("/mnt")
    ended = root.run(
        ["dpkg", "--install", str(folder / deb.name)], mounts=(Mount(deb.parent, folder),), is_root=True
    )
    succeeded(ended)


def older_version(folder: Path, architecture: str) -> Path:
    """A package of the same name with a file that the newer one lacks, and one that it replaces."""
    tree = folder / "older"
    control = f"Package: moss-voice\nVersion: 0.0.1\nArchitecture: {architecture}\n"
    control += "Maintainer: none <none@example.org>\nDescription: an older version\n"
    texts = {"DEBIAN/control": control, OLD_FILE: "old", "usr/lib/moss-voice/moss-voice": "old"}
    for name, text in texts.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    target = folder / "older.deb"
    command = ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(target)]
    subprocess.run(command, check=True, capture_output=True)
    return target


def succeeded(ended: CompletedRun) -> str:
    """What a program printed; CheckFailed unless it ended with status 0, without a traceback."""
    require(ended.status == 0, f"exit status {ended.status}: {(ended.stderr or ended.stdout).strip()[-500:]}")
    require("Traceback" not in ended.stderr, ended.stderr[-500:])
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main())
