"""moss-voice inspect: show the contents of a bundle and verify its files.

With --tensors each tensor's name, shape and dtype is compared with the networks that the manifest describes,
and all differences are listed; exit status 1 if there is one. No weight is read for that.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors

from app import paths
from app.progress import progress_bar, progress_lines
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.errors import BundleError

if TYPE_CHECKING:
    from engine_runtime.inventory import Inventory


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "inspect", help="show the contents of a model bundle and verify its files", description=__doc__
    )
    parser.add_argument(
        "bundle", metavar="BUNDLE", nargs="?", type=paths.user_path, help="folder (default: the shipped one)"
    )
    parser.add_argument(
        "--tensors", action="store_true", help="compare the tensors with the manifest, in place of the hashes"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--progress", action="store_true", help="first print progress as lines of JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Open, check and describe the bundle."""
    if arguments.tensors:
        return _compare_tensors(Bundle.open(_folder(arguments.bundle), verify="none"), arguments.json)
    with (progress_lines if arguments.progress else progress_bar)("check") as progress:
        bundle = Bundle.open(_folder(arguments.bundle), verify="sha256", progress=progress)
    description = describe(bundle)
    if arguments.json:
        print(json.dumps(description))
    else:
        print("\n".join(_lines(description)))
    return 0


def _compare_tensors(bundle: Bundle, as_json: bool) -> int:
    """Print each network's tensors, and how they differ. Exit status 0 if they do not."""
    from engine_runtime.inventory import take_inventory

    networks = take_inventory(bundle)
    if as_json:
        documents = [asdict(network) | {"differences": network.differences} for network in networks]
        print(json.dumps({"name": bundle.name, "networks": documents}))
    else:
        print("\n".join(line for network in networks for line in _inventory_lines(network)))
    return 1 if any(network.differences for network in networks) else 0


def _inventory_lines(network: Inventory) -> list[str]:
    head = f"{network.network:<16}{network.found:>5} of {network.expected} tensors, {network.dtype or '-'}"
    verdict = "all as described" if not network.differences else f"{len(network.differences)} differences"
    return [f"{head}: {verdict}", *(f"  {line}" for line in network.differences)]


def _folder(named: Path | None) -> Path:
    return paths.default_bundle() if named is None else paths.find_bundle(named)


def describe(bundle: Bundle) -> dict[str, Any]:
    """Description of a bundle, as plain values."""
    networks = {
        "lm": bundle.lm.weights,
        "speech_encoder": bundle.speech_encoder.weights,
        "flow": bundle.flow.weights,
        "vocoder": bundle.vocoder.weights,
    }
    return {
        "name": bundle.name,
        "path": str(bundle.path),
        "description": bundle.description,
        "licence": bundle.licence,
        "languages": list(bundle.card.languages),
        "tools": [tool.name for tool in bundle.card.tools],
        "unknown_keys": list(bundle.unknown_keys),
        "bytes": bundle.total_bytes,
        "files": {name: entry.size for name, entry in bundle.files.items()},
        "parameters": {name: sum(map(count_parameters, files)) for name, files in networks.items()},
        "input_sample_rate": bundle.speech_encoder.sample_rate,
        "cpu_encoder": "onnxruntime" if bundle.speech_encoder.graph else "torch",
        "mel": asdict(bundle.flow.mel),
        "vocoder": bundle.vocoder.kind,
        "packet_codes": list(bundle.flow.packets),
        "look_ahead_codes": bundle.flow.look_ahead_codes,
        "flow_steps": bundle.flow.steps,
        "context_tokens": bundle.lm.context_tokens,
        "kv_blocks": bundle.lm.kv_blocks,
        "tokens_per_block": bundle.lm.tokens_per_block,
        "subtitles": bundle.lm.subtitles,
        "detects_turn_end": bundle.lm.detects_turn_end,
    }


def count_parameters(file: Path) -> int:
    """Elements of all tensors of a weight file, from its header if it has one."""
    if file.suffix != ".safetensors":
        from engine_runtime.bundle.weights import stored_tensors

        return sum(math.prod(tensor.shape) for tensor in stored_tensors([file]).values())
    try:
        with safetensors.safe_open(file, framework="numpy") as content:  # without torch
            names = content.keys()
            return sum(math.prod(content.get_slice(name).get_shape()) for name in names)
    except (OSError, safetensors.SafetensorError) as error:
        raise BundleError(
            "{file} is not a safetensors file ({error}).",
            "Copy or download the bundle again.",
            file=file,
            error=error,
        ) from error


def _sizes(packets: list[int]) -> str:
    """The last size holds on: `5`, or `5, 5, 10, then 25`."""
    earlier = packets[:-1]
    while earlier and earlier[-1] == packets[-1]:
        earlier.pop()
    return ", ".join(map(str, earlier)) + f"{', then ' if earlier else ''}{packets[-1]}"


def _lines(about: dict[str, Any]) -> list[str]:
    mel = about["mel"]
    lines = [
        f"{about['name']}: {about['description']}",
        f"  folder      {about['path']}",
        f"  licence     {about['licence']}",
        f"  languages   {', '.join(about['languages']) or 'not stated'}",
        f"  size        {about['bytes'] / 1e6:.1f} MB in {len(about['files'])} files, sizes and hashes right",
        f"  hears       {about['input_sample_rate']} Hz, speech encoder on the CPU in {about['cpu_encoder']}",
        f"  speaks      {mel['sample_rate']} Hz through {about['vocoder']}, mel of {mel['n_mels']} bands, "
        f"n_fft {mel['n_fft']}, hop {mel['hop']}, {mel['fmin']:g}-{mel['fmax']:g} Hz",
        f"  packets     {_sizes(about['packet_codes'])} codes, each with {about['look_ahead_codes']} of "
        f"look-ahead; {about['flow_steps']} flow steps",
        f"  context     {about['context_tokens']} tokens, {about['kv_blocks']} KV blocks of "
        f"{about['tokens_per_block']}",
        f"  subtitles   {'yes' if about['subtitles'] else 'no'}",
        f"  turn end    {'detected by the language model' if about['detects_turn_end'] else 'not detected'}",
    ]
    lines += [f"  ignored     {sentence}" for sentence in about["unknown_keys"]]
    lines += [f"  {name:<15} {count / 1e6:8.3f} M parameters" for name, count in about["parameters"].items()]
    return lines
