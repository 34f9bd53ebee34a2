"""moss-voice doctor: check the installation; with --report, write a report for troubleshooting.

Each check runs on its own, so that one failure does not hide the others. Exit status 1 if something required
is missing; sound devices, a GPU and a display are optional. --newest makes the only check that uses the
network.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from app import paths
from app.commands.doctor_report import write_report
from app.commands.talk import UsageError
from app.commands.window import NoDisplayError, find_display
from app.export import check_target
from app.progress import PROBLEM_VARIABLE, printed_problem
from app.version import VERSION
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.errors import EngineError, MossVoiceError, redact
from engine_runtime.installation import gpu_remedy, is_frozen, remedy
from engine_runtime.options import EngineOptions

if TYPE_CHECKING:
    from app.package_index import PackageIndex


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    status: Literal["ok", "note", "missing"]
    what: str
    detail: str
    what_to_do: str = ""


_MARKS = {"ok": "ok     ", "note": "note   ", "missing": "MISSING"}
_ECHO_CANCELLER = "pywebrtc-audio"
"""The only one of these libraries that is optional."""
_LIBRARIES = (
    "torch", "numpy", "safetensors", "tokenizers", "bigvgan", "huggingface-hub", "onnxruntime", "silero-vad",
    "sounddevice", "soxr", _ECHO_CANCELLER, "PySide6-Essentials", "pyqtgraph",
)  # fmt: skip
_WIDTH = max(map(len, _LIBRARIES))
_DISPLAY_TIMEOUT_S = 20
_LOAD_WINDOW_S = 0.3
_BUSY_SHARE = 0.5
"""Share of the cores that others may take without a note."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "doctor", help="check the installation and show remedies", description=__doc__
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--report",
        type=paths.user_path,
        metavar="FILE",
        help="also write a report for troubleshooting; its first lines list its contents",
    )
    parser.add_argument(
        "--about",
        type=paths.user_path,
        metavar="DIR",
        nargs="+",
        default=[],
        help="with --report: folders of TensorRT-LLM checkpoints or engines to describe in it",
    )
    parser.add_argument(
        "--newest", action="store_true", help="also ask PyPI for the newest version (uses the network)"
    )
    parser.add_argument("--index-url", metavar="URL", help="with --newest: ask this index (PEP 503) instead")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make all checks and print them."""
    _check_report(arguments.report, arguments.about)
    if arguments.index_url is not None and not arguments.newest:
        raise UsageError("--index-url needs --newest.", "Give both, or neither.")
    findings = list(examine())
    if arguments.newest:
        findings += newest(arguments.index_url)
    missing = [finding for finding in findings if finding.status == "missing"]
    lines = [*_lines(findings), _summary(missing)]
    if arguments.report is not None:
        write_report(arguments.report, lines, arguments.about)
        lines.append(f"The report is in {arguments.report}. It lists its contents at the top: read it first.")
    if arguments.json:
        lines = [json.dumps({"findings": [asdict(finding) for finding in findings], "missing": len(missing)})]
    print("\n".join(lines))
    return 1 if missing else 0


def _check_report(file: Path | None, folders: Sequence[Path]) -> None:
    """Raise UsageError early for a report that could not be written or would be incomplete."""
    if file is not None:
        check_target(file)
    elif folders:
        raise UsageError("--about needs --report FILE.", "Give both, or neither.")
    for folder in folders:
        if not os.path.isdir(folder):  # noqa: PTH112
            raise UsageError(
                "There is no folder {folder} to describe.", "Check the names after --about.", folder=folder
            )


def _lines(findings: Iterable[Finding]) -> Iterator[str]:
    for finding in findings:
        yield f"{_MARKS[finding.status]} {finding.what:<{_WIDTH}} {finding.detail}"
        if finding.what_to_do:
            yield f"{'':{_WIDTH + 9}}-> {finding.what_to_do}"


def _summary(missing: Iterable[Finding]) -> str:
    names = ", ".join(finding.what for finding in missing)
    return f"Missing: {names}." if names else "Everything required is installed."


def examine() -> Iterator[Finding]:
    """All findings, in the order in which a problem is best solved."""
    checks: tuple[tuple[str, Callable[[], Iterable[Finding]]], ...] = (
        ("Python", _python),
        ("libraries", _libraries),
        ("Smart Turn", _end_of_turn),
        ("bundles", _bundles),
        ("sound", _sound),
        ("display", _display),
        ("processor", _processor),
        ("GPU", gpu),
        ("GPU runtime", gpu_runtime),
        ("TensorRT-LLM", tensorrt_llm),
    )
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:  # a check that breaks is a finding
            yield Finding("missing", name, f"{type(error).__name__}: {error}", str(remedy()))


def _python() -> Iterator[Finding]:
    version = sys.version_info
    detail = f"{version.major}.{version.minor}.{version.micro} at {sys.executable}"
    if (3, 11) <= version[:2] <= (3, 12):
        yield Finding("ok", "Python", detail)
    else:
        yield Finding("missing", "Python", detail, "Use Python 3.11 or 3.12.")


def _libraries() -> Iterator[Finding]:
    from engine_runtime import hardware

    for name in _LIBRARIES:
        try:
            version = metadata.version(name)
            yield Finding("ok", name, hardware.torch_build() if name == "torch" else version)
        except metadata.PackageNotFoundError:
            if name == _ECHO_CANCELLER:
                detail = "not installed: echo is not cancelled, use headphones"
                yield Finding("note", name, detail, str(remedy()))
            else:
                yield Finding("missing", name, "not installed", str(remedy()))


def _end_of_turn() -> Iterator[Finding]:
    from app.dialog.smart_turn import SmartTurn

    name = "Smart Turn"
    try:
        SmartTurn()
    except MossVoiceError as error:
        yield Finding("note", name, error.what_is_wrong, error.what_to_do)
    else:
        yield Finding(
            "ok", name, f"v3.2 of pipecat-ai {metadata.version('pipecat-ai')} detects the end of a turn"
        )


def _bundles() -> Iterator[Finding]:
    chosen = paths.default_bundle()
    folders = (paths.bundles_dir(), paths.user_bundles_dir())
    others = [file.parent for folder in folders for file in sorted(folder.glob("*/bundle.toml"))]
    for path in dict.fromkeys([chosen, *others]):
        try:
            bundle = Bundle.open(path)
        except MossVoiceError as error:
            advice = f"Set {paths.BUNDLE_VARIABLE} or give --bundle with a complete bundle."
            yield Finding("missing" if path == chosen else "note", "bundle", str(error), advice)
        else:
            role = " (used by default)" if path == chosen else ""
            yield Finding("ok", "bundle", f"{bundle.name}, {bundle.total_bytes / 1e6:.0f} MB, {path}{role}")
            if path == chosen:
                yield _speech_encoder(bundle)
                yield _turn_end(bundle)


def _speech_encoder(bundle: Bundle) -> Finding:
    """The backend that runs it on the CPU; the network is loaded only if the graph has to be tried."""
    if bundle.speech_encoder.graph is None:
        return Finding("ok", "encoder", "torch (the bundle has no graph)")
    from engine_runtime.codec.loading import load_speech_encoder

    backend = load_speech_encoder(bundle, EngineOptions()).backend
    if backend.startswith("torch"):
        return Finding(
            "note", "encoder", backend, "Copy or download the bundle again, or update onnxruntime."
        )
    return Finding("ok", "encoder", backend)


def _turn_end(bundle: Bundle) -> Finding:
    """Whether the language model helps Smart Turn."""
    detail = (
        "detected by the language model, too" if bundle.lm.detects_turn_end else "not detected by the bundle"
    )
    return Finding("ok", "end of turn", detail)


def _sound() -> Iterator[Finding]:
    advice = "Install PortAudio: apt-get install libportaudio2 libasound2-plugins"
    try:
        import sounddevice
    except OSError as error:
        yield Finding("note", "PortAudio", f"not found ({error}); `talk` works without it", advice)
        return
    yield Finding("ok", "PortAudio", sounddevice.get_portaudio_version()[1])
    from app.audio.sound_server import current_devices

    found = current_devices()
    for kind, devices in (("microphone", found.inputs), ("loudspeaker", found.outputs)):
        names = [device.description or device.name for device in devices if not device.is_monitor]
        if names:
            yield Finding("ok", kind, ", ".join(names))
        else:
            yield Finding(
                "note",
                kind,
                "none; sample questions, typed questions and `talk` work without one",
                "Plug one in, or start PulseAudio or PipeWire, then look again.",
            )


def _display() -> Iterator[Finding]:
    import PySide6.QtWidgets  # fails where a system library of Qt is missing

    display = find_display()
    version = PySide6.__version__
    if display is None:
        yield Finding(
            "note",
            "display",
            f"none, Qt {version}; `talk` and `bench` work without one",
            "Log in to a desktop, or set DISPLAY, to open the window.",
        )
    elif reason := _why_no_window():
        yield Finding(
            "note", "display", f"{display}, Qt {version}: {reason.what_is_wrong}", reason.what_to_do
        )
    else:
        yield Finding("ok", "display", f"{display}, Qt {version}")


def _why_no_window() -> MossVoiceError | None:
    """The error of Qt if it cannot open a window. Tried in a subprocess, because Qt may abort."""
    try:
        probe = subprocess.run(
            [sys.executable, "-m", "app.gui.window.application"],
            cwd=Path(__file__).parents[2],
            env=os.environ | {PROBLEM_VARIABLE: "1"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DISPLAY_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return NoDisplayError(
            "The display did not answer within {seconds} s.",
            "Check DISPLAY and QT_QPA_PLATFORM.",
            seconds=_DISPLAY_TIMEOUT_S,
        )
    if probe.returncode == 0:
        return None
    if (problem := printed_problem(probe.stdout)) is not None:
        return NoDisplayError.from_problem(problem)
    last_line = (probe.stderr.strip().splitlines() or ["Qt could not be started"])[-1]
    return NoDisplayError("{said}", said=last_line)


def _processor() -> Iterator[Finding]:
    from engine_runtime import hardware

    found = hardware.environment()
    threads, waiting = found["torch_threads"], found["thread_waiting"]
    yield Finding("ok", "processor", f"{found['processor']}, {found['cores']} cores")
    yield Finding("ok", "threads", f"torch uses {threads}, fewer while other programs run; {waiting}")
    if (load := hardware.load_of_others(_LOAD_WINDOW_S)) >= _BUSY_SHARE * int(found["cores"]):
        yield Finding(
            "note",
            "load",
            f"other programs keep {load:.1f} of {found['cores']} cores busy; replies take longer",
            "Close programs that are not needed while you talk.",
        )


def gpu() -> Iterator[Finding]:
    """The devices that torch can use."""
    from engine_runtime import hardware

    if devices := hardware.accelerators():
        for device in devices:
            yield Finding("ok", "GPU", device)
            yield _kernels(device.split()[0])
    elif shutil.which("nvidia-smi") or os.path.exists("/proc/driver/nvidia"):  # noqa: PTH110
        yield Finding("note", "GPU", "there, but torch cannot use it", str(gpu_remedy()))
    else:
        yield Finding("note", "GPU", "none; the shipped bundle is made for the processor")


def _kernels(name: str) -> Finding:
    """The kernels that an engine on this device (cuda:N) runs, and why no faster ones."""
    from engine_runtime.cuda.availability import describe_kernels, triton_remedy, why_no_triton
    from engine_runtime.hardware import usable_device

    device = usable_device(name)
    if (reason := why_no_triton(device)) is None:
        return Finding("ok", "kernels", f"{name}: {describe_kernels(device)}")
    slow = f"{name}: plain torch, several times slower and without quantized weights: {reason}"
    return Finding("note", "kernels", slow, triton_remedy(reason))


def gpu_runtime() -> Iterator[Finding]:
    """The GPU runtime of the packaged program; elsewhere the installed torch is the one that runs."""
    from app.commands.gpu import describe
    from app.gpu_runtime.status import find_status

    if not is_frozen():
        return
    name = "GPU runtime"
    try:
        status = find_status()
    except MossVoiceError as error:
        yield Finding("note", name, error.what_is_wrong, error.what_to_do)
        return
    detail = "; ".join(describe(status)).removeprefix(f"{name}: ")
    if status.state in ("failed", "untested"):
        yield Finding("note", name, detail, str(gpu_remedy()))
    elif status.state != "absent" or status.older:
        yield Finding("ok", name, detail)


def tensorrt_llm() -> Iterator[Finding]:
    """Only required for engines, in an environment with the versions of its dependencies."""
    from engine_runtime import hardware
    from engine_runtime.tensorrt.llm import library

    name, version = "TensorRT-LLM", library.installed_version("tensorrt-llm")
    if is_frozen():
        detail = "not in the packaged program, needed only for engines of large models on NVIDIA GPUs"
        advice = (
            "Let the engine run in an environment that has it: moss-voice --engine-python ENV/bin/python "
            "--backend trtllm --engine DIR (packaging/TENSORRT.md in its source says how to make one)."
        )
        yield Finding("note", name, detail, advice)
        return
    found = [
        f"{clash.package} {clash.installed or 'missing'} (wants {clash.required})"
        for clash in library.clashes()
    ]
    if sys.version_info[:2] != (3, 12):
        found.append(f"Python {sys.version_info.major}.{sys.version_info.minor} (wants 3.12)")
    if not (cuda := hardware.torch_cuda() or "no CUDA").startswith("13."):
        found.append(f"torch for {cuda} (wants CUDA 13)")
    if version is None:
        clash = f"; it would clash with {', '.join(found)}" if found else ""
        detail = f"not installed, needed only for engines of large models on NVIDIA GPUs{clash}"
        yield Finding("note", name, detail, "Its own environment: packaging/TENSORRT.md.")
        return
    try:
        library.check_version(version)
    except EngineError as error:
        yield Finding("note", name, error.what_is_wrong, error.what_to_do)
        return
    yield Finding("ok", name, version)
    for clash in found:
        yield Finding("note", name, f"{version} clashes with {clash}", "See packaging/TENSORRT.md.")


def newest(index_url: str | None) -> Iterator[Finding]:
    """One finding."""
    from app.package_index import NETWORK_ERRORS, PYPI, PackageIndex, reason_of

    index, own = PackageIndex(index_url or PYPI), VERSION
    where = redact(index.url)
    try:
        found = newest_version(index)
    except (*NETWORK_ERRORS, ValueError) as error:
        detail = f"{own}; {where} cannot be asked: {reason_of(error)}"
        yield Finding("note", "version", detail, "Check the connection and the address.")
        return
    if found is None:
        advice = "Look where this copy came from, or name the index that has it: --newest --index-url URL."
        yield Finding("note", "version", f"{own}; {where} has no release of it", advice)
    elif Version(own) < found:
        advice = "Install the newer one from where this one came."
        yield Finding("note", "version", f"{own}; the newest at {where} is {found}", advice)
    else:
        yield Finding("ok", "version", f"{own}, the newest at {where}")


_PACKAGE = "moss-voice"


def newest_version(index: PackageIndex) -> Version | None:
    """The newest release there; None if there is none. Raises NETWORK_ERRORS, and ValueError for an address
    that is none.
    """
    found = [version for name in index.files(_PACKAGE) if (version := _version_of(name)) is not None]
    return max((version for version in found if not version.is_prerelease), default=None)


def _version_of(file: str) -> Version | None:
    try:
        return parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
