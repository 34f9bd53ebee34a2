"""The file of `moss-voice doctor --report`, for troubleshooting by someone else.

In: the findings of the doctor, and folders of engines or checkpoints. Out: one text file, which lists its
contents at the top. It contains no sound and no text of a conversation (neither is ever logged); the home
folder is written as ~, the name of the user as USER, sound devices as DEVICE, played files as FILE, and the
server of the window as SERVER. A section that fails contains its error.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from app import paths
from app.commands.gpu_driver import driver_lines
from app.export import ExportFile
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.errors import MossVoiceError, redact

_LOG_LINES = 200
_TEXT_FILES = ("config.json", "moss_voice.json")
"""Files that describe an engine or a checkpoint of TensorRT-LLM."""
_LARGEST_TEXT = 100_000
_VARIABLES = re.compile(r"^(CUDA|HF_|LD_LIBRARY_PATH|MOSS_VOICE|NCCL|NVIDIA|OMP|PYTHONPATH|PYTORCH|TLLM|TRT)")
_SECRET = re.compile(r"AUTH|COOKIE|CREDENTIAL|KEY|PASS|PWD|SECRET|SIGNATURE|TOKEN", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)\S*@")
"""Credentials in a variable. It was never parsed as a URL, so a password may hold any character."""
_QUOTED = r"""'[^'\n]+'|"[^"\n]+\""""
_PRIVATE = (
    ("DEVICE", r"microphone: (.+?); loudspeaker: (.+)$"),
    ("DEVICE", r"^ok +(?:microphone|loudspeaker) +(.+)$"),
    ("DEVICE", r"cannot open (?:microphone|loudspeaker) (.+?): "),
    ("DEVICE", rf"(?:microphone|loudspeaker|sound device) ({_QUOTED})"),
    ("DEVICE", r"(?:microphone|loudspeaker|sound device) ([^'\"\n]+?) (?:cannot be opened|was lost)\."),
    ("FILE", r"sample (.+), [\d.]+ s$"),
    ("SERVER", r"the engine is the server (\S+)$"),
)
"""Where names occur in the findings and in the log: app/session/event_log.py and the messages of devices."""
_NO_NAMES = frozenset({"closed"})
_HEADER = """\
Report of moss-voice doctor. It holds: what doctor found, the system and its GPU, versions of all Python
packages, some variables of the environment (no passwords, no tokens), names, sizes and hashes of the model
files, the settings of the engines and checkpoints that were named, and the last {lines} lines of the log. It
holds no sound, nothing that was said or written in a conversation, and no name of yours: your home folder is
~, your user name USER, your sound devices DEVICE, the files that you played FILE, and the server that you use
SERVER. Look through it before you send it.
"""


def write_report(file: Path, findings: Sequence[str], folders: Sequence[Path]) -> None:
    """Write the report of `findings` (lines) and `folders` (engines, checkpoints). Raises ExportError."""
    sections: tuple[tuple[str, Callable[[], Iterator[str]]], ...] = (
        ("doctor", lambda: iter(findings)),
        ("system", _system),
        ("driver and GPU", driver_lines),
        ("environment", _variables),
        ("packages", _packages),
        ("bundles", _bundles),
        *((f"folder {folder}", _in_folder(folder)) for folder in folders),
        ("log", _log),
    )
    lines = [_HEADER.format(lines=_LOG_LINES)]
    for title, content in sections:
        lines.append(f"== {title}")
        try:
            lines += content()
        except Exception as error:  # the other sections are worth having all the same
            lines.append(f"{type(error).__name__}: {error}")
        lines.append("")
    with ExportFile(file, is_private=True) as export:
        text = without_names("\n".join(lines), _whole_log())
        export.write(redact(anonymous(text)).encode(errors="backslashreplace"))


def without_names(text: str, log: str = "") -> str:
    """Text without the names of devices, played files and servers that it or the `log` introduces."""
    names: dict[str, str] = {}
    for stand_in, pattern in _PRIVATE:
        for match in re.finditer(pattern, f"{text}\n{log}", re.MULTILINE):
            names |= {name.strip("'\""): stand_in for name in match.groups() if name not in _NO_NAMES}
            if stand_in == "SERVER":
                names[match[1].rpartition(":")[0] or match[1]] = stand_in
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", names[name], text)
    return text


def anonymous(text: str) -> str:
    """Text without the home folder and the user's name in paths."""
    for home in {Path.home(), Path.home().resolve()}:
        if home.name:  # "/" means no home folder, as in some containers
            text = re.sub(rf"{re.escape(str(home))}(?!\w)", "~", text)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without an entry, as in some containers
        return text
    return re.sub(rf"(?<=/){re.escape(user)}(?=/|\b)", "USER", text)


def _system() -> Iterator[str]:
    yield f"{platform.system()} {platform.release()} {platform.machine()}"
    yield from _lines_of("/etc/os-release", "PRETTY_NAME")
    yield f"Python {platform.python_version()}, {os.cpu_count()} processors"
    yield from _lines_of("/proc/meminfo", "MemTotal", "MemAvailable", "SwapTotal")
    for folder in dict.fromkeys((Path.home(), paths.user_bundles_dir(), Path.cwd())):
        there = next(path for path in (folder, *folder.parents) if path.is_dir())
        yield f"{shutil.disk_usage(there).free / 1e9:.0f} GB free for {folder}"


def _variables() -> Iterator[str]:
    for name, value in sorted(os.environ.items()):
        if _VARIABLES.match(name) and not _SECRET.search(name):
            yield f"{name}={_USERINFO.sub('', value)}"


def _packages() -> Iterator[str]:
    yield from sorted({f"{found.name}=={found.version}" for found in metadata.distributions()}, key=str.lower)


def _bundles() -> Iterator[str]:
    fetched = sorted(file.parent for file in paths.user_bundles_dir().glob("*/bundle.toml"))
    for folder in dict.fromkeys((paths.default_bundle(), *fetched)):
        try:
            bundle = Bundle.open(folder, verify="none")
        except MossVoiceError as error:
            yield str(error)
            continue
        yield f"{bundle.name} in {bundle.path}"
        for name, entry in bundle.files.items():
            there = bundle.path / name
            size = there.stat().st_size if there.is_file() else None
            yield f"{name}: {size} of {entry.size} bytes, stated SHA-256 {entry.sha256}"


def _in_folder(folder: Path) -> Callable[[], Iterator[str]]:
    def describe() -> Iterator[str]:
        for file in sorted(folder.iterdir()):
            yield f"{file.name}: {file.stat().st_size} bytes"
        for name in _TEXT_FILES:
            file = folder / name
            if file.is_file():
                yield f"-- {name}"
                yield file.read_text("utf-8", errors="replace")[:_LARGEST_TEXT]

    return describe


def _log() -> Iterator[str]:
    file = paths.log_file()
    if not file.is_file():
        yield f"no log at {file}"
        return
    yield from _whole_log().splitlines()[-_LOG_LINES:]


def _whole_log() -> str:
    """The log, in which a name may have been introduced long before its last lines; "" if there is none."""
    file = paths.log_file()
    return file.read_text("utf-8", errors="replace") if file.is_file() else ""


def _lines_of(file: str, *starts: str) -> Iterator[str]:
    path = Path(file)
    if path.is_file():
        yield from (line for line in path.read_text("utf-8").splitlines() if line.startswith(starts))
