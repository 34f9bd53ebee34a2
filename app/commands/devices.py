"""moss-voice devices: the devices that could run a model, and the memory that each weight format takes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from app import paths
from engine_runtime.bundle.bundle import MANIFEST_NAME, Bundle

if TYPE_CHECKING:  # it imports torch
    from engine_runtime.memory_plan import DevicePlan


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "devices", help="show which devices and weight formats fit a model", description=__doc__
    )
    parser.add_argument(
        "model",
        metavar="BUNDLE",
        nargs="?",
        type=paths.user_path,
        help="folder, or the name of a model, which need not be fetched yet (default: the shipped one)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compute the plan and print it."""
    from engine_runtime.memory_plan import plan_devices

    plans = plan_devices(_open(arguments.model))
    if arguments.json:
        print(json.dumps({"devices": [asdict(plan) for plan in plans]}))
    else:
        print("\n".join(line for plan in plans for line in _lines(plan)))
    return 0


def _open(named: Path | None) -> Bundle:
    """The bundle, or the description of a released one that was not fetched."""
    from engine_runtime.bundle.released.full_size import describe

    folder = paths.default_bundle() if named is None else paths.find_bundle(named)
    if named is not None and not (folder / MANIFEST_NAME).is_file():
        return describe(named)
    return Bundle.open(folder, verify="none")


def _lines(plan: DevicePlan) -> Iterator[str]:
    yield (
        f"{plan.name}: {plan.description}, {plan.total_bytes / 1e9:.1f} GB, "
        f"{plan.free_bytes / 1e9:.1f} GB free"
    )
    for need in plan.needs:
        options = f"{need.weights}{' --tails --kv fp8' if need.saves_memory else ''}"
        verdict = "fits" if need.bytes <= plan.free_bytes else "does not fit now"
        yield f"  --weights {options:<24} {need.bytes / 1e9:6.1f} GB  {verdict}"
