"""moss-voice gpu: install, remove and show the GPU runtime of the packaged program.

The packaged program has torch for the processor. `install` downloads the CUDA build by a lock with hashes,
tests it in a child process and lets the next start use it. Notes and progress go to stderr, results to
stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from app import paths
from app.commands.talk import UsageError
from app.gpu_runtime.lock import read_lock
from app.gpu_runtime.status import RuntimeStatus, find_status, refuse_elsewhere
from app.gpu_runtime.store import RuntimeRecord, RuntimeStore
from app.progress import progress_bar, say

if TYPE_CHECKING:
    from app.gpu_runtime.install import Report, Step
    from app.package_index import PackageIndex

_STATES = {
    "absent": "not installed",
    "active": "in use",
    "ready": "installed; the next start uses it",
    "failed": "not used",
    "untested": "unpacked, but its test was not passed: moss-voice gpu install",
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand and its parts."""
    parser = commands.add_parser(
        "gpu", help="install or remove what the packaged program needs for a GPU", description=__doc__
    )
    parts = parser.add_subparsers(title="parts", metavar="PART", required=True)
    parser = parts.add_parser("install", help="install, repair or update the GPU runtime, and test it")
    parser.add_argument(
        "--wheels",
        type=paths.user_path,
        metavar="DIR",
        help="take the wheels from this folder and send nothing; `gpu download` fills it",
    )
    _add_index(parser)
    parser.add_argument(
        "--without-gpu",
        action="store_true",
        help="install it although no GPU can be used here",
    )
    parser.add_argument("--json", action="store_true", help="print progress and result as lines of JSON")
    parser.set_defaults(run=_install)
    parser = parts.add_parser("download", help="fill a folder with its wheels, for a machine without network")
    parser.add_argument("folder", type=paths.user_path, metavar="DIR", help="the folder")
    _add_index(parser)
    parser.set_defaults(run=_download)
    parser = parts.add_parser(
        "remove", help="remove the GPU runtime; the program runs on the processor again"
    )
    parser.add_argument(
        "--older", action="store_true", help="remove the runtimes of other versions of the program"
    )
    parser.set_defaults(run=_remove)
    parser = parts.add_parser("status", help="show what is installed, its size, and what its test found")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_status)


def describe(status: RuntimeStatus) -> Iterator[str]:
    """The status, as lines for people."""
    lock, record = status.lock, status.record
    yield f"GPU runtime: {_STATES[status.state]}"
    if record is not None and record.failure:
        yield f"reason: {record.failure}. Repair it: moss-voice gpu install"
    if status.state == "absent":
        yield f"to download: {_gb(lock.download_bytes)}, on the disk: {_gb(lock.unpacked_bytes)}"
        yield "install it: moss-voice gpu install"
    elif status.size:
        yield f"folder: {status.folder}, {_gb(status.size)}"
    if record is not None and not record.failure:
        yield from _found(record)
    if status.older:
        yield f"of other versions: {_gb(status.older_size)}. Remove them: moss-voice gpu remove --older"


def _found(record: RuntimeRecord) -> Iterator[str]:
    yield f"torch {record.torch}"
    yield from record.devices or ("no GPU",)
    if record.no_triton:
        yield f"Triton kernels cannot run ({record.no_triton}): slower operations of torch are used"


def _add_index(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--index-url",
        metavar="URL",
        help="a mirror of PyPI (PEP 503); hashes are checked",
    )


def _index(arguments: argparse.Namespace) -> PackageIndex | None:
    from app.package_index import PackageIndex

    return None if arguments.index_url is None else PackageIndex(arguments.index_url)


def _install(arguments: argparse.Namespace) -> int:
    from app.gpu_runtime.install import install

    refuse_elsewhere()
    if arguments.wheels is not None and arguments.index_url is not None:
        raise UsageError("--wheels and --index-url exclude each other.", "Give one of them.")
    lock, store = read_lock(), RuntimeStore(paths.gpu_runtime_dir())
    with _json_lines() if arguments.json else _bars() as report:
        record = install(
            lock,
            store,
            report,
            index=_index(arguments),
            wheels=arguments.wheels,
            needs_gpu=not arguments.without_gpu,
        )
    if arguments.json:
        print(json.dumps({"torch": record.torch, "devices": record.devices, "no_triton": record.no_triton}))
        return 0
    print("\n".join(_found(record)))
    say("The GPU runtime is installed. Start the program again to use it, with --device cuda.")
    return 0


def _download(arguments: argparse.Namespace) -> int:
    from app.gpu_runtime.install import fill_folder

    folder: Path = arguments.folder
    with _bars() as report:
        fill_folder(read_lock(), folder, report, _index(arguments))
    say("Copy the folder to the machine without network. There: moss-voice gpu install --wheels DIR")
    print(folder)
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    store = RuntimeStore(paths.gpu_runtime_dir())
    if not store.root.is_dir():
        say("No GPU runtime is installed.")
        return 0
    with store.busy():
        if arguments.older:
            lock = read_lock()
            store.remove_others([lock.key, *(wheel.file_name for wheel in lock.wheels)])
        else:
            store.remove_all()
    say("Removed. The program runs on the processor." if not arguments.older else "Removed what was older.")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    status = find_status()
    if not arguments.json:
        print("\n".join(describe(status)))
        return 0
    record = status.record or RuntimeRecord()
    found = {
        "state": status.state,
        "folder": str(status.folder),
        "torch": record.torch,
        "devices": record.devices,
        "no_triton": record.no_triton,
        "failure": record.failure,
        "size": status.size + status.older_size,
        "download": status.lock.download_bytes,
        "unpacked": status.lock.unpacked_bytes,
    }
    print(json.dumps(found))
    return 0


@contextlib.contextmanager
def _bars() -> Iterator[Report]:
    """A progress bar for each step, one after the other."""
    with contextlib.ExitStack() as stack:
        running: dict[Step, Callable[[float], None]] = {}

        def report(step: Step, done: int, total: int) -> None:
            if step not in running:
                stack.close()
                say(f"{step} ..." if not total else f"{step} {_gb(total)} ...")
                running[step] = stack.enter_context(progress_bar(step))
            if total:
                running[step](done / total)

        yield report


@contextlib.contextmanager
def _json_lines() -> Iterator[Report]:
    """A line for each step and each percent of it."""
    last: list[object] = []

    def report(step: Step, done: int, total: int) -> None:
        key = [step, done * 100 // total if total else 0]
        if key != last:
            last[:] = key
            print(json.dumps({"step": step, "done": done, "total": total}), flush=True)

    yield report


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
