"""Creates a bundle whose language model is a TensorRT-LLM checkpoint.

In: the source bundle and the checkpoint. Out: a folder with its own bundle.toml and links to the checkpoint
and to all other files. Any thread.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from engine_runtime.bundle.bundle import MANIFEST_NAME, Bundle, hash_file
from engine_runtime.bundle.manifest import to_toml
from engine_runtime.bundle.released.assembly import link, require_free
from engine_runtime.bundle.targets import require_folder
from engine_runtime.errors import BundleError, ExportError
from engine_runtime.tensorrt.checkpoint.format import ABOUT, CONFIG, WEIGHTS

CHECKPOINT_FOLDER = "lm"
"""Name of the link to the checkpoint in a bundle."""


def require_bundle(source: Path, checkpoint: Path, to: Path) -> None:
    """Check before the conversion that `make_bundle` can succeed. Raises BundleError for a bare checkpoint,
    which has no speech encoder, flow and vocoder; ExportError for a folder that cannot be written or contains
    another bundle; FetchError if another file is in the way.
    """
    if not (source / MANIFEST_NAME).is_file():
        raise BundleError(
            f"{source} is not a bundle, so no bundle can be created from it. "
            "Make one with `moss-voice fetch moss-speech --from DIR`, and convert that."
        )
    require_folder(to, "--bundle-to")
    if (to / MANIFEST_NAME).exists() and not (to / CHECKPOINT_FOLDER).is_symlink():
        raise ExportError(f"{to} holds another bundle. Choose another folder with --bundle-to.")
    links = {name: source / name for name in _other_files(Bundle.open(source, verify="size"))}
    for name, target in {**links, CHECKPOINT_FOLDER: checkpoint}.items():
        require_folder((to / name).parent, "--bundle-to")
        require_free(to / name, target)


def make_bundle(source: Path, checkpoint: Path, to: Path) -> Bundle:
    """Create it in the folder `to` and open it. Raises as `require_bundle`, and ExportError if it cannot be
    written.
    """
    require_bundle(source, checkpoint, to)
    original = Bundle.open(source, verify="size")
    manifest: dict[str, Any] = tomllib.loads((source / MANIFEST_NAME).read_text(encoding="utf-8"))
    manifest["files"] = {name: manifest["files"][name] for name in _other_files(original)}
    manifest["lm"] |= {"layout": "tensorrt-llm", "weights": f"{CHECKPOINT_FOLDER}/{WEIGHTS}"}
    manifest["bundle"]["description"] += "; language model from a TensorRT-LLM checkpoint"
    try:
        to.mkdir(parents=True, exist_ok=True)
        for name in manifest["files"]:
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            link(to / name, source / name)
        link(to / CHECKPOINT_FOLDER, checkpoint)
        for name in (WEIGHTS, CONFIG, ABOUT):
            file = checkpoint / name
            entry = {"size": file.stat().st_size, "sha256": hash_file(file)}
            manifest["files"][f"{CHECKPOINT_FOLDER}/{name}"] = entry
        unfinished = to / f"{MANIFEST_NAME}.part"
        unfinished.write_text(to_toml(manifest), encoding="utf-8")
        unfinished.replace(to / MANIFEST_NAME)
    except OSError as error:
        raise ExportError(
            f"The bundle cannot be created in {to}: {error.strerror or error}. Choose another folder for it."
        ) from error
    return Bundle.open(to, verify="size")


def _other_files(bundle: Bundle) -> list[str]:
    """Names of all files but those of the language model's weights."""
    replaced = {file.relative_to(bundle.path).as_posix() for file in bundle.lm.weights}
    return [name for name in bundle.files if name not in replaced]
