"""The clients, and an environment for each: a folder with its packages and nothing else.

In: the folder of all environments. Out: the command that runs the driver of a client there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).resolve().parents[3] / "build" / "clients"
"""The folder of all environments, unless another one is wanted."""
DRIVERS = Path(__file__).parent / "drivers"
_INSTALLED = "installed.txt"


class InstallError(Exception):
    """The packages of a client cannot be installed."""


@dataclass(frozen=True)
class Client:
    """`name` is that of the table, `driver` a file of drivers/, `packages` what its environment holds."""

    name: str
    driver: str
    packages: tuple[str, ...]
    needs_tls: bool = False

    @property
    def is_python(self) -> bool:
        """Whether it comes from PyPI; else from npm."""
        return self.driver.endswith(".py")

    def folder(self, cache: Path) -> Path:
        """Its environment below the folder of all."""
        return cache / self.driver.replace(".", "-")

    def is_installed(self, cache: Path) -> bool:
        """Whether its environment has these packages."""
        installed = self.folder(cache) / _INSTALLED
        return installed.is_file() and installed.read_text(encoding="utf-8") == "\n".join(self.packages)

    def install(self, cache: Path) -> None:
        """Make its environment unless it is there. InstallError."""
        if self.is_installed(cache):
            return
        folder = self.folder(cache)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if self.is_python:
            _run([sys.executable, "-m", "venv", str(folder)])
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            _run([*pip, "--disable-pip-version-check", *self.packages])
        else:
            _run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *self.packages])
        (folder / _INSTALLED).write_text("\n".join(self.packages), encoding="utf-8")

    def command(self, cache: Path) -> list[str]:
        """What runs its driver."""
        folder = self.folder(cache)
        if self.is_python:
            module = f"{__package__}.drivers.{self.driver.removesuffix('.py')}"
            return [str(folder / "bin" / "python"), "-m", module]
        # Node looks for packages above the file that imports them.
        for name in ("driver.mjs", self.driver):
            shutil.copy(DRIVERS / name, folder / name)
        return ["node", str(folder / self.driver)]


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise InstallError(f"{command[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        raise InstallError(error.stderr.strip()[-500:]) from error


CLIENTS = (
    Client("openai", "openai_python.py", ("openai[realtime]==3.57.0",)),
    Client("openai (npm)", "openai.mjs", ("openai@7.59.0", "ws@8"), needs_tls=True),
    Client("@openai/agents (npm)", "openai_agents.mjs", ("@openai/agents@0.20.0",)),
    Client("openai-agents", "openai_agents.py", ("openai-agents==0.24.0", "websockets")),
    Client("pipecat-ai", "pipecat_ai.py", ("pipecat-ai[openai,websockets-base]==1.14.0",)),
    Client(
        "livekit-agents",
        "livekit_agents.py",
        ("livekit-agents==1.8.9", "livekit-plugins-openai[realtime]==1.8.9"),
    ),
    Client("semantic-kernel", "semantic_kernel.py", ("semantic-kernel==1.45.0", "websockets")),
    Client("openai-realtime-api (npm)", "openai_realtime_api.mjs", ("openai-realtime-api@1.0.8", "ws@8")),
)
