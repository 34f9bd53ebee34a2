"""A bare Debian in a folder, and programs that run in it.

In: names of packages, command lines. Out: the exit status and the output of each, and how often it tried to
use the network. A program gets an empty environment, a PID namespace and a network namespace without a route,
where it asks for that with a loopback interface.
Needs root and, to make the folder, mmdebstrap and a Debian mirror. Any thread.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HOME = Path("/home/user")
PATH = "/usr/local/bin:/usr/bin:/bin"
_USER = 1000
_SNMP = "/proc/self/net/snmp"
# SIOCSIFFLAGS with IFF_UP and IFF_RUNNING; `ip link set lo up` needs a package.
_LOOPBACK = (
    "import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH22x', b'lo', 0x41))"
)


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine, shown in the bare one."""

    source: Path
    target: Path
    """Absolute, as seen inside."""
    is_read_only: bool = False


@dataclass(frozen=True, slots=True)
class CompletedRun:
    """What became of a program."""

    status: int
    stdout: str
    stderr: str
    unroutable: int
    """Attempts to send over IPv4, so also every look-up of a name, that were refused for want of a route."""


class BareRoot:
    """The folder. `make` fills it; a folder that was made before can be used again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, suite: str, packages: list[str]) -> None:
        """Install Debian's smallest set of packages and these. Raises subprocess.CalledProcessError."""
        options = ["--mode=root", "--variant=minbase", "--quiet", "--dpkgopt=force-unsafe-io"]
        command = ["mmdebstrap", *options, f"--include={','.join(packages)}", suite, str(self.folder)]
        subprocess.run(command, check=True)
        self.run(
            ["useradd", "--create-home", "--uid", str(_USER), "--shell", "/bin/sh", "user"], is_root=True
        )

    def inside(self, path: Path) -> Path:
        """Where a path of the bare machine lies on this one."""
        return self.folder / path.relative_to("/")

    def run(
        self,
        words: list[str],
        *,
        environment: dict[str, str] | None = None,
        mounts: tuple[Mount, ...] = (),
        is_root: bool = False,
        has_loopback: bool = False,
        timeout_s: float = 300.0,
    ) -> CompletedRun:
        """Run a program to its end, as a user unless `is_root`. Raises subprocess.TimeoutExpired."""
        with tempfile.TemporaryDirectory() as folder:
            counts = Path(folder) / "snmp"
            command = self.command(
                words,
                environment=environment,
                mounts=mounts,
                is_root=is_root,
                has_loopback=has_loopback,
                counts=counts,
            )
            ended = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False, timeout=timeout_s
            )
            return CompletedRun(ended.returncode, ended.stdout, ended.stderr, unroutable(counts.read_text()))

    def command(
        self,
        words: list[str],
        *,
        environment: dict[str, str] | None = None,
        mounts: tuple[Mount, ...] = (),
        is_root: bool = False,
        has_loopback: bool = False,
        counts: Path = Path(os.devnull),
    ) -> list[str]:
        """The command line for this machine; its network counters are written to `counts` at the end."""
        quoted = shlex.quote(str(self.folder))
        lines = [f"mount -t proc proc {quoted}/proc", f"mount -t tmpfs shm {quoted}/dev/shm"]
        for mount in mounts:
            source, target = (shlex.quote(str(path)) for path in (mount.source, self.inside(mount.target)))
            lines += [f"mkdir -p {target}", f"mount --bind {source} {target}"]
            lines += [f"mount -o remount,ro,bind {target}"] if mount.is_read_only else []
        lines += [shlex.join([sys.executable, "-c", _LOOPBACK])] if has_loopback else []
        home = Path("/root") if is_root else HOME
        variables = {
            "HOME": str(home),
            "PATH": f"{PATH}:/usr/sbin:/sbin" if is_root else PATH,
            "LANG": "C.UTF-8",
        }
        variables |= environment or {}
        user = "0:0" if is_root else f"{_USER}:{_USER}"
        enter = ["chroot", f"--userspec={user}", "--groups=", str(self.folder), "env", "-i", "-C", str(home)]
        enter += [f"{name}={text}" for name, text in variables.items()]
        lines += [
            f"{{ {shlex.join([*enter, *words])}; status=$?; }}",
            f"cat {_SNMP} >{shlex.quote(str(counts))}",
        ]
        script = " && ".join(lines) + " && exit $status"
        return ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]

    def files(self) -> set[str]:
        """Every path below the root, but what the package manager notes and what users keep."""
        kept = re.compile(r"/(proc|sys|dev|tmp|run|home|root|var/(cache|log|lib/(dpkg|apt)))(/|$)")
        found: set[str] = set()
        for folder, names, files in os.walk(self.folder):
            inside = "/" + os.path.relpath(folder, self.folder).removeprefix(".")
            names[:] = [name for name in names if not kept.match(os.path.join("/", inside, name))]  # noqa: PTH118
            found |= {os.path.join("/", inside, name) for name in (*names, *files)}  # noqa: PTH118
        return found


def unroutable(snmp: str) -> int:
    """What /proc/net/snmp counts as refused for want of a route."""
    names, values = (line.split() for line in snmp.splitlines() if line.startswith("Ip:"))
    return int(values[names.index("OutNoRoutes")])
