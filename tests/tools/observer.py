"""Runs a program under strace and lists its network traffic and written files.

    observed = Observed(["python", "-m", "app", "doctor"], folder, environment, cwd).finish(timeout_s=60)

strace sees the system calls of all threads and children, including native libraries. Sockets of local
services (X11, PulseAudio, D-Bus: AF_UNIX) and of the kernel (AF_NETLINK) do not count as network.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_OPENING = ("open", "openat", "openat2", "creat")
_NAMING = (
    *("mkdir", "mkdirat", "mknod", "mknodat", "rename", "renameat", "renameat2"),
    *("link", "linkat", "symlink", "symlinkat"),
)
_STRACE = (
    *("strace", "-f", "-qq", "-yy", "-s", "4096", "--seccomp-bpf"),
    *("-e", ",".join(("trace=network", *_OPENING, *_NAMING))),
)
_CALL = re.compile(r"(?P<name>\w+)\((?P<arguments>.*)\)\s+= (?P<result>-?\d+|\?)(?P<rest>.*)")
_INET = re.compile(r"sa_family=AF_INET6?\b")
_PATH = re.compile(r'(?:<(?P<folder>[^<>]*)>, )?"(?P<name>(?:[^"\\]|\\.)*)"')
_TO_WRITE = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC")
_LOOKUP = re.compile(r'"/etc/resolv\.conf"|/io\.systemd\.Resolve"|/dns-stub|/resolve/')
"""What a look-up of a host name reads, or which service it asks, before any packet is sent."""


@dataclass(frozen=True)
class Observation:
    """How a program ended and what it did: system calls that reach for the network, paths that it wrote."""

    status: int
    output: str
    network: list[str]
    written: set[Path]


class Observed:
    """A program that runs under strace, whose log and output go to `folder`."""

    def __init__(
        self, command: Sequence[str | Path], folder: Path, environment: Mapping[str, str], cwd: Path
    ) -> None:
        self._folder, self._cwd = folder, cwd
        self._log = folder / "strace.log"
        with (folder / "output.txt").open("wb") as output:
            self._process = subprocess.Popen(
                [*_STRACE, "-o", str(self._log), *map(str, command)],
                cwd=cwd,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def finish(self, timeout_s: float) -> Observation:
        """Wait for the end. subprocess.TimeoutExpired after `timeout_s`, when the program is ended."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        calls = list(calls_of(self._log.read_text("utf-8", errors="replace")))
        output = (self._folder / "output.txt").read_text("utf-8", errors="replace")
        return Observation(status, output, network_calls(calls), written_paths(calls, self._cwd))

    def kill(self) -> None:
        """Kill the program if it still runs; killing strace alone would not."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def why_not() -> str | None:
    """Why observation is not possible; None if it is."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(
        [*_STRACE, "-o", os.devnull, "true"], capture_output=True, text=True, check=False, timeout=30
    )
    return None if tried.returncode == 0 else f"strace cannot run: {tried.stderr.strip()}"


def calls_of(log: str) -> Iterator[re.Match[str]]:
    """The system calls of a log, those put together that another thread interrupted."""
    unfinished: dict[str, str] = {}
    for line in log.splitlines():
        thread, _, text = line.partition(" ")
        text = text.strip()
        if text.endswith("<unfinished ...>"):
            unfinished[thread] = text.removesuffix("<unfinished ...>")
            continue
        if text.startswith("<... "):
            text = unfinished.pop(thread, "") + text.partition(" resumed>")[2]
        if call := _CALL.fullmatch(text):
            yield call


def network_calls(calls: Iterable[re.Match[str]]) -> list[str]:
    """Calls that reach for the network or wait for someone from there, as strace prints them."""
    return [call.string for call in calls if _is_network(call)]


def _is_network(call: re.Match[str]) -> bool:
    """Also if it failed: trying is enough.

    A TCP socket receives nothing before `listen`, which is a call of its own; urllib3 binds one when it is
    imported, to learn whether there is IPv6. A UDP socket receives once it is bound.
    """
    name, arguments = call["name"], call["arguments"]
    if name == "bind" and "<TCP" in arguments:
        return False
    if name in ("connect", "sendto", "sendmsg", "sendmmsg", "bind"):
        return bool(_INET.search(arguments) or _LOOKUP.search(arguments))
    if name == "listen":
        return "<UNIX" not in arguments
    return name in _OPENING and bool(_LOOKUP.search(arguments))


def written_paths(calls: Iterable[re.Match[str]], cwd: Path) -> set[Path]:
    """What was opened to write to it, made, linked or renamed to."""
    return set(_written(calls, cwd))


def _written(calls: Iterable[re.Match[str]], cwd: Path) -> Iterator[Path]:
    for call in calls:
        if call["result"].startswith(("-", "?")):
            continue
        if call["name"] in _OPENING:
            opened = call["rest"].strip().removeprefix("<").removesuffix(">")
            if (call["name"] == "creat" or _TO_WRITE.search(call["arguments"])) and "<char " not in opened:
                yield Path(_unescaped(opened.removesuffix(">(deleted)")))
        elif call["name"] in _NAMING:
            *_, target = _PATH.finditer(call["arguments"])
            folder, name = _unescaped(target["folder"] or ""), _unescaped(target["name"])
            yield Path(os.path.normpath(cwd / folder / name))


def _unescaped(text: str) -> str:
    """A path as strace prints it, bytes beyond ASCII in octal."""
    return os.fsdecode(text.encode().decode("unicode_escape").encode("latin-1"))
